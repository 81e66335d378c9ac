//! Load, features, breakers and adaptive limits.
//!
//! A time that a test cannot wait for is shown with two gateways, one with a short time and one with a long one: the event
//! that starts the time occurs at the second gateway first, and has its effect only at the first.

use super::queues::HoldingServer;
use crate::{
    admin_api::AdminGateway,
    harness::{TestBackend, text_body},
    overload::{ChosenResponses, FakeMachine, wait_until},
};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::{
    fs,
    future::pending,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

impl FakeMachine {
    /// A `load` with these keys.
    fn policy_with(&self, keys: &str) -> String {
        let directory = self.directory.path().display();
        format!("load: {{ signals: [memory], proc: {directory}, cgroup: {directory}/cgroup, {keys} }}\n")
    }
}

impl AdminGateway {
    /// Waits until the load is below a percentage. Readings are smoothed over a few seconds.
    async fn wait_for_load_below(&self, percent: f64) {
        wait_until(&format!("a load below {percent} %"), async || {
            self.status_at("/load/percent").await.as_f64().is_some_and(|load| load < percent)
        })
        .await;
    }
}

const SHED_RULE: &str = "rules: [{ name: all, shed: 60% }]";

#[tokio::test]
async fn load_levels_start_at_their_thresholds() {
    let server = TestBackend::start_echo().await;
    for (percent, level) in [(10, "relaxed"), (30, "normal"), (65, "busy"), (85, "critical")] {
        let machine = FakeMachine::with_load(percent);
        let load = machine.policy_with("normal: 20%, busy: 60%, critical: 80%");
        let gateway = AdminGateway::start(&server, &(load + SHED_RULE));
        wait_until("a reading", async || gateway.status_at("/load/percent").await == percent as f64).await;
        assert_eq!(gateway.status_at("/load/level").await, level, "{percent} %");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn load_of_a_container_is_that_of_its_control_group() {
    let (server, machine) = (TestBackend::start_echo().await, FakeMachine::with_load(10));
    let directory = machine.directory.path();
    fs::create_dir_all(directory.join("self")).unwrap();
    fs::create_dir(directory.join("cgroup")).unwrap();
    for (file, text) in [
        ("self/cgroup", "0::/\n"),
        ("cgroup/cgroup.controllers", "memory\n"),
        ("cgroup/memory.max", "1000000\n"),
        ("cgroup/memory.current", "840000\n"),
        ("cgroup/memory.stat", "inactive_file 0\nactive_file 0\nslab_reclaimable 0\n"),
    ] {
        fs::write(directory.join(file), text).unwrap();
    }
    let gateway = AdminGateway::start(&server, &(machine.policy_with("interval: 5ms") + SHED_RULE));
    wait_until("a reading", async || gateway.status_at("/load/percent").await != Value::Null).await;
    assert_eq!(gateway.status_at("/load/percent").await, 84.0);
    gateway.stop().await;
}

#[tokio::test]
async fn signal_is_full_at_its_declared_value() {
    let (server, machine) = (TestBackend::start_echo().await, FakeMachine::with_load(40));
    let load = machine.policy_with("").replace("[memory]", "{ memory: 50% }");
    let gateway = AdminGateway::start(&server, &(load + SHED_RULE));
    wait_until("a reading", async || gateway.status_at("/load/percent").await != Value::Null).await;
    assert_eq!(gateway.status_at("/load/percent").await, 80.0);
    gateway.stop().await;
}

#[tokio::test]
async fn load_is_read_once_per_interval() {
    let server = TestBackend::start_echo().await;
    let machines = [FakeMachine::with_load(90), FakeMachine::with_load(90)];
    let start = |machine: &FakeMachine, interval: &str| {
        AdminGateway::start(&server, &(machine.policy_with(&format!("interval: {interval}")) + SHED_RULE))
    };
    let (rarely, often) = (start(&machines[0], "1h"), start(&machines[1], "50ms"));
    for gateway in [&rarely, &often] {
        wait_until("a reading", async || gateway.status_at("/load/percent").await == 90.0).await;
    }
    machines[0].write_load(10);
    machines[1].write_load(10);
    often.wait_for_load_below(40.0).await;
    assert_eq!(rarely.status_at("/load/percent").await, 90.0);
    for gateway in [rarely, often] {
        gateway.stop().await;
    }
}

/// Two gateways reject requests while the load is high. After it falls, only the one with the short time admits them.
async fn assert_readmits_after_time(policy: impl Fn(&FakeMachine, &str) -> String) {
    let server = TestBackend::start_echo().await;
    let start = async |time: &str| {
        let machine = FakeMachine::with_load(95);
        let gateway = AdminGateway::start(&server, &policy(&machine, time));
        gateway.wait_for_status("/", "", 503).await;
        (machine, gateway)
    };
    let ((long_machine, long), (short_machine, short)) = (start("1h").await, start("10ms").await);
    long_machine.write_load(10);
    long.wait_for_load_below(40.0).await;
    short_machine.write_load(10);
    short.wait_for_status("/", "", 200).await;
    assert_eq!(long.status_of("/", "").await, 503);
    for gateway in [long, short] {
        gateway.stop().await;
    }
}

#[tokio::test]
async fn requests_are_readmitted_after_the_cooldown() {
    assert_readmits_after_time(|machine, cooldown| {
        machine.policy_with(&format!("interval: 5ms, cooldown: {cooldown}")) + SHED_RULE
    })
    .await;
}

#[tokio::test]
async fn requests_are_readmitted_below_the_threshold_minus_the_hysteresis() {
    let (server, machine) = (TestBackend::start_echo().await, FakeMachine::with_load(95));
    let load = machine.policy_with("interval: 5ms, cooldown: 10ms, hysteresis: 30%");
    let gateway = AdminGateway::start(&server, &(load + SHED_RULE));
    gateway.wait_for_status("/", "", 503).await;
    machine.write_load(35);
    gateway.wait_for_load_below(45.0).await;
    assert_eq!(gateway.status_of("/", "").await, 503, "45 % is not 30 % below 60 %");
    machine.write_load(10);
    gateway.wait_for_status("/", "", 200).await;
    gateway.stop().await;
}

#[tokio::test]
async fn features_return_after_the_recovery_time() {
    assert_readmits_after_time(|machine, recovery| {
        let features = format!(
            "features: {{ search: {{ off-at: critical }} }}\nfeature-recovery: {recovery}\n\
             rules: [{{ name: search, feature: search }}]"
        );
        machine.policy_with("interval: 5ms, cooldown: 10ms") + &features
    })
    .await;
}

#[tokio::test]
async fn feature_without_a_rule_is_listed() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "features: { beta: manual }");
    assert_eq!(gateway.status_at("/features/0/name").await, "beta");
    gateway.stop().await;
}

#[tokio::test]
async fn quota_shrinks_above_high_and_grows_below_low() {
    let (server, machine) = (TestBackend::start_echo().await, FakeMachine::with_load(75));
    let load = machine.policy_with("interval: 5ms");
    let rules = "rules:
  - { name: late, quota: 1000/min, scale: { high: 70%, low: 30%, min: x0.5, interval: 5ms } }
  - { name: early, quota: 1000/min, scale: { high: 70%, low: 45%, min: x0.5, interval: 5ms } }
";
    let gateway = AdminGateway::start(&server, &(load + rules));
    let has_scale = async |rule: usize, scale: f64| {
        wait_until(&format!("rule {rule} has x{scale}"), async || {
            gateway.status_at(&format!("/rules/{rule}/scale")).await == scale
        })
        .await;
    };
    for rule in 0..2 {
        has_scale(rule, 0.5).await;
    }
    machine.write_load(40);
    has_scale(1, 1.0).await;
    has_scale(0, 0.5).await;
    machine.write_load(10);
    has_scale(0, 1.0).await;
    gateway.stop().await;
}

#[tokio::test]
async fn quota_applies_while_the_declared_share_of_calls_fails() {
    let chosen = ChosenResponses::new(500, 0);
    let server = chosen.start().await;
    let rules = "rules:
  - { name: long, match: { path: /long }, quota: 1/h, while-failing: { min-calls: 4, failure-rate: 20%, window-size: 1h } }
  - { name: short, match: { path: /short }, quota: 1/h, while-failing: { min-calls: 4, failure-rate: 20%, window-size: 500ms } }
";
    let gateway = AdminGateway::start(&server, rules);
    // Two of five calls fail, which is more than 20 %, and not more than the default.
    assert_eq!(gateway.statuses("/long", "", 2).await, [500, 500]);
    chosen.recover();
    assert_eq!(gateway.statuses("/long", "", 5).await, [200, 200, 200, 200, 429]);

    let failing = ["/rules/0/while-failing/failing", "/rules/1/while-failing/failing"];
    chosen.fail();
    wait_until("calls fail in the short window", async || {
        gateway.statuses("/short", "", 6).await;
        gateway.status_at(failing[1]).await == 1
    })
    .await;
    wait_until("the short window ends", async || gateway.status_at(failing[1]).await == 0).await;
    assert_eq!(gateway.status_at(failing[0]).await, 1);
    assert_eq!(gateway.status_of("/long", "").await, 429);
    gateway.stop().await;
}

#[tokio::test]
async fn adaptive_limit_stays_within_its_bounds() {
    let (holding, server) = HoldingServer::start().await;
    let rules = "rules:
  - { name: few, match: { path: /few }, adaptive: { target: 1h, max: 3 } }
  - { name: many, match: { path: /many }, adaptive: { target: 1h, min: 30 } }
";
    let gateway = AdminGateway::start(&server, rules);
    let mut clients = Vec::new();
    for (path, count) in [("/few", 3), ("/many", 30)] {
        for _ in 0..count {
            clients.push(gateway.send(path, "").await);
        }
    }
    holding.wait_for_arrivals(33).await;
    assert_eq!(gateway.status_of("/few", "").await, 503);
    let limits = [
        gateway.status_at("/rules/0/adaptive/limit").await,
        gateway.status_at("/rules/1/adaptive/limit").await,
    ];
    assert_eq!(limits, [json!(3), json!(30)]);
    holding.release(33);
    for mut client in clients {
        assert_eq!(client.read_response().await.status(), 200);
    }
    gateway.stop().await;
}

#[tokio::test]
async fn breaker_opens_at_its_failure_rate() {
    let chosen = ChosenResponses::new(500, 0);
    let server = chosen.start().await;
    let rules = "rules:
  - { name: low, match: { path: /low }, breaker: { failure-rate: 25%, window-size: 4, open-duration: 1h } }
  - { name: high, match: { path: /high }, breaker: { failure-rate: 75%, window-size: 4, open-duration: 1h } }
";
    let gateway = AdminGateway::start(&server, rules);
    for (path, failures) in [("/low", 1), ("/high", 2)] {
        chosen.fail();
        assert_eq!(gateway.statuses(path, "", failures).await, vec![500; failures]);
        chosen.recover();
        assert_eq!(gateway.statuses(path, "", 4 - failures).await, vec![200; 4 - failures]);
    }
    assert_eq!((gateway.status_of("/low", "").await, gateway.status_of("/high", "").await), (503, 200));
    gateway.stop().await;
}

#[tokio::test]
async fn open_durations_of_breakers_vary_with_jitter() {
    let chosen = ChosenResponses::new(500, 0);
    let server = chosen.start().await;
    let names = ["a", "b", "c", "d"];
    let rules: String = names
        .iter()
        .map(|name| {
            format!(
                "  - {{ name: {name}, match: {{ path: /{name} }}, breaker: {{ window-size: 1, open-duration: 10h, jitter: 90% }} }}\n"
            )
        })
        .collect();
    let gateway = AdminGateway::start(&server, &format!("rules:\n{rules}"));
    let mut hours = Vec::new();
    for (index, name) in names.iter().enumerate() {
        assert_eq!(gateway.statuses(&format!("/{name}"), "", 2).await, [500, 503]);
        let remaining: Value = gateway.status_at(&format!("/rules/{index}/breaker/remaining")).await;
        hours.push(remaining.as_f64().unwrap() / 3_600.0);
    }
    assert!(hours.iter().all(|hours| (0.9..=19.0).contains(hours)), "{hours:?}");
    let spread = hours.iter().copied().fold(0.0, f64::max) - hours.iter().copied().fold(f64::MAX, f64::min);
    assert!(spread > 0.02, "all four are within a minute: {hours:?}");
    gateway.stop().await;
}

#[tokio::test]
async fn probe_without_an_outcome_fails_after_the_half_open_timeout() {
    // The first two requests fail, and the others get no response.
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    let server = TestBackend::start(move |_: Request<Incoming>| {
        let number = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            if number >= 2 {
                pending::<()>().await;
            }
            let mut response = Response::new(text_body("app"));
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    })
    .await;
    let gateway = AdminGateway::start(
        &server,
        "rules: [{ name: all, breaker: { window-size: 2, open-duration: 10ms, half-open-calls: 1, half-open-timeout: 20ms } }]",
    );
    assert_eq!(gateway.statuses("/", "", 2).await, [500, 500]);
    let mut probes = Vec::new();
    wait_until("two probes", async || {
        probes.push(gateway.send("/", "").await);
        count.load(Ordering::SeqCst) == 4
    })
    .await;
}
