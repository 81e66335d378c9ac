//! `tidegate shadow`: reports what rules in shadow mode would have denied.

use crate::{
    admin::{AdminArgs, AdminClient, block_on},
    error::CliError,
    promotion::{describe_mode, percent_encode},
    terminal::{self, Paint, Tone},
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Report the requests and keys that rules in shadow mode would have denied since the gateway started.
///
/// A rule with `mode: shadow` counts every request and denies none; one with `mode: enforce 10%` is in shadow mode for the
/// other keys. Keys are reported if the policy has `observe: { denials: 10000 }`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ShadowArgs {
    /// Report only this rule
    rule: Option<String>,

    /// Print this number of keys per rule
    #[arg(long, value_name = "NUMBER", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=100))]
    keys: u64,

    #[command(flatten)]
    admin: AdminArgs,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate shadow
  tidegate shadow login --keys 20
  tidegate shadow --admin http://127.0.0.1:9091 --json";

pub(crate) fn run(args: &ShadowArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.admin)?;
    let response = block_on(collect(&client, args))?;
    let text = match args.json {
        true => format!("{response:#}\n"),
        false => report(&response, Paint::for_stdout()),
    };
    terminal::print(&text)
}

/// Collects the counts and keys of each rule that is not fully enforced.
async fn collect(client: &AdminClient, args: &ShadowArgs) -> Result<Value, CliError> {
    let status = client.get("/api/v1/status").await?;
    let all = status["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_named = |rule: &&Value| args.rule.as_deref().is_none_or(|name| rule["name"] == name);
    if let Some(name) = args.rule.as_deref().filter(|_| !all.iter().any(|rule| is_named(&rule))) {
        let names: Vec<&str> = all.iter().filter_map(|rule| rule["name"].as_str()).collect();
        let fix = match tidegate_core::suggest::closest(name, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`?"),
            None => "use a rule of the policy".to_owned(),
        };
        return Err(CliError::input(format!("unknown rule `{name}`; {fix}")));
    }
    let is_selected =
        |rule: &&Value| args.rule.is_some() || rule["mode"] == "shadow" || !rule["percent"].is_null();
    let mut rules = Vec::new();
    for rule in all.iter().filter(is_named).filter(is_selected) {
        let name = rule["name"].as_str().unwrap_or_default();
        let path = format!("/api/v1/top?by=shadow-denied&limit={}&rule={}", args.keys, percent_encode(name));
        let top = client.get(&path).await?;
        rules.push(json!({
            "name": name,
            "mode": rule["mode"],
            "percent": rule["percent"],
            "key": rule["key"],
            "match": rule["match"],
            "quotas": rule["quotas"],
            "counts": rule["counts"],
            "keys": top["keys"],
        }));
    }
    let observes = status["observe"]["denials"].as_u64().is_some_and(|denials| denials > 0);
    Ok(json!({ "rules": rules, "keys-observed": observes }))
}

fn report(response: &Value, paint: Paint) -> String {
    let rules = response["rules"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rules.is_empty() {
        return "No rule is in shadow mode. Set it with `tidegate mode RULE shadow`.\n".to_owned();
    }
    let mut text = String::new();
    for rule in rules {
        let text_of = |member: &str| terminal::sanitize(rule[member].as_str().unwrap_or("?"));
        let count = |member: &str| rule["counts"][member].as_u64().unwrap_or_default();
        let would_deny = count("shadow-denied");
        let all = count("admitted") + count("delayed") + count("denied") + would_deny;
        let quotas = rule["quotas"].as_array().map(Vec::as_slice).unwrap_or_default();
        let quotas: Vec<&str> = quotas.iter().filter_map(|quota| quota["text"].as_str()).collect();
        let name = paint.tone(Tone::Strong, text_of("name"));
        let (key, matching) = (text_of("key"), text_of("match"));
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "{name}  {}, {} per {key}, on {matching}",
            describe_mode(rule),
            quotas.join(" and ")
        );
        let _ = match all {
            0 => writeln!(text, "  no matching request yet"),
            _ => {
                writeln!(
                    text,
                    "  would have denied {would_deny} more of {all} requests: {}",
                    percent_text(would_deny, all)
                )
            }
        };
        let keys = rule["keys"].as_array().map(Vec::as_slice).unwrap_or_default();
        for key in keys {
            let name = terminal::sanitize(key["key"].as_str().unwrap_or("?"));
            let share = key["share"].as_f64().unwrap_or_default();
            let count = key["count"].as_u64().unwrap_or_default();
            let _ = writeln!(text, "  {count:>8}  {:>6}  {name}", format!("{:.1} %", share * 100.0));
        }
        text.push('\n');
    }
    if response["keys-observed"] != true {
        text.push_str("Keys are not recorded; add `observe: { denials: 10000 }` to the policy.\n");
    }
    text
}

fn percent_text(part: u64, whole: u64) -> String {
    format!("{:.1} %", part as f64 * 100.0 / whole.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn report_shows_keys_that_would_be_denied() {
        let response = json!({
            "keys-observed": true,
            "rules": [{
                "name": "login", "mode": "enforce", "percent": 10.0, "key": "ip", "match": "POST /login",
                "quotas": [{ "text": "5/min" }],
                "counts": { "admitted": 70, "delayed": 0, "denied": 10, "shadow-denied": 20, "degraded": 0 },
                "keys": [{ "rule": "login", "key": "192.0.2.7", "count": 15, "error": 0, "share": 0.75 }],
            }],
        });
        assert_eq!(
            report(&response, Paint::Plain),
            "login  enforce 10 %, 5/min per ip, on POST /login\n\
             \x20 would have denied 20 more of 100 requests: 20.0 %\n\
             \x20       15  75.0 %  192.0.2.7\n\n"
        );
        let none = json!({ "rules": [], "keys-observed": false });
        assert!(report(&none, Paint::Plain).starts_with("No rule is in shadow mode."));
    }
}
