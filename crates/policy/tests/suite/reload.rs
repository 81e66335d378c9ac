//! State that is retained when a policy is replaced, and wait queues.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::PolicyTestRequest,
    rules::{ip, policy, rejection, rule},
};
use std::time::Duration;
use tidegate_core::CarryOver;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    compile::{Compiler, LivePolicy, PolicyGate, PolicyResult, RejectReason},
    model::{AdaptiveSpec, Policy, QueueOrder, QueueSpec, RuleSpec},
};
use tidegate_rule::{Evaluation, Rules, request::ResponseHead};

fn live_policy(policy: &Policy) -> (LivePolicy, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (LivePolicy::new(Compiler::new(Rules::new()).clock(clock), policy).unwrap(), manual_clock)
}

fn remaining(live: &LivePolicy) -> usize {
    (0..200).take_while(|_| rejection(&live.current(), &PolicyTestRequest::new("GET /")).is_none()).count()
}

/// Four of ten requests are used when a new policy allows twenty, or five.
#[test]
fn reload_carries_over_counters_as_configured() {
    let cases = [
        (CarryOver::Keep, "20/h", 16),
        (CarryOver::Keep, "5/h", 1),
        (CarryOver::Reset, "20/h", 20),
        (CarryOver::Reset, "5/h", 5),
        // The same quota keeps its counter in any case.
        (CarryOver::Reset, "10/h", 6),
    ];
    for (inherit, quota, expected) in cases {
        let (live, _manual_clock) = live_policy(&policy([rule("one", &["10/h"])]));
        for _ in 0..4 {
            assert!(rejection(&live.current(), &PolicyTestRequest::new("GET /")).is_none());
        }
        live.replace(&policy([RuleSpec { carry_over: inherit, ..rule("one", &[quota]) }])).unwrap();
        assert_eq!(remaining(&live), expected, "{inherit:?} {quota}");
    }
}

/// Each quota of a rule is carried over separately. A quota with another algorithm starts with an empty counter.
#[test]
fn reload_carries_over_each_quota() {
    let (live, _manual_clock) = live_policy(&policy([rule("one", &["10/h", "8/d"])]));
    for _ in 0..4 {
        assert!(rejection(&live.current(), &PolicyTestRequest::new("GET /")).is_none());
    }
    let next = RuleSpec { carry_over: CarryOver::Keep, ..rule("one", &["20/h", "9/d"]) };
    live.replace(&policy([next])).unwrap();
    assert_eq!(remaining(&live), 5);
    live.replace(&policy([rule("one", &["7/h fixed-window", "12/d"])])).unwrap();
    // All nine requests of the day are used, and none of the window.
    assert_eq!(remaining(&live), 3);
}

/// Usage is retained when the algorithm, the number of quotas or the length of the log changes.
#[test]
fn reload_that_replaces_a_limiter_keeps_counters() {
    let used = |quotas: &[&str]| {
        let (live, manual_clock) = live_policy(&policy([rule("one", quotas)]));
        for _ in 0..4 {
            assert!(rejection(&live.current(), &PolicyTestRequest::new("GET /")).is_none());
        }
        (live, manual_clock)
    };
    for (first, then, expected) in [
        (vec!["10/h"], vec!["10/h sliding-window", "12/d"], 8),
        (vec!["10/h sliding-log"], vec!["20/h sliding-log"], 16),
        (vec!["10/h"], vec!["10/h", "100/d"], 6),
        (vec!["10/h", "100/d fixed-window"], vec!["100/d fixed-window"], 96),
    ] {
        let (live, _manual_clock) = used(&first);
        live.replace(&policy([rule("one", &then)])).unwrap();
        assert_eq!(remaining(&live), expected, "{first:?} to {then:?}");
    }
    // A change and its reversal.
    for between in [vec!["10/h sliding-log"], vec!["10/min fixed-window"], vec!["10/h", "20/d sliding-log"]] {
        let (live, _manual_clock) = used(&["10/h"]);
        live.replace(&policy([rule("one", &between)])).unwrap();
        live.replace(&policy([rule("one", &["10/h"])])).unwrap();
        assert_eq!(remaining(&live), 6, "{between:?} and back");
    }
}

struct OkResponse;

impl ResponseHead for OkResponse {
    fn status(&self) -> u16 {
        200
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// Sends a request, and returns whether it is admitted, waits, or is denied.
async fn send_request(gate: &PolicyGate, from: &str) -> RequestOutcome {
    match gate.check(&PolicyTestRequest::new("GET /").with_peer(from)) {
        Evaluation::Ready(result) => request_outcome(result),
        Evaluation::Pending(pending) => {
            let waiting = tokio::spawn(pending);
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            match waiting.is_finished() {
                true => request_outcome(waiting.await.unwrap()),
                false => RequestOutcome::Waiting(waiting),
            }
        }
    }
}

enum RequestOutcome {
    Admitted(PolicyResult),
    Waiting(tokio::task::JoinHandle<PolicyResult>),
    Rejected(RejectReason),
}

fn request_outcome(result: PolicyResult) -> RequestOutcome {
    match result {
        PolicyResult::Rejected(rejection) => RequestOutcome::Rejected(rejection.reason),
        admitted => RequestOutcome::Admitted(admitted),
    }
}

/// A rule with the key `ip` and a queue of two per key and three in total: for a rate, a concurrency limit and an adaptive limit.
#[tokio::test(start_paused = true)]
async fn queue_is_bounded_per_key_and_in_total() {
    let adaptive = AdaptiveSpec { target: Duration::from_secs(100), min: Some(1), max: Some(1) };
    let waits = |max, max_total| {
        let queue = QueueSpec { max, max_total, order: QueueOrder::Fifo };
        RuleSpec { key: ip(), wait: Duration::from_secs(60), queue: Some(queue), ..RuleSpec::new("one") }
    };
    let with = |quota: &str, from: RuleSpec| RuleSpec { quotas: rule("", &[quota]).quotas, ..from };
    let cases = [
        // Each address has its own token, so one request of each is admitted.
        (with("1 per 10s", waits(2, Some(3))), 2),
        (with("1 per 10s leaky-bucket queue 50", waits(2, Some(3))), 2),
        (with("1 at once", waits(2, Some(3))), 2),
        (with("5/s", RuleSpec { adaptive: Some(adaptive), ..waits(2, Some(3)) }), 1),
    ];
    for (spec, passing) in cases {
        let (gate, what) = (
            Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&policy([spec.clone()]), None).unwrap(),
            format!("{:?} {:?}", spec.quotas, spec.adaptive),
        );
        let (mut passes, mut waits, mut rejected) = (Vec::new(), Vec::new(), Vec::new());
        for from in ["192.0.2.1"; 4].into_iter().chain(["192.0.2.2"; 4]) {
            match send_request(&gate, from).await {
                RequestOutcome::Admitted(result) => passes.push(result),
                RequestOutcome::Waiting(waiting) => waits.push((from, waiting)),
                RequestOutcome::Rejected(reason) => rejected.push((from, reason)),
            }
        }
        let of = |from: &str| waits.iter().filter(|(waiting, _)| *waiting == from).count();
        assert_eq!(passes.len(), passing, "{what}");
        assert_eq!((of("192.0.2.1"), of("192.0.2.2")), (2, 1), "{what}");
        assert_eq!(rejected.len(), 8 - passing - 3, "{what}");
        // A canceled request makes room for another one, of any key.
        let (_, left) = waits.pop().unwrap();
        left.abort();
        _ = left.await;
        assert!(matches!(send_request(&gate, "192.0.2.2").await, RequestOutcome::Waiting(_)), "{what}");
        for result in passes {
            if let PolicyResult::Admitted(admission) = result {
                drop(admission.settle(&OkResponse));
            }
        }
        for (_, waiting) in waits {
            match waiting.await.unwrap() {
                PolicyResult::Admitted(admission) => drop(admission.settle(&OkResponse)),
                PolicyResult::Rejected(rejection) => panic!("{what}: {rejection:?}"),
            }
        }
    }
}

/// Requests that need not wait take no place in the queue.
#[tokio::test(start_paused = true)]
async fn admitted_requests_use_no_queue_slots() {
    let queue = QueueSpec { max: 1, max_total: Some(1), order: QueueOrder::Fifo };
    let spec = RuleSpec { wait: Duration::from_secs(5), queue: Some(queue), ..rule("one", &["3 at once"]) };
    let gate = Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&policy([spec]), None).unwrap();
    let mut admissions = Vec::new();
    for _ in 0..3 {
        let RequestOutcome::Admitted(result) = send_request(&gate, "192.0.2.1").await else {
            panic!("expected an admission")
        };
        admissions.push(result);
    }
    assert!(matches!(send_request(&gate, "192.0.2.1").await, RequestOutcome::Waiting(_)));
    assert!(matches!(
        send_request(&gate, "192.0.2.1").await,
        RequestOutcome::Rejected(RejectReason::QueueFull)
    ));
}

/// A new policy can resize the queue. Waiting requests stay.
#[tokio::test(start_paused = true)]
async fn queue_resizes_with_waiters() {
    let spec = |max| {
        let queue = QueueSpec { max, max_total: None, order: QueueOrder::Fifo };
        policy([RuleSpec {
            wait: Duration::from_secs(60),
            queue: Some(queue),
            ..rule("one", &["1 at once"])
        }])
    };
    let live = LivePolicy::new(Compiler::new(Rules::new()).clock(Clock::tokio()), &spec(2)).unwrap();
    let RequestOutcome::Admitted(first) = send_request(&live.current(), "192.0.2.1").await else {
        panic!("expected an admission")
    };
    let mut waits = Vec::new();
    for (max, fits) in [(2, true), (2, true), (2, false), (3, true), (3, false), (1, false)] {
        live.replace(&spec(max)).unwrap();
        match send_request(&live.current(), "192.0.2.1").await {
            RequestOutcome::Waiting(waiting) if fits => waits.push(waiting),
            RequestOutcome::Rejected(RejectReason::QueueFull) if !fits => {}
            _ => panic!("{max} {fits}"),
        }
    }
    drop(first);
    for waiting in waits {
        assert!(matches!(waiting.await.unwrap(), PolicyResult::Admitted(_)));
    }
}
