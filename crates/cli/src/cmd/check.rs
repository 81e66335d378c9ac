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
use tidegate_gateway::Preflight;
use tidegate_policy::{Document, Policy, Problem, Problems, compile, lint};

/// Report all errors and likely mistakes in a policy file.
///
/// Everything that `tidegate serve` refuses is an error: so are missing files, unset variables of the environment and wrong addresses
/// of stores. Each is reported with its place and its fix. Nothing is started, and no store is asked.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The policy, in YAML, TOML or JSON
    file: PathBuf,

    /// Treat likely mistakes as errors
    #[arg(long)]
    strict: bool,

    /// Print it for programs
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 it can be used, 2 it cannot, 3 it holds likely mistakes (with --strict).

Examples:
  tidegate check policy.yaml
  tidegate check --strict policy.toml
  tidegate check --json policy.yaml | jq '.problems[] | [.line, .problem]'";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let checked = Checked::of(&args.file);
    if args.json {
        return run_json(args, &checked);
    }
    let Checked { policy: Some(policy), advice, .. } = &checked else {
        let problems = checked.problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        return Err(Failure::input(problems.join("\n\n")));
    };
    let text = report(&args.file, policy, advice, Paint::of_stdout());
    if args.strict && !advice.is_empty() {
        return Err(Failure::Advice(text.trim_end().to_owned()));
    }
    terminal::print(&text)
}

/// What there is to report of a policy file.
struct Checked {
    /// What cannot be served.
    problems: Vec<Problem>,
    /// Likely mistakes, each with the name of its lint and its rule.
    advice: Vec<(String, String, Problem)>,
    /// The policy, where it can be served.
    policy: Option<Policy>,
}

impl Checked {
    fn of(path: &Path) -> Self {
        let document = match Document::from_file(path) {
            Ok(document) => document,
            Err(problems) => return Self::refused(problems),
        };
        let (policy, rules) = (document.policy(), tidegate::rules());
        let connects = |url: &str| rules.check_address(url).map_err(|error| error.to_string());
        let Preflight { errors, warnings } = Preflight::of(policy, &connects).resolved(policy);
        if !errors.is_empty() {
            return Self::refused(document.to_problems(errors));
        }
        let advice = lint(policy).into_iter().filter_map(|advice| {
            Some((advice.lint.to_string(), advice.rule.clone(), document.warning_problem(&advice)?))
        });
        let warnings = warnings.into_iter().flat_map(|warning| document.to_problems([warning]));
        let warnings = warnings.map(|warning| ("gateway".to_owned(), String::new(), warning));
        let advice = advice.chain(warnings).collect();
        Self { problems: Vec::new(), advice, policy: Some(document.into_policy()) }
    }

    fn refused(problems: Problems) -> Self {
        Self { problems: problems.into_iter().collect(), advice: Vec::new(), policy: None }
    }
}

/// The same for programs: all of it is on standard output, and the exit code says the rest.
fn run_json(args: &Args, checked: &Checked) -> Result<(), Failure> {
    let file = args.file.display().to_string();
    let Checked { problems, advice, policy } = checked;
    let told = json!({
        "file": file,
        "usable": policy.is_some(),
        "rules": policy.as_ref().map(|policy| policy.rules.len()),
        "upstreams": policy.as_ref().map(|policy| policy.upstreams.len()),
        "problems": problems.iter().map(problem).collect::<Vec<_>>(),
        "advice": advice.iter().map(advised).collect::<Vec<_>>(),
    });
    terminal::print(&format!("{told:#}\n"))?;
    match (policy, advice.len()) {
        (None, _) => Err(Failure::input(format!("{file} cannot be used"))),
        (Some(_), 1..) if args.strict => Err(Failure::Advice(format!("{file} holds likely mistakes"))),
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

fn advised((lint, rule, place): &(String, String, Problem)) -> Value {
    json!({
        "lint": lint,
        "rule": rule,
        "file": place.path().display().to_string(),
        "line": place.line(),
        "column": place.column(),
        "reason": place.problem(),
        "fix": place.fix(),
    })
}

/// A policy that can be put in force, apart from its stores and from what a gateway needs.
pub(super) fn read(path: &Path) -> Result<Policy, Failure> {
    let document = Document::from_file(path).map_err(|problems| Failure::input(problems.to_string()))?;
    match compile::check(document.policy()) {
        Ok(()) => Ok(document.into_policy()),
        Err(error) => Err(Failure::input(document.policy_problems(&error).to_string())),
    }
}

fn report(path: &Path, policy: &Policy, advice: &[(String, String, Problem)], paint: Paint) -> String {
    let mut text = String::new();
    for (_, _, advice) in advice {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{advice}\n");
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
