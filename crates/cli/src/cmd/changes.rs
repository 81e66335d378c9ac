//! `tidegate changes`: lists the changes of rules.

use crate::{
    error::CliError,
    promotion::{PolicyTarget, PolicyTargetArgs, describe_change},
    terminal::{self, Paint, Tone},
};
use serde_json::Value;
use std::fmt::Write as _;

/// List the changes made with `tidegate mode`, `set` and `rollback`, the API or the dashboard, newest first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ChangesArgs {
    #[command(flatten)]
    target: PolicyTargetArgs,

    /// Print the list as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate changes
  tidegate changes --policy policy.yaml --json";

pub(crate) fn run(args: &ChangesArgs) -> Result<(), CliError> {
    let changes = PolicyTarget::from_args(&args.target)?.changes()?;
    let text = match args.json {
        true => format!("{changes:#}\n"),
        false => report(&changes, Paint::for_stdout()),
    };
    terminal::print(&text)
}

fn report(response: &Value, paint: Paint) -> String {
    let changes = response["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        return "No changes yet.\n".to_owned();
    }
    let mut text = String::new();
    for change in changes {
        let text_of = |member: &str| terminal::sanitize(change[member].as_str().unwrap_or_default());
        let (time, rule, file, by) = (text_of("time"), text_of("rule"), text_of("file"), text_of("by"));
        let time = paint.tone(Tone::Faint, time.split('.').next().unwrap_or_default().replace('T', " "));
        let rule = paint.tone(Tone::Strong, rule);
        let reverts =
            change["reverts"].as_u64().map(|id| format!(", reverts change {id}")).unwrap_or_default();
        let id = change["id"].as_u64().unwrap_or_default();
        let step = describe_change(change);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{id:>4}  {time}  {rule}: {step}{reverts}  ({file}, by {by})");
    }
    let last = match response["last"].as_u64() {
        Some(id) => format!("A rollback reverts change {id}."),
        None => match response["reason"].as_str() {
            Some(reason) => format!("A rollback is rejected: {}.", terminal::sanitize(reason)),
            None => "There is no change to roll back.".to_owned(),
        },
    };
    text + "\n" + &last + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn report_has_one_line_per_change() {
        let response = json!({
            "last": 1,
            "changes": [
                { "id": 3, "time": "2026-11-16T03:21:00.123456Z", "by": "api", "rule": "b", "key": "mode",
                  "from": "enforce 10%", "to": "shadow", "file": "policy.yaml", "reverts": 2 },
                { "id": 1, "time": "2026-11-16T03:20:00.123456Z", "by": "command line", "rule": "a", "key": "quota",
                  "from": "5/min", "to": "8/min", "file": "more.yaml", "reverts": null },
            ],
        });
        assert_eq!(
            report(&response, Paint::Plain),
            "   3  2026-11-16 03:21:00  b: enforce 10 % → shadow, reverts change 2  (policy.yaml, by api)\n   \
             1  2026-11-16 03:20:00  a: quota 5/min → 8/min  (more.yaml, by command line)\n\n\
             A rollback reverts change 1.\n"
        );
        assert_eq!(report(&json!({ "changes": [], "last": null }), Paint::Plain), "No changes yet.\n");
    }
}
