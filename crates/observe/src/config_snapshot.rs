//! The configuration in force.

use super::{PolicyCounters, UpstreamReporter};
use serde_json::Value;
use std::{net::SocketAddr, path::PathBuf, sync::Arc};
use tidegate_core::Micros;
use tidegate_policy::{Policy, PolicyFormat, compile::PolicyGate, model::Stores, redact_credentials};
use tidegate_rule::key_hash;

/// The configuration in force.
#[derive(Clone)]
pub struct ConfigSnapshot {
    /// The policy.
    pub policy: Arc<Policy>,
    /// A hash of the policy, equal in every process.
    pub version: String,
    /// The file of the policy.
    pub file: Option<PathBuf>,
    /// The time at which it was put in force.
    pub loaded_at: Micros,
    /// The compiled policy.
    pub gate: PolicyGate,
    /// The counters of the policy.
    pub counters: Arc<PolicyCounters>,
    /// The key and the `match` of each rule.
    pub rule_summaries: Arc<Vec<(String, String)>>,
    /// Reports the health of the upstream servers.
    pub upstreams: Arc<UpstreamReporter>,
    /// Reports the spans that were sent and lost; `None` without traces.
    pub spans: Option<Arc<SpanReporter>>,
    /// Reports the cache of responses; `None` if no rule uses it.
    pub cache: Option<Arc<CacheReporter>>,
    /// The listeners of the gateway.
    pub listeners: Vec<ListenerInfo>,
    /// The address of the decision API.
    pub decisions: Option<SocketAddr>,
    /// The address of the rate limit service for Envoy, if enabled.
    pub envoy: Option<SocketAddr>,
    /// The number of worker threads.
    pub workers: usize,
}

/// Reports the number of spans that the collector accepted, and of those that were lost.
pub type SpanReporter = dyn Fn() -> [u64; 2] + Send + Sync;

/// Reports the cache of responses for fallbacks.
pub type CacheReporter = dyn Fn() -> CacheCounts + Send + Sync;

/// The cache of responses for fallbacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheCounts {
    /// Rejected requests that got a stored response.
    pub hits: u64,
    /// Rejected requests without a stored response.
    pub misses: u64,
    /// The size of the stored responses.
    pub bytes: u64,
}

/// A listener of the gateway.
#[derive(Clone, Debug)]
pub struct ListenerInfo {
    /// Its address.
    pub address: SocketAddr,
    /// Whether connections use TLS.
    pub tls: bool,
}

/// Redacts a policy for display: removes addresses of stores, which may contain passwords, and values of credentials.
pub fn redact(policy: &Policy) -> Policy {
    let hidden = |_: &String| "redis://…".to_owned();
    let stores = &policy.stores;
    let stores = Stores {
        default: stores.default.as_ref().map(hidden),
        named: stores.named.iter().map(|(name, address)| (name.clone(), hidden(address))).collect(),
        ..stores.clone()
    };
    Policy { stores, ..redact_credentials(policy) }
}

/// The version of a policy: a hash of its content.
pub fn policy_version(policy: &Policy) -> String {
    format!("{:016x}", key_hash("policy", &policy.print(PolicyFormat::Json)))
}

/// Returns the key and the `match` of each rule, in one line each.
pub fn summarize_rules(policy: &Policy) -> Vec<(String, String)> {
    let printed: Value = serde_json::from_str(&policy.print(PolicyFormat::Json)).unwrap_or_default();
    let each = |index: usize| {
        let rule = &printed["rules"][index];
        let key = match &rule["key"] {
            Value::Null => "all".to_owned(),
            key => format_value(key),
        };
        (key, summarize_match(&rule["match"]))
    };
    (0..policy.rules.len()).map(each).collect()
}

/// Method and path, as in `POST /login`; `…` replaces the other conditions.
fn summarize_match(matcher: &Value) -> String {
    let Value::Object(members) = matcher else { return "all".to_owned() };
    let mut parts: Vec<String> =
        ["method", "host", "path"].iter().filter_map(|name| members.get(*name)).map(format_value).collect();
    if members.keys().any(|name| !matches!(name.as_str(), "method" | "host" | "path")) {
        parts.push("…".to_owned());
    }
    parts.join(" ")
}

fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(format_value).collect::<Vec<_>>().join(", "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_summary_is_one_line_and_store_addresses_are_redacted() {
        let policy: Policy = "
store: redis://:secret@db
user: header x-user
rules:
  - { name: a, quota: 5/min, key: [user, ip], match: { method: [GET, HEAD], path: /a, query: { b: c } } }
  - { name: b, quota: 5/min }"
            .parse()
            .unwrap();
        assert_eq!(
            summarize_rules(&policy),
            [("user, ip".to_owned(), "GET, HEAD /a …".to_owned()), ("all".to_owned(), "all".to_owned())]
        );
        assert!(!redact(&policy).print(PolicyFormat::Yaml).contains("secret"));
        assert_eq!(policy_version(&policy), policy_version(&policy.clone()));
        assert_ne!(policy_version(&policy), policy_version(&Policy::default()));
    }
}
