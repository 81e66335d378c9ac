//! `tidegate check`: is this policy what you meant?

use crate::{
    failure::Failure,
    terminal::{self, Paint, Tone},
};
use serde_json::{Value, json};
use std::{
    fmt::Write as _,
    path::{Path, PathBuf},
};
use tidegate_policy::{Advice, Policy, Problem, compile, lint};

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

    /// Print it for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 it can be used, 2 it cannot, 3 it holds what is hardly meant (with --strict).

Examples:
  tidegate check policy.yaml
  tidegate check --strict policy.toml
  tidegate check --json policy.yaml | jq '.problems[] | [.line, .problem]'";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    if args.json {
        return run_json(args);
    }
    let policy = read(&args.file)?;
    let advice = lint(&policy);
    let text = report(&args.file, &policy, &advice, Paint::of_stdout());
    if args.strict && !advice.is_empty() {
        return Err(Failure::Advice(text.trim_end().to_owned()));
    }
    terminal::print(&text)
}

/// The same for programs: all of it is on standard output, and the exit code says the rest.
fn run_json(args: &Args) -> Result<(), Failure> {
    let file = args.file.display().to_string();
    let (problems, policy) = match Policy::from_file(&args.file) {
        Err(problems) => (problems.iter().map(problem).collect(), None),
        Ok(policy) => match compile::check(&policy) {
            Err(error) => (vec![json!({ "file": file, "problem": error.to_string() })], None),
            Ok(()) => (Vec::new(), Some(policy)),
        },
    };
    let advice = policy.as_ref().map(lint).unwrap_or_default();
    let told = json!({
        "file": file,
        "usable": policy.is_some(),
        "rules": policy.as_ref().map(|policy| policy.rules.len()),
        "upstreams": policy.as_ref().map(|policy| policy.upstreams.len()),
        "problems": problems,
        "advice": advice.iter().map(advised).collect::<Vec<_>>(),
    });
    terminal::print(&format!("{told:#}\n"))?;
    match (policy, advice.len()) {
        (None, _) => Err(Failure::input(format!("{file} cannot be used"))),
        (Some(_), 1..) if args.strict => Err(Failure::Advice(format!("{file} holds what is hardly meant"))),
        _ => Ok(()),
    }
}

fn problem(problem: &Problem) -> Value {
    json!({
        "file": problem.path().display().to_string(),
        "line": problem.line(),
        "column": problem.column(),
        "problem": problem.problem(),
        "fix": problem.fix(),
    })
}

fn advised(advice: &Advice) -> Value {
    json!({
        "lint": advice.lint.to_string(),
        "rule": advice.rule,
        "reason": advice.reason,
        "fix": advice.fix,
    })
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
