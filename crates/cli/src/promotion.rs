//! Changes rules, through a running gateway or in a policy file.

use crate::{
    admin::{AdminArgs, AdminClient, block_on},
    error::CliError,
    terminal,
};
use http::Method;
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal as _, Write as _},
    path::PathBuf,
};
use tidegate_admin::{
    ChangeResult, ExpectedValue, PolicyFile, PolicyFileError, RuleChange, RuleSetting, settings_json,
};
use tidegate_policy::model::RuleEnforcement;

/// Selects a gateway or a policy file.
#[derive(Clone, Debug, Default, clap::Args)]
pub(crate) struct PolicyTargetArgs {
    #[command(flatten)]
    admin: AdminArgs,

    /// Use this policy file instead of a gateway; a gateway that serves the file reloads it automatically
    #[arg(long, value_name = "FILE", conflicts_with = "admin")]
    policy: Option<PathBuf>,
}

/// A gateway or a policy file.
pub(crate) enum PolicyTarget {
    Gateway(AdminClient),
    File(PolicyFile),
}

impl PolicyTargetArgs {
    /// Returns what a value would have done, in the format of the API. Needs a gateway, which has recorded requests.
    pub(crate) fn preview(&self, setting: &RuleSetting) -> Result<Value, CliError> {
        let body = json!({ "key": setting.key, "value": setting.value });
        let path = format!("/api/v1/rules/{}/preview", percent_encode(&setting.rule));
        block_on(AdminClient::from_args(&self.admin)?.send(Method::POST, &path, Some(&body)))
    }
}

impl PolicyTarget {
    pub(crate) fn from_args(args: &PolicyTargetArgs) -> Result<Self, CliError> {
        match &args.policy {
            Some(file) => Ok(Self::File(PolicyFile::new(file))),
            None => AdminClient::from_args(&args.admin).map(Self::Gateway),
        }
    }

    /// Returns the current mode of a rule; `None` if the rule does not exist.
    pub(crate) fn mode_of(&self, rule: &str) -> Result<Option<RuleEnforcement>, CliError> {
        match self {
            Self::Gateway(client) => {
                let status = block_on(client.get("/api/v1/status"))?;
                let mut rules = status["rules"].as_array().into_iter().flatten();
                let known = rules.find(|known| known["name"] == rule);
                let mode = |known: &Value| {
                    let mode = known["mode"].as_str()?.parse().ok()?;
                    RuleEnforcement::new(mode, known["percent"].as_f64()).ok()
                };
                Ok(known.and_then(mode))
            }
            Self::File(file) => file.mode_of(rule).map_err(|error| to_cli_error(&error)),
        }
    }

    /// Sets the mode of a rule, even if that weakens it. Returns the result in the format of the API.
    pub(crate) fn set_mode(&self, rule: &str, to: &RuleEnforcement) -> Result<Value, CliError> {
        match self {
            Self::Gateway(client) => {
                let percent = to.percent().map(|share| share.as_f64() * 100.0);
                let body = json!({ "mode": to.mode().to_string(), "percent": percent, "confirm": true });
                let path = format!("/api/v1/rules/{}/mode", percent_encode(rule));
                block_on(client.send(Method::POST, &path, Some(&body)))
            }
            Self::File(file) => set_in_file(file, &RuleSetting::mode(rule, to)),
        }
    }

    /// Returns the values of a rule that can be set, in the format of the API.
    pub(crate) fn values(&self, rule: &str) -> Result<Value, CliError> {
        match self {
            Self::Gateway(client) => {
                block_on(client.get(&format!("/api/v1/rules/{}/settings", percent_encode(rule))))
            }
            Self::File(file) => {
                let values = file.values_of(rule).map_err(|error| to_cli_error(&error))?;
                Ok(settings_json(rule, &values))
            }
        }
    }

    /// Sets a value of a rule. Returns the result in the format of the API.
    pub(crate) fn set(&self, setting: &RuleSetting) -> Result<Value, CliError> {
        match self {
            Self::Gateway(client) => {
                let RuleSetting { rule, key, value, from } = setting;
                let mut body = json!({ "key": key, "value": value });
                if let ExpectedValue::Only(from) = from {
                    body["from"] = json!(from);
                }
                let path = format!("/api/v1/rules/{}/settings", percent_encode(rule));
                block_on(client.send(Method::POST, &path, Some(&body)))
            }
            Self::File(file) => set_in_file(file, setting),
        }
    }

    /// Reverts the last change.
    pub(crate) fn roll_back(&self, id: Option<u64>) -> Result<Value, CliError> {
        match self {
            Self::Gateway(client) => {
                let body = json!({ "id": id, "confirm": true });
                block_on(client.send(Method::POST, "/api/v1/rollback", Some(&body)))
            }
            Self::File(file) => Ok(change_json(&file.roll_back(id).map_err(|error| to_cli_error(&error))?)),
        }
    }

    /// Returns the changes, newest first.
    pub(crate) fn changes(&self) -> Result<Value, CliError> {
        match self {
            Self::Gateway(client) => block_on(client.get("/api/v1/changes")),
            Self::File(file) => {
                let changes: Vec<Value> = file
                    .changes()
                    .map_err(|error| to_cli_error(&error))?
                    .iter()
                    .map(RuleChange::to_json)
                    .collect();
                let (last, reason) = match file.last_change() {
                    Ok(last) => (Some(last.id), None),
                    Err(error) => (None, Some(error.to_string())),
                };
                Ok(json!({ "changes": changes, "last": last, "reason": reason }))
            }
        }
    }

    /// A note on when a change takes effect.
    pub(crate) fn effect_note(&self) -> &'static str {
        match self {
            Self::Gateway(_) => "The gateway has applied the change.",
            Self::File(_) => "A gateway that serves this file reloads it automatically.",
        }
    }
}

/// Prompts for confirmation on a terminal; fails without one, so scripts need `--yes`.
pub(crate) fn confirm(consequence: &str) -> Result<(), CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::input(format!("{consequence}; add --yes to confirm")));
    }
    let mut reply = String::new();
    let read = write!(io::stderr(), "{consequence}. Continue? [y/N] ")
        .and_then(|()| io::stdin().read_line(&mut reply));
    match (read, reply.trim().to_ascii_lowercase().as_str()) {
        (Ok(_), "y" | "yes") => Ok(()),
        _ => Err(CliError::input("not confirmed; nothing changed")),
    }
}

fn set_in_file(file: &PolicyFile, setting: &RuleSetting) -> Result<Value, CliError> {
    match file.set(setting).map_err(|error| to_cli_error(&error))? {
        ChangeResult::Changed(change) => Ok(change_json(&change)),
        ChangeResult::Unchanged => {
            let RuleSetting { rule, key, value, .. } = setting;
            Ok(json!({ "changed": false, "rule": rule, "key": key, "to": value }))
        }
    }
}

fn change_json(change: &RuleChange) -> Value {
    json!({ "changed": true, "change": change.to_json() })
}

fn to_cli_error(error: &PolicyFileError) -> CliError {
    CliError::input(error.to_string())
}

/// `shadow → enforce 25 %`, or `quota 5/min → 8/min`
pub(crate) fn describe_change(change: &Value) -> String {
    let value = |name: &str| terminal::sanitize(change[name].as_str().unwrap_or("default"));
    match change["key"].as_str() {
        None | Some("mode") => format!("{} → {}", value("from"), value("to")).replace('%', " %"),
        Some(key) => format!("{} {} → {}", terminal::sanitize(key), value("from"), value("to")),
    }
}

/// `enforce 25 %`, from the `mode` and the `percent` of a rule in `/api/v1/status`
pub(crate) fn describe_mode(rule: &Value) -> String {
    let name = rule["mode"].as_str().unwrap_or("?");
    match rule["percent"].as_f64() {
        // Four decimals, the precision of `Percent`.
        Some(percent) => format!("{name} {} %", (percent * 1e4).round() / 1e4),
        None => name.to_owned(),
    }
}

/// Encodes a name as a path segment.
pub(crate) fn percent_encode(name: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    name.bytes().map(encode).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    #[test]
    fn names_are_encoded_and_changes_described() {
        assert_eq!(percent_encode("log in/ü?"), "log%20in%2F%C3%BC%3F");
        let change = json!({ "key": "mode", "from": "shadow", "to": "enforce 0.1%" });
        assert_eq!(describe_change(&change), "shadow → enforce 0.1 %");
        let change = json!({ "key": "wait", "from": null, "to": "2s" });
        assert_eq!(describe_change(&change), "wait default → 2s");
    }
}
