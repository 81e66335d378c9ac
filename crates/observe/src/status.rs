//! A snapshot as JSON.

use super::{
    Snapshot,
    denial::seconds,
    json::{breaker_json, feature_json, load_json, quota_json},
    latency::{LatencyBuckets, summary},
    live,
    shard::{
        DEGRADED_INDEX, DENIED_OUTCOMES, OUTCOME_NAMES, RuleCounts, RuleOutcome, SETTLED_REQUESTS,
        SETTLED_TOKENS, STATUS_CLASSES,
    },
    snapshot::RuleTable,
};
use crate::{HealthReport, ServerState};
use serde_json::{Value, json};
use tidegate_core::{Micros, Percent, Ratio, Utc};
use tidegate_policy::{
    compile::RuleView,
    model::{KeyDisplay, Observe, Quotas},
};
use tidegate_rule::{Mode, StoreStatus};

/// Which callers may change something through the admin API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeAccess {
    /// Callers with a token.
    Token,
    /// All callers that can reach the listener.
    Open,
    /// No caller.
    Disabled,
}

impl ChangeAccess {
    fn name(self) -> &'static str {
        match self {
            Self::Token => "token",
            Self::Open => "open",
            Self::Disabled => "disabled",
        }
    }
}

impl Snapshot {
    /// The response of `/api/v1/status`.
    pub fn to_json(&self) -> Value {
        let config = &self.config;
        let ([admitted, rejected], [delayed, shadow_denied]) = (self.totals.requests, self.totals.flagged);
        let rules = config.gate.views().enumerate().map(|(index, rule)| self.rule_json(index, rule));
        let rules: Vec<Value> = rules.collect();
        let bans: u64 = rules.iter().filter_map(|rule| rule["bans"].as_u64()).sum();
        let [by_servers, by_gateway] = self.totals.responses.map(classes_json);
        json!({
            "time": Utc::from(self.now).to_string(),
            "version": env!("CARGO_PKG_VERSION"),
            "uptime": seconds(self.uptime),
            "workers": config.workers,
            "policy": {
                "version": config.version,
                "file": config.file.as_ref().map(|file| file.display().to_string()),
                "loaded": Utc::from(config.loaded_at).to_string(),
                "reloads": self.reloads.applied,
                "error": self.reloads.error,
            },
            "observe": observe_json(&config.policy.observe),
            "changes": self.change_access.name(),
            "requests": {
                "total": admitted + rejected,
                "admitted": admitted,
                "rejected": rejected,
                "delayed": delayed,
                "shadow-denied": shadow_denied,
                "in-flight": self.in_flight(),
            },
            "responses": by_servers,
            "gateway-responses": by_gateway,
            "latency": {
                "request": self.totals.request_latency.to_json(),
                "decision": self.totals.decision_latency.to_json(),
                "wait": self.totals.wait_latency.to_json(),
            },
            "load": config.gate.load().map(load_json),
            "features": config.gate.features().list().iter().map(feature_json).collect::<Vec<_>>(),
            "rules": rules,
            "listeners": config.listeners.iter()
                .map(|it| json!({ "address": it.address.to_string(), "tls": it.tls }))
                .collect::<Vec<_>>(),
            "decisions": config.decisions.map(|address| address.to_string()),
            "envoy": config.envoy.map(|address| address.to_string()),
            "upstreams": self.upstreams.iter()
                .map(upstream_json)
                .collect::<Vec<_>>(),
            "stores": self.stores.iter().map(store_json).collect::<Vec<_>>(),
            "bans": bans + self.operator_bans as u64,
            "watchers": { "current": self.watchers, "max": live::MAX_WATCHERS },
        })
    }

    fn rule_json(&self, index: usize, rule: RuleView<'_>) -> Value {
        let counts = self.totals.rules.get(index).cloned().unwrap_or_default();
        let (key, matching) = self.config.rule_summaries.get(index).cloned().unwrap_or_default();
        let is_in_memory = rule.limiter().is_none_or(|limiter| limiter.is_in_memory());
        let store = rule.source().store.as_deref().unwrap_or("default");
        json!({
            "name": rule.name(),
            "mode": mode_name(rule.mode()),
            "percent": rule.percent().map(|share| share.as_f64() * 100.0),
            "key": key,
            "match": matching,
            "store": (!is_in_memory).then_some(store),
            "quotas": quotas_json(rule),
            "counts": counts_json(&counts),
            "denied-by": denials_json(&counts),
            "settlements": (rule.source().settle.is_some() || counts.has_settlements())
                .then(|| settlements_json(&counts)),
            "latency": counts.latency.to_json(),
            "queue": rule.waiting().map(|waiting| json!({ "waiting": waiting })),
            "breaker": rule.breaker().as_ref().map(breaker_json),
            "adaptive": rule.adaptive().map(|it| json!({ "limit": it.limit, "in-flight": it.in_flight })),
            "feature": rule.feature().map(|it| json!({ "name": it.name(), "on": it.is_on() })),
            "shedding": rule.shed_classes(),
            "scale": rule.scale_factor().map(Ratio::as_f64),
            "while-failing": rule.failing().map(|it| json!({ "keys": it.keys, "failing": it.failing })),
            "table": self.tables.get(index).and_then(Option::as_ref).map(table_json),
            "bans": rule.bans().map_or(0, |bans| bans.stats().stored),
        })
    }
}

fn classes_json(counts: [u64; 5]) -> Value {
    let classes = STATUS_CLASSES.into_iter().zip(counts);
    Value::Object(classes.map(|(name, count)| (name.to_owned(), count.into())).collect())
}

pub(super) fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Enforce => "enforce",
        Mode::Shadow => "shadow",
        Mode::Off => "off",
    }
}

fn counts_json(counts: &RuleCounts) -> Value {
    let count = |outcome: RuleOutcome| counts.outcomes[outcome as usize];
    json!({
        "admitted": count(RuleOutcome::Admitted),
        "delayed": count(RuleOutcome::Delayed),
        "denied": DENIED_OUTCOMES.into_iter().map(count).sum::<u64>(),
        "shadow-denied": count(RuleOutcome::ShadowDenied),
        "degraded": counts.outcomes[DEGRADED_INDEX],
    })
}

fn settlements_json(counts: &RuleCounts) -> Value {
    let (requests, tokens) = counts.settlements.split_at(SETTLED_REQUESTS.len());
    let by_name = |names: [&str; 3], counts: &[u64]| -> Value {
        names.into_iter().zip(counts).map(|(name, count)| (name.to_owned(), json!(count))).collect()
    };
    json!({ "requests": by_name(SETTLED_REQUESTS, requests), "tokens": by_name(SETTLED_TOKENS, tokens) })
}

fn denials_json(counts: &RuleCounts) -> Value {
    let counts_by_outcome = DENIED_OUTCOMES.map(|outcome| {
        (OUTCOME_NAMES[outcome as usize].to_owned(), counts.outcomes[outcome as usize].into())
    });
    Value::Object(counts_by_outcome.into_iter().collect())
}

fn quotas_json(rule: RuleView<'_>) -> Vec<Value> {
    let tier = |index: usize| match &rule.source().quotas {
        Quotas::All(_) => Value::Null,
        Quotas::Tiers(tiers) => tiers.quotas.get(index).map_or("default", |(name, _)| name.as_str()).into(),
    };
    let with_tier = |(index, quota): (usize, &tidegate_core::Quota)| {
        let mut json = quota_json(quota);
        json["tier"] = tier(index);
        json
    };
    rule.quotas().iter().enumerate().map(with_tier).collect()
}

fn table_json(table: &RuleTable) -> Value {
    let RuleTable { size, live_keys: live } = table;
    json!({
        "capacity": size.capacity,
        "live": live,
        "used": size.used,
        "overflowed": size.overflowed,
        "replaced": size.replaced,
        "bytes": size.bytes,
    })
}

fn observe_json(observe: &Observe) -> Option<Value> {
    let keys = match observe.keys {
        KeyDisplay::Plain => "plain",
        KeyDisplay::Hashed => "hashed",
    };
    (observe.denials > 0 || observe.history > 0).then(|| {
        json!({
            "denials": observe.denials,
            "keys": keys,
            "history": observe.history,
            "share": Percent::as_f64(observe.share),
        })
    })
}

fn upstream_json((name, servers): &(String, Vec<(String, HealthReport)>)) -> Value {
    let mut latency = LatencyBuckets::default();
    servers.iter().for_each(|(_, report)| latency.add(&report.latency));
    json!({
        "name": name,
        "latency": latency.to_json(),
        "servers": servers.iter().map(server_json).collect::<Vec<_>>(),
    })
}

fn server_json((address, report): &(String, HealthReport)) -> Value {
    let health = match report.state {
        ServerState::Healthy => "healthy",
        ServerState::Unhealthy => "unhealthy",
        ServerState::Down => "down",
    };
    json!({
        "address": address,
        "health": health,
        "responses": report.responses.iter().sum::<u64>(),
        "classes": classes_json(report.responses),
        "latency": report.latency.to_json(),
        "failures": report.failures,
        "failed-checks": report.failed_checks,
        "in-flight": report.in_flight,
        "breaker": report.breaker.as_ref().map(breaker_json),
    })
}

fn store_json((store, outage): &(StoreStatus, Micros)) -> Value {
    let bounds = StoreStatus::LATENCY_BOUNDS.map(Micros::get);
    json!({
        "name": store.name.as_deref().unwrap_or("default"),
        "health": if store.last_error.is_some() { "unavailable" } else { "available" },
        "last-error": store.last_error,
        "degraded-seconds": seconds(*outage),
        "calls": store.replies + store.failures,
        "failures": store.failures,
        "latency": summary(&bounds, &store.latency_counts, store.latency_sum.get()),
    })
}
