//! Priorities: reserves of quotas, and the order of queues.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::requests::PolicyTestRequest;
use std::time::Duration;
use tidegate_limiter::Clock;
use tidegate_policy::{
    Policy, PolicyFormat,
    compile::{Compiler, PolicyGate, PolicyResult, RejectReason, RuleResult},
};
use tidegate_rule::{Evaluation, Rules};

fn gate(rule: &str) -> PolicyGate {
    let policy = Policy::parse(&format!("rules: [{{ name: a, {rule} }}]"), PolicyFormat::Yaml).unwrap();
    Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&policy, None).unwrap()
}

fn request_of(class: &str) -> PolicyTestRequest {
    PolicyTestRequest::new("GET /").with_header("x-class", class)
}

/// Sends requests of a class until one is rejected. Returns those that were admitted.
fn admit_all(gate: &PolicyGate, class: &str) -> Vec<PolicyResult> {
    let mut admitted = Vec::new();
    loop {
        match gate.check(&request_of(class)) {
            Evaluation::Ready(result @ PolicyResult::Admitted(_)) => admitted.push(result),
            Evaluation::Ready(PolicyResult::Rejected(rejection)) => {
                assert_eq!(rejection.reason, RejectReason::Limited);
                return admitted;
            }
            Evaluation::Pending(_) => panic!("no rule waits"),
        }
    }
}

/// A burst of the lowest class leaves the reserve of the others free.
#[tokio::test(start_paused = true)]
async fn lower_classes_cannot_use_reserve() {
    for quota in ["10 at once", "10/h", "10/h fixed-window", "10/h sliding-window", "10/h sliding-log"] {
        let gate = gate(&format!(
            "quota: {quota}, priority: {{ key: header x-class, default: low, reserve: {{ critical: 20%, high: 10% }} }}"
        ));
        let classes = ["low", "normal", "high", "critical"];
        let admitted = classes.map(|class| admit_all(&gate, class));
        // Critical requests have all ten, high ones at most eight, all others together seven.
        assert_eq!(admitted.map(|results| results.len()), [7, 0, 1, 2], "{quota}");
    }
}

#[tokio::test(start_paused = true)]
async fn priority_on_plain_quota_reserves_a_tenth_for_each_class() {
    let gate = gate("quota: 20 at once, priority: { key: header x-class, default: low }");
    let admitted = ["low", "normal", "high", "critical"].map(|class| admit_all(&gate, class));
    assert_eq!(admitted.map(|results| results.len()), [14, 2, 2, 2]);
}

/// The reserve is part of the rule: it is counted once, and in shadow mode it rejects nothing.
#[tokio::test(start_paused = true)]
async fn rule_with_reserve_has_one_decision() {
    let gate = gate(
        "quota: 10/h, mode: shadow, priority: { key: header x-class, default: low, reserve: { critical: 50% } }",
    );
    let mut denied = 0;
    for _ in 0..10 {
        let Evaluation::Ready(PolicyResult::Admitted(admission)) = gate.check(&request_of("low")) else {
            panic!("a rule in shadow mode rejects nothing")
        };
        let results: Vec<_> = admission.decisions().map(|decision| decision.result).collect();
        let [result] = results.as_slice() else { panic!("{results:?}") };
        denied += usize::from(matches!(result, RuleResult::Rejected(_)));
    }
    assert_eq!(denied, 5);
}

/// Requests that wait for a rate are admitted by priority, then in order of arrival.
#[tokio::test(start_paused = true)]
async fn rate_queue_admits_higher_priority_first() {
    for quota in ["1/s", "1/s leaky-bucket queue 9", "1/s fixed-window"] {
        let gate = gate(&format!(
            "quota: {quota}, wait: 20s, queue: {{ max: 9, order: priority }}, priority: {{ key: header x-class, default: low }}"
        ));
        let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
        for class in ["normal", "low", "normal", "critical", "high", "low", "critical"] {
            let evaluation = gate.check(&request_of(class));
            let sender = sender.clone();
            tokio::spawn(async move {
                let result = match evaluation {
                    Evaluation::Ready(result) => result,
                    Evaluation::Pending(pending) => pending.await,
                };
                let PolicyResult::Admitted(_) = result else { panic!("{result:?}") };
                sender.send(class).unwrap();
            });
            tokio::task::yield_now().await;
        }
        drop(sender);
        let mut order = Vec::new();
        while let Some(class) = receiver.recv().await {
            order.push(class);
        }
        let expected = ["normal", "critical", "critical", "high", "normal", "low", "low"];
        assert_eq!(order, expected, "{quota}");
    }
}

/// Like `burst` of nginx: requests over the rate are delayed, and those beyond the queue are rejected.
#[tokio::test(start_paused = true)]
async fn leaky_bucket_queues_without_wait() {
    let gate = gate("quota: 1/s leaky-bucket queue 3");
    let mut pending = Vec::new();
    let mut rejected = 0;
    for _ in 0..6 {
        match gate.check(&PolicyTestRequest::new("GET /")) {
            Evaluation::Ready(PolicyResult::Admitted(_)) => {}
            Evaluation::Ready(PolicyResult::Rejected(_)) => rejected += 1,
            Evaluation::Pending(waiting) => pending.push(waiting),
        }
    }
    assert_eq!((pending.len(), rejected), (3, 2));
    let clock = Clock::tokio();
    let start = clock.now();
    for (index, waiting) in pending.into_iter().enumerate() {
        assert!(matches!(waiting.await, PolicyResult::Admitted(_)));
        let waited = clock.now().saturating_sub(start).to_duration();
        assert_eq!(waited.as_millis() / 10, (index as u128 + 1) * 100);
    }
}

/// A client that finds the queue full learns when its request would have been admitted.
#[tokio::test(start_paused = true)]
async fn full_queue_of_rate_has_retry_after() {
    for order in ["fifo", "priority"] {
        let gate = gate(&format!(
            "quota: 1/s, wait: 20s, queue: {{ max: 1, order: {order} }}, priority: {{ key: header x-class, default: low, reserve: {{ critical: 0% }} }}"
        ));
        let mut waiting = Vec::new();
        let mut retries = Vec::new();
        for _ in 0..3 {
            match gate.check(&request_of("low")) {
                Evaluation::Ready(PolicyResult::Admitted(_)) => {}
                Evaluation::Ready(PolicyResult::Rejected(rejection)) => retries.push(rejection.retry_after),
                Evaluation::Pending(pending) => {
                    let task = tokio::spawn(pending);
                    tokio::task::yield_now().await;
                    match task.is_finished() {
                        true => match task.await.unwrap() {
                            PolicyResult::Rejected(rejection) => retries.push(rejection.retry_after),
                            PolicyResult::Admitted(_) => {}
                        },
                        false => waiting.push(task),
                    }
                }
            }
        }
        let [Some(retry)] = retries.as_slice() else { panic!("{order}: {retries:?}") };
        assert!((Duration::from_secs(1)..=Duration::from_secs(2)).contains(retry), "{order}: {retry:?}");
        assert_eq!(waiting.len(), 1);
    }
}
