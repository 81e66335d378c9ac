//! Load shedding, quotas that follow the load, features, and quotas that apply while calls fail.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::requests::{PolicyTestRequest, StatusResponse};
use std::{fs, time::Duration};
use tempfile::TempDir;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    Policy, PolicyFormat,
    compile::{Compiler, FailingView, PolicyGate, PolicyResult, RejectReason},
};
use tidegate_rule::{Evaluation, Rules};

/// A machine whose memory use is a file.
struct TestMachine {
    directory: TempDir,
    compiler: Compiler,
    manual_clock: ManualClock,
}

impl TestMachine {
    fn new() -> Self {
        let (clock, manual_clock) = Clock::manual();
        let directory = TempDir::new().unwrap();
        let machine = Self { compiler: Compiler::new(Rules::new()).clock(clock), directory, manual_clock };
        machine.write_load(10);
        machine
    }

    fn write_load(&self, percent: u64) {
        let text = format!("MemTotal: 100000 kB\nMemAvailable: {} kB\n", 100_000 - percent * 1_000);
        fs::write(self.directory.path().join("meminfo"), text).unwrap();
    }

    /// Sets the load, and lets a minute pass in which it is measured every second.
    fn run_at(&self, gate: &PolicyGate, percent: u64) {
        self.write_load(percent);
        for _ in 0..60 {
            self.manual_clock.advance(Duration::from_secs(1));
            gate.update_schedules();
        }
    }

    fn policy(&self, text: &str) -> Policy {
        let load = format!(
            "load: {{ signals: [memory], proc: {0}, cgroup: {0}/cgroup, cooldown: 3s }}\n{text}",
            self.directory.path().display()
        );
        Policy::parse(&load, PolicyFormat::Yaml).unwrap()
    }

    fn gate(&self, text: &str) -> PolicyGate {
        self.compiler.compile(&self.policy(text), None).unwrap()
    }
}

fn reject_reason(gate: &PolicyGate, request: &PolicyTestRequest) -> Option<RejectReason> {
    match gate.check(request) {
        Evaluation::Ready(PolicyResult::Rejected(rejection)) => Some(rejection.reason),
        Evaluation::Ready(PolicyResult::Admitted(_)) => None,
        Evaluation::Pending(_) => panic!("no rule waits"),
    }
}

fn request_with_priority(priority: &str) -> PolicyTestRequest {
    PolicyTestRequest::new("GET /").with_header("x-priority", priority)
}

#[test]
fn load_sheds_lower_priorities_first_and_readmits_them() {
    let machine = TestMachine::new();
    let gate = machine.gate(
        "rules: [{ name: a, priority: { key: header x-priority, default: low }, shed: { low: 60%, normal: 80% } }]",
    );
    let shed = |gate: &PolicyGate| {
        ["critical", "high", "normal", "low"]
            .map(|priority| reject_reason(gate, &request_with_priority(priority)).is_some())
    };
    for (load, expected) in [
        (50, [false, false, false, false]),
        (70, [false, false, false, true]),
        (90, [false, false, true, true]),
        (75, [false, false, true, true]),
        (65, [false, false, false, true]),
        (55, [false, false, false, true]),
        (40, [false, false, false, false]),
    ] {
        machine.run_at(&gate, load);
        assert_eq!(shed(&gate), expected, "at {load} %");
    }
    machine.run_at(&gate, 90);
    let rejected = reject_reason(&gate, &request_with_priority("low"));
    assert_eq!(rejected, Some(RejectReason::Overloaded));
    assert_eq!(gate.view(0).unwrap().shed_classes(), Some(vec!["normal", "low"]));
}

#[test]
fn reload_keeps_shedding() {
    let machine = TestMachine::new();
    let text = |threshold: &str| format!("rules: [{{ name: a, shed: {threshold} }}]");
    let gate = machine.gate(&text("60%"));
    machine.run_at(&gate, 90);
    let next = machine.compiler.compile(&machine.policy(&text("61%")), Some(&gate)).unwrap();
    assert!(reject_reason(&next, &PolicyTestRequest::new("GET /")).is_some());
    machine.run_at(&next, 10);
    assert!(reject_reason(&next, &PolicyTestRequest::new("GET /")).is_none());
}

#[test]
fn shadow_rule_sheds_nothing() {
    let machine = TestMachine::new();
    let gate = machine.gate("rules: [{ name: a, shed: 60%, mode: shadow }]");
    machine.run_at(&gate, 90);
    let Evaluation::Ready(PolicyResult::Admitted(admission)) = gate.check(&PolicyTestRequest::new("GET /"))
    else {
        panic!("a rule in shadow mode rejects nothing")
    };
    assert!(admission.decisions().any(|decision| {
        decision.result == tidegate_policy::compile::RuleResult::Rejected(RejectReason::Overloaded)
    }));
}

#[test]
fn quota_shrinks_under_load_and_recovers() {
    let machine = TestMachine::new();
    let gate = machine
        .gate("rules: [{ name: a, quota: 100/s, scale: { high: 80%, low: 50%, min: x0.5, interval: 1s } }]");
    let quota = |gate: &PolicyGate| gate.view(0).unwrap().quotas()[0].to_string();
    let factor = |gate: &PolicyGate| gate.view(0).unwrap().scale_factor().unwrap().to_string();
    assert_eq!((quota(&gate), factor(&gate)), ("100/s".to_owned(), "x1".to_owned()));
    machine.run_at(&gate, 90);
    assert_eq!((quota(&gate), factor(&gate)), ("50/s".to_owned(), "x0.5".to_owned()));
    let Evaluation::Ready(PolicyResult::Admitted(admission)) = gate.check(&PolicyTestRequest::new("GET /"))
    else {
        panic!("the quota is not used up")
    };
    let mut headers = Vec::new();
    admission.write_headers(|name, value| headers.push(format!("{name}: {value}")));
    assert!(headers.contains(&"ratelimit-policy: \"a\";q=50;w=1".to_owned()), "{headers:?}");
    machine.run_at(&gate, 60);
    assert_eq!(quota(&gate), "50/s", "between the thresholds nothing changes");
    machine.run_at(&gate, 10);
    assert_eq!(quota(&gate), "100/s");
}

#[test]
fn reload_keeps_scale_factor() {
    let machine = TestMachine::new();
    let text = |quota: &str, scale: &str| {
        format!(
            "rules: [{{ name: a, quota: {quota}, scale: {{ high: 80%, low: 50%, {scale}interval: 1s }} }}]"
        )
    };
    let gate = machine.gate(&text("100/s", "min: x0.5, "));
    machine.run_at(&gate, 90);
    // Between the thresholds nothing changes, so the next reading would not restore the factor.
    machine.run_at(&gate, 60);
    let states = [
        ("100/s", "min: x0.5, ", "50/s", "x0.5"),
        ("200/s", "min: x0.5, ", "100/s", "x0.5"),
        ("200/s", "min: x0.75, ", "150/s", "x0.75"),
    ];
    let mut before = gate;
    for (quota, scale, scaled, factor) in states {
        let gate = machine.compiler.compile(&machine.policy(&text(quota, scale)), Some(&before)).unwrap();
        let view = gate.view(0).unwrap();
        assert_eq!(view.quotas()[0].to_string(), scaled, "{quota} {scale}");
        assert_eq!(view.scale_factor().unwrap().to_string(), factor, "{quota} {scale}");
        before = gate;
    }
    let store = format!("stores: {{ db: 'redis://db' }}\n{}", text("300/s, store: db", ""));
    machine.compiler.compile(&machine.policy(&store), Some(&before)).unwrap_err();
    assert_eq!(before.view(0).unwrap().quotas()[0].to_string(), "150/s", "a rejected policy changes nothing");
}

const FEATURES: &str = "
features: { search: critical, similar: busy, beta: manual }
feature-recovery: 20s
rules:
  - { name: search, match: { path: /search }, feature: search }
  - { name: similar, match: { path: /similar }, feature: similar, on-limit: { fallback: { body: '[]' } } }
  - { name: beta, match: { path: /beta }, feature: beta }
";

fn off_features(gate: &PolicyGate) -> Vec<&'static str> {
    let is_off = |path: &&str| {
        let reason = reject_reason(gate, &PolicyTestRequest::new(&format!("GET {path}")));
        assert!(matches!(reason, None | Some(RejectReason::FeatureOff)), "{reason:?}");
        reason.is_some()
    };
    ["/search", "/similar", "/beta"].into_iter().filter(is_off).collect()
}

#[test]
fn features_are_disabled_by_load_and_recover_in_order() {
    let machine = TestMachine::new();
    let gate = machine.gate(FEATURES);
    machine.run_at(&gate, 80);
    assert_eq!(off_features(&gate), ["/similar"]);
    machine.run_at(&gate, 95);
    assert_eq!(off_features(&gate), ["/search", "/similar"]);
    machine.write_load(10);
    let mut states = Vec::new();
    for _ in 0..120 {
        machine.manual_clock.advance(Duration::from_secs(1));
        gate.update_schedules();
        states.push(off_features(&gate));
    }
    states.dedup();
    assert_eq!(states, [vec!["/search", "/similar"], vec!["/similar"], vec![]]);
}

#[test]
fn operator_override_of_feature_survives_reload() {
    let machine = TestMachine::new();
    let gate = machine.gate(FEATURES);
    gate.features().turn_off("beta").unwrap();
    assert_eq!(off_features(&gate), ["/beta"]);
    let next = machine.compiler.compile(&machine.policy(FEATURES), Some(&gate)).unwrap();
    assert_eq!(off_features(&next), ["/beta"]);
    next.features().clear_override("beta").unwrap();
    assert!(off_features(&next).is_empty());
}

#[test]
fn feature_is_off_during_its_schedule() {
    let machine = TestMachine::new();
    // The manual clock starts at the epoch, a Thursday.
    let gate = machine.gate(
        "features: { reports: { off-during: '00:05-00:10' } }\nrules: [{ name: reports, match: { path: /search }, feature: reports }]",
    );
    let mut changes = Vec::new();
    for minute in 1..=12 {
        machine.run_at(&gate, 10);
        changes.push((minute, off_features(&gate).is_empty()));
    }
    changes.dedup_by_key(|(_, is_on)| *is_on);
    assert_eq!(changes, [(1, true), (5, false), (10, true)]);
}

#[test]
fn quota_applies_only_to_failing_keys_with_many_calls() {
    let machine = TestMachine::new();
    let text = "rules: [{ name: a, key: header x-merchant, quota: 1/h, while-failing: { min-calls: 4, failure-rate: 50%, window-size: 10s } }]";
    let gate = machine.compiler.compile(&Policy::parse(text, PolicyFormat::Yaml).unwrap(), None).unwrap();
    let call = |merchant: &str, status: u16| {
        let request = PolicyTestRequest::new("GET /").with_header("x-merchant", merchant);
        match gate.check(&request) {
            Evaluation::Ready(PolicyResult::Admitted(admission)) => {
                drop(admission.settle(&StatusResponse(status)));
                true
            }
            Evaluation::Ready(PolicyResult::Rejected(_)) => false,
            Evaluation::Pending(_) => panic!("no rule waits"),
        }
    };
    let calls = |merchant: &str, status: u16| [(); 9].map(|()| call(merchant, status));
    assert_eq!(calls("working", 200), [true; 9]);
    // Five failures exceed both thresholds; then the quota admits one more.
    let admitted = [true, true, true, true, true, true, false, false, false];
    assert_eq!(calls("failing", 500), admitted);
    assert!(call("working", 200), "other keys are not affected");
    assert_eq!(gate.view(0).unwrap().failing(), Some(FailingView { keys: 2, failing: 1 }));
    machine.manual_clock.advance(Duration::from_secs(11));
    assert!(call("failing", 200), "the failures are no longer in the window");
}
