//! `tidegate check`: is this policy what you meant?

use crate::{
    failure::Failure,
    terminal::{self, Paint, Tone},
};
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};
use tidegate_policy::{Advice, Policy, compile, lint};

/// Say everything that is wrong with a policy file, and what is hardly meant.
///
/// Every problem is told at once, with its place and the way out. Nothing is started and no store is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The policy, in YAML, TOML or JSON
    file: PathBuf,

    /// Refuse what is hardly meant, too
    #[arg(long)]
    strict: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 it can be used, 2 it cannot, 3 it holds what is hardly meant (with --strict).

Examples:
  tidegate check policy.yaml
  tidegate check --strict policy.toml";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let policy = read(&args.file)?;
    let advice = lint(&policy);
    let text = report(&args.file, &policy, &advice, Paint::of_stdout());
    if args.strict && !advice.is_empty() {
        return Err(Failure::Advice(text.trim_end().to_owned()));
    }
    terminal::print(&text)
}

/// A policy that can be put in force, or all that keeps it from that.
pub(super) fn read(path: &Path) -> Result<Policy, Failure> {
    let policy = Policy::from_file(path).map_err(|problems| Failure::input(problems.to_string()))?;
    match compile::check(&policy) {
        Ok(()) => Ok(policy),
        Err(error) => Err(Failure::input(format!("{}: {error}", path.display()))),
    }
}

fn report(path: &Path, policy: &Policy, advice: &[Advice], paint: Paint) -> String {
    let mut text = String::new();
    for advice in advice {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}: {advice}", path.display());
    }
    let (rules, upstreams) = (policy.rules.len(), policy.upstreams.len());
    let counted = format!("{}, {}", counted(rules, "rule"), counted(upstreams, "upstream"));
    let verdict = match advice.len() {
        0 => "nothing wrong".to_owned(),
        count => format!("can be used; {} to look at", self::counted(count, "thing")),
    };
    let _ = writeln!(text, "{}: {counted}: {}", path.display(), paint.tone(Tone::Strong, verdict));
    text
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
