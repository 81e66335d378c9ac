//! `tidegate replay`: evaluates a policy on recorded traffic.

use super::check;
use crate::{
    error::CliError,
    progress::ProgressBar,
    terminal::{self, sanitize},
};
use clap::ValueHint;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tidegate_replay::{
    Replay,
    log::{LineFormats, LogInput, RequestLog, SortWindow},
    replay_log,
    report::{self, ReplayReport},
};

/// Replay access logs through a policy at their own times, and report what the policy would have done.
///
/// Reads logs of nginx, Apache, Envoy, HAProxy, Traefik, Caddy, AWS load balancers and CloudFront, and JSON lines, also in
/// Docker's JSON files, and compressed with gzip, zstd, xz or bzip2. The command serves nothing, connects to no store, and
/// uses constant memory.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ReplayArgs {
    /// Read these logs, merged by time; - is standard input
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    logs: Vec<String>,

    /// Evaluate this policy, in YAML, TOML or JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    policy: PathBuf,

    /// Compare with this policy, such as the active one
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    baseline: Option<PathBuf>,

    #[command(flatten)]
    log_format: LogFormatArgs,

    /// Also write the report as an HTML page with charts
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

/// The format of log lines.
#[derive(Debug, clap::Args)]
pub(super) struct LogFormatArgs {
    /// Parse lines in this format: combined, main, common, vhost, envoy, haproxy, traefik, caddy, alb, cloudfront, json, or a
    /// format string of nginx, Apache or Envoy [default: detected]
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Map a member of JSON lines, as in ip=client.address or 'header x-api-key=api_key'
    #[arg(long = "field", value_name = "NAME=MEMBER", value_parser = parse_field)]
    fields: Vec<(String, String)>,

    /// Sort lines that are out of order by at most this size; memory use is about ten times this size
    #[arg(long, value_name = "SIZE", default_value_t)]
    sort_window: SortWindow,
}

const EXAMPLES: &str = "\
Exit codes: 0 success, 1 the report could not be written, 2 invalid policy or log.

Examples:
  tidegate replay --policy policy.yaml access.log access.log.1.gz
  tidegate replay --policy next.yaml --baseline policy.yaml access.log --html report.html
  tidegate replay --policy policy.yaml app.json --field ip=client.address --field 'header x-api-key=key'
  zstdcat access.log.zst | tidegate replay --policy policy.yaml - --json";

pub(crate) fn run(args: &ReplayArgs) -> Result<(), CliError> {
    let policy = check::read_policy(&args.policy)?;
    let baseline = args.baseline.as_deref().map(check::read_policy).transpose()?;
    if let Some(path) = &args.html {
        let policies = [Some(&args.policy), args.baseline.as_ref()].into_iter().flatten();
        reject_overwrite(path, args.logs.iter().map(Path::new).chain(policies.map(PathBuf::as_path)))?;
    }
    reject_repeated_stdin(&args.logs)?;
    let inputs = args.logs.iter().map(|log| LogInput::from_path(log)).collect();
    let user = Replay::user_key(&policy).or_else(|| Replay::user_key(baseline.as_ref()?));
    let log =
        RequestLog::open_with_window(inputs, args.log_format.formats()?, user, args.log_format.sort_window())
            .map_err(|error| CliError::input(error.to_string()))?;
    let mut bar = ProgressBar::new();
    let base = |_: &Path| Path::new("");
    let other = baseline.as_ref().zip(args.baseline.as_deref()).map(|(policy, path)| (policy, base(path)));
    let outcome = replay_log(log, (&policy, base(&args.policy)), other, |progress| bar.show(progress));
    bar.clear();
    let result = outcome.map_err(|error| CliError::input(error.to_string()))?;
    let (name, other) = (display_path(&args.policy), args.baseline.as_deref().map(self::display_path));
    let report = ReplayReport { result: &result, policy: &name, baseline: other.as_deref() };
    match args.json {
        true => terminal::print(&format!("{:#}\n", report::to_json(&report)))?,
        false => terminal::print(&sanitize(&report::to_text(&report)))?,
    }
    match &args.html {
        Some(path) => {
            fs::write(path, report::to_html(&report)).map_err(|error| CliError::cannot_write(path, &error))
        }
        None => Ok(()),
    }
}

/// Rejects an output file that is also an input.
pub(super) fn reject_overwrite<'a>(
    output: &Path,
    mut inputs: impl Iterator<Item = &'a Path>,
) -> Result<(), CliError> {
    // A file that does not exist cannot be an input.
    let Ok(output_path) = fs::canonicalize(output) else { return Ok(()) };
    match inputs.any(|path| fs::canonicalize(path).is_ok_and(|path| path == output_path)) {
        true => {
            let problem = format!("{} is an input and would be overwritten", output.display());
            Err(CliError::input(format!("{problem}; use another name")))
        }
        false => Ok(()),
    }
}

/// Standard input can be read only once.
pub(super) fn reject_repeated_stdin(logs: &[String]) -> Result<(), CliError> {
    match logs.iter().filter(|log| *log == "-").count() {
        0 | 1 => Ok(()),
        _ => Err(CliError::input("standard input can be read only once; remove one -")),
    }
}

impl LogFormatArgs {
    /// The window in which lines are sorted.
    pub(super) fn sort_window(&self) -> SortWindow {
        self.sort_window
    }

    /// The formats to try.
    pub(super) fn formats(&self) -> Result<LineFormats, CliError> {
        let formats = match &self.format {
            Some(format) => LineFormats::single(format, &self.fields),
            None => LineFormats::builtin(&self.fields),
        };
        formats.map_err(|error| CliError::input(error.to_string()))
    }
}

fn parse_field(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, member)) if !name.trim().is_empty() && !member.trim().is_empty() => {
            Ok((name.trim().to_owned(), member.trim().to_owned()))
        }
        _ => Err("a field is a name, `=` and a member; write ip=client.address".to_owned()),
    }
}

fn display_path(path: &Path) -> String {
    path.display().to_string()
}
