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
use tidegate_policy::compile::{PolicyPart, RuleView};
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
        let mut responses = Family::new(
            "tidegate_responses_total",
            Counter,
            "Responses by status class, made by an upstream server or by the gateway itself (denials, 502, 503, 504).",
        );
        for (source, counts) in ["upstream", "gateway"].into_iter().zip(totals.responses) {
            for (class, count) in ["1xx", "2xx", "3xx", "4xx", "5xx"].into_iter().zip(counts) {
                responses.add(&[("source", source), ("class", class)], Whole(count));
            }
        }
        let bans: u64 = scene.gate.views().filter_map(|rule| rule.bans()).map(|bans| bans.stats().held).sum();
        let gauge = |name, number, help| Family::new(name, Gauge, help).with(&[], number);
        vec![
            Family::new(
            "tidegate_build_info",
            Gauge,
            "The version of the gateway; always 1.",
        )
                .with(&[("version", env!("CARGO_PKG_VERSION"))], Whole(1)),
            gauge("tidegate_uptime_seconds", Float(seconds(self.uptime)), "Time since the gateway started."),
            Family::new(
            "tidegate_policy_info",
            Gauge,
            "The version of the policy in force; always 1.",
        ).with(&[("version", &scene.version)], Whole(1)),
            Family::new(
            "tidegate_policy_reloads_total",
            Counter,
            "Policies that were read again, by whether they were applied or refused.",
        )
                .with(&[("outcome", "applied")], Whole(self.reloads.applied))
                .with(&[("outcome", "refused")], Whole(self.reloads.refused)),
            Family::new(
            "tidegate_requests_total",
            Counter,
            "Requests that the policy admitted or refused.",
        )
                .with(&[("outcome", "admitted")], Whole(totals.requests[0]))
                .with(&[("outcome", "refused")], Whole(totals.requests[1])),
            gauge("tidegate_requests_in_flight", Whole(self.in_flight()), "Requests that are with an upstream server now."),
            responses,
            Family::new(
            "tidegate_decision_seconds",
            Histogram,
            "Time to decide about a request, the store included, without the time that the request waited for its turn.",
        ).with(&[], totals.times.number()),
            Family::new(
            "tidegate_wait_seconds",
            Histogram,
            "Time that requests waited for their turn, those that had to wait.",
        ).with(&[], totals.waits.number_of_requests()),
            Family::new(
            "tidegate_bans",
            Gauge,
            "Bans in force, made by operators or by rules.",
        )
                .with(&[("by", "operator")], Whole(self.operator_bans as u64))
                .with(&[("by", "rule")], Whole(bans)),
            gauge("tidegate_denials_kept", Whole(self.denials as u64), "Denials that can be looked up by their id."),
            gauge("tidegate_live_watchers", Whole(self.watchers as u64), "Clients of the live stream of the admin API."),
        ]
    }

    fn decisions(&self) -> [Family; 3] {
        let mut decisions =
            Family::new("tidegate_decisions_total", Counter, "Decisions of each rule, by outcome.");
        let mut degraded = Family::new(
            "tidegate_degraded_decisions_total",
            Counter,
            "Decisions that were made without the store, by rule.",
        );
        let mut times = Family::new(
            "tidegate_request_seconds",
            Histogram,
            "Time from the head of a request that a rule let through to the last byte of its response, waiting included.",
        );
        for (rule, counts) in self.scene.tally.names().iter().zip(&self.totals.rules) {
            for (outcome, count) in OUTCOMES.into_iter().zip(&counts.outcomes) {
                decisions.add(&[("rule", rule), ("outcome", outcome)], Whole(*count));
            }
            degraded.add(&[("rule", rule)], Whole(counts.outcomes[DEGRADED]));
            times.add(&[("rule", rule)], counts.times.number_of_requests());
        }
        [decisions, degraded, times]
    }

    fn rules(&self) -> Vec<Family> {
        let mut modes = Family::new("tidegate_rule_mode", Gauge, "The mode of each rule; always 1.");
        let mut shares =
            Family::new("tidegate_rule_enforced_ratio", Gauge, "Share of keys for which a rule is enforced.");
        let mut limits = Family::new("tidegate_quota_limit", Gauge, "What a quota admits in its period.");
        let mut rates = Family::new("tidegate_quota_rate", Gauge, "What a quota admits per second.");
        let mut queues =
            Family::new("tidegate_queue_depth", Gauge, "Requests that wait for their turn, by rule.");
        let mut adaptive =
            Family::new("tidegate_adaptive_limit", Gauge, "Requests that an adaptive limit admits at once.");
        let mut in_flight =
            Family::new("tidegate_adaptive_in_flight", Gauge, "Requests in flight under an adaptive limit.");
        let mut breakers = Family::new(
            "tidegate_breaker_state",
            Gauge,
            "1 for the state that the circuit breaker of a rule is in, 0 for the others.",
        );
        let mut rejected = Family::new(
            "tidegate_breaker_rejected_total",
            Counter,
            "Requests that the circuit breaker of a rule rejected.",
        );
        let mut failures = Family::new(
            "tidegate_expression_failures_total",
            Counter,
            "Requests for which an expression of a rule or a route failed.",
        );
        for (part, count) in self.scene.gate.failures() {
            match part {
                PolicyPart::Rule(name) => failures.add(&[("rule", name)], Whole(count)),
                PolicyPart::Route(place) => failures.add(&[("route", &*place.to_string())], Whole(count)),
            }
        }
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
        vec![modes, shares, limits, rates, queues, adaptive, in_flight, breakers, rejected, failures]
    }

    fn tables(&self) -> [Family; 4] {
        let mut keys = Family::new(
            "tidegate_table_keys",
            Gauge,
            "Keys in memory by rule: capacity, used, and live (with state worth keeping).",
        );
        let mut bytes = Family::new("tidegate_table_bytes", Gauge, "Memory of the key table of a rule.");
        let mut overflow = Family::new(
            "tidegate_table_overflow_total",
            Counter,
            "Requests whose key found no room in the key table of a rule, and shared a counter or was denied.",
        );
        let mut replaced = Family::new(
            "tidegate_table_replaced_total",
            Counter,
            "Keys that gave way to new ones in the full key table of a rule.",
        );
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
            replaced.add(&[name], Whole(table.size.replaced));
        }
        [keys, bytes, overflow, replaced]
    }

    fn stores(&self) -> [Family; 4] {
        let mut up =
            Family::new("tidegate_store_up", Gauge, "1 while a store answers, 0 while it is unavailable.");
        let mut degraded = Family::new(
            "tidegate_store_degraded_seconds_total",
            Counter,
            "Time that a store was unavailable.",
        );
        let mut calls = Family::new(
            "tidegate_store_calls_total",
            Counter,
            "Calls to a store that were answered or failed.",
        );
        let mut times = Family::new("tidegate_store_seconds", Histogram, "Time that a store took to answer.");
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

    fn servers(&self) -> [Family; 5] {
        let mut up = Family::new(
            "tidegate_upstream_server_up",
            Gauge,
            "1 while a server answers, 0 while its health checks fail or after three failed requests in a row.",
        );
        let mut in_flight =
            Family::new("tidegate_upstream_server_in_flight", Gauge, "Requests that are with a server now.");
        let mut breakers = Family::new(
            "tidegate_upstream_breaker_state",
            Gauge,
            "1 for the state that the circuit breaker of a server is in, 0 for the others.",
        );
        let mut failures = Family::new(
            "tidegate_upstream_failures_total",
            Counter,
            "Requests and health checks that a server did not answer, answered too late or, for checks, with a wrong status.",
        );
        let mut latency = Family::new(
            "tidegate_upstream_seconds",
            Histogram,
            "Time from sending a request to a server of an upstream to the head of its response.",
        );
        for (upstream, servers) in &self.upstreams {
            let mut times = Times::default();
            for (server, report) in servers {
                let labels = [("upstream", upstream.as_str()), ("server", server.as_str())];
                up.add(&labels, Whole(u64::from(report.standing == Standing::Good)));
                in_flight.add(&labels, Whole(report.in_flight));
                for (kind, count) in [("request", report.failures), ("check", report.failed_checks)] {
                    failures.add(&[labels[0], labels[1], ("kind", kind)], Whole(count));
                }
                times.add(&report.times);
                if let Some(breaker) = &report.breaker {
                    states(&mut breakers, &labels, breaker);
                }
            }
            latency.add(&[("upstream", upstream)], times.number_of_requests());
        }
        [up, in_flight, failures, latency, breakers]
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
