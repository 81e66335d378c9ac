//! A snapshot as metrics. Labels are what the policy names, never what requests carry.

use super::{
    Family, Kind, Number, Snapshot,
    json::rate,
    shard::{DEGRADED, OUTCOMES},
    status::mode,
    times::Times,
};
use crate::upstream::Standing;
use tidegate_core::{BreakerSnapshot, BreakerState, Micros, Share};
use tidegate_policy::compile::RuleView;
use tidegate_rule::StoreStatus;

use Kind::{Counter, Gauge, Histogram};
use Number::{Float, Whole};

impl Snapshot {
    /// All metrics, in the text format of Prometheus.
    pub(crate) fn prometheus(&self) -> String {
        let mut out = String::new();
        self.metrics().iter().for_each(|family| family.write(&mut out));
        out
    }

    pub(crate) fn metrics(&self) -> Vec<Family> {
        let mut all = self.gateway();
        all.extend(self.decisions());
        all.extend(self.rules());
        all.extend(self.tables());
        all.extend(self.stores());
        all.extend(self.servers());
        all
    }

    fn gateway(&self) -> Vec<Family> {
        let (totals, scene) = (&self.totals, &self.scene);
        let mut responses = Family::new("tidegate_responses_total", Counter);
        for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(totals.responses) {
            responses.add(&[("class", class)], Whole(count));
        }
        let bans: u64 = scene.gate.views().filter_map(|rule| rule.bans()).map(|bans| bans.stats().held).sum();
        let times = Number::Times {
            ends: Times::ENDS.to_vec(),
            counts: totals.times.counts.to_vec(),
            took: totals.times.took,
        };
        let gauge = |name, number| Family::new(name, Gauge).with(&[], number);
        vec![
            Family::new("tidegate_build_info", Gauge)
                .with(&[("version", env!("CARGO_PKG_VERSION"))], Whole(1)),
            gauge("tidegate_uptime_seconds", Float(seconds(self.uptime))),
            Family::new("tidegate_policy_info", Gauge).with(&[("version", &scene.version)], Whole(1)),
            Family::new("tidegate_policy_reloads_total", Counter)
                .with(&[("outcome", "applied")], Whole(self.reloads.applied))
                .with(&[("outcome", "refused")], Whole(self.reloads.refused)),
            Family::new("tidegate_requests_total", Counter)
                .with(&[("outcome", "admitted")], Whole(totals.requests[0]))
                .with(&[("outcome", "refused")], Whole(totals.requests[1])),
            gauge("tidegate_requests_in_flight", Whole(self.in_flight())),
            responses,
            Family::new("tidegate_decision_seconds", Histogram).with(&[], times),
            Family::new("tidegate_bans", Gauge)
                .with(&[("by", "operator")], Whole(self.operator_bans as u64))
                .with(&[("by", "rule")], Whole(bans)),
            gauge("tidegate_denials_kept", Whole(self.denials as u64)),
            gauge("tidegate_live_watchers", Whole(self.watchers as u64)),
        ]
    }

    fn decisions(&self) -> [Family; 2] {
        let mut decisions = Family::new("tidegate_decisions_total", Counter);
        let mut degraded = Family::new("tidegate_degraded_decisions_total", Counter);
        for (rule, counts) in self.scene.tally.names().iter().zip(&self.totals.rules) {
            for (outcome, count) in OUTCOMES.into_iter().zip(counts) {
                decisions.add(&[("rule", rule), ("outcome", outcome)], Whole(*count));
            }
            degraded.add(&[("rule", rule)], Whole(counts[DEGRADED]));
        }
        [decisions, degraded]
    }

    fn rules(&self) -> Vec<Family> {
        let mut modes = Family::new("tidegate_rule_mode", Gauge);
        let mut shares = Family::new("tidegate_rule_enforced_ratio", Gauge);
        let mut limits = Family::new("tidegate_quota_limit", Gauge);
        let mut rates = Family::new("tidegate_quota_rate", Gauge);
        let mut queues = Family::new("tidegate_queue_depth", Gauge);
        let mut adaptive = Family::new("tidegate_adaptive_limit", Gauge);
        let mut in_flight = Family::new("tidegate_adaptive_in_flight", Gauge);
        let mut breakers = Family::new("tidegate_breaker_state", Gauge);
        let mut rejected = Family::new("tidegate_breaker_rejected_total", Counter);
        for rule in self.scene.gate.views() {
            let name = [("rule", rule.name())];
            modes.add(&[name[0], ("mode", mode(rule.mode()))], Whole(1));
            shares.add(&name, Float(enforced(rule)));
            for (place, quota) in rule.quotas().iter().enumerate() {
                let labels = [name[0], ("quota", &*place.to_string())];
                limits.add(&labels, Whole(quota.limit()));
                if let Some(rate) = rate(quota) {
                    rates.add(&labels, Float(rate));
                }
            }
            if let Some(waiting) = rule.waiting() {
                queues.add(&name, Whole(waiting as u64));
            }
            if let Some(limit) = rule.adaptive() {
                adaptive.add(&name, Whole(limit.limit.into()));
                in_flight.add(&name, Whole(limit.in_flight.into()));
            }
            if let Some(breaker) = rule.breaker() {
                states(&mut breakers, &name, &breaker);
                rejected.add(&name, Whole(breaker.rejected));
            }
        }
        vec![modes, shares, limits, rates, queues, adaptive, in_flight, breakers, rejected]
    }

    fn tables(&self) -> [Family; 3] {
        let mut keys = Family::new("tidegate_table_keys", Gauge);
        let mut bytes = Family::new("tidegate_table_bytes", Gauge);
        let mut overflow = Family::new("tidegate_table_overflow_total", Counter);
        for (rule, table) in self.scene.gate.views().zip(&self.tables) {
            let Some(table) = table else { continue };
            let name = ("rule", rule.name());
            keys.add(&[name, ("kind", "capacity")], Whole(table.size.capacity));
            keys.add(&[name, ("kind", "used")], Whole(table.size.used));
            if let Some(live) = table.live {
                keys.add(&[name, ("kind", "live")], Whole(live));
            }
            bytes.add(&[name], Whole(table.size.bytes));
            overflow.add(&[name], Whole(table.size.overflowed));
        }
        [keys, bytes, overflow]
    }

    fn stores(&self) -> [Family; 4] {
        let mut up = Family::new("tidegate_store_up", Gauge);
        let mut degraded = Family::new("tidegate_store_degraded_seconds_total", Counter);
        let mut calls = Family::new("tidegate_store_calls_total", Counter);
        let mut times = Family::new("tidegate_store_seconds", Histogram);
        for (store, away) in &self.stores {
            let name = ("store", store.name.as_deref().unwrap_or("default"));
            up.add(&[name], Whole(u64::from(store.trouble.is_none())));
            degraded.add(&[name], Float(seconds(*away)));
            calls.add(&[name, ("outcome", "answered")], Whole(store.answered));
            calls.add(&[name, ("outcome", "failed")], Whole(store.failed));
            let ends = StoreStatus::TIMES.map(Micros::get).to_vec();
            times.add(&[name], Number::Times { ends, counts: store.times.to_vec(), took: store.took.get() });
        }
        [up, degraded, calls, times]
    }

    fn servers(&self) -> [Family; 3] {
        let mut up = Family::new("tidegate_upstream_server_up", Gauge);
        let mut in_flight = Family::new("tidegate_upstream_server_in_flight", Gauge);
        let mut breakers = Family::new("tidegate_upstream_breaker_state", Gauge);
        for (upstream, servers) in &self.upstreams {
            for (server, report) in servers {
                let labels = [("upstream", upstream.as_str()), ("server", server.as_str())];
                up.add(&labels, Whole(u64::from(report.standing != Standing::Down)));
                in_flight.add(&labels, Whole(report.in_flight));
                if let Some(breaker) = &report.breaker {
                    states(&mut breakers, &labels, breaker);
                }
            }
        }
        [up, in_flight, breakers]
    }
}

/// All states that a breaker can be in.
const STATES: [BreakerState; 6] = [
    BreakerState::Closed,
    BreakerState::Open,
    BreakerState::HalfOpen,
    BreakerState::ForcedOpen,
    BreakerState::Disabled,
    BreakerState::MetricsOnly,
];

fn states(family: &mut Family, labels: &[(&'static str, &str)], breaker: &BreakerSnapshot) {
    for state in STATES {
        let name = state.to_string();
        let labels: Vec<_> = labels.iter().copied().chain([("state", name.as_str())]).collect();
        family.add(&labels, Whole(u64::from(breaker.state == state)));
    }
}

/// The part of keys for which a rule is enforced.
fn enforced(rule: RuleView<'_>) -> f64 {
    match (rule.mode(), rule.share()) {
        (tidegate_rule::Mode::Enforce, None) => 1.0,
        (tidegate_rule::Mode::Enforce, Some(share)) => Share::as_f64(share),
        _ => 0.0,
    }
}

fn seconds(time: Micros) -> f64 {
    super::denial::seconds(time)
}
