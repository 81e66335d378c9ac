//! What stays when a policy is replaced, and who may wait.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::PolicyTestRequest,
    rules::{ip, policy, refusal, rule},
};
use std::time::Duration;
use tidegate_core::CarryOver;
use tidegate_limiter::{Clock, ManualClock};
use tidegate_policy::{
    compile::{Compiler, DenyReason, LivePolicy, PolicyGate, PolicyResult},
    model::{AdaptiveSpec, Policy, QueueOrder, QueueSpec, RuleSpec},
};
use tidegate_rule::{Evaluation, Rules, request::ResponseHead};

fn live_policy(policy: &Policy) -> (LivePolicy, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    (LivePolicy::new(Compiler::new(Rules::new()).clock(clock), policy).unwrap(), manual_clock)
}

fn remaining(live: &LivePolicy) -> usize {
    (0..200).take_while(|_| refusal(&live.current(), &PolicyTestRequest::new("GET /")).is_none()).count()
}

/// Ten are allowed and four are used, when a new file allows twenty, or five.
#[test]
fn reload_carries_over_counters_as_configured() {
    let cases = [
        (CarryOver::Keep, "20/h", 16),
        (CarryOver::Keep, "5/h", 1),
        (CarryOver::Reset, "20/h", 20),
        (CarryOver::Reset, "5/h", 5),
        // The same quota is the same counter, whatever would be done with another.
        (CarryOver::Reset, "10/h", 6),
    ];
    for (inherit, quota, expected) in cases {
        let (live, _manual_clock) = live_policy(&policy([rule("one", &["10/h"])]));
        for _ in 0..4 {
            assert!(refusal(&live.current(), &PolicyTestRequest::new("GET /")).is_none());
        }
        live.replace(&policy([RuleSpec { carry_over: inherit, ..rule("one", &[quota]) }])).unwrap();
        assert_eq!(remaining(&live), expected, "{inherit:?} {quota}");
    }
}

/// Several quotas of a rule are inherited one by one, and those of another algorithm start anew.
#[test]
fn reload_carries_over_each_quota() {
    let (live, _manual_clock) = live_policy(&policy([rule("one", &["10/h", "8/d"])]));
    for _ in 0..4 {
        assert!(refusal(&live.current(), &PolicyTestRequest::new("GET /")).is_none());
    }
    let next = RuleSpec { carry_over: CarryOver::Keep, ..rule("one", &["20/h", "9/d"]) };
    live.replace(&policy([next])).unwrap();
    assert_eq!(remaining(&live), 5);
    live.replace(&policy([rule("one", &["7/h fixed-window", "12/d"])])).unwrap();
    // All nine of the day are used; of the window, none.
    assert_eq!(remaining(&live), 3);
}

/// What a rule counted by another algorithm, by fewer quotas or in a shorter log is found again.
#[test]
fn reload_that_replaces_a_limiter_keeps_counters() {
    let used = |quotas: &[&str]| {
        let (live, manual_clock) = live_policy(&policy([rule("one", quotas)]));
        for _ in 0..4 {
            assert!(refusal(&live.current(), &PolicyTestRequest::new("GET /")).is_none());
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
    // There and back again.
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

/// What a request meets that comes when others wait already: it waits, too, or is refused at once.
async fn send_request(gate: &PolicyGate, from: &str) -> RequestOutcome {
    match gate.check(&PolicyTestRequest::new("GET /").with_peer(from)) {
        Evaluation::Ready(passage) => request_outcome(passage),
        Evaluation::Pending(asking) => {
            let waiting = tokio::spawn(asking);
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
    Refused(DenyReason),
}

fn request_outcome(result: PolicyResult) -> RequestOutcome {
    match result {
        PolicyResult::Refused(refusal) => RequestOutcome::Refused(refusal.reason),
        admitted => RequestOutcome::Admitted(admitted),
    }
}

/// A rule by address that waits, with a queue of two for each and three in all: for tokens, for a slot, for an adaptive limit.
#[tokio::test(start_paused = true)]
async fn queue_is_bounded_per_key_and_in_total() {
    let adaptive = AdaptiveSpec { target: Duration::from_secs(100), min: Some(1), max: Some(1) };
    let waits = |most, in_all| {
        let queue = QueueSpec { max: most, max_total: in_all, order: QueueOrder::Fifo };
        RuleSpec { key: ip(), wait: Duration::from_secs(60), queue: Some(queue), ..RuleSpec::new("one") }
    };
    let with = |quota: &str, from: RuleSpec| RuleSpec { quotas: rule("", &[quota]).quotas, ..from };
    let cases = [
        // Each address has a token of its own, so that one of each passes.
        (with("1 per 10s", waits(2, Some(3))), 2),
        (with("1 per 10s leaky-bucket queue 50", waits(2, Some(3))), 2),
        (with("1 at once", waits(2, Some(3))), 2),
        (with("5/s", RuleSpec { adaptive: Some(adaptive), ..waits(2, Some(3)) }), 1),
    ];
    for (said, passing) in cases {
        let (gate, what) = (
            Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&policy([said.clone()]), None).unwrap(),
            format!("{:?} {:?}", said.quotas, said.adaptive),
        );
        let (mut passes, mut waits, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for from in ["192.0.2.1"; 4].into_iter().chain(["192.0.2.2"; 4]) {
            match send_request(&gate, from).await {
                RequestOutcome::Admitted(passage) => passes.push(passage),
                RequestOutcome::Waiting(waiting) => waits.push((from, waiting)),
                RequestOutcome::Refused(why) => refused.push((from, why)),
            }
        }
        let of = |from: &str| waits.iter().filter(|(waiting, _)| *waiting == from).count();
        assert_eq!(passes.len(), passing, "{what}");
        assert_eq!((of("192.0.2.1"), of("192.0.2.2")), (2, 1), "{what}");
        assert_eq!(refused.len(), 8 - passing - 3, "{what}");
        // One who leaves makes room for one of the others, of whichever key.
        let (_, left) = waits.pop().unwrap();
        left.abort();
        _ = left.await;
        assert!(matches!(send_request(&gate, "192.0.2.2").await, RequestOutcome::Waiting(_)), "{what}");
        for passage in passes {
            if let PolicyResult::Admitted(admission) = passage {
                drop(admission.settle(&OkResponse));
            }
        }
        for (_, waiting) in waits {
            match waiting.await.unwrap() {
                PolicyResult::Admitted(admission) => drop(admission.settle(&OkResponse)),
                PolicyResult::Refused(refusal) => panic!("{what}: {refusal:?}"),
            }
        }
    }
}

/// Where nobody waits, the shortest queue is long enough for whoever need not wait.
#[tokio::test(start_paused = true)]
async fn admitted_requests_use_no_queue_slots() {
    let queue = QueueSpec { max: 1, max_total: Some(1), order: QueueOrder::Fifo };
    let said = RuleSpec { wait: Duration::from_secs(5), queue: Some(queue), ..rule("one", &["3 at once"]) };
    let gate = Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&policy([said]), None).unwrap();
    let mut admissions = Vec::new();
    for _ in 0..3 {
        let RequestOutcome::Admitted(passage) = send_request(&gate, "192.0.2.1").await else {
            panic!("there is room")
        };
        admissions.push(passage);
    }
    assert!(matches!(send_request(&gate, "192.0.2.1").await, RequestOutcome::Waiting(_)));
    assert!(matches!(send_request(&gate, "192.0.2.1").await, RequestOutcome::Refused(DenyReason::Limited)));
}

/// A new file may change who may wait; whoever waits stays.
#[tokio::test(start_paused = true)]
async fn queue_resizes_with_waiters() {
    let said = |most| {
        let queue = QueueSpec { max: most, max_total: None, order: QueueOrder::Fifo };
        policy([RuleSpec {
            wait: Duration::from_secs(60),
            queue: Some(queue),
            ..rule("one", &["1 at once"])
        }])
    };
    let live = LivePolicy::new(Compiler::new(Rules::new()).clock(Clock::tokio()), &said(2)).unwrap();
    let RequestOutcome::Admitted(first) = send_request(&live.current(), "192.0.2.1").await else {
        panic!("there is room")
    };
    let mut waits = Vec::new();
    for (most, fits) in [(2, true), (2, true), (2, false), (3, true), (3, false), (1, false)] {
        live.replace(&said(most)).unwrap();
        match send_request(&live.current(), "192.0.2.1").await {
            RequestOutcome::Waiting(waiting) if fits => waits.push(waiting),
            RequestOutcome::Refused(DenyReason::Limited) if !fits => {}
            _ => panic!("{most} {fits}"),
        }
    }
    drop(first);
    for waiting in waits {
        assert!(matches!(waiting.await.unwrap(), PolicyResult::Admitted(_)));
    }
}
