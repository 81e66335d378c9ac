//! Standing in line: places, priorities, deadlines, and who is woken when somebody leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::advance;
use std::{thread, time::Duration};
use tidegate_core::{CarryOver, Decision, Micros};
use tidegate_limiter::{
    Clock, ClockHand, Limiter, Permit, Priority, Refused, Throttle, ThrottleBuilder, Waiter,
};
use tidegate_testkit::sleeper::{Sleeper, ended};

type Answer = Result<Decision, Refused>;

/// A throttle of one per 100ms whose token is gone, with so many places.
fn busy(places: usize, ttl: Option<Duration>) -> (Throttle, ClockHand) {
    let (clock, hand) = Clock::manual();
    let builder = Throttle::builder().clock(clock).waiting_places(places);
    let builder = ttl.into_iter().fold(builder, ThrottleBuilder::waiting_ttl);
    let throttle = builder.build("10/s burst 1").unwrap();
    assert!(throttle.check().is_allowed());
    (throttle, hand)
}

fn stand(throttle: &Throttle, waiter: Waiter) -> Sleeper<'_, Answer> {
    Sleeper::new(async move { throttle.bucket().wait_in_line(waiter).await })
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn answer(sleeper: &mut Sleeper<'_, Answer>) -> Option<Result<(), Refused>> {
    sleeper.stir();
    sleeper.take().map(|answer| answer.map(|decision| assert!(decision.is_granted())))
}

/// Nobody is left in line: all places can be taken again.
fn assert_empty(throttle: &Throttle, places: usize) {
    let mut all: Vec<_> = (0..places).map(|_| stand(throttle, Waiter::new(1))).collect();
    assert!(all.iter_mut().filter_map(answer).all(|answer| answer.is_ok()), "a place is taken");
}

#[test]
fn a_full_line_refuses_at_once() {
    let (throttle, hand) = busy(2, None);
    let mut line = [stand(&throttle, Waiter::new(1)), stand(&throttle, Waiter::new(1))];
    assert_eq!(answer(&mut stand(&throttle, Waiter::new(1))), Some(Err(Refused::Full)));
    let important = Waiter::new(1).priority(Priority(9));
    assert_eq!(answer(&mut stand(&throttle, important)), Some(Err(Refused::Full)));
    advance(&hand, 100);
    assert_eq!(ended(&mut line), [0]);
    let mut third = stand(&throttle, Waiter::new(1));
    assert_eq!(answer(&mut third), None);
    advance(&hand, 100);
    assert_eq!(ended(&mut line), [0, 1]);
    advance(&hand, 100);
    assert_eq!(answer(&mut third), Some(Ok(())));
    assert_empty(&throttle, 2);
}

#[test]
fn places_are_shared_by_all_keys() {
    let (clock, _hand) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).waiting_places(2).build("1/s").unwrap();
    let enter = |key: &'static str| {
        let limiter = &limiter;
        Sleeper::new(async move { limiter.key(key).wait_in_line(Waiter::new(1)).await })
    };
    assert_eq!(answer(&mut enter("a")), Some(Ok(())));
    assert_eq!(answer(&mut enter("b")), Some(Ok(())));
    let (waits, _waits_too) = (enter("a"), enter("b"));
    assert_eq!(answer(&mut enter("c")), Some(Err(Refused::Full)));
    drop(waits);
    assert_eq!(answer(&mut enter("c")), Some(Ok(())));
}

#[test]
fn the_more_important_overtake() {
    let (throttle, hand) = busy(9, None);
    let ranks = [0, 5, 0, 9, 5];
    let mut line: Vec<_> = ranks.map(|rank| stand(&throttle, Waiter::new(1).priority(Priority(rank)))).into();
    let mut order = Vec::new();
    for _ in ranks {
        advance(&hand, 100);
        let gone = ended(&mut line);
        order.extend(gone.into_iter().filter(|one| !order.contains(one)).collect::<Vec<_>>());
    }
    assert_eq!(order, [3, 1, 4, 0, 2]);
    assert_empty(&throttle, 9);
}

/// Told at once, without the clock: the overtaken that its tokens are another's, and then that other.
#[test]
fn who_is_overtaken_steps_back_at_once() {
    let (throttle, hand) = busy(9, None);
    let mut first = stand(&throttle, Waiter::new(1));
    assert!(!first.stir(), "it sleeps until its time");
    let mut important = stand(&throttle, Waiter::new(1).priority(Priority(1)));
    assert!(!important.stir(), "somebody still holds the tokens");
    assert!(first.stir() && important.stir());
    assert!(!first.stir() && !important.stir());
    advance(&hand, 100);
    assert_eq!((answer(&mut important), answer(&mut first)), (Some(Ok(())), None));
    advance(&hand, 100);
    assert_eq!(answer(&mut first), Some(Ok(())));
}

/// A queue that is bounded by the quota itself may be full. Whoever is first in line then looks again when there is
/// room, to the microsecond, or when the key is forgotten.
#[test]
fn the_first_in_line_waits_for_room_in_the_queue() {
    for forgotten in [false, true] {
        let (clock, hand) = Clock::manual();
        let throttle = Throttle::builder().clock(clock).build("10/s leaky-bucket queue 0").unwrap();
        assert!(throttle.check().is_allowed());
        let mut first = stand(&throttle, Waiter::new(1));
        assert_eq!(answer(&mut first), None);
        if forgotten {
            throttle.blocking().reset().unwrap();
        } else {
            hand.advance(Duration::from_micros(99_999));
            assert_eq!(answer(&mut first), None);
            hand.advance(Duration::from_micros(1));
        }
        assert_eq!(answer(&mut first), Some(Ok(())), "forgotten: {forgotten}");
        assert!(!throttle.check().is_granted());
    }
}

/// The first in line leaves, one in the middle, or the last: those who are left go in order and lose no time.
#[test]
fn whoever_leaves_wakes_the_next() {
    for leaves in 0..3 {
        let (throttle, hand) = busy(3, None);
        let mut line: Vec<_> = (0..3).map(|_| stand(&throttle, Waiter::new(1))).collect();
        advance(&hand, 50);
        drop(line.remove(leaves));
        advance(&hand, 50);
        assert_eq!(ended(&mut line), [0], "without {leaves}");
        advance(&hand, 100);
        assert_eq!(ended(&mut line), [0, 1], "without {leaves}");
        assert_empty(&throttle, 3);
    }
}

#[test]
fn a_deadline_that_cannot_be_met_is_told_at_once() {
    let (throttle, hand) = busy(3, None);
    assert_eq!(answer(&mut stand(&throttle, Waiter::new(1).deadline(ms(99)))), Some(Err(Refused::Deadline)));
    let mut exact = stand(&throttle, Waiter::new(1).deadline(ms(100)));
    assert_eq!(answer(&mut exact), None);
    advance(&hand, 100);
    assert_eq!(answer(&mut exact), Some(Ok(())));
    assert_eq!(answer(&mut stand(&throttle, Waiter::new(2))), Some(Err(Refused::Never)));
    assert_empty(&throttle, 3);
}

/// Behind others, the deadline passes while one waits; a clock that stands exactly on it is no reason to spin.
#[test]
fn a_deadline_passes_behind_others() {
    for steps in [vec![150], vec![149, 1], vec![149, 2], vec![1_000]] {
        let (throttle, hand) = busy(3, None);
        let _first = stand(&throttle, Waiter::new(1));
        let mut second = stand(&throttle, Waiter::new(1).deadline(ms(150)));
        assert_eq!(answer(&mut second), None);
        for (index, step) in steps.iter().enumerate() {
            advance(&hand, *step);
            let over = index + 1 == steps.len();
            assert_eq!(answer(&mut second), over.then_some(Err(Refused::Deadline)), "{steps:?}");
        }
    }
}

#[test]
fn the_line_has_an_end_of_its_own() {
    let (throttle, hand) = busy(4, Some(ms(150)));
    let mut first = stand(&throttle, Waiter::new(1));
    let mut second = stand(&throttle, Waiter::new(1).deadline(ms(1_000)));
    let mut third = stand(&throttle, Waiter::new(1).deadline(ms(120)));
    let mut fourth = stand(&throttle, Waiter::new(1));
    advance(&hand, 120);
    assert_eq!(answer(&mut first), Some(Ok(())));
    assert_eq!(answer(&mut third), Some(Err(Refused::Deadline)));
    assert_eq!(answer(&mut second), Some(Err(Refused::Expired)), "its turn would come at 200ms");
    assert_eq!(answer(&mut fourth), Some(Err(Refused::Expired)), "who waits for ever does not either");
    assert_empty(&throttle, 4);
}

#[tokio::test(start_paused = true)]
async fn the_same_on_tokios_clock() {
    let clock = Clock::tokio();
    let limiter = Limiter::builder().clock(clock.clone()).waiting_places(2).build("10/s burst 1").unwrap();
    let key = limiter.key("k");
    assert!(limiter.check("k").is_allowed());
    let start = clock.now();
    let wait = async |waiter: Waiter| {
        let answer = key.wait_in_line(waiter).await;
        (answer.map(|decision| decision.is_granted()), clock.now().since(start).get() / 1_000)
    };
    let (first, second, third) =
        tokio::join!(wait(Waiter::new(1)), wait(Waiter::new(1).deadline(ms(150))), wait(Waiter::new(1)));
    assert_eq!((first.0, third.0), (Ok(true), Err(Refused::Full)));
    assert!((100..=102).contains(&first.1) && third.1 == 0, "{first:?}");
    assert_eq!(second.0, Err(Refused::Deadline));
    assert!(second.1 <= 152, "{second:?}");
}

fn slot<'a>(limiter: &'a Limiter, waiter: Waiter) -> Sleeper<'a, Result<Permit, Refused>> {
    Sleeper::new(async move { limiter.key("pool").permit_in_line(waiter).await })
}

fn has_slot(sleeper: &Sleeper<'_, Result<Permit, Refused>>) -> bool {
    matches!(sleeper.end(), Some(Ok(permit)) if permit.decision().is_granted())
}

#[test]
fn a_released_slot_wakes_the_first_in_line() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("2 at once").unwrap();
    let mut line: Vec<_> = (0..5).map(|_| slot(&limiter, Waiter::new(1))).collect();
    assert_eq!(ended(&mut line), [0, 1]);
    assert!(!limiter.blocking().key("pool").permit().decision().is_granted());
    drop(line.remove(0));
    assert_eq!(ended(&mut line), [0, 1]);
    assert!(line[..2].iter().all(has_slot));
    // One leaves the line, another its slot.
    drop(line.remove(2));
    drop(line.remove(0));
    assert_eq!(ended(&mut line), [0, 1]);
    drop(line);
    assert_eq!(limiter.blocking().key("pool").peek(0).remaining(), 2);
}

#[test]
fn a_slot_that_nobody_takes_is_not_lost() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let held = limiter.blocking().key("pool").permit();
    let mut line: Vec<_> = (0..3).map(|_| slot(&limiter, Waiter::new(1))).collect();
    drop(held);
    // The first was told, and leaves without having heard it.
    drop(line.remove(0));
    assert_eq!(ended(&mut line), [0]);
    drop(line.remove(0));
    assert_eq!(ended(&mut line), [0]);
}

/// A slot is released before the overtaken has heard that it is no longer first; the other must hear of it after all.
#[test]
fn a_slot_is_not_lost_between_two_who_overtake() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let held = limiter.blocking().key("pool").permit();
    let mut first = slot(&limiter, Waiter::new(1));
    let mut important = slot(&limiter, Waiter::new(1).priority(Priority(1)));
    drop(held);
    assert!(important.stir() && important.end().is_none(), "it is the other's turn to hold one");
    assert!(first.stir() && first.end().is_none());
    assert!(important.stir() && has_slot(&important));
    drop(important);
    assert!(first.stir() && has_slot(&first));
}

#[test]
fn a_slot_does_not_come_in_time() {
    let (clock, hand) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).build("1 at once").unwrap();
    let _held = limiter.blocking().key("pool").permit();
    let mut waits = slot(&limiter, Waiter::new(1).deadline(ms(100)));
    assert!(waits.end().is_none());
    advance(&hand, 100);
    waits.stir();
    assert!(matches!(waits.end(), Some(Err(Refused::Deadline))), "and not one poll later");
    // One that is released after the deadline comes too late, though nobody looked in between.
    let held = limiter.blocking().key("other pool").permit();
    let other = || limiter.blocking().key("other pool");
    let mut late = Sleeper::new(async {
        limiter.key("other pool").permit_in_line(Waiter::new(1).deadline(ms(100))).await
    });
    advance(&hand, 101);
    drop(held);
    late.stir();
    assert!(matches!(late.end(), Some(Err(Refused::Deadline))));
    assert_eq!(other().peek(0).remaining(), 1);
    let mut too_many = slot(&limiter, Waiter::new(2));
    assert!(matches!(too_many.take(), Some(Err(Refused::Never))));
}

/// Beside a rate, who waits in line holds a slot and a promise of a token; who leaves, or is overtaken, gives both back.
#[test]
fn tokens_beside_a_slot_are_not_lost_while_waiting() {
    let (clock, hand) = Clock::manual();
    let quotas = ["1/s".parse().unwrap(), "2 at once".parse().unwrap()];
    let limiter = Limiter::builder().clock(clock).build_all(&quotas).unwrap();
    let first = limiter.blocking().key("pool").permit();
    assert!(first.decision().is_granted());
    for _ in 0..5 {
        assert!(slot(&limiter, Waiter::new(1)).end().is_none());
    }
    let mut usual = slot(&limiter, Waiter::new(1));
    assert!(usual.end().is_none());
    let mut important = slot(&limiter, Waiter::new(1).priority(Priority(1)));
    assert!(usual.stir() && usual.end().is_none(), "what it held is the other's");
    important.stir();
    advance(&hand, 1_000);
    assert!(important.stir() && has_slot(&important), "nobody's token went lost");
    drop(important);
    advance(&hand, 1_000);
    assert!(usual.stir() && has_slot(&usual));
    // A permit that was had has paid its token, and gives back no more than its slot.
    drop((first, usual));
    assert_eq!(limiter.blocking().key("pool").peek(1).retry_after(), Some(Duration::from_secs(1).into()));
}

#[test]
fn more_slots_wake_those_who_wait_for_one() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let mut line: Vec<_> = (0..4).map(|_| slot(&limiter, Waiter::new(1))).collect();
    assert_eq!(ended(&mut line), [0]);
    limiter.change("3 at once", CarryOver::Keep).unwrap();
    assert_eq!(ended(&mut line), [0, 1, 2]);
    let throttle = Throttle::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let (bucket, held) = (throttle.bucket(), throttle.blocking().permit());
    let mut waits = Sleeper::new(bucket.permit_in_line(Waiter::new(1)));
    throttle.change("2 at once", CarryOver::Keep).unwrap();
    waits.stir();
    assert!(waits.end().is_some());
    drop(held);
}

/// Threads stand in line too, and all get their turn as the clock moves.
#[test]
fn threads_stand_in_line() {
    let (throttle, hand) = busy(8, None);
    let granted = thread::scope(|scope| {
        let wait = || throttle.blocking().wait_in_line(Waiter::new(1)).is_ok();
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            advance(&hand, 10);
            thread::yield_now();
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(granted, [true; 8]);
    assert_empty(&throttle, 8);
}

/// Many more threads than slots, each taking one many times: all get through, and none is lost.
#[test]
fn threads_pass_slots_on() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("2 at once").unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let permit = limiter.blocking().key("pool").permit_in_line(Waiter::new(1));
                    assert!(permit.is_ok_and(|permit| permit.decision().is_granted()));
                }
            });
        }
    });
    assert_eq!(limiter.blocking().key("pool").peek(0).remaining(), 2);
    assert_eq!(limiter.blocking().key("pool").peek(1).wait(), Micros::ZERO);
}

/// The same declaration in memory as in a store: whoever waits for a slot is told when it is given back.
#[test]
fn a_shared_limiter_in_memory_lets_wait_for_slots_too() {
    let (clock, hand) = Clock::manual();
    let memory = Limiter::builder().clock(clock).waiting_places(2);
    let limiter = memory.build("1 at once").unwrap();
    let bucket = limiter.key("a");
    let stand = |waiter| Sleeper::new(bucket.permit_in_line(waiter));
    let mut first = stand(Waiter::new(1));
    let held = first.take().unwrap().unwrap();
    let mut line = [stand(Waiter::new(1).deadline(ms(50))), stand(Waiter::new(1).priority(Priority(1)))];
    assert_eq!(stand(Waiter::new(1)).take().unwrap().unwrap_err(), Refused::Full);
    assert_eq!(ended(&mut line), []);
    drop(held);
    assert_eq!(ended(&mut line), [1]);
    advance(&hand, 50);
    assert_eq!(ended(&mut line), [0, 1]);
    assert_eq!(line[0].take().unwrap().unwrap_err(), Refused::Deadline);
}
