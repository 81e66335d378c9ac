//! What stays when a policy is replaced, and who may wait.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::{
    requests::Request,
    rules::{ip, policy, refusal, rule},
};
use std::time::Duration;
use tidegate_core::CarryOver;
use tidegate_limiter::{Clock, ClockHand};
use tidegate_policy::{
    compile::{Compiler, DenyReason, LivePolicy, PolicyGate, PolicyResult},
    model::{Adaptive, Policy, Queue, QueueOrder, Rule},
};
use tidegate_rule::{Evaluation, Rules, request::Reply};

fn live(said: &Policy) -> (LivePolicy, ClockHand) {
    let (clock, hand) = Clock::manual();
    (LivePolicy::new(Compiler::new(Rules::new()).clock(clock), said).unwrap(), hand)
}

fn left(live: &LivePolicy) -> usize {
    (0..200).take_while(|_| refusal(&live.now(), &Request::of("GET /")).is_none()).count()
}

/// Ten are allowed and four are used, when a new file allows twenty, or five.
#[test]
fn what_was_counted_is_inherited_as_the_new_file_says() {
    let cases = [
        (CarryOver::Keep, "20/h", 16),
        (CarryOver::Keep, "5/h", 1),
        (CarryOver::Reset, "20/h", 20),
        (CarryOver::Reset, "5/h", 5),
        // The same quota is the same counter, whatever would be done with another.
        (CarryOver::Reset, "10/h", 6),
    ];
    for (inherit, quota, expected) in cases {
        let (live, _hand) = live(&policy([rule("one", &["10/h"])]));
        for _ in 0..4 {
            assert!(refusal(&live.now(), &Request::of("GET /")).is_none());
        }
        live.replace(&policy([Rule { inherit, ..rule("one", &[quota]) }])).unwrap();
        assert_eq!(left(&live), expected, "{inherit:?} {quota}");
    }
}

/// Several quotas of a rule are inherited one by one, and those of another algorithm start anew.
#[test]
fn each_of_several_quotas_is_inherited() {
    let (live, _hand) = live(&policy([rule("one", &["10/h", "8/d"])]));
    for _ in 0..4 {
        assert!(refusal(&live.now(), &Request::of("GET /")).is_none());
    }
    let next = Rule { inherit: CarryOver::Keep, ..rule("one", &["20/h", "9/d"]) };
    live.replace(&policy([next])).unwrap();
    assert_eq!(left(&live), 5);
    live.replace(&policy([rule("one", &["7/h fixed-window", "12/d"])])).unwrap();
    // All nine of the day are used; of the window, none.
    assert_eq!(left(&live), 3);
}

/// What a rule counted by another algorithm, by fewer quotas or in a shorter log is found again.
#[test]
fn reload_that_replaces_a_limiter_keeps_counters() {
    let used = |quotas: &[&str]| {
        let (live, hand) = live(&policy([rule("one", quotas)]));
        for _ in 0..4 {
            assert!(refusal(&live.now(), &Request::of("GET /")).is_none());
        }
        (live, hand)
    };
    for (first, then, expected) in [
        (vec!["10/h"], vec!["10/h sliding-window", "12/d"], 8),
        (vec!["10/h sliding-log"], vec!["20/h sliding-log"], 16),
        (vec!["10/h"], vec!["10/h", "100/d"], 6),
        (vec!["10/h", "100/d fixed-window"], vec!["100/d fixed-window"], 96),
    ] {
        let (live, _hand) = used(&first);
        live.replace(&policy([rule("one", &then)])).unwrap();
        assert_eq!(left(&live), expected, "{first:?} to {then:?}");
    }
    // There and back again.
    for between in [vec!["10/h sliding-log"], vec!["10/min fixed-window"], vec!["10/h", "20/d sliding-log"]] {
        let (live, _hand) = used(&["10/h"]);
        live.replace(&policy([rule("one", &between)])).unwrap();
        live.replace(&policy([rule("one", &["10/h"])])).unwrap();
        assert_eq!(left(&live), 6, "{between:?} and back");
    }
}

struct Ok200;

impl Reply for Ok200 {
    fn status(&self) -> u16 {
        200
    }
    fn header(&self, _: &str) -> Option<&[u8]> {
        None
    }
}

/// What a request meets that comes when others wait already: it waits, too, or is refused at once.
async fn comes(gate: &PolicyGate, from: &str) -> Outcome {
    match gate.check(&Request::of("GET /").from(from)) {
        Evaluation::Ready(passage) => outcome(passage),
        Evaluation::Pending(asking) => {
            let waiting = tokio::spawn(asking);
            for _ in 0..8 {
                tokio::task::yield_now().await;
            }
            match waiting.is_finished() {
                true => outcome(waiting.await.unwrap()),
                false => Outcome::Waits(waiting),
            }
        }
    }
}

enum Outcome {
    Passes(PolicyResult),
    Waits(tokio::task::JoinHandle<PolicyResult>),
    Refused(DenyReason),
}

fn outcome(passage: PolicyResult) -> Outcome {
    match passage {
        PolicyResult::Refused(refusal) => Outcome::Refused(refusal.reason),
        admitted => Outcome::Passes(admitted),
    }
}

/// A rule by address that waits, with a queue of two for each and three in all: for tokens, for a slot, for an adaptive limit.
#[tokio::test(start_paused = true)]
async fn a_queue_is_bounded_for_each_key_and_in_all() {
    let adaptive = Adaptive { target: Duration::from_secs(100), least: Some(1), most: Some(1) };
    let waits = |most, in_all| {
        let queue = Queue { most, in_all, order: QueueOrder::Fifo };
        Rule { key: ip(), wait: Duration::from_secs(60), queue: Some(queue), ..Rule::new("one") }
    };
    let with = |quota: &str, from: Rule| Rule { quotas: rule("", &[quota]).quotas, ..from };
    let cases = [
        // Each address has a token of its own, so that one of each passes.
        (with("1 per 10s", waits(2, Some(3))), 2),
        (with("1 per 10s leaky-bucket queue 50", waits(2, Some(3))), 2),
        (with("1 at once", waits(2, Some(3))), 2),
        (with("5/s", Rule { adaptive: Some(adaptive), ..waits(2, Some(3)) }), 1),
    ];
    for (said, passing) in cases {
        let (gate, what) = (
            Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&policy([said.clone()]), None).unwrap(),
            format!("{:?} {:?}", said.quotas, said.adaptive),
        );
        let (mut passes, mut waits, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        for from in ["192.0.2.1"; 4].into_iter().chain(["192.0.2.2"; 4]) {
            match comes(&gate, from).await {
                Outcome::Passes(passage) => passes.push(passage),
                Outcome::Waits(waiting) => waits.push((from, waiting)),
                Outcome::Refused(why) => refused.push((from, why)),
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
        assert!(matches!(comes(&gate, "192.0.2.2").await, Outcome::Waits(_)), "{what}");
        for passage in passes {
            if let PolicyResult::Admitted(admission) = passage {
                drop(admission.settle(&Ok200));
            }
        }
        for (_, waiting) in waits {
            match waiting.await.unwrap() {
                PolicyResult::Admitted(admission) => drop(admission.settle(&Ok200)),
                PolicyResult::Refused(refusal) => panic!("{what}: {refusal:?}"),
            }
        }
    }
}

/// Where nobody waits, the shortest queue is long enough for whoever need not wait.
#[tokio::test(start_paused = true)]
async fn those_who_need_not_wait_take_no_place() {
    let queue = Queue { most: 1, in_all: Some(1), order: QueueOrder::Fifo };
    let said = Rule { wait: Duration::from_secs(5), queue: Some(queue), ..rule("one", &["3 at once"]) };
    let gate = Compiler::new(Rules::new()).clock(Clock::tokio()).compile(&policy([said]), None).unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        let Outcome::Passes(passage) = comes(&gate, "192.0.2.1").await else { panic!("there is room") };
        held.push(passage);
    }
    assert!(matches!(comes(&gate, "192.0.2.1").await, Outcome::Waits(_)));
    assert!(matches!(comes(&gate, "192.0.2.1").await, Outcome::Refused(DenyReason::Limited)));
}

/// A new file may change who may wait; whoever waits stays.
#[tokio::test(start_paused = true)]
async fn a_queue_is_resized_while_it_is_waited_in() {
    let said = |most| {
        let queue = Queue { most, in_all: None, order: QueueOrder::Fifo };
        policy([Rule { wait: Duration::from_secs(60), queue: Some(queue), ..rule("one", &["1 at once"]) }])
    };
    let live = LivePolicy::new(Compiler::new(Rules::new()).clock(Clock::tokio()), &said(2)).unwrap();
    let Outcome::Passes(first) = comes(&live.now(), "192.0.2.1").await else { panic!("there is room") };
    let mut waits = Vec::new();
    for (most, fits) in [(2, true), (2, true), (2, false), (3, true), (3, false), (1, false)] {
        live.replace(&said(most)).unwrap();
        match comes(&live.now(), "192.0.2.1").await {
            Outcome::Waits(waiting) if fits => waits.push(waiting),
            Outcome::Refused(DenyReason::Limited) if !fits => {}
            _ => panic!("{most} {fits}"),
        }
    }
    drop(first);
    for waiting in waits {
        assert!(matches!(waiting.await.unwrap(), PolicyResult::Admitted(_)));
    }
}
