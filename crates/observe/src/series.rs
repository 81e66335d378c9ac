//! The numbers of the last hour: a point every ten seconds for all requests, each rule, each server and each load signal.
//!
//! ```text
//!   tick ──every 10 s──▶ counters ─ counters before ─▶ one point per series ─▶ the oldest point is dropped
//! ```
//!
//! The memory is bounded: 360 points per series, 4 bytes per number, and at most 256 rules and 256 servers. That is 15 kB per
//! rule, 12 kB per server, and 7 MB at most.

use super::{
    ConfigSnapshot, Observer, UpstreamReports,
    latency::LatencyBuckets,
    shard::{DENIED_OUTCOMES, RuleCounts, RuleOutcome, Totals, lock},
};
use crate::{HealthReport, ServerState};
use serde_json::{Map, Value, json};
use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex},
};
use tidegate_core::{Micros, Utc};
use tidegate_policy::compile::RuleView;

/// The time between two points.
const STEP: Micros = Micros::from_secs(10);
/// The points of a series: one hour.
const MAX_POINTS: usize = 360;
/// The rules and the servers that have a series.
const MAX_RULES: usize = 256;
const MAX_SERVERS: usize = 256;

const TOTAL_COLUMNS: [&str; 13] = [
    "admitted",
    "rejected",
    "delayed",
    "shadow-denied",
    "server-errors",
    "gateway-errors",
    "in-flight",
    "waiting",
    "p50",
    "p95",
    "p99",
    "decision-p99",
    "load-level",
];
const RULE_COLUMNS: [&str; 10] =
    ["admitted", "delayed", "denied", "shadow-denied", "p50", "p95", "p99", "waiting", "in-flight", "keys"];
const SERVER_COLUMNS: [&str; 8] = ["responses", "errors", "failures", "in-flight", "p50", "p95", "p99", "up"];

/// The points of the last hour.
#[derive(Default)]
pub(crate) struct SeriesBuffer(Mutex<SeriesState>);

#[derive(Default)]
struct SeriesState {
    /// The times of the points, oldest first. A series that began later has fewer points.
    times: VecDeque<Micros>,
    /// The time and the counters of the last point.
    before: Option<(Micros, Totals)>,
    totals: Points<13>,
    rules: BTreeMap<Arc<str>, Track<RuleCounts, 10>>,
    /// By upstream and server.
    servers: BTreeMap<(String, String), Track<ServerCounts, 8>>,
    signals: BTreeMap<String, Points<1>>,
    /// Rules and servers without a series.
    omitted: usize,
}

/// The points of one series, with the counters of the last one.
struct Track<C, const N: usize> {
    before: C,
    points: Points<N>,
}

/// Numbers by column; `NaN` is a missing one.
struct Points<const N: usize>(VecDeque<[f32; N]>);

/// The counters of a server.
#[derive(Clone, Default)]
struct ServerCounts {
    responses: u64,
    errors: u64,
    failures: u64,
    latency: LatencyBuckets,
}

impl Observer {
    /// Adds a point to every series, if the last one is of an earlier step.
    pub(super) fn sample_series(&self) {
        let now = self.clock.now();
        let mut state = lock(&self.series.0);
        if state.before.as_ref().is_some_and(|(at, _)| at.get() / STEP.get() == now.get() / STEP.get()) {
            return;
        }
        let (Some(config), totals) = self.totals() else { return };
        state.sample(now, &config, &totals, &(config.upstreams)());
    }

    /// Drops the series of rules that the policy does not have.
    pub(super) fn retain_series(&self, config: &ConfigSnapshot) {
        lock(&self.series.0).rules.retain(|name, _| config.counters.rule_index(name).is_some());
    }

    /// The newest points of all series, oldest first, as JSON.
    pub fn series_json(&self, limit: usize) -> Value {
        lock(&self.series.0).to_json(limit)
    }
}

impl SeriesState {
    fn sample(&mut self, now: Micros, config: &ConfigSnapshot, totals: &Totals, upstreams: &UpstreamReports) {
        let elapsed = self.before.as_ref().map(|(at, _)| now.saturating_sub(*at).get() as f64 / 1e6);
        let per_second =
            |now: u64, before: u64| (now.saturating_sub(before) as f64 / elapsed.unwrap_or(1.0)) as f32;
        if let Some((_, before)) = &self.before {
            push_newest(&mut self.times, now);
            self.totals.push(total_point(totals, before, config, upstreams, &per_second));
        }
        self.before = Some((now, Totals { rules: Vec::new(), ..totals.clone() }));

        let rules: Vec<RuleView<'_>> = config.gate.views().take(MAX_RULES).collect();
        self.rules.retain(|name, _| rules.iter().any(|rule| rule.name() == &**name));
        for (rule, counts) in rules.iter().zip(&totals.rules) {
            match self.rules.get_mut(rule.name()) {
                Some(track) => {
                    track.points.push(rule_point(*rule, counts, &track.before, &per_second));
                    track.before.clone_from(counts);
                }
                None => _ = self.rules.insert(rule.name().into(), Track::new(counts.clone())),
            }
        }

        let servers = upstreams.iter().flat_map(|(upstream, servers)| {
            servers.iter().map(move |(server, report)| ((upstream.clone(), server.clone()), report))
        });
        let servers: BTreeMap<_, _> = servers.take(MAX_SERVERS).collect();
        self.servers.retain(|name, _| servers.contains_key(name));
        let server_count: usize = upstreams.iter().map(|(_, servers)| servers.len()).sum();
        self.omitted = (totals.rules.len() - rules.len().min(totals.rules.len()))
            + server_count.saturating_sub(MAX_SERVERS);
        for (name, report) in servers {
            let counts = ServerCounts::new(report);
            match self.servers.get_mut(&name) {
                Some(track) => {
                    // After a reload with other servers, the counters are new.
                    if counts.responses < track.before.responses || counts.failures < track.before.failures {
                        track.before = ServerCounts::default();
                    }
                    track.points.push(server_point(report, &counts, &track.before, &per_second));
                    track.before = counts;
                }
                None => _ = self.servers.insert(name, Track::new(counts)),
            }
        }

        let signals: BTreeMap<_, _> = config.gate.load().iter().flat_map(|load| load.signals()).collect();
        self.signals.retain(|name, _| signals.contains_key(name.as_str()));
        for (name, share) in signals {
            let share = share.map_or(f32::NAN, |share| share.as_f64() as f32);
            self.signals.entry(name.to_owned()).or_default().push([share]);
        }
    }

    fn to_json(&self, limit: usize) -> Value {
        let len = self.times.len().min(limit);
        let times: Vec<_> =
            self.times.iter().skip(self.times.len() - len).map(|at| Utc::from(*at).to_string()).collect();
        let rules = self.rules.iter().map(|(name, track)| {
            let mut json = track.points.to_json(&RULE_COLUMNS, len);
            json.insert("name".to_owned(), name.to_string().into());
            json
        });
        let servers = self.servers.iter().map(|((upstream, server), track)| {
            let mut json = track.points.to_json(&SERVER_COLUMNS, len);
            json.insert("upstream".to_owned(), upstream.clone().into());
            json.insert("address".to_owned(), server.clone().into());
            json
        });
        let signals = self.signals.iter().map(|(name, points)| {
            let mut json = points.to_json(&["ratio"], len);
            json.insert("name".to_owned(), name.clone().into());
            json
        });
        json!({
            "step": super::denial::seconds(STEP),
            "times": times,
            "requests": self.totals.to_json(&TOTAL_COLUMNS, len),
            "rules": rules.collect::<Vec<_>>(),
            "servers": servers.collect::<Vec<_>>(),
            "load": signals.collect::<Vec<_>>(),
            "omitted": self.omitted,
        })
    }
}

impl<C, const N: usize> Track<C, N> {
    fn new(before: C) -> Self {
        Self { before, points: Points::default() }
    }
}

impl<const N: usize> Default for Points<N> {
    fn default() -> Self {
        // Allocated once, so that the memory of a series does not depend on how a queue grows.
        Self(VecDeque::with_capacity(MAX_POINTS))
    }
}

impl<const N: usize> Points<N> {
    fn push(&mut self, point: [f32; N]) {
        push_newest(&mut self.0, point);
    }

    /// The last `len` numbers of each column; `null` before the first point.
    fn to_json(&self, columns: &[&str; N], len: usize) -> Map<String, Value> {
        let missing = len.saturating_sub(self.0.len());
        let column = |index: usize| {
            let points = self.0.iter().skip(self.0.len().saturating_sub(len));
            let numbers = points.map(|point| number_json(point.get(index).copied().unwrap_or(f32::NAN)));
            std::iter::repeat_n(Value::Null, missing).chain(numbers).collect::<Vec<_>>()
        };
        columns.iter().enumerate().map(|(index, name)| ((*name).to_owned(), column(index).into())).collect()
    }
}

/// Adds an item, and removes the oldest one if there are points of an hour.
fn push_newest<T>(items: &mut VecDeque<T>, item: T) {
    if items.len() >= MAX_POINTS {
        items.pop_front();
    }
    items.push_back(item);
}

impl ServerCounts {
    fn new(report: &HealthReport) -> Self {
        Self {
            responses: report.responses.iter().sum(),
            errors: report.responses[4],
            failures: report.failures,
            latency: report.latency.clone(),
        }
    }
}

fn total_point(
    now: &Totals,
    before: &Totals,
    config: &ConfigSnapshot,
    upstreams: &UpstreamReports,
    per_second: &dyn Fn(u64, u64) -> f32,
) -> [f32; TOTAL_COLUMNS.len()] {
    let servers = || upstreams.iter().flat_map(|(_, servers)| servers);
    let in_flight: u64 = servers().map(|(_, report)| report.in_flight).sum();
    let waiting: usize = config.gate.views().filter_map(|rule| rule.waiting()).sum();
    let [p50, p95, p99] = percentiles(&now.request_latency, &before.request_latency);
    let [_, _, decision_p99] = percentiles(&now.decision_latency, &before.decision_latency);
    [
        per_second(now.requests[0], before.requests[0]),
        per_second(now.requests[1], before.requests[1]),
        per_second(now.flagged[0], before.flagged[0]),
        per_second(now.flagged[1], before.flagged[1]),
        per_second(now.responses[0][4], before.responses[0][4]),
        per_second(now.responses[1][4], before.responses[1][4]),
        in_flight as f32,
        waiting as f32,
        p50,
        p95,
        p99,
        decision_p99,
        config.gate.load().map_or(f32::NAN, |load| f32::from(load.load().level as u8)),
    ]
}

fn rule_point(
    rule: RuleView<'_>,
    now: &RuleCounts,
    before: &RuleCounts,
    per_second: &dyn Fn(u64, u64) -> f32,
) -> [f32; RULE_COLUMNS.len()] {
    let count = |of: &RuleCounts, outcome: RuleOutcome| of.outcomes[outcome as usize];
    let denied = |of: &RuleCounts| DENIED_OUTCOMES.into_iter().map(|outcome| count(of, outcome)).sum::<u64>();
    let rate = |outcome| per_second(count(now, outcome), count(before, outcome));
    let [p50, p95, p99] = percentiles(&now.latency, &before.latency);
    [
        rate(RuleOutcome::Admitted),
        rate(RuleOutcome::Delayed),
        per_second(denied(now), denied(before)),
        rate(RuleOutcome::ShadowDenied),
        p50,
        p95,
        p99,
        rule.waiting().map_or(f32::NAN, |waiting| waiting as f32),
        rule.adaptive().map_or(f32::NAN, |limit| limit.in_flight as f32),
        rule.limiter().and_then(|limiter| limiter.size()).map_or(f32::NAN, |size| size.used as f32),
    ]
}

fn server_point(
    report: &HealthReport,
    now: &ServerCounts,
    before: &ServerCounts,
    per_second: &dyn Fn(u64, u64) -> f32,
) -> [f32; SERVER_COLUMNS.len()] {
    let [p50, p95, p99] = percentiles(&now.latency, &before.latency);
    [
        per_second(now.responses, before.responses),
        per_second(now.errors, before.errors),
        per_second(now.failures, before.failures),
        report.in_flight as f32,
        p50,
        p95,
        p99,
        if report.state == ServerState::Healthy { 1.0 } else { 0.0 },
    ]
}

/// The percentiles of the values since `before`, in seconds; `NaN` without values, or beyond the last bucket.
fn percentiles(now: &LatencyBuckets, before: &LatencyBuckets) -> [f32; 3] {
    let added = now.since(before);
    [50, 95, 99].map(|percent| added.percentile(percent).map_or(f32::NAN, |seconds| seconds as f32))
}

/// Six decimals, so that a number has no digits of its binary form.
fn number_json(number: f32) -> Value {
    json!(number.is_finite().then(|| (f64::from(number) * 1e6).round() / 1e6))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LatencyRecorder, RequestRecorder};
    use std::time::Duration;
    use tidegate_limiter::{Clock, ManualClock};
    use tidegate_policy::{Policy, compile::Compiler};
    use tidegate_rule::Rules;

    /// An observer of a policy, with a manual clock.
    struct Observed {
        observer: Arc<Observer>,
        clock: ManualClock,
        compiler: Compiler,
    }

    impl Observed {
        fn new() -> Self {
            let (clock, manual_clock) = Clock::manual();
            // The first tick begins a step.
            manual_clock.advance(Duration::from_secs(9));
            let rules = Rules::new();
            let observer = Observer::new(rules.clone(), clock);
            Self { observer, clock: manual_clock, compiler: Compiler::new(rules) }
        }

        /// Puts a policy with these rules in force; the upstream `app` reports what `reports` returns.
        fn activate(
            &self,
            rules: &[&str],
            reports: impl Fn() -> UpstreamReports + Send + Sync + 'static,
        ) -> Arc<RequestRecorder> {
            let rules = rules.iter().map(|name| format!("{{ name: {name}, quota: 10/s }}"));
            let text = format!("rules: [{}]", rules.collect::<Vec<_>>().join(", "));
            let policy: Policy = text.parse().unwrap();
            let gate = self.compiler.compile(&policy, None).unwrap();
            let names: Vec<String> = gate.views().map(|rule| rule.name().to_owned()).collect();
            let recorder =
                RequestRecorder::new(&self.observer, names.iter().map(String::as_str), &policy.observe);
            self.observer.activate(ConfigSnapshot {
                version: String::new(),
                rule_summaries: Arc::default(),
                policy: Arc::new(policy),
                file: None,
                loaded_at: Micros::ZERO,
                gate,
                counters: recorder.counters.clone(),
                upstreams: Arc::new(reports),
                spans: None,
                cache: None,
                listeners: Vec::new(),
                decisions: None,
                envoy: None,
                workers: 1,
            });
            recorder
        }

        /// Ticks for these seconds, once per second.
        fn run(&self, seconds: u64) {
            for _ in 0..seconds {
                self.clock.advance(Duration::from_secs(1));
                self.observer.tick();
            }
        }

        fn series(&self) -> Value {
            self.observer.series_json(MAX_POINTS)
        }
    }

    fn report(responses: [u64; 5], latency: LatencyBuckets) -> UpstreamReports {
        let report = HealthReport {
            state: ServerState::Healthy,
            responses,
            failures: 0,
            failed_checks: 0,
            latency,
            in_flight: 2,
            breaker: None,
        };
        vec![("app".to_owned(), vec![("a:1".to_owned(), report)])]
    }

    #[test]
    fn points_are_rates_and_percentiles_of_ten_seconds() {
        let observed = Observed::new();
        let recorder = observed.activate(&["login"], Vec::new);
        observed.run(10);
        assert_eq!(observed.series()["times"], json!([]), "a rate needs two readings");
        for count in [50, 20] {
            let received_at = recorder.counters.now();
            for _ in 0..count {
                recorder.counters.record_decision(0, RuleOutcome::Admitted, None);
            }
            recorder.counters.record_decision(0, RuleOutcome::Limited, None);
            recorder.counters.record_decision(0, RuleOutcome::NoKey, None);
            observed.clock.advance(Duration::from_millis(30));
            recorder.counters.record_latency(&[0], received_at);
            observed.clock.advance(Duration::from_millis(970));
            observed.observer.tick();
            observed.run(9);
        }
        observed.run(10);
        let series = observed.series();
        let rule = &series["rules"][0];
        assert_eq!(
            (&rule["name"], &rule["admitted"]),
            (&json!("login"), &json!([5.0, 2.0, 0.0])),
            "{series}"
        );
        assert_eq!(rule["denied"], json!([0.2, 0.2, 0.0]));
        assert_eq!((&rule["p50"], &rule["p99"]), (&json!([0.05, 0.05, null]), &json!([0.05, 0.05, null])));
        assert_eq!(series["requests"]["p95"], json!([0.05, 0.05, null]));
        assert_eq!(series["times"][2], "1970-01-01T00:00:40.000000Z");
        assert_eq!(observed.observer.series_json(1)["rules"][0]["admitted"], json!([0.0]));
        for column in RULE_COLUMNS {
            assert_eq!(rule[column].as_array().map(Vec::len), Some(3), "{column}");
        }
    }

    #[test]
    fn series_holds_one_hour() {
        let observed = Observed::new();
        observed.activate(&["login"], || report([0; 5], LatencyBuckets::default()));
        observed.run(2 * 3_600);
        let series = observed.series();
        for array in [&series["times"], &series["rules"][0]["admitted"], &series["servers"][0]["up"]] {
            assert_eq!(array.as_array().map(Vec::len), Some(MAX_POINTS));
        }
        assert_eq!(series["times"][0], "1970-01-01T01:00:10.000000Z");
        let state = lock(&observed.observer.series.0);
        assert!(state.totals.0.capacity() < MAX_POINTS + 10, "{}", state.totals.0.capacity());
    }

    #[test]
    fn reload_drops_series_of_removed_rules_and_aligns_new_ones() {
        let observed = Observed::new();
        observed.activate(&["login", "search"], Vec::new);
        observed.run(40);
        let recorder = observed.activate(&["search", "upload"], Vec::new);
        let names = |series: &Value| {
            let rules = series["rules"].as_array().unwrap();
            rules.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(names(&observed.series()), ["search"]);
        observed.run(10);
        recorder.counters.record_decision(1, RuleOutcome::Admitted, None);
        observed.run(10);
        let series = observed.series();
        assert_eq!(names(&series), ["search", "upload"]);
        assert_eq!(series["rules"][0]["admitted"], json!([0.0, 0.0, 0.0, 0.0, 0.0]));
        assert_eq!(series["rules"][1]["admitted"], json!([null, null, null, null, 0.1]));
    }

    #[test]
    fn rules_and_servers_beyond_the_maximum_are_omitted() {
        let observed = Observed::new();
        let names: Vec<String> = (0..MAX_RULES + 3).map(|index| format!("r{index}")).collect();
        let servers = || {
            let reports = (0..MAX_SERVERS + 2).flat_map(|index| {
                report([0; 5], LatencyBuckets::default()).into_iter().map(move |one| (index, one))
            });
            reports.map(|(index, (name, servers))| (format!("{name}{index}"), servers)).collect()
        };
        observed.activate(&names.iter().map(String::as_str).collect::<Vec<_>>(), servers);
        observed.run(20);
        let series = observed.series();
        assert_eq!(series["rules"].as_array().map(Vec::len), Some(MAX_RULES));
        assert_eq!(series["servers"].as_array().map(Vec::len), Some(MAX_SERVERS));
        assert_eq!(series["omitted"], 5);
    }

    #[test]
    fn new_counters_of_a_server_count_from_zero() {
        let observed = Observed::new();
        let latency = LatencyRecorder::default();
        latency.record(Micros::new(900), 1_000);
        observed.activate(&[], {
            let buckets = latency.snapshot();
            move || report([0, 990, 0, 0, 10], buckets.clone())
        });
        observed.run(20);
        let fresh = LatencyRecorder::default();
        fresh.record(Micros::from_secs(1), 30);
        observed.activate(&[], {
            let buckets = fresh.snapshot();
            move || report([0, 20, 0, 0, 10], buckets.clone())
        });
        observed.run(10);
        let server = &observed.series()["servers"][0];
        assert_eq!((&server["upstream"], &server["address"]), (&json!("app"), &json!("a:1")));
        assert_eq!((&server["responses"], &server["errors"]), (&json!([0.0, 3.0]), &json!([0.0, 1.0])));
        assert_eq!(server["p50"], json!([null, 1.0]));
        assert_eq!((&server["up"], &server["in-flight"]), (&json!([1.0, 1.0]), &json!([2.0, 2.0])));
    }
}
