//! A gate waits for tokens and slots on the clock of its rules, and a cancelled wait charges nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

use crate::common::TestRequest;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};
use tidegate_core::{Micros, Outcome};
use tidegate_limiter::{Clock, ManualClock, WaitError};
use tidegate_overload::CallError;
use tidegate_rule::{
    Evaluation, Gate, Limited, Mode, PendingEvaluation, RejectionResponse, RequestLimit, Rule, RuleConfig,
    Rules, Settings, Verdict,
};

const SECOND: Duration = Duration::from_secs(1);

struct WaitFixture {
    rules: Rules,
    clock: ManualClock,
}

fn wait_fixture() -> WaitFixture {
    let (clock, manual_clock) = Clock::manual();
    let rules = Rules::new();
    rules.apply(Settings::new().clock(clock)).unwrap();
    WaitFixture { rules, clock: manual_clock }
}

impl WaitFixture {
    fn rule(&self, quotas: &[&str], wait: Duration) -> Rule {
        let declare = |declaration: RuleConfig, quota: &&str| declaration.quota(*quota).unwrap();
        self.rules.declare(quotas.iter().fold(RuleConfig::new("jobs"), declare).wait(wait)).unwrap()
    }

    fn gate(&self, quotas: &[&str], wait: Duration) -> Gate {
        RequestLimit::new(self.rule(quotas, wait)).into()
    }
}

fn check_gate(gate: &Gate) -> Evaluation<Verdict> {
    gate.check(&TestRequest::from_peer("192.0.2.1"))
}

/// The verdict, if it is available at once or at the first poll.
async fn check_now(gate: &Gate) -> Verdict {
    let mut pending = match check_gate(gate) {
        Evaluation::Ready(verdict) => return verdict,
        Evaluation::Pending(pending) => pending,
    };
    match poll_once(&mut pending).await {
        Poll::Ready(verdict) => verdict,
        Poll::Pending => panic!("still waiting"),
    }
}

fn check_pending(gate: &Gate) -> PendingEvaluation<Verdict> {
    match check_gate(gate) {
        Evaluation::Pending(pending) => pending,
        Evaluation::Ready(verdict) => panic!("{verdict:?}"),
    }
}

async fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// The remaining tokens of the only rule.
fn remaining(gate: &Gate) -> u64 {
    let limiter = gate.limits()[0].rule().limiter().unwrap();
    limiter.blocking().key("").peek(0).remaining()
}

fn to_limited(gate: &Gate, verdict: &Verdict) -> Limited {
    verdict.to_limited(gate).unwrap()
}

#[tokio::test]
async fn manual_clock_wakes_token_waiters() {
    let fixture = wait_fixture();
    let gate = fixture.gate(&["1/s"], SECOND * 5);
    assert!(check_now(&gate).await.is_admitted());
    let mut waits = check_pending(&gate);
    assert!(poll_once(&mut waits).await.is_pending());
    fixture.clock.advance(SECOND - Duration::from_micros(1));
    assert!(poll_once(&mut waits).await.is_pending());
    fixture.clock.advance(Duration::from_micros(1));
    let Poll::Ready(verdict) = poll_once(&mut waits).await else { panic!("it was time") };
    assert!(verdict.is_admitted());
}

/// The decisions are those of an enforced rule.
#[tokio::test]
async fn shadow_rule_consumes_tokens_without_wait() {
    let fixture = wait_fixture();
    let jobs = RuleConfig::new("jobs").quota("1/s leaky-bucket queue 2").unwrap().wait(SECOND * 5);
    let gate = Gate::from(RequestLimit::new(fixture.rules.declare(jobs.mode(Mode::Shadow)).unwrap()));
    let mut outcomes = Vec::new();
    for _ in 0..4 {
        let verdict = check_now(&gate).await;
        assert!(verdict.is_admitted());
        outcomes.extend(verdict.decisions().map(|decision| decision.decision().unwrap().outcome()));
    }
    let delay = |count: u64| Outcome::Delay(Micros::from_secs(count));
    assert_eq!(outcomes[..3], [Outcome::Allow, delay(1), delay(2)]);
    assert!(matches!(outcomes[3], Outcome::Deny(_)), "{outcomes:?}");
}

/// Not polled manually: the clock wakes the task.
#[tokio::test]
async fn manual_clock_wakes_task() {
    let fixture = wait_fixture();
    let gate = fixture.gate(&["1/s"], SECOND * 5);
    drop(check_now(&gate).await);
    let task = tokio::spawn(check_pending(&gate));
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    fixture.clock.advance(SECOND);
    assert!(task.await.unwrap().is_admitted());
}

#[tokio::test]
async fn rate_with_concurrency_waits_for_slot() {
    let fixture = wait_fixture();
    let gate = fixture.gate(&["10/s", "1 at once"], SECOND * 5);
    let first = check_now(&gate).await;
    assert!(first.is_admitted());
    let mut second = check_pending(&gate);
    assert!(poll_once(&mut second).await.is_pending());
    fixture.clock.advance(SECOND);
    assert!(poll_once(&mut second).await.is_pending(), "a slot does not depend on time");
    drop(first);
    let Poll::Ready(second) = poll_once(&mut second).await else { panic!("there is a slot") };
    assert!(second.is_admitted());
    drop(second);
    assert!(check_now(&gate).await.is_admitted(), "the slot is released");
}

#[tokio::test]
async fn rate_with_concurrency_waits_for_token() {
    let fixture = wait_fixture();
    let gate = fixture.gate(&["1/s", "2 at once"], SECOND * 5);
    let _first = check_now(&gate).await;
    let mut second = check_pending(&gate);
    assert!(poll_once(&mut second).await.is_pending());
    fixture.clock.advance(SECOND);
    let Poll::Ready(second) = poll_once(&mut second).await else { panic!("there is a token") };
    assert!(second.is_admitted());
    let mut third = check_pending(&gate);
    fixture.clock.advance(SECOND);
    assert!(poll_once(&mut third).await.is_pending(), "all slots are in use");
    drop(second);
    assert!(poll_once(&mut third).await.is_ready());
}

/// The slot is available but not the token, and the other way round.
#[tokio::test]
async fn cancelled_wait_refunds_everything() {
    for (quotas, whole) in [(["2/min", "9 at once"], 2), (["2/min", "1 at once"], 1)] {
        let fixture = wait_fixture();
        let gate = fixture.gate(&quotas, SECOND * 120);
        let verdicts: Vec<_> = match whole {
            1 => vec![check_now(&gate).await],
            _ => vec![check_now(&gate).await, check_now(&gate).await],
        };
        for _ in 0..10 {
            let mut waits = check_pending(&gate);
            assert!(poll_once(&mut waits).await.is_pending());
            drop(waits);
        }
        drop(verdicts);
        fixture.clock.advance(SECOND * 60);
        assert_eq!(remaining(&gate), whole, "{quotas:?}: no token and no slot is lost");
    }
}

#[tokio::test]
async fn timed_out_wait_charges_nothing() {
    let fixture = wait_fixture();
    // The token would need an hour: that is a limit, and denied at once.
    let gate = fixture.gate(&["1/h", "5 at once"], SECOND * 5);
    drop(check_now(&gate).await);
    let limited = check_now(&gate).await;
    let limited = to_limited(&gate, &limited);
    assert_eq!(limited.retry_after(), Some(SECOND * 3_600));
    assert_eq!(RejectionResponse::from(&limited).status, 429);

    // The slot is not available in time: that is overload of the server, rejected at the deadline.
    let another = self::wait_fixture();
    let gate = another.gate(&["10/s", "1 at once"], SECOND * 5);
    let first = check_now(&gate).await;
    let mut second = check_pending(&gate);
    assert!(poll_once(&mut second).await.is_pending());
    another.clock.advance(SECOND * 5);
    let Poll::Ready(second) = poll_once(&mut second).await else { panic!("the time is over") };
    let limited = to_limited(&gate, &second);
    assert_eq!(*limited.cause(), CallError::WaitFailed(WaitError::DeadlineExceeded));
    assert_eq!(RejectionResponse::from(&limited).status, 503);
    drop(first);
    assert_eq!(remaining(&gate), 1);
}

/// The same for attributes that hold slots: settings may have added a rate.
#[tokio::test]
async fn acquire_waits_for_rate_and_concurrency() {
    let fixture = wait_fixture();
    let rule = fixture.rule(&["1/min", "1 at once"], SECOND * 120);
    let remaining = || rule.limiter().unwrap().blocking().key("alice").peek(1);
    let first = rule.acquire("alice").await.unwrap();
    let mut waits = Box::pin(rule.acquire("alice"));
    assert!(poll_once(&mut waits).await.is_pending());
    fixture.clock.advance(SECOND * 60);
    assert!(poll_once(&mut waits).await.is_pending(), "the slot is in use");
    drop(waits);
    drop(first);
    assert!(remaining().is_allowed(), "a cancelled wait charges no token");

    let second = rule.acquire("alice").await.unwrap();
    let mut waits = Box::pin(rule.acquire("alice"));
    assert!(poll_once(&mut waits).await.is_pending());
    drop(second);
    assert!(poll_once(&mut waits).await.is_pending(), "the slot is free, but there is no token");
    drop(waits);
    fixture.clock.advance(SECOND * 60);
    assert!(remaining().is_allowed(), "a cancelled wait refunds its token");
    let mut waits = Box::pin(rule.acquire("alice"));
    assert!(poll_once(&mut waits).await.is_ready());
}
