//! `tidegate override`: sets, lists and removes quotas of single keys in a running gateway.

use crate::{
    admin::{AdminArgs, AdminClient, block_on},
    error::CliError,
    promotion::percent_encode,
    terminal,
};
use clap::Subcommand;
use http::Method;
use serde_json::{Value, json};
use tidegate_core::{Micros, Utc};

/// Set, list and remove overrides: quotas of single keys, until they end.
///
/// The key keeps its usage. The policy declares where overrides are stored (`overrides: { file: overrides.jsonl }`, or
/// `overrides: store` for all gateways with one store).
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct OverrideArgs {
    #[command(subcommand)]
    command: OverrideCommand,
}

#[derive(Debug, Subcommand)]
enum OverrideCommand {
    Set(OverrideSetArgs),
    List(OverrideListArgs),
    Remove(OverrideRemoveArgs),
    Changes(OverrideChangesArgs),
}

/// Set the quota of a key until an end.
#[derive(Debug, clap::Args)]
struct OverrideSetArgs {
    /// Set a quota of this rule
    rule: String,

    /// Set the quota of this key, as `tidegate why` shows it; a JSON list for a key of several parts
    key: String,

    /// Set this quota, as in `200/min`
    quota: String,

    /// Let it end after this time, as in `3d`
    #[arg(long = "for", value_name = "TIME", required_unless_present = "until")]
    duration: Option<Micros>,

    /// Let it end at this time in UTC, as in `2026-11-20` or `2026-11-20T17:00:00Z`
    #[arg(long, value_name = "TIME", value_parser = parse_until, conflicts_with = "duration")]
    until: Option<Micros>,

    /// Log this reason
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,

    /// Fail unless this is the last change of the override, as `tidegate override list` shows it; `none` if there must be none
    #[arg(long, value_name = "CHANGE", value_parser = parse_from)]
    from: Option<ExpectedChange>,

    #[command(flatten)]
    output: OutputArgs,
}

/// List the overrides, or those of a rule.
#[derive(Debug, clap::Args)]
struct OverrideListArgs {
    /// List only those of this rule
    rule: Option<String>,

    /// List at most this number
    #[arg(long, value_name = "NUMBER", default_value_t = 1_000)]
    limit: usize,

    #[command(flatten)]
    output: OutputArgs,
}

/// Remove the override of a key.
#[derive(Debug, clap::Args)]
struct OverrideRemoveArgs {
    /// Remove an override of this rule
    rule: String,

    /// Remove the override of this key
    key: String,

    /// Fail unless this is the last change of the override
    #[arg(long, value_name = "CHANGE")]
    from: Option<u64>,

    #[command(flatten)]
    output: OutputArgs,
}

/// List the last hundred changes of overrides, the newest first.
#[derive(Debug, clap::Args)]
struct OverrideChangesArgs {
    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Debug, clap::Args)]
struct OutputArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// Print the response as JSON
    #[arg(long)]
    json: bool,
}

/// The change that an override must have before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpectedChange {
    Absent,
    Number(u64),
}

const EXAMPLES: &str = "\
Examples:
  tidegate override set api alice 500/min --for 3d --reason 'migration'
  tidegate override set api alice 500/min --until 2026-11-20T17:00:00Z
  tidegate override list
  tidegate override remove api alice
  tidegate override changes --json";

/// The maximum number of overrides in one response.
const PAGE: usize = 1_000;

fn parse_until(text: &str) -> Result<Micros, String> {
    Utc::parse_micros(text).ok_or_else(|| "use a time in UTC, as in `2026-11-20T17:00:00Z`".to_owned())
}

fn parse_from(text: &str) -> Result<ExpectedChange, String> {
    match (text, text.parse()) {
        ("none", _) => Ok(ExpectedChange::Absent),
        (_, Ok(number)) => Ok(ExpectedChange::Number(number)),
        _ => Err("use the number of a change, or `none`".to_owned()),
    }
}

pub(crate) fn run(args: &OverrideArgs) -> Result<(), CliError> {
    match &args.command {
        OverrideCommand::Set(args) => set(args),
        OverrideCommand::List(args) => list(args),
        OverrideCommand::Remove(args) => remove(args),
        OverrideCommand::Changes(args) => changes(args),
    }
}

fn set(args: &OverrideSetArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.output.admin)?;
    let mut body = json!({ "rule": args.rule, "key": key_json(&args.key), "quota": args.quota });
    if let Some(duration) = args.duration {
        body["seconds"] = json!(duration.to_duration().as_secs());
    }
    if let Some(until) = args.until {
        body["until"] = json!(Utc::from(until).to_string());
    }
    if let Some(reason) = &args.reason {
        body["reason"] = json!(reason);
    }
    match args.from {
        None => {}
        Some(ExpectedChange::Absent) => body["from"] = Value::Null,
        Some(ExpectedChange::Number(change)) => body["from"] = json!(change),
    }
    let response = block_on(client.send(Method::PUT, "/api/v1/overrides", Some(&body)))?;
    if args.output.json {
        return terminal::print(&format!("{response:#}\n"));
    }
    let (new, before) = (&response["override"], &response["replaced"]["quota"]);
    let before = before.as_str().map(|before| format!(", before {}", terminal::sanitize(before)));
    terminal::print(&format!(
        "{}: {} has {} until {}{}\n",
        text(new, "rule"),
        text(new, "key"),
        text(new, "quota"),
        minute(new, "until"),
        before.unwrap_or_default()
    ))
}

fn list(args: &OverrideListArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.output.admin)?;
    let rule = args.rule.as_deref().map(|rule| format!("&rule={}", percent_encode(rule))).unwrap_or_default();
    let (mut overrides, mut after, mut response) = (Vec::new(), String::new(), Value::Null);
    while overrides.len() < args.limit {
        let limit = (args.limit - overrides.len()).min(PAGE);
        let path = format!("/api/v1/overrides?limit={limit}{rule}{after}");
        response = block_on(client.get(&path))?;
        overrides.extend(response["overrides"].as_array().cloned().unwrap_or_default());
        match response["next"].as_str() {
            Some(next) => after = format!("&after={next}"),
            None => break,
        }
    }
    if args.output.json {
        response["overrides"] = json!(overrides);
        return terminal::print(&format!("{response:#}\n"));
    }
    terminal::print(&report(&overrides, &response))
}

fn report(overrides: &[Value], response: &Value) -> String {
    if overrides.is_empty() {
        return match response["stored-in"].is_null() {
            true => "The policy keeps no overrides; add `overrides: { file: overrides.jsonl }` to it.\n",
            false => "No overrides.\n",
        }
        .to_owned();
    }
    let header = ["change", "rule", "key", "quota", "until", "by", "reason"].map(str::to_owned).to_vec();
    let row = |it: &Value| {
        let note = match it["obstacle"].as_str() {
            Some(obstacle) => format!("without effect: {}", terminal::sanitize(obstacle)),
            None => text(it, "reason"),
        };
        let change = it["change"].to_string();
        vec![
            change,
            text(it, "rule"),
            text(it, "key"),
            text(it, "quota"),
            minute(it, "until"),
            text(it, "by"),
            note,
        ]
    };
    let rows: Vec<_> = std::iter::once(header).chain(overrides.iter().map(row)).collect();
    let mut report = terminal::table(&rows);
    if response["next"].is_string() {
        report.push_str(&format!(
            "{} of {} overrides; use --limit for more.\n",
            overrides.len(),
            response["total"]
        ));
    }
    report
}

fn remove(args: &OverrideRemoveArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.output.admin)?;
    let path =
        format!("/api/v1/overrides?rule={}&key={}", percent_encode(&args.rule), percent_encode(&args.key));
    let found = block_on(client.get(&path))?;
    let Some(id) = found["overrides"][0]["id"].as_str() else {
        let problem = format!("key `{}` of rule `{}` has no override", args.key, args.rule);
        return Err(CliError::input(format!("{problem}; `tidegate override list` lists them")));
    };
    let from = args.from.map(|from| format!("?from={from}")).unwrap_or_default();
    let response = block_on(client.send(Method::DELETE, &format!("/api/v1/overrides/{id}{from}"), None))?;
    if args.output.json {
        return terminal::print(&format!("{response:#}\n"));
    }
    let removed = &response["replaced"];
    terminal::print(&format!(
        "{}: override of {} removed, which was {}\n",
        text(removed, "rule"),
        text(removed, "key"),
        text(removed, "quota")
    ))
}

fn changes(args: &OverrideChangesArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.output.admin)?;
    let response = block_on(client.get("/api/v1/overrides/changes"))?;
    if args.output.json {
        return terminal::print(&format!("{response:#}\n"));
    }
    let changes = response["changes"].as_array().map(Vec::as_slice).unwrap_or_default();
    if changes.is_empty() {
        return terminal::print("No changes yet.\n");
    }
    let row = |it: &Value| {
        let (change, quota) = (it["change"].to_string(), it["quota"].as_str().unwrap_or("removed"));
        let (quota, until) = (terminal::sanitize(quota), minute(it, "until"));
        vec![change, minute(it, "time"), text(it, "rule"), text(it, "key"), quota, until, text(it, "by")]
    };
    let header = ["change", "time", "rule", "key", "quota", "until", "by"].map(str::to_owned).to_vec();
    let rows: Vec<_> = std::iter::once(header).chain(changes.iter().map(row)).collect();
    terminal::print(&terminal::table(&rows))
}

/// A key of several parts is JSON, and every other key a string.
fn key_json(key: &str) -> Value {
    let json = key.starts_with(['[', '{']).then(|| serde_json::from_str(key).ok()).flatten();
    json.unwrap_or_else(|| if key.is_empty() { Value::Null } else { json!(key) })
}

fn text(it: &Value, member: &str) -> String {
    terminal::sanitize(it[member].as_str().unwrap_or_default())
}

/// `2026-11-20 17:00`
fn minute(it: &Value, member: &str) -> String {
    text(it, member).chars().take(16).collect::<String>().replace('T', " ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_has_one_row_per_override() {
        let set = |key: &str, obstacle: Value| {
            json!({ "change": 7, "rule": "api", "key": key, "quota": "500/min", "until": "2026-11-20T17:00:00.000000Z",
                    "by": "ann", "reason": "migration", "obstacle": obstacle })
        };
        let overrides = [set("alice", Value::Null), set("bob\u{1b}", json!("the rule has several quotas"))];
        assert_eq!(
            report(&overrides, &json!({ "next": "o-1", "total": 9, "stored-in": "file" })),
            "change  rule  key    quota    until             by   reason\n\
             7       api   alice  500/min  2026-11-20 17:00  ann  migration\n\
             7       api   bob\u{fffd}   500/min  2026-11-20 17:00  ann  without effect: the rule has several quotas\n\
             2 of 9 overrides; use --limit for more.\n"
        );
        assert_eq!(report(&[], &json!({ "stored-in": "store" })), "No overrides.\n");
        assert!(report(&[], &json!({ "stored-in": null })).contains("overrides: {"));
    }

    #[test]
    fn keys_of_several_parts_are_json() {
        assert_eq!(key_json("alice"), json!("alice"));
        assert_eq!(key_json("[\"a\", \"b\"]"), json!(["a", "b"]));
        assert_eq!(key_json("[a"), json!("[a"));
        assert_eq!(key_json(""), Value::Null);
    }
}
