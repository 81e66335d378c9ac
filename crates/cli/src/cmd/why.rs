//! `tidegate why`: explains a denial.

use crate::{
    admin::{AdminArgs, AdminClient, block_on},
    error::CliError,
    terminal::{self, Paint, Tone},
};
use serde_json::Value;
use std::fmt::Write as _;

/// Explain why a request was denied: the rule, the key, its state, and when a retry would have succeeded.
///
/// Denials have an id in the header `Tidegate-Denial` and in the problem document if the policy has `observe: { denials: 10000
/// }`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct WhyArgs {
    /// Explain the denial with this id [default: the last one]
    id: Option<String>,

    #[command(flatten)]
    admin: AdminArgs,

    /// Print the denial as JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate why
  tidegate why 01jqw9zkx4m2c7h5
  tidegate why 01jqw9zkx4m2c7h5 --admin http://127.0.0.1:9091 --json";

pub(crate) fn run(args: &WhyArgs) -> Result<(), CliError> {
    let client = AdminClient::from_args(&args.admin)?;
    let denial = match &args.id {
        Some(id) => block_on(client.get(&format!("/api/v1/denials/{}", parse_id(id)?)))?,
        None => {
            let mut newest = block_on(client.get("/api/v1/denials?limit=1"))?;
            newest.pointer_mut("/denials/0").map(Value::take).ok_or_else(|| {
                CliError::input(
                    "the gateway has no denials; it records them if its policy has `observe: { denials: 10000 }`",
                )
            })?
        }
    };
    let text = match args.json {
        true => format!("{denial:#}\n"),
        false => report(&denial, Paint::for_stdout()),
    };
    terminal::print(&text)
}

fn parse_id(text: &str) -> Result<&str, CliError> {
    // The prefix of the id in problem documents.
    let id = text.trim().trim_start_matches("urn:tidegate:denial:");
    match !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-') {
        true => Ok(id),
        false => Err(CliError::input(format!(
            "invalid denial id `{text}`; use the value of the header `Tidegate-Denial`"
        ))),
    }
}

fn report(denial: &Value, paint: Paint) -> String {
    // Data from clients must not contain control characters of the terminal.
    let text_of = |value: &Value| value.as_str().map(|text| terminal::sanitize(text).replace('\n', " "));
    let member_text = |member: &str| text_of(&denial[member]);
    let summary = member_text("summary").unwrap_or_else(|| "no explanation".to_owned());
    let mut text = format!("{}\n\n", paint.tone(Tone::Strong, summary));
    let mut add = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{}{value}", paint.tone(Tone::Faint, format!("{name:<9}")));
        }
    };
    add("time", member_text("time"));
    let host = member_text("host").unwrap_or_default();
    let from = member_text("client").map(|client| format!(" from {client}")).unwrap_or_default();
    let request = member_text("method")
        .zip(member_text("path"))
        .map(|(method, path)| format!("{method} {host}{path}{from}"));
    add("request", request);
    add("rule", member_text("rule"));
    let hashed = if denial["key-hashed"] == true { " (hashed)" } else { "" };
    add("key", member_text("key").map(|key| format!("{key}{hashed}")));
    add("cost", denial["cost"].as_u64().filter(|cost| *cost != 1).map(|cost| cost.to_string()));
    let quota = &denial["quota"];
    let quota = text_of(&quota["text"]).zip(text_of(&quota["algorithm"]));
    add("quota", quota.map(|(text, algorithm)| format!("{text} ({algorithm})")));
    let before = &denial["before"];
    let remaining = before["remaining"].as_u64().zip(before["limit"].as_u64());
    let reset = before["reset-after"].as_f64().map(|reset| format!(", full after {reset:.1} s"));
    let remaining = remaining
        .map(|(remaining, limit)| format!("{remaining} of {limit} remaining{}", reset.unwrap_or_default()));
    add("before", remaining);
    let at = member_text("retry-at").map(|at| format!("{at}, ")).unwrap_or_default();
    add("retry", member_text("retry").map(|retry| format!("{at}{retry}")));
    let status = denial["status"].as_u64().map_or_else(|| "none".to_owned(), |status| status.to_string());
    add("response", Some(status));
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn report_lists_all_denial_fields() {
        let denial = json!({
            "id": "01jqw9zkx4m2c7h5", "time": "2026-11-16T03:20:00.123456Z", "rule": "login", "reason": "limited",
            "key": "alice", "key-hashed": false, "client": "192.0.2.7", "method": "POST", "path": "/login",
            "host": "app.example", "cost": 2,
            "quota": { "text": "5/min", "algorithm": "token-bucket", "limit": 5, "rate": 0.08 },
            "before": { "limit": 5, "remaining": 1, "reset-after": 48.25 },
            "retry-after": 11.8, "retry-at": "2026-11-16T03:20:11.923456Z", "retry": "11.8 s later", "degraded": false,
            "status": 429, "summary": "Denied by rule `login`: …",
        });
        let loud = json!({ "key": "\u{1b}[2J\nalice", "summary": "\u{7}" });
        let painted = report(&loud, Paint::Ansi);
        assert!(
            painted.contains("\u{1b}[") && !painted.contains("\u{1b}[2J") && !painted.contains('\u{7}'),
            "{painted:?}"
        );
        assert_eq!(
            report(&denial, Paint::Plain),
            "Denied by rule `login`: …\n\n\
             time     2026-11-16T03:20:00.123456Z\n\
             request  POST app.example/login from 192.0.2.7\n\
             rule     login\n\
             key      alice\n\
             cost     2\n\
             quota    5/min (token-bucket)\n\
             before   1 of 5 remaining, full after 48.2 s\n\
             retry    2026-11-16T03:20:11.923456Z, 11.8 s later\n\
             response 429\n"
        );
    }
}
