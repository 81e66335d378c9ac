//! A snapshot as metric families. Label values are names from the policy, never data of requests.

use super::{
    Snapshot,
    json::rate_per_second,
    shard::{
        DEGRADED_INDEX, OUTCOME_NAMES, REQUEST_BODY_OUTCOMES, SETTLED_REQUESTS, SETTLED_TOKENS,
        STATUS_CLASSES,
    },
    status::mode_name,
};
use crate::ServerState;
use tidegate_core::{Micros, Percent};
use tidegate_http_server::{MetricFamily, MetricValue, prometheus_text};
use tidegate_overload::{BreakerSnapshot, BreakerState};
use tidegate_policy::compile::{PolicyPart, RuleView};
use tidegate_rule::StoreStatus;

impl Snapshot {
    /// All metrics in the Prometheus text format.
    pub fn prometheus(&self) -> String {
        prometheus_text(&self.metrics())
    }

    /// All metrics.
    pub fn metrics(&self) -> Vec<MetricFamily> {
        let mut all = self.gateway_metrics();
        all.extend(self.load_metrics());
        all.extend(self.decision_metrics());
        all.extend(self.cost_metrics());
        all.extend(self.rule_metrics());
        all.extend(self.table_metrics());
        all.extend(self.store_metrics());
        all.extend(self.server_metrics());
        all
    }

    fn gateway_metrics(&self) -> Vec<MetricFamily> {
        let (totals, config) = (&self.totals, &self.config);
        let mut responses = MetricFamily::counter(
            "tidegate_responses_total",
            "Responses by status class and source: an upstream server, or the gateway (denials, 502, 503, 504).",
        );
        for (source, counts) in ["upstream", "gateway"].into_iter().zip(totals.responses) {
            for (class, count) in STATUS_CLASSES.into_iter().zip(counts) {
                responses.add(&[("source", source), ("class", class)], count);
            }
        }
        let mut spans = MetricFamily::counter(
            "tidegate_spans_total",
            "Spans that the collector of traces accepted, and those that were lost.",
        );
        for (outcome, count) in ["sent", "lost"].into_iter().zip(self.spans.into_iter().flatten()) {
            spans.add(&[("outcome", outcome)], count);
        }
        let mut lookups = MetricFamily::counter(
            "tidegate_fallback_cache_total",
            "Rejected requests of rules that fall back to stored responses: hit if one was sent, miss otherwise.",
        );
        let mut cache_bytes = MetricFamily::gauge(
            "tidegate_fallback_cache_bytes",
            "Size of the stored responses that fallbacks use.",
        );
        if let Some(cache) = self.cache {
            lookups.add(&[("result", "hit")], cache.hits);
            lookups.add(&[("result", "miss")], cache.misses);
            cache_bytes.add(&[], cache.bytes);
        }
        let bans: u64 =
            config.gate.views().filter_map(|rule| rule.bans()).map(|bans| bans.stats().stored).sum();
        vec![
            MetricFamily::gauge("tidegate_build_info", "The version of the gateway; always 1.")
                .with_sample(&[("version", env!("CARGO_PKG_VERSION"))], 1_u64),
            MetricFamily::gauge("tidegate_uptime_seconds", "Time since the gateway started.")
                .with_sample(&[], seconds(self.uptime)),
            MetricFamily::gauge("tidegate_policy_info", "The version of the policy in force; always 1.")
                .with_sample(&[("version", &config.version)], 1_u64),
            MetricFamily::counter("tidegate_policy_reloads_total", "Policy reloads, by outcome.")
                .with_sample(&[("outcome", "applied")], self.reloads.applied)
                .with_sample(&[("outcome", "rejected")], self.reloads.rejected),
            MetricFamily::counter("tidegate_requests_total", "Requests, by outcome of the policy.")
                .with_sample(&[("outcome", "admitted")], totals.requests[0])
                .with_sample(&[("outcome", "rejected")], totals.requests[1]),
            MetricFamily::gauge("tidegate_requests_in_flight", "Requests in flight to upstream servers.")
                .with_sample(&[], self.in_flight()),
            responses,
            MetricFamily::histogram(
                "tidegate_decision_seconds",
                "Time to decide about a request, including the store, without the time in a queue. One in 64 decisions in memory is measured, and counts for 64.",
            )
            .with_sample(&[], totals.decision_latency.histogram()),
            MetricFamily::histogram(
                "tidegate_wait_seconds",
                "Time in a queue, of requests that were queued.",
            )
            .with_sample(&[], totals.wait_latency.request_histogram()),
            MetricFamily::gauge("tidegate_bans", "Bans in force, by operators and by rules.")
                .with_sample(&[("by", "operator")], self.operator_bans as u64)
                .with_sample(&[("by", "rule")], bans),
            MetricFamily::gauge("tidegate_denials_stored", "Denials that can be looked up by their id.")
                .with_sample(&[], self.denials as u64),
            MetricFamily::gauge("tidegate_live_watchers", "Clients of the live stream of the admin API.")
                .with_sample(&[], self.watchers as u64),
            spans,
            lookups,
            cache_bytes,
        ]
    }

    fn load_metrics(&self) -> [MetricFamily; 4] {
        let mut ratios = MetricFamily::gauge(
            "tidegate_load_ratio",
            "Load of the machine by signal, as a ratio of the value that counts as full.",
        );
        let mut level = MetricFamily::gauge(
            "tidegate_load_level",
            "Load level: 0 relaxed, 1 normal, 2 busy, 3 critical.",
        );
        let mut features =
            MetricFamily::gauge("tidegate_feature_enabled", "1 while a feature is on, 0 while it is off.");
        let mut shedding = MetricFamily::gauge(
            "tidegate_rule_shedding",
            "1 while a rule sheds requests of some priority because of the load, 0 otherwise.",
        );
        let gate = &self.config.gate;
        if let Some(monitor) = gate.load() {
            for (name, share) in monitor.signals() {
                if let Some(share) = share {
                    ratios.add(&[("signal", name)], share.as_f64());
                }
            }
            level.add(&[], monitor.load().level as u64);
        }
        for status in gate.features().list() {
            features.add(&[("feature", status.feature.name())], u64::from(status.off_cause.is_none()));
        }
        for rule in gate.views() {
            if let Some(classes) = rule.shed_classes() {
                shedding.add(&[("rule", rule.name())], u64::from(!classes.is_empty()));
            }
        }
        [ratios, level, features, shedding]
    }

    fn decision_metrics(&self) -> [MetricFamily; 3] {
        let mut decisions =
            MetricFamily::counter("tidegate_decisions_total", "Decisions of each rule, by outcome.");
        let mut degraded = MetricFamily::counter(
            "tidegate_degraded_decisions_total",
            "Decisions without the store, by rule.",
        );
        let mut times = MetricFamily::histogram(
            "tidegate_request_seconds",
            "Time from the head of an admitted request to the last byte of its response, including time in a queue.",
        );
        for (rule, counts) in self.config.counters.names().iter().zip(&self.totals.rules) {
            for (outcome, count) in OUTCOME_NAMES.into_iter().zip(&counts.outcomes) {
                decisions.add(&[("rule", rule), ("outcome", outcome)], *count);
            }
            degraded.add(&[("rule", rule)], counts.outcomes[DEGRADED_INDEX]);
            times.add(&[("rule", rule)], counts.latency.request_histogram());
        }
        [decisions, degraded, times]
    }

    fn cost_metrics(&self) -> [MetricFamily; 3] {
        let mut requests = MetricFamily::counter(
            "tidegate_settled_requests_total",
            "Requests of rules with `settle`, and committed reservations: stated if the response stated the cost, unstated if it did not, aborted if the response ended too early.",
        );
        let mut tokens = MetricFamily::counter(
            "tidegate_settled_tokens_total",
            "Differences between the costs before and after requests: refunded tokens, debt above the cost before, and tokens that were not charged because of `max-debt`.",
        );
        let mut bodies = MetricFamily::counter(
            "tidegate_request_bodies_total",
            "Bodies of requests that rules need: parsed, too-large, or invalid (not JSON, or compressed).",
        );
        for (outcome, count) in REQUEST_BODY_OUTCOMES.into_iter().zip(self.totals.request_bodies) {
            bodies.add(&[("outcome", outcome)], count);
        }
        let names = self.config.counters.names().iter().zip(&self.totals.rules);
        for ((rule, counts), spec) in names.zip(&self.config.policy.rules) {
            if spec.settle.is_none() && !counts.has_settlements() {
                continue;
            }
            let (settled, differences) = counts.settlements.split_at(SETTLED_REQUESTS.len());
            for (result, count) in SETTLED_REQUESTS.into_iter().zip(settled) {
                requests.add(&[("rule", rule), ("result", result)], *count);
            }
            for (kind, count) in SETTLED_TOKENS.into_iter().zip(differences) {
                tokens.add(&[("rule", rule), ("kind", kind)], *count);
            }
        }
        [requests, tokens, bodies]
    }

    fn rule_metrics(&self) -> [MetricFamily; 11] {
        let mut modes = MetricFamily::gauge("tidegate_rule_mode", "The mode of each rule; always 1.");
        let mut shares = MetricFamily::gauge(
            "tidegate_rule_enforced_ratio",
            "Ratio of keys for which a rule is enforced.",
        );
        let mut limits = MetricFamily::gauge(
            "tidegate_quota_limit",
            "Limit of a quota in its period. The label is its index in the rule.",
        );
        let mut rates = MetricFamily::gauge(
            "tidegate_quota_rate",
            "Rate of a quota per second, if it has one. The label is its index in the rule.",
        );
        let mut queues = MetricFamily::gauge("tidegate_queue_depth", "Requests in the queue of a rule.");
        let mut adaptive =
            MetricFamily::gauge("tidegate_adaptive_limit", "Concurrency limit of an adaptive rule.");
        let mut in_flight =
            MetricFamily::gauge("tidegate_adaptive_in_flight", "Requests in flight under an adaptive limit.");
        let mut breakers = MetricFamily::gauge(
            "tidegate_breaker_state",
            "1 for the current state of the circuit breaker of a rule, 0 for the others.",
        );
        let mut rejected = MetricFamily::counter(
            "tidegate_breaker_rejected_total",
            "Requests that the circuit breaker of a rule rejected.",
        );
        let mut failures = MetricFamily::counter(
            "tidegate_expression_failures_total",
            "Requests for which an expression failed: the rule applied, or the route, which has its index, did not match.",
        );
        for (part, count) in self.config.gate.expression_failures() {
            match part {
                PolicyPart::Rule(name) => failures.add(&[("rule", name)], count),
                PolicyPart::Route(index) => failures.add(&[("route", &*index.to_string())], count),
            }
        }
        let mut invalid = MetricFamily::counter(
            "tidegate_invalid_credentials_total",
            "Tokens and API keys that were not accepted, by reason; limited were not verified, because their address sent too many.",
        );
        for (reason, count) in self.config.gate.invalid_credentials() {
            invalid.add(&[("reason", reason)], count);
        }
        for rule in self.config.gate.views() {
            let name = [("rule", rule.name())];
            modes.add(&[name[0], ("mode", mode_name(rule.mode()))], 1_u64);
            shares.add(&name, enforced_ratio(rule));
            for (index, quota) in rule.quotas().iter().enumerate() {
                let labels = [name[0], ("quota", &*index.to_string())];
                limits.add(&labels, quota.limit());
                if let Some(rate) = rate_per_second(quota) {
                    rates.add(&labels, rate);
                }
            }
            if let Some(waiting) = rule.waiting() {
                queues.add(&name, waiting as u64);
            }
            if let Some(limit) = rule.adaptive() {
                adaptive.add(&name, u64::from(limit.limit));
                in_flight.add(&name, u64::from(limit.in_flight));
            }
            if let Some(breaker) = rule.breaker() {
                add_breaker_states(&mut breakers, &name, &breaker);
                rejected.add(&name, breaker.rejected);
            }
        }
        [modes, shares, limits, rates, queues, adaptive, in_flight, breakers, rejected, failures, invalid]
    }

    fn table_metrics(&self) -> [MetricFamily; 4] {
        let mut keys = MetricFamily::gauge(
            "tidegate_table_keys",
            "Keys in memory by rule: capacity, used, and live (with state that differs from that of a new key).",
        );
        let mut bytes = MetricFamily::gauge("tidegate_table_bytes", "Memory of the key table of a rule.");
        let mut overflow = MetricFamily::counter(
            "tidegate_table_overflow_total",
            "Requests whose key did not fit in the key table of a rule, and shared a counter or were denied.",
        );
        let mut replaced = MetricFamily::counter(
            "tidegate_table_replaced_total",
            "Keys that were evicted from the full key table of a rule.",
        );
        for (rule, table) in self.config.gate.views().zip(&self.tables) {
            let Some(table) = table else { continue };
            let name = ("rule", rule.name());
            keys.add(&[name, ("kind", "capacity")], table.size.capacity);
            keys.add(&[name, ("kind", "used")], table.size.used);
            if let Some(live) = table.live_keys {
                keys.add(&[name, ("kind", "live")], live);
            }
            bytes.add(&[name], table.size.bytes);
            overflow.add(&[name], table.size.overflowed);
            replaced.add(&[name], table.size.replaced);
        }
        [keys, bytes, overflow, replaced]
    }

    fn store_metrics(&self) -> [MetricFamily; 4] {
        let mut up = MetricFamily::gauge("tidegate_store_up", "1 while a store is available, 0 otherwise.");
        let mut degraded = MetricFamily::counter(
            "tidegate_store_degraded_seconds_total",
            "Time that a store was unavailable.",
        );
        let mut calls = MetricFamily::counter("tidegate_store_calls_total", "Calls to a store, by outcome.");
        let mut times = MetricFamily::histogram("tidegate_store_seconds", "Response time of a store.");
        for (store, outage) in &self.stores {
            let name = ("store", store.name.as_deref().unwrap_or("default"));
            up.add(&[name], u64::from(store.last_error.is_none()));
            degraded.add(&[name], seconds(*outage));
            calls.add(&[name, ("outcome", "succeeded")], store.replies);
            calls.add(&[name, ("outcome", "failed")], store.failures);
            let bounds = StoreStatus::LATENCY_BOUNDS.map(Micros::get).to_vec();
            let counts = store.latency_counts.to_vec();
            times.add(&[name], MetricValue::Histogram { bounds, counts, sum: store.latency_sum.get() });
        }
        [up, degraded, calls, times]
    }

    fn server_metrics(&self) -> [MetricFamily; 6] {
        let mut up = MetricFamily::gauge(
            "tidegate_upstream_server_up",
            "1 while a server is healthy, 0 while its health checks fail or after `max-fails` failed requests in a row.",
        );
        let mut in_flight =
            MetricFamily::gauge("tidegate_upstream_server_in_flight", "Requests in flight to a server.");
        let mut breakers = MetricFamily::gauge(
            "tidegate_upstream_breaker_state",
            "1 for the current state of the circuit breaker of a server, 0 for the others.",
        );
        let mut failures = MetricFamily::counter(
            "tidegate_upstream_failures_total",
            "Requests and health checks without a response, with a timeout or, for checks, with an unexpected status.",
        );
        let mut latency = MetricFamily::histogram(
            "tidegate_upstream_seconds",
            "Time from sending a request to a server to the head of its response.",
        );
        let mut responses = MetricFamily::counter(
            "tidegate_upstream_responses_total",
            "Responses of a server, by status class.",
        );
        for (upstream, servers) in &self.upstreams {
            for (server, report) in servers {
                let labels = [("upstream", upstream.as_str()), ("server", server.as_str())];
                up.add(&labels, u64::from(report.state == ServerState::Healthy));
                in_flight.add(&labels, report.in_flight);
                for (kind, count) in [("request", report.failures), ("check", report.failed_checks)] {
                    failures.add(&[labels[0], labels[1], ("kind", kind)], count);
                }
                for (class, count) in STATUS_CLASSES.into_iter().zip(report.responses) {
                    responses.add(&[labels[0], labels[1], ("class", class)], count);
                }
                latency.add(&labels, report.latency.request_histogram());
                if let Some(breaker) = &report.breaker {
                    add_breaker_states(&mut breakers, &labels, breaker);
                }
            }
        }
        [up, in_flight, responses, failures, latency, breakers]
    }
}

/// All states of a circuit breaker.
const BREAKER_STATES: [BreakerState; 6] = [
    BreakerState::Closed,
    BreakerState::Open,
    BreakerState::HalfOpen,
    BreakerState::ForcedOpen,
    BreakerState::Disabled,
    BreakerState::MetricsOnly,
];

fn add_breaker_states(family: &mut MetricFamily, labels: &[(&'static str, &str)], breaker: &BreakerSnapshot) {
    for state in BREAKER_STATES {
        let name = state.to_string();
        let labels: Vec<_> = labels.iter().copied().chain([("state", name.as_str())]).collect();
        family.add(&labels, u64::from(breaker.state == state));
    }
}

/// The ratio of keys for which a rule is enforced.
fn enforced_ratio(rule: RuleView<'_>) -> f64 {
    match (rule.mode(), rule.percent()) {
        (tidegate_rule::Mode::Enforce, None) => 1.0,
        (tidegate_rule::Mode::Enforce, Some(share)) => Percent::as_f64(share),
        _ => 0.0,
    }
}

fn seconds(time: Micros) -> f64 {
    super::denial::seconds(time)
}
