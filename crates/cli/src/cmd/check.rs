//! `tidegate check`: reports the errors and warnings of a policy.

use crate::{
    error::CliError,
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
/// Everything that `tidegate serve` rejects is an error, including missing files, unset environment variables and invalid store
/// URLs. Each is reported with its position and its fix. The command starts nothing and connects to no store.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct CheckArgs {
    /// Check this policy, in YAML, TOML or JSON
    file: PathBuf,

    /// Treat likely mistakes as errors
    #[arg(long)]
    strict: bool,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Exit codes: 0 valid, 2 invalid, 3 likely mistakes (with --strict).

Examples:
  tidegate check policy.yaml
  tidegate check --strict policy.toml
  tidegate check --json policy.yaml | jq '.problems[] | [.line, .problem]'";

pub(crate) fn run(args: &CheckArgs) -> Result<(), CliError> {
    let checked = CheckResult::check_file(&args.file);
    if args.json {
        return run_json(args, &checked);
    }
    let CheckResult { policy: Some(policy), warnings, .. } = &checked else {
        let problems = checked.problems.iter().map(ToString::to_string).collect::<Vec<_>>();
        return Err(CliError::input(problems.join("\n\n")));
    };
    let text = report(&args.file, policy, warnings, Paint::for_stdout());
    if args.strict && !warnings.is_empty() {
        return Err(CliError::Warnings(text.trim_end().to_owned()));
    }
    terminal::print(&text)
}

/// The result of checking a policy file.
struct CheckResult {
    /// The errors.
    problems: Vec<Problem>,
    /// Likely mistakes, each with the name of its lint and its rule.
    warnings: Vec<(String, String, Problem)>,
    /// The policy, if it is valid.
    policy: Option<Policy>,
}

impl CheckResult {
    fn check_file(path: &Path) -> Self {
        let document = match Document::from_file(path) {
            Ok(document) => document,
            Err(problems) => return Self::from_problems(problems),
        };
        let (policy, rules) = (document.policy(), tidegate::rules());
        let connects = |url: &str| rules.check_address(url).map_err(|error| error.to_string());
        let Preflight { errors, warnings } = Preflight::check(policy, &connects).resolve_names(policy);
        if !errors.is_empty() {
            return Self::from_problems(document.to_problems(errors));
        }
        let advice = lint(policy).into_iter().filter_map(|advice| {
            Some((advice.lint.to_string(), advice.rule.clone(), document.warning_problem(&advice)?))
        });
        let warnings = warnings.into_iter().flat_map(|warning| document.to_problems([warning]));
        let warnings = warnings.map(|warning| ("gateway".to_owned(), String::new(), warning));
        let advice = advice.chain(warnings).collect();
        Self { problems: Vec::new(), warnings: advice, policy: Some(document.into_policy()) }
    }

    fn from_problems(problems: Problems) -> Self {
        Self { problems: problems.into_iter().collect(), warnings: Vec::new(), policy: None }
    }
}

/// Prints the result as JSON to standard output; the exit codes are the same.
fn run_json(args: &CheckArgs, checked: &CheckResult) -> Result<(), CliError> {
    let file = args.file.display().to_string();
    let CheckResult { problems, warnings, policy } = checked;
    let json_report = json!({
        "file": file,
        "valid": policy.is_some(),
        "rules": policy.as_ref().map(|policy| policy.rules.len()),
        "upstreams": policy.as_ref().map(|policy| policy.upstreams.len()),
        "problems": problems.iter().map(problem_json).collect::<Vec<_>>(),
        "warnings": warnings.iter().map(warning_json).collect::<Vec<_>>(),
    });
    terminal::print(&format!("{json_report:#}\n"))?;
    match (policy, warnings.len()) {
        (None, _) => Err(CliError::input(format!("{file} is invalid"))),
        (Some(_), 1..) if args.strict => Err(CliError::Warnings(format!("{file} has likely mistakes"))),
        _ => Ok(()),
    }
}

fn problem_json(problem: &Problem) -> Value {
    json!({
        "file": problem.path().display().to_string(),
        "line": problem.line(),
        "column": problem.column(),
        "problem": problem.problem(),
        "fix": problem.fix(),
    })
}

fn warning_json((lint, rule, warning): &(String, String, Problem)) -> Value {
    json!({
        "lint": lint,
        "rule": rule,
        "file": warning.path().display().to_string(),
        "line": warning.line(),
        "column": warning.column(),
        "reason": warning.problem(),
        "fix": warning.fix(),
    })
}

/// Reads and compiles a policy. Does not check its stores and its listeners.
pub(super) fn read_policy(path: &Path) -> Result<Policy, CliError> {
    let document = Document::from_file(path).map_err(|problems| CliError::input(problems.to_string()))?;
    match compile::check(document.policy()) {
        Ok(()) => Ok(document.into_policy()),
        Err(error) => Err(CliError::input(document.policy_problems(&error).to_string())),
    }
}

fn report(path: &Path, policy: &Policy, warnings: &[(String, String, Problem)], paint: Paint) -> String {
    let mut text = String::new();
    for (_, _, advice) in warnings {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{advice}\n");
    }
    let (rules, upstreams) = (policy.rules.len(), policy.upstreams.len());
    let counted = format!("{}, {}", pluralize(rules, "rule"), pluralize(upstreams, "upstream"));
    let verdict = match warnings.len() {
        0 => "valid".to_owned(),
        count => format!("valid, with {}", self::pluralize(count, "warning")),
    };
    let _ = writeln!(text, "{}: {counted}: {}", path.display(), paint.tone(Tone::Strong, verdict));
    text
}

fn pluralize(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}
