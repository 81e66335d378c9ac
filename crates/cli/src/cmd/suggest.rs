//! `tidegate suggest`: suggests quotas from traffic.

use super::replay::{LogFormatArgs, reject_overwrite, reject_repeated_stdin};
use crate::{
    admin::{AdminClient, block_on},
    error::CliError,
    history::History,
    progress::ProgressBar,
    terminal::{self, sanitize},
};
use clap::ValueHint;
use std::{
    fs,
    io::{self, Read as _, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};
use tidegate_core::Percent;
use tidegate_policy::PolicyFormat;
use tidegate_replay::{
    ReplayError,
    log::{LineFormats, LogInput, RequestLog, SortWindow},
    suggest::{self, SuggestRequest, SuggestTarget, Suggestion},
};

/// Suggest quotas for the traffic of access logs or of a running gateway, with the evidence, as a policy in shadow mode.
///
/// Requests are grouped by path prefix. For each group, candidate quotas are replayed on the log itself, so the evidence is
/// exact. Logs are read several times; the history of a gateway is fetched once (`observe: { history: 100000 }` in its
/// policy).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SuggestArgs {
    /// Read these logs, merged by time; - is standard input, which is buffered in memory
    #[arg(required_unless_present = "from", value_name = "LOG", value_hint = ValueHint::FilePath)]
    logs: Vec<String>,

    /// Use the history of the gateway with this admin URL instead [without a URL: $TIDEGATE_ADMIN, or http://127.0.0.1:9091]
    #[arg(
        long,
        value_name = "URL",
        num_args = 0..=1,
        default_missing_value = "",
        conflicts_with_all = ["logs", "format", "fields", "sort_window"],
        value_hint = ValueHint::Url
    )]
    from: Option<String>,

    /// Count by this key, as in a policy: ip, user, 'header x-api-key', '[ip, path]'
    #[arg(long, value_name = "KEY", default_value = "ip")]
    key: String,

    /// Never deny this share of the keys of each group; outliers are ignored
    #[arg(long, value_name = "SHARE", default_value = "99.9%")]
    target_keys: String,

    /// Deny at most this share of the requests of each group, instead of a share of its keys
    #[arg(long, value_name = "SHARE", conflicts_with = "target_keys")]
    target_denied: Option<String>,

    /// Make quotas larger than the traffic needs by this share
    #[arg(long, value_name = "SHARE", default_value = "50%")]
    headroom: String,

    #[command(flatten)]
    log_format: LogFormatArgs,

    /// Write the policy to this file, in YAML, TOML or JSON; its rules are in shadow mode
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    out: Option<PathBuf>,

    /// Overwrite the file in --out
    #[arg(long, requires = "out")]
    force: bool,

    /// Print the evidence and the policy as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 success, 1 the policy could not be written, 2 invalid log or unavailable gateway.

Examples:
  tidegate suggest access.log --key ip --target-keys 99.9%
  tidegate suggest access.log.*.gz --key 'header x-api-key' --out policy.yaml
  tidegate suggest --from http://127.0.0.1:9091 --out policy.yaml
  tidegate replay --policy policy.yaml access.log";

/// The maximum size of standard input.
const MAX_STDIN_SIZE: u64 = 256 << 20;

pub(crate) fn run(args: &SuggestArgs) -> Result<(), CliError> {
    let target = match &args.target_denied {
        Some(text) => SuggestTarget::Requests(parse_share("--target-denied", text)?),
        None => SuggestTarget::Keys(parse_share("--target-keys", &args.target_keys)?),
    };
    let headroom = parse_share("--headroom", &args.headroom)?;
    let request = SuggestRequest::parse(&args.key, target, headroom).map_err(CliError::input)?;
    let format = args.out.as_deref().map(output_format).transpose()?;
    if let Some(path) = &args.out {
        reject_overwrite(path, args.logs.iter().map(Path::new))?;
        if !args.force && path.exists() {
            return Err(exists_error(path));
        }
    }
    reject_repeated_stdin(&args.logs)?;
    let suggestion = match &args.from {
        Some(url) => suggest_from_gateway(request, Some(url.as_str()).filter(|url| !url.is_empty()))?,
        None => suggest_from_logs(request, args)?,
    };
    if let (Some(path), Some(format)) = (&args.out, format) {
        write_policy(path, &policy_text(&suggestion, format), args.force)?;
    }
    match args.json {
        true => terminal::print(&format!("{:#}\n", suggest::to_json(&suggestion))),
        false => terminal::print(&sanitize(&report_text(&suggestion, args.out.as_deref()))),
    }
}

fn suggest_from_logs(request: SuggestRequest, args: &SuggestArgs) -> Result<Suggestion, CliError> {
    let formats = args.log_format.formats()?;
    let buffered = args.logs.iter().map(|log| buffer_input(log)).collect::<Result<Vec<_>, _>>()?;
    let inputs = || {
        let input = |(log, bytes): (&String, &Option<Arc<[u8]>>)| match (log.as_str(), bytes) {
            ("-", Some(bytes)) => LogInput::from_bytes("standard input", bytes.clone()),
            (path, Some(bytes)) => LogInput::from_bytes(path, bytes.clone()),
            (path, None) => LogInput::from_path(path),
        };
        args.logs.iter().zip(&buffered).map(input).collect()
    };
    let window = args.log_format.sort_window();
    suggest_with_progress(request, &formats, window, inputs)
        .map_err(|error| CliError::input(error.to_string()))
}

fn suggest_from_gateway(request: SuggestRequest, url: Option<&str>) -> Result<Suggestion, CliError> {
    let client = AdminClient::from_url(url, "--from")?;
    let history = block_on(History::fetch(&client))?;
    history.check_key(&request.key, &request.key_text)?;
    let formats = LineFormats::single("json", &[]).map_err(|error| CliError::input(error.to_string()))?;
    let inputs = || vec![LogInput::from_bytes(&history.name, history.requests.lines.clone())];
    let suggestion = suggest_with_progress(request, &formats, SortWindow::default(), inputs);
    let mut suggestion = suggestion.map_err(|error| match error {
        ReplayError::NoKey { key, .. } => CliError::input(format!(
            "{} does not contain {key}; count by ip, user, method, path or host, or use a log that contains it",
            history.name
        )),
        other => CliError::input(other.to_string()),
    })?;
    let keys =
        suggestion.groups.iter_mut().flat_map(|group| group.outliers.iter_mut().chain(&mut group.dominant));
    keys.for_each(|(key, _)| *key = history.requests.restore_hashes(key));
    Ok(suggestion)
}

/// Computes a suggestion, with a progress bar.
fn suggest_with_progress(
    request: SuggestRequest,
    formats: &LineFormats,
    window: SortWindow,
    inputs: impl Fn() -> Vec<LogInput>,
) -> Result<Suggestion, ReplayError> {
    let open =
        || RequestLog::open_with_window(inputs(), formats.clone(), Some("header x-user".to_owned()), window);
    let mut bar = ProgressBar::new();
    let outcome = suggest::suggest(request, open, |progress| bar.show(progress));
    bar.clear();
    outcome
}

fn report_text(suggestion: &Suggestion, out: Option<&Path>) -> String {
    let text = suggest::to_text(suggestion);
    match out {
        Some(path) => {
            format!("{text}\nwritten to {}, in shadow mode: nothing is denied yet\n", path.display())
        }
        None => format!("{text}\n{}", suggestion.policy),
    }
}

/// Prints the policy, with a comment on its origin if the format has comments.
fn policy_text(suggestion: &Suggestion, format: PolicyFormat) -> String {
    let policy = suggestion.policy.print(format);
    if format == PolicyFormat::Json {
        return policy;
    }
    let log = &suggestion.log;
    let names = sanitize(&log.names.join(", ").replace('\n', " "));
    format!(
        "# Suggested from {names}, {} requests: {}, headroom {}.\n# In shadow mode: remove `mode` to enforce a \
         rule.\n{policy}",
        log.requests, suggestion.request.target, suggestion.request.headroom
    )
}

fn parse_share(option: &str, text: &str) -> Result<Percent, CliError> {
    text.parse().map_err(|error| CliError::input(format!("{option} {text}: {error}")))
}

/// Writes the policy; overwrites an existing file only with `--force`.
pub(super) fn write_policy(path: &Path, text: &str, is_forced: bool) -> Result<(), CliError> {
    let mut options = fs::File::options();
    options.write(true);
    match is_forced {
        true => options.create(true).truncate(true),
        false => options.create_new(true),
    };
    match options.open(path).and_then(|mut file| file.write_all(text.as_bytes())) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(exists_error(path)),
        outcome => outcome.map_err(|error| CliError::cannot_write(path, &error)),
    }
}

pub(super) fn exists_error(path: &Path) -> CliError {
    CliError::input(format!(
        "{} already exists; use another name, or add --force to overwrite it",
        path.display()
    ))
}

pub(super) fn output_format(path: &Path) -> Result<PolicyFormat, CliError> {
    PolicyFormat::from_path(path).ok_or_else(|| {
        let problem = format!("{} is not YAML, TOML or JSON", path.display());
        CliError::input(format!("{problem}; use a name that ends with .yaml, .toml or .json"))
    })
}

/// Buffers standard input and pipes, which can be read only once.
fn buffer_input(log: &str) -> Result<Option<Arc<[u8]>>, CliError> {
    let (name, source): (_, Box<dyn io::Read>) = match log {
        "-" => ("standard input", Box::new(io::stdin().lock())),
        path if fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) => {
            let file = fs::File::open(path);
            (path, Box::new(file.map_err(|error| CliError::input(format!("cannot read {path}: {error}")))?))
        }
        _ => return Ok(None),
    };
    let mut bytes = Vec::new();
    let read = source.take(MAX_STDIN_SIZE + 1).read_to_end(&mut bytes);
    read.map_err(|error| CliError::input(format!("cannot read {name}: {error}")))?;
    if bytes.len() as u64 > MAX_STDIN_SIZE {
        let problem = format!("{name} is larger than 256 MB and must be read several times");
        return Err(CliError::input(format!("{problem}; write it to a file first")));
    }
    Ok(Some(bytes.into()))
}
