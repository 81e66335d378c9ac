//! A gate waits by the clock of its rules, for tokens and for slots, and whoever leaves has taken nothing.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::Request;
use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
    time::Duration,
};
use tidegate_core::{Micros, Outcome};
use tidegate_limiter::{Clock, ManualClock, WaitError};
use tidegate_overload::Cause;
use tidegate_rule::{
    Answer, Declaration, Evaluation, Gate, Limited, Mode, Pending, RequestLimit, Rule, Rules, Settings,
    Verdict,
};

const SECOND: Duration = Duration::from_secs(1);

struct World {
    rules: Rules,
    hand: ManualClock,
}

fn world() -> World {
    let (clock, hand) = Clock::manual();
    let rules = Rules::new();
    rules.apply(Settings::new().clock(clock)).unwrap();
    World { rules, hand }
}

impl World {
    fn rule(&self, quotas: &[&str], wait: Duration) -> Rule {
        let declare = |declaration: Declaration, quota: &&str| declaration.quota(*quota).unwrap();
        self.rules.rule(quotas.iter().fold(Declaration::of("jobs"), declare).wait(wait)).unwrap()
    }

    fn gate(&self, quotas: &[&str], wait: Duration) -> Gate {
        RequestLimit::new(self.rule(quotas, wait)).into()
    }
}

fn ask(gate: &Gate) -> Evaluation<Verdict> {
    gate.check(&Request::from("192.0.2.1"))
}

/// What is said on the spot, or as soon as it is asked for.
async fn now(gate: &Gate) -> Verdict {
    let mut asking = match ask(gate) {
        Evaluation::Ready(verdict) => return verdict,
        Evaluation::Pending(asking) => asking,
    };
    match poll(&mut asking).await {
        Poll::Ready(verdict) => verdict,
        Poll::Pending => panic!("it waits"),
    }
}

fn later(gate: &Gate) -> Pending<Verdict> {
    match ask(gate) {
        Evaluation::Pending(asking) => asking,
        Evaluation::Ready(verdict) => panic!("{verdict:?}"),
    }
}

async fn poll<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    poll_fn(|context| Poll::Ready(Pin::new(&mut *future).poll(context))).await
}

/// What each quota of the only rule has left.
fn left(gate: &Gate) -> u64 {
    let limiter = gate.limits()[0].rule().limiter().unwrap();
    limiter.blocking().key("").peek(0).remaining()
}

fn limited(gate: &Gate, verdict: &Verdict) -> Limited {
    verdict.limited(gate).unwrap()
}

#[tokio::test]
async fn a_hand_moves_those_who_wait_for_tokens() {
    let world = world();
    let gate = world.gate(&["1/s"], SECOND * 5);
    assert!(now(&gate).await.is_admitted());
    let mut waits = later(&gate);
    assert!(poll(&mut waits).await.is_pending());
    world.hand.advance(SECOND - Duration::from_micros(1));
    assert!(poll(&mut waits).await.is_pending());
    world.hand.advance(Duration::from_micros(1));
    let Poll::Ready(verdict) = poll(&mut waits).await else { panic!("it was time") };
    assert!(verdict.is_admitted());
}

/// What it would refuse were it enforced, and nothing else.
#[tokio::test]
async fn a_rule_in_shadow_takes_the_turn_that_nobody_waits_for() {
    let world = world();
    let jobs = Declaration::of("jobs").quota("1/s leaky-bucket queue 2").unwrap().wait(SECOND * 5);
    let gate = Gate::from(RequestLimit::new(world.rules.rule(jobs.mode(Mode::Shadow)).unwrap()));
    let mut said = Vec::new();
    for _ in 0..4 {
        let verdict = now(&gate).await;
        assert!(verdict.is_admitted());
        said.extend(verdict.decisions().map(|ruling| ruling.decision().unwrap().outcome()));
    }
    let delay = |count: u64| Outcome::Delay(Micros::from_secs(count));
    assert_eq!(said[..3], [Outcome::Allow, delay(1), delay(2)]);
    assert!(matches!(said[3], Outcome::Deny(_)), "{said:?}");
}

/// Nobody polls it by hand: the clock wakes its task.
#[tokio::test]
async fn a_hand_wakes_the_task() {
    let world = world();
    let gate = world.gate(&["1/s"], SECOND * 5);
    drop(now(&gate).await);
    let task = tokio::spawn(later(&gate));
    tokio::task::yield_now().await;
    assert!(!task.is_finished());
    world.hand.advance(SECOND);
    assert!(task.await.unwrap().is_admitted());
}

#[tokio::test]
async fn a_rate_with_slots_waits_for_its_slot() {
    let world = world();
    let gate = world.gate(&["10/s", "1 at once"], SECOND * 5);
    let first = now(&gate).await;
    assert!(first.is_admitted());
    let mut second = later(&gate);
    assert!(poll(&mut second).await.is_pending());
    world.hand.advance(SECOND);
    assert!(poll(&mut second).await.is_pending(), "time alone brings no slot");
    drop(first);
    let Poll::Ready(second) = poll(&mut second).await else { panic!("there is a slot") };
    assert!(second.is_admitted());
    drop(second);
    assert!(now(&gate).await.is_admitted(), "and it is back");
}

#[tokio::test]
async fn a_rate_with_slots_waits_for_its_token() {
    let world = world();
    let gate = world.gate(&["1/s", "2 at once"], SECOND * 5);
    let _first = now(&gate).await;
    let mut second = later(&gate);
    assert!(poll(&mut second).await.is_pending());
    world.hand.advance(SECOND);
    let Poll::Ready(second) = poll(&mut second).await else { panic!("there is a token") };
    assert!(second.is_admitted());
    let mut third = later(&gate);
    world.hand.advance(SECOND);
    assert!(poll(&mut third).await.is_pending(), "two hold all slots");
    drop(second);
    assert!(poll(&mut third).await.is_ready());
}

/// A slot was there, and its token still to come; or the other way round.
#[tokio::test]
async fn who_gives_up_while_waiting_gives_everything_back() {
    for (quotas, whole) in [(["2/min", "9 at once"], 2), (["2/min", "1 at once"], 1)] {
        let world = world();
        let gate = world.gate(&quotas, SECOND * 120);
        let held: Vec<_> = match whole {
            1 => vec![now(&gate).await],
            _ => vec![now(&gate).await, now(&gate).await],
        };
        for _ in 0..10 {
            let mut waits = later(&gate);
            assert!(poll(&mut waits).await.is_pending());
            drop(waits);
        }
        drop(held);
        world.hand.advance(SECOND * 60);
        assert_eq!(left(&gate), whole, "{quotas:?}: no token and no slot is lost");
    }
}

#[tokio::test]
async fn a_turn_that_does_not_come_takes_nothing() {
    let world = world();
    // The token would come after an hour: that is a limit, and told at once.
    let gate = world.gate(&["1/h", "5 at once"], SECOND * 5);
    drop(now(&gate).await);
    let refused = now(&gate).await;
    let refused = limited(&gate, &refused);
    assert_eq!(refused.retry_after(), Some(SECOND * 3_600));
    assert_eq!(Answer::from(&refused).status, 429);

    // The slot does not come in time: that is the server's own trouble, and told when the time is over.
    let another = self::world();
    let gate = another.gate(&["10/s", "1 at once"], SECOND * 5);
    let first = now(&gate).await;
    let mut second = later(&gate);
    assert!(poll(&mut second).await.is_pending());
    another.hand.advance(SECOND * 5);
    let Poll::Ready(second) = poll(&mut second).await else { panic!("the time is over") };
    let refused = limited(&gate, &second);
    assert_eq!(*refused.cause(), Cause::Refused(WaitError::DeadlineExceeded));
    assert_eq!(Answer::from(&refused).status, 503);
    drop(first);
    assert_eq!(left(&gate), 1);
}

/// The same for attributes that hold: the rule may have got a rate by its settings.
#[tokio::test]
async fn a_hold_waits_for_both_too() {
    let world = world();
    let rule = world.rule(&["1/min", "1 at once"], SECOND * 120);
    let remaining = || rule.limiter().unwrap().blocking().key("alice").peek(1);
    let first = rule.hold("alice").await.unwrap();
    let mut waits = Box::pin(rule.hold("alice"));
    assert!(poll(&mut waits).await.is_pending());
    world.hand.advance(SECOND * 60);
    assert!(poll(&mut waits).await.is_pending(), "the slot is taken");
    drop(waits);
    drop(first);
    assert!(remaining().is_allowed(), "who gave up took no token");

    let second = rule.hold("alice").await.unwrap();
    let mut waits = Box::pin(rule.hold("alice"));
    assert!(poll(&mut waits).await.is_pending());
    drop(second);
    assert!(poll(&mut waits).await.is_pending(), "the slot is there, the token is not");
    drop(waits);
    world.hand.advance(SECOND * 60);
    assert!(remaining().is_allowed(), "who gave up gave its token back");
    let mut waits = Box::pin(rule.hold("alice"));
    assert!(poll(&mut waits).await.is_ready());
}
