//! What is in force now.

use super::{ReportUpstreams, Tally};
use serde_json::Value;
use std::{net::SocketAddr, path::PathBuf, sync::Arc};
use tidegate_core::Micros;
use tidegate_policy::{Policy, PolicyFormat, compile::PolicyGate, model::Stores, redact_credentials};
use tidegate_rule::key_hash;

/// What is in force now.
#[derive(Clone)]
pub struct Scene {
    /// The policy.
    pub policy: Arc<Policy>,
    /// The same for the same policy, in every process.
    pub version: String,
    /// The file that it was read from.
    pub file: Option<PathBuf>,
    /// When it came into force.
    pub loaded: Micros,
    /// What decides.
    pub gate: PolicyGate,
    /// What is counted.
    pub tally: Arc<Tally>,
    /// What the policy says of each rule: its key and its `match`.
    pub said: Arc<Vec<(String, String)>>,
    /// How the servers are.
    pub upstreams: Arc<ReportUpstreams>,
    /// Where requests come in.
    pub listeners: Vec<Listening>,
    /// Where decisions are asked for.
    pub decisions: Option<SocketAddr>,
    /// Threads of the gateway.
    pub workers: usize,
}

/// Where requests come in.
#[derive(Clone, Debug)]
pub struct Listening {
    /// Its address.
    pub address: SocketAddr,
    /// Whether connections use TLS.
    pub tls: bool,
}

/// A policy as operators read it: addresses of stores may hold passwords, and are left out, as values of credentials are.
pub fn shown(policy: &Policy) -> Policy {
    let hidden = |_: &String| "redis://…".to_owned();
    let stores = &policy.stores;
    let stores = Stores {
        default: stores.default.as_ref().map(hidden),
        named: stores.named.iter().map(|(name, address)| (name.clone(), hidden(address))).collect(),
        ..stores.clone()
    };
    Policy { stores, ..redact_credentials(policy) }
}

/// What stands for a policy: the same for the same one.
pub fn version(policy: &Policy) -> String {
    format!("{:016x}", key_hash("policy", &policy.print(PolicyFormat::Json)))
}

/// Of each rule, its key and its `match` in a line.
pub fn said(policy: &Policy) -> Vec<(String, String)> {
    let printed: Value = serde_json::from_str(&policy.print(PolicyFormat::Json)).unwrap_or_default();
    let each = |place: usize| {
        let rule = &printed["rules"][place];
        let key = match &rule["key"] {
            Value::Null => "all".to_owned(),
            key => line(key),
        };
        (key, match_line(&rule["match"]))
    };
    (0..policy.rules.len()).map(each).collect()
}

/// `POST /login`; what else it says is left to whoever reads the policy.
fn match_line(said: &Value) -> String {
    let Value::Object(members) = said else { return "all".to_owned() };
    let mut words: Vec<String> =
        ["method", "host", "path"].iter().filter_map(|name| members.get(*name)).map(line).collect();
    if members.keys().any(|name| !matches!(name.as_str(), "method" | "host" | "path")) {
        words.push("…".to_owned());
    }
    words.join(" ")
}

fn line(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(line).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_told_in_a_line_and_a_store_is_not() {
        let policy: Policy = "
store: redis://:secret@db
user: header x-user
rules:
  - { name: a, quota: 5/min, key: [user, ip], match: { method: [GET, HEAD], path: /a, query: { b: c } } }
  - { name: b, quota: 5/min }"
            .parse()
            .unwrap();
        assert_eq!(
            said(&policy),
            [("user, ip".to_owned(), "GET, HEAD /a …".to_owned()), ("all".to_owned(), "all".to_owned())]
        );
        assert!(!shown(&policy).print(PolicyFormat::Yaml).contains("secret"));
        assert_eq!(version(&policy), version(&policy.clone()));
        assert_ne!(version(&policy), version(&Policy::default()));
    }
}
