//! `tidegate replay`: what would this policy have done to yesterday's traffic?

use super::check;
use crate::{
    failure::Failure,
    progress::Bar,
    terminal::{self, harmless},
};
use clap::ValueHint;
use std::{
    fs,
    path::{Path, PathBuf},
};
use tidegate_replay::{
    Replay,
    log::{LineFormats, LogInput, RequestLog},
    replay_log,
    report::{self, ReplayReport},
};

/// Play access logs through a policy on their own clock, and tell what it would have done.
///
/// Logs of nginx, Apache and Envoy are known, and lines of JSON; gzip and zstd are undone. Nothing is served, no store is
/// asked, and memory does not grow with the log.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Logs, put together by time; - is standard input
    #[arg(required = true, value_name = "LOG", value_hint = ValueHint::FilePath)]
    logs: Vec<String>,

    /// The policy, in YAML, TOML or JSON
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    policy: PathBuf,

    /// A policy to compare it with, such as the one in force
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    against: Option<PathBuf>,

    #[command(flatten)]
    lines: Lines,

    /// Also write the report as one page with charts
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    html: Option<PathBuf>,

    /// Print the report for programs
    #[arg(long)]
    json: bool,
}

/// How lines of a log look.
#[derive(Debug, clap::Args)]
pub(super) struct Lines {
    /// How lines look: combined, main, common, vhost, envoy, json, or as nginx, Apache or Envoy write it down [default: found out]
    #[arg(long, value_name = "FORMAT")]
    format: Option<String>,

    /// Which member of a line of JSON is what, as in ip=client.address or 'header x-api-key=api_key'
    #[arg(long = "field", value_name = "NAME=MEMBER", value_parser = field)]
    fields: Vec<(String, String)>,
}

const EXAMPLES: &str = "\
Exit codes: 0 done, 1 the report could not be written, 2 a policy or a log cannot be used.

Examples:
  tidegate replay --policy policy.yaml access.log access.log.1.gz
  tidegate replay --policy next.yaml --against policy.yaml access.log --html report.html
  tidegate replay --policy policy.yaml app.json --field ip=client.address --field 'header x-api-key=key'
  zstdcat access.log.zst | tidegate replay --policy policy.yaml - --json";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let policy = check::read(&args.policy)?;
    let against = args.against.as_deref().map(check::read).transpose()?;
    if let Some(path) = &args.html {
        let policies = [Some(&args.policy), args.against.as_ref()].into_iter().flatten();
        keep_apart(path, args.logs.iter().map(Path::new).chain(policies.map(PathBuf::as_path)))?;
    }
    named_once(&args.logs)?;
    let inputs = args.logs.iter().map(|log| LogInput::from_path(log)).collect();
    let user = Replay::user_header(&policy).or_else(|| Replay::user_header(against.as_ref()?));
    let log = RequestLog::open(inputs, args.lines.formats()?, user)
        .map_err(|error| Failure::input(error.to_string()))?;
    let mut bar = Bar::new();
    let base = |_: &Path| Path::new("");
    let other = against.as_ref().zip(args.against.as_deref()).map(|(policy, path)| (policy, base(path)));
    let outcome = replay_log(log, (&policy, base(&args.policy)), other, |progress| bar.show(progress));
    bar.clear();
    let play = outcome.map_err(|failure| Failure::input(failure.to_string()))?;
    let (name, other) = (name(&args.policy), args.against.as_deref().map(self::name));
    let report = ReplayReport { result: &play, policy: &name, baseline: other.as_deref() };
    match args.json {
        true => terminal::print(&format!("{:#}\n", report::to_json(&report)))?,
        false => terminal::print(&harmless(&report::to_text(&report)))?,
    }
    match &args.html {
        Some(path) => fs::write(path, report::to_html(&report)).map_err(|error| Failure::write(path, &error)),
        None => Ok(()),
    }
}

/// What is read is not to be written over.
pub(super) fn keep_apart<'a>(
    written: &Path,
    mut read: impl Iterator<Item = &'a Path>,
) -> Result<(), Failure> {
    // What is not there yet is none of them.
    let Ok(place) = fs::canonicalize(written) else { return Ok(()) };
    match read.any(|path| fs::canonicalize(path).is_ok_and(|path| path == place)) {
        true => {
            let problem = format!("{} would be written over, and is read here", written.display());
            Err(Failure::input(format!("{problem}; give another name")))
        }
        false => Ok(()),
    }
}

/// Standard input can be read only once.
pub(super) fn named_once(logs: &[String]) -> Result<(), Failure> {
    match logs.iter().filter(|log| *log == "-").count() {
        0 | 1 => Ok(()),
        _ => Err(Failure::input("standard input is named twice, and can be read once; leave one - out")),
    }
}

impl Lines {
    /// The formats that lines are tried by.
    pub(super) fn formats(&self) -> Result<LineFormats, Failure> {
        let formats = match &self.format {
            Some(format) => LineFormats::single(format, &self.fields),
            None => LineFormats::builtin(&self.fields),
        };
        formats.map_err(|error| Failure::input(error.to_string()))
    }
}

fn field(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, member)) if !name.trim().is_empty() && !member.trim().is_empty() => {
            Ok((name.trim().to_owned(), member.trim().to_owned()))
        }
        _ => Err("a field is a name, `=` and a member; write ip=client.address".to_owned()),
    }
}

fn name(path: &Path) -> String {
    path.display().to_string()
}
