//! `tidegate changes`: which rules were put in force, or taken back.

use crate::{
    failure::Failure,
    promotion::{Place, WhereArgs, step},
    terminal::{self, Paint, Tone},
};
use serde_json::Value;
use std::fmt::Write as _;

/// Tell what was changed with `tidegate mode`, `tidegate rollback`, the API or the dashboard, newest first.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    #[command(flatten)]
    place: WhereArgs,

    /// Print them as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate changes
  tidegate changes --policy policy.yaml --json";

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    let told = Place::of(&args.place)?.changes()?;
    let text = match args.json {
        true => format!("{told:#}\n"),
        false => report(&told, Paint::of_stdout()),
    };
    terminal::print(&text)
}

fn report(told: &Value, paint: Paint) -> String {
    let changes = told["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        return "Nothing was changed yet.\n".to_owned();
    }
    let mut text = String::new();
    for change in changes {
        let said = |member: &str| terminal::harmless(change[member].as_str().unwrap_or_default());
        let (time, rule, file, by) = (said("time"), said("rule"), said("file"), said("by"));
        let time = paint.tone(Tone::Faint, time.split('.').next().unwrap_or_default().replace('T', " "));
        let rule = paint.tone(Tone::Strong, rule);
        let back = change["undoes"].as_u64().map(|id| format!(", takes back {id}")).unwrap_or_default();
        let id = change["id"].as_u64().unwrap_or_default();
        let step = step(change);
        // Writing to a string does not fail.
        let _ = writeln!(text, "{id:>4}  {time}  {rule}: {step}{back}  ({file}, by {by})");
    }
    let last = match told["last"].as_u64() {
        Some(id) => format!("A rollback takes back change {id}."),
        None => match told["why"].as_str() {
            Some(why) => format!("A rollback is refused: {}.", terminal::harmless(why)),
            None => "A rollback finds nothing to take back.".to_owned(),
        },
    };
    text + "\n" + &last + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_change_is_a_line() {
        let shadow = json!({ "mode": "shadow", "percent": null });
        let tenth = json!({ "mode": "enforce", "percent": 10.0 });
        let told = json!({
            "last": 1,
            "changes": [
                { "id": 3, "time": "2026-11-16T03:21:00.123456Z", "by": "api", "rule": "b", "from": tenth, "to": shadow,
                  "file": "policy.yaml", "undoes": 2 },
                { "id": 1, "time": "2026-11-16T03:20:00.123456Z", "by": "command line", "rule": "a", "from": shadow,
                  "to": tenth, "file": "more.yaml", "undoes": null },
            ],
        });
        assert_eq!(
            report(&told, Paint::Plain),
            "   3  2026-11-16 03:21:00  b: enforce 10 % → shadow, takes back 2  (policy.yaml, by api)\n   \
             1  2026-11-16 03:20:00  a: shadow → enforce 10 %  (more.yaml, by command line)\n\n\
             A rollback takes back change 1.\n"
        );
        assert_eq!(
            report(&json!({ "changes": [], "last": null }), Paint::Plain),
            "Nothing was changed yet.\n"
        );
    }
}
