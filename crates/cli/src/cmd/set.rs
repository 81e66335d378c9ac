//! `tidegate set`: sets a number of a rule.

use crate::{
    error::CliError,
    promotion::{PolicyTarget, PolicyTargetArgs, describe_change},
    terminal::{self, Paint, Tone},
};
use serde_json::Value;
use std::fmt::Write as _;
use tidegate_admin::{ExpectedValue, RuleSetting};

/// Set a number of a rule, such as its quota, in the policy file and with immediate effect.
///
/// Without KEY=VALUE, this lists the numbers of the rule. All other bytes of the file stay unchanged, and the rule keeps its
/// counters. The change is recorded next to the file (`policy.yaml.changes`), and `tidegate rollback` reverts it.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SetArgs {
    /// Set a number of this rule
    rule: String,

    /// Set this key of the rule to this value, as in `quota=200/min` or `tiers.quotas.gold=50/s`
    #[arg(value_name = "KEY=VALUE", value_parser = parse_assignment)]
    assignment: Option<(String, String)>,

    /// Fail unless this is the current value; `default` if the rule has none
    #[arg(long, value_name = "VALUE", requires = "assignment")]
    from: Option<String>,

    /// Change nothing; report what the rule would have done with the value to the requests of the last hour that the gateway
    /// has recorded (`observe: { history: 100000 }`)
    #[arg(long, requires = "assignment", conflicts_with_all = ["policy", "from"])]
    preview: bool,

    #[command(flatten)]
    target: PolicyTargetArgs,

    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate set login
  tidegate set login quota=200/min --preview
  tidegate set login quota=200/min
  tidegate set login quota=200/min --from 100/min --admin http://127.0.0.1:9091
  tidegate set api tiers.quotas.gold=50/s --policy policy.yaml";

fn parse_assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("use KEY=VALUE, as in `quota=200/min`".to_owned()),
    }
}

pub(crate) fn run(args: &SetArgs) -> Result<(), CliError> {
    let Some((key, value)) = &args.assignment else {
        let values = PolicyTarget::from_args(&args.target)?.values(&args.rule)?;
        return terminal::print(&if args.json { format!("{values:#}\n") } else { list(&values) });
    };
    if key == "mode" {
        let fix = format!("use `tidegate mode {} {value}`", args.rule);
        return Err(CliError::input(format!("`mode` has a command of its own; {fix}")));
    }
    let from = match args.from.as_deref() {
        None => ExpectedValue::Any,
        // No value of a policy is this text.
        Some("default") => ExpectedValue::Only(None),
        Some(from) => ExpectedValue::Only(Some(from.to_owned())),
    };
    let setting = RuleSetting { rule: args.rule.clone(), key: key.clone(), value: value.clone(), from };
    if args.preview {
        let preview = args.target.preview(&setting)?;
        return terminal::print(&if args.json {
            format!("{preview:#}\n")
        } else {
            describe_preview(&preview)
        });
    }
    let target = PolicyTarget::from_args(&args.target)?;
    let response = target.set(&setting)?;
    if args.json {
        return terminal::print(&format!("{response:#}\n"));
    }
    let name = Paint::for_stdout().tone(Tone::Strong, &args.rule);
    let text = match response["changed"] == true {
        true => format!("{name}: {}\n{}\n", describe_change(&response["change"]), target.effect_note()),
        false => format!("{name}: `{key}` has this value already; nothing changed\n"),
    };
    terminal::print(&text)
}

fn describe_preview(preview: &Value) -> String {
    let text_of = |member: &str| terminal::sanitize(preview[member].as_str().unwrap_or("default"));
    let minute = |member: &str| text_of(member).chars().take(16).collect::<String>().replace('T', " ");
    let share = preview["share"].as_f64().unwrap_or(1.0);
    let clients = match share < 1.0 {
        true => format!(" of {} % of the clients", (share * 1e6).round() / 1e4),
        false => String::new(),
    };
    let mut text = format!(
        "{}: {} {} → {}\n{} recorded requests{clients}, {} to {} UTC\n\n  {:>17} {:>10} {:>10}\n",
        text_of("rule"),
        text_of("key"),
        text_of("from"),
        text_of("to"),
        preview["requests"],
        minute("since"),
        minute("until"),
        "",
        "now",
        "new"
    );
    let counts = [
        ("requests", "requests"),
        ("delayed", "delayed"),
        ("denied", "denied"),
        ("shadow-denied", "denied in shadow"),
    ];
    for (member, name) in counts {
        let (now, new) = (&preview["before"][member], &preview["after"][member]);
        // Writing to a string does not fail.
        let _ = writeln!(text, "  {name:>17} {:>10} {:>10}", now.to_string(), new.to_string());
    }
    for key in preview["keys"].as_array().into_iter().flatten() {
        let name = terminal::sanitize(key["key"].as_str().unwrap_or_default());
        let newly = key["newly-denied"].as_u64().unwrap_or_default();
        let no_longer = key["no-longer-denied"].as_u64().unwrap_or_default();
        let _ = writeln!(text, "  {name}: {newly} more denied, {no_longer} no longer denied");
    }
    for note in preview["notes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let _ = writeln!(text, "  {}", terminal::sanitize(note));
    }
    text + "\nNothing is changed.\n"
}

fn list(values: &Value) -> String {
    let values = values["settings"].as_array().map(Vec::as_slice).unwrap_or_default();
    if values.is_empty() {
        return "The rule has no numbers to set.\n".to_owned();
    }
    let mut text = String::new();
    for value in values {
        let member = |name: &str| terminal::sanitize(value[name].as_str().unwrap_or_default());
        // Writing to a string does not fail.
        let _ = writeln!(text, "{}={}", member("key"), member("value"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn preview_compares_both_numbers() {
        let counts =
            |denied: u64| json!({ "requests": 48, "delayed": 0, "denied": denied, "shadow-denied": 0 });
        let preview = json!({
            "rule": "login", "key": "quota", "from": "5/min", "to": "8/min", "share": 0.1, "requests": 50,
            "since": "2026-11-16T03:20:00.123456Z", "until": "2026-11-16T04:19:59.000000Z",
            "before": counts(9), "after": counts(2), "notes": [],
            "keys": [{ "key": "192.0.2.7", "newly-denied": 0, "no-longer-denied": 7 }],
        });
        let lines = [
            "login: quota 5/min → 8/min",
            "50 recorded requests of 10 % of the clients, 2026-11-16 03:20 to 2026-11-16 04:19 UTC",
            "",
            "                           now        new",
            "           requests         48         48",
            "            delayed          0          0",
            "             denied          9          2",
            "   denied in shadow          0          0",
            "  192.0.2.7: 0 more denied, 7 no longer denied",
            "",
            "Nothing is changed.",
            "",
        ];
        assert_eq!(describe_preview(&preview), lines.join("\n"));
    }

    #[test]
    fn assignments_are_parsed_and_values_listed() {
        let quota = Ok(("quota".to_owned(), "5/s burst=2".to_owned()));
        assert_eq!(parse_assignment("quota=5/s burst=2"), quota);
        for wrong in ["quota", "=5/s", "quota="] {
            assert!(parse_assignment(wrong).is_err_and(|error| error.contains("use KEY=VALUE")), "{wrong}");
        }
        let values = json!({ "settings": [{ "key": "quota", "value": "5/min" }, { "key": "queue.max", "value": "9" }] });
        assert_eq!(list(&values), "quota=5/min\nqueue.max=9\n");
        assert_eq!(list(&json!({ "settings": [] })), "The rule has no numbers to set.\n");
    }
}
