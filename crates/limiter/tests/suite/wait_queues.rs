//! Standing in line: places, priorities, deadlines, and who is woken when somebody leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::advance;
use std::{thread, time::Duration};
use tidegate_core::{CarryOver, Decision, Micros};
use tidegate_limiter::{
    Clock, DirectLimiter, DirectLimiterBuilder, Limiter, ManualClock, Permit, WaitError, WaitPriority, Waiter,
};
use tidegate_testkit::test_task::{TestTask, finished_tasks};

type QueueResult = Result<Decision, WaitError>;

/// A throttle of one per 100ms whose token is gone, with so many places.
fn busy_limiter(max_waiters: usize, ttl: Option<Duration>) -> (DirectLimiter, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let builder = DirectLimiter::builder().clock(clock).max_waiters(max_waiters);
    let builder = ttl.into_iter().fold(builder, DirectLimiterBuilder::waiter_ttl);
    let throttle = builder.build("10/s burst 1").unwrap();
    assert!(throttle.check().is_allowed());
    (throttle, manual_clock)
}

fn enqueue(throttle: &DirectLimiter, waiter: Waiter) -> TestTask<'_, QueueResult> {
    TestTask::new(async move { throttle.bucket().acquire_queued(waiter).await })
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn poll_result(sleeper: &mut TestTask<'_, QueueResult>) -> Option<Result<(), WaitError>> {
    sleeper.poll_if_woken();
    sleeper.take_output().map(|answer| answer.map(|decision| assert!(decision.is_granted())))
}

/// Nobody is left in line: all places can be taken again.
fn assert_no_waiters(throttle: &DirectLimiter, max_waiters: usize) {
    let mut all: Vec<_> = (0..max_waiters).map(|_| enqueue(throttle, Waiter::new(1))).collect();
    assert!(all.iter_mut().filter_map(poll_result).all(|answer| answer.is_ok()), "a place is taken");
}

#[test]
fn full_queue_rejects_at_once() {
    let (throttle, manual_clock) = busy_limiter(2, None);
    let mut line = [enqueue(&throttle, Waiter::new(1)), enqueue(&throttle, Waiter::new(1))];
    assert_eq!(poll_result(&mut enqueue(&throttle, Waiter::new(1))), Some(Err(WaitError::QueueFull)));
    let important = Waiter::new(1).priority(WaitPriority(9));
    assert_eq!(poll_result(&mut enqueue(&throttle, important)), Some(Err(WaitError::QueueFull)));
    advance(&manual_clock, 100);
    assert_eq!(finished_tasks(&mut line), [0]);
    let mut third = enqueue(&throttle, Waiter::new(1));
    assert_eq!(poll_result(&mut third), None);
    advance(&manual_clock, 100);
    assert_eq!(finished_tasks(&mut line), [0, 1]);
    advance(&manual_clock, 100);
    assert_eq!(poll_result(&mut third), Some(Ok(())));
    assert_no_waiters(&throttle, 2);
}

#[test]
fn waiter_limit_is_shared_by_all_keys() {
    let (clock, _manual_clock) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).max_waiters(2).build("1/s").unwrap();
    let enter = |key: &'static str| {
        let limiter = &limiter;
        TestTask::new(async move { limiter.key(key).acquire_queued(Waiter::new(1)).await })
    };
    assert_eq!(poll_result(&mut enter("a")), Some(Ok(())));
    assert_eq!(poll_result(&mut enter("b")), Some(Ok(())));
    let (waits, _waits_too) = (enter("a"), enter("b"));
    assert_eq!(poll_result(&mut enter("c")), Some(Err(WaitError::QueueFull)));
    drop(waits);
    assert_eq!(poll_result(&mut enter("c")), Some(Ok(())));
}

#[test]
fn higher_priority_goes_first() {
    let (throttle, manual_clock) = busy_limiter(9, None);
    let ranks = [0, 5, 0, 9, 5];
    let mut line: Vec<_> =
        ranks.map(|rank| enqueue(&throttle, Waiter::new(1).priority(WaitPriority(rank)))).into();
    let mut order = Vec::new();
    for _ in ranks {
        advance(&manual_clock, 100);
        let gone = finished_tasks(&mut line);
        order.extend(gone.into_iter().filter(|one| !order.contains(one)).collect::<Vec<_>>());
    }
    assert_eq!(order, [3, 1, 4, 0, 2]);
    assert_no_waiters(&throttle, 9);
}

/// Told at once, without the clock: the overtaken that its tokens are another's, and then that other.
#[test]
fn overtaken_waiter_releases_its_tokens() {
    let (throttle, manual_clock) = busy_limiter(9, None);
    let mut first = enqueue(&throttle, Waiter::new(1));
    assert!(!first.poll_if_woken(), "it sleeps until its time");
    let mut important = enqueue(&throttle, Waiter::new(1).priority(WaitPriority(1)));
    assert!(!important.poll_if_woken(), "somebody still holds the tokens");
    assert!(first.poll_if_woken() && important.poll_if_woken());
    assert!(!first.poll_if_woken() && !important.poll_if_woken());
    advance(&manual_clock, 100);
    assert_eq!((poll_result(&mut important), poll_result(&mut first)), (Some(Ok(())), None));
    advance(&manual_clock, 100);
    assert_eq!(poll_result(&mut first), Some(Ok(())));
}

/// A queue that is bounded by the quota itself may be full. Whoever is first in line then looks again when there is
/// room, to the microsecond, or when the key is forgotten.
#[test]
fn first_waiter_waits_for_bucket_capacity() {
    for forgotten in [false, true] {
        let (clock, manual_clock) = Clock::manual();
        let throttle = DirectLimiter::builder().clock(clock).build("10/s leaky-bucket queue 0").unwrap();
        assert!(throttle.check().is_allowed());
        let mut first = enqueue(&throttle, Waiter::new(1));
        assert_eq!(poll_result(&mut first), None);
        if forgotten {
            throttle.blocking().reset().unwrap();
        } else {
            manual_clock.advance(Duration::from_micros(99_999));
            assert_eq!(poll_result(&mut first), None);
            manual_clock.advance(Duration::from_micros(1));
        }
        assert_eq!(poll_result(&mut first), Some(Ok(())), "forgotten: {forgotten}");
        assert!(!throttle.check().is_granted());
    }
}

/// The first in line leaves, one in the middle, or the last: those who are left go in order and lose no time.
#[test]
fn leaving_waiter_wakes_the_next() {
    for leaves in 0..3 {
        let (throttle, manual_clock) = busy_limiter(3, None);
        let mut line: Vec<_> = (0..3).map(|_| enqueue(&throttle, Waiter::new(1))).collect();
        advance(&manual_clock, 50);
        drop(line.remove(leaves));
        advance(&manual_clock, 50);
        assert_eq!(finished_tasks(&mut line), [0], "without {leaves}");
        advance(&manual_clock, 100);
        assert_eq!(finished_tasks(&mut line), [0, 1], "without {leaves}");
        assert_no_waiters(&throttle, 3);
    }
}

#[test]
fn unreachable_deadline_fails_at_once() {
    let (throttle, manual_clock) = busy_limiter(3, None);
    assert_eq!(
        poll_result(&mut enqueue(&throttle, Waiter::new(1).deadline(ms(99)))),
        Some(Err(WaitError::DeadlineExceeded))
    );
    let mut exact = enqueue(&throttle, Waiter::new(1).deadline(ms(100)));
    assert_eq!(poll_result(&mut exact), None);
    advance(&manual_clock, 100);
    assert_eq!(poll_result(&mut exact), Some(Ok(())));
    assert_eq!(poll_result(&mut enqueue(&throttle, Waiter::new(2))), Some(Err(WaitError::ExceedsLimit)));
    assert_no_waiters(&throttle, 3);
}

/// Behind others, the deadline passes while one waits; a clock that stands exactly on it is no reason to spin.
#[test]
fn deadline_expires_behind_other_waiters() {
    for steps in [vec![150], vec![149, 1], vec![149, 2], vec![1_000]] {
        let (throttle, manual_clock) = busy_limiter(3, None);
        let _first = enqueue(&throttle, Waiter::new(1));
        let mut second = enqueue(&throttle, Waiter::new(1).deadline(ms(150)));
        assert_eq!(poll_result(&mut second), None);
        for (index, step) in steps.iter().enumerate() {
            advance(&manual_clock, *step);
            let over = index + 1 == steps.len();
            assert_eq!(
                poll_result(&mut second),
                over.then_some(Err(WaitError::DeadlineExceeded)),
                "{steps:?}"
            );
        }
    }
}

#[test]
fn queue_ttl_expires_waiters() {
    let (throttle, manual_clock) = busy_limiter(4, Some(ms(150)));
    let mut first = enqueue(&throttle, Waiter::new(1));
    let mut second = enqueue(&throttle, Waiter::new(1).deadline(ms(1_000)));
    let mut third = enqueue(&throttle, Waiter::new(1).deadline(ms(120)));
    let mut fourth = enqueue(&throttle, Waiter::new(1));
    advance(&manual_clock, 120);
    assert_eq!(poll_result(&mut first), Some(Ok(())));
    assert_eq!(poll_result(&mut third), Some(Err(WaitError::DeadlineExceeded)));
    assert_eq!(poll_result(&mut second), Some(Err(WaitError::Expired)), "its turn would come at 200ms");
    assert_eq!(poll_result(&mut fourth), Some(Err(WaitError::Expired)), "who waits for ever does not either");
    assert_no_waiters(&throttle, 4);
}

#[tokio::test(start_paused = true)]
async fn queue_works_on_tokio_clock() {
    let clock = Clock::tokio();
    let limiter = Limiter::builder().clock(clock.clone()).max_waiters(2).build("10/s burst 1").unwrap();
    let key = limiter.key("k");
    assert!(limiter.check("k").is_allowed());
    let start = clock.now();
    let wait = async |waiter: Waiter| {
        let answer = key.acquire_queued(waiter).await;
        (answer.map(|decision| decision.is_granted()), clock.now().since(start).get() / 1_000)
    };
    let (first, second, third) =
        tokio::join!(wait(Waiter::new(1)), wait(Waiter::new(1).deadline(ms(150))), wait(Waiter::new(1)));
    assert_eq!((first.0, third.0), (Ok(true), Err(WaitError::QueueFull)));
    assert!((100..=102).contains(&first.1) && third.1 == 0, "{first:?}");
    assert_eq!(second.0, Err(WaitError::DeadlineExceeded));
    assert!(second.1 <= 152, "{second:?}");
}

fn wait_for_slot<'a>(limiter: &'a Limiter, waiter: Waiter) -> TestTask<'a, Result<Permit, WaitError>> {
    TestTask::new(async move { limiter.key("pool").permit_queued(waiter).await })
}

fn has_slot(sleeper: &TestTask<'_, Result<Permit, WaitError>>) -> bool {
    matches!(sleeper.output(), Some(Ok(permit)) if permit.decision().is_granted())
}

#[test]
fn released_slot_wakes_first_waiter() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("2 at once").unwrap();
    let mut line: Vec<_> = (0..5).map(|_| wait_for_slot(&limiter, Waiter::new(1))).collect();
    assert_eq!(finished_tasks(&mut line), [0, 1]);
    assert!(!limiter.blocking().key("pool").permit().decision().is_granted());
    drop(line.remove(0));
    assert_eq!(finished_tasks(&mut line), [0, 1]);
    assert!(line[..2].iter().all(has_slot));
    // One leaves the line, another its slot.
    drop(line.remove(2));
    drop(line.remove(0));
    assert_eq!(finished_tasks(&mut line), [0, 1]);
    drop(line);
    assert_eq!(limiter.blocking().key("pool").peek(0).remaining(), 2);
}

#[test]
fn slot_of_cancelled_waiter_is_not_lost() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let held = limiter.blocking().key("pool").permit();
    let mut line: Vec<_> = (0..3).map(|_| wait_for_slot(&limiter, Waiter::new(1))).collect();
    drop(held);
    // The first was told, and leaves without having heard it.
    drop(line.remove(0));
    assert_eq!(finished_tasks(&mut line), [0]);
    drop(line.remove(0));
    assert_eq!(finished_tasks(&mut line), [0]);
}

/// A slot is released before the overtaken has heard that it is no longer first; the other must hear of it after all.
#[test]
fn overtaking_loses_no_slot() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let held = limiter.blocking().key("pool").permit();
    let mut first = wait_for_slot(&limiter, Waiter::new(1));
    let mut important = wait_for_slot(&limiter, Waiter::new(1).priority(WaitPriority(1)));
    drop(held);
    assert!(important.poll_if_woken() && important.output().is_none(), "it is the other's turn to hold one");
    assert!(first.poll_if_woken() && first.output().is_none());
    assert!(important.poll_if_woken() && has_slot(&important));
    drop(important);
    assert!(first.poll_if_woken() && has_slot(&first));
}

#[test]
fn slot_wait_respects_deadline() {
    let (clock, manual_clock) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).build("1 at once").unwrap();
    let _held = limiter.blocking().key("pool").permit();
    let mut waits = wait_for_slot(&limiter, Waiter::new(1).deadline(ms(100)));
    assert!(waits.output().is_none());
    advance(&manual_clock, 100);
    waits.poll_if_woken();
    assert!(matches!(waits.output(), Some(Err(WaitError::DeadlineExceeded))), "and not one poll later");
    // One that is released after the deadline comes too late, though nobody looked in between.
    let held = limiter.blocking().key("other pool").permit();
    let other = || limiter.blocking().key("other pool");
    let mut late = TestTask::new(async {
        limiter.key("other pool").permit_queued(Waiter::new(1).deadline(ms(100))).await
    });
    advance(&manual_clock, 101);
    drop(held);
    late.poll_if_woken();
    assert!(matches!(late.output(), Some(Err(WaitError::DeadlineExceeded))));
    assert_eq!(other().peek(0).remaining(), 1);
    let mut too_many = wait_for_slot(&limiter, Waiter::new(2));
    assert!(matches!(too_many.take_output(), Some(Err(WaitError::ExceedsLimit))));
}

/// Beside a rate, who waits in line holds a slot and a promise of a token; who leaves, or is overtaken, gives both back.
#[test]
fn waiting_for_slot_loses_no_tokens() {
    let (clock, manual_clock) = Clock::manual();
    let quotas = ["1/s".parse().unwrap(), "2 at once".parse().unwrap()];
    let limiter = Limiter::builder().clock(clock).build_all(&quotas).unwrap();
    let first = limiter.blocking().key("pool").permit();
    assert!(first.decision().is_granted());
    for _ in 0..5 {
        assert!(wait_for_slot(&limiter, Waiter::new(1)).output().is_none());
    }
    let mut usual = wait_for_slot(&limiter, Waiter::new(1));
    assert!(usual.output().is_none());
    let mut important = wait_for_slot(&limiter, Waiter::new(1).priority(WaitPriority(1)));
    assert!(usual.poll_if_woken() && usual.output().is_none(), "what it held is the other's");
    important.poll_if_woken();
    advance(&manual_clock, 1_000);
    assert!(important.poll_if_woken() && has_slot(&important), "nobody's token went lost");
    drop(important);
    advance(&manual_clock, 1_000);
    assert!(usual.poll_if_woken() && has_slot(&usual));
    // A permit that was had has paid its token, and gives back no more than its slot.
    drop((first, usual));
    assert_eq!(limiter.blocking().key("pool").peek(1).retry_after(), Some(Duration::from_secs(1).into()));
}

#[test]
fn larger_limit_wakes_waiters() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let mut line: Vec<_> = (0..4).map(|_| wait_for_slot(&limiter, Waiter::new(1))).collect();
    assert_eq!(finished_tasks(&mut line), [0]);
    limiter.change("3 at once", CarryOver::Keep).unwrap();
    assert_eq!(finished_tasks(&mut line), [0, 1, 2]);
    let throttle = DirectLimiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let (bucket, held) = (throttle.bucket(), throttle.blocking().permit());
    let mut waits = TestTask::new(bucket.permit_queued(Waiter::new(1)));
    throttle.change("2 at once", CarryOver::Keep).unwrap();
    waits.poll_if_woken();
    assert!(waits.output().is_some());
    drop(held);
}

/// Threads stand in line too, and all get their turn as the clock moves.
#[test]
fn threads_wait_in_queue() {
    let (throttle, manual_clock) = busy_limiter(8, None);
    let granted = thread::scope(|scope| {
        let wait = || throttle.blocking().acquire_queued(Waiter::new(1)).is_ok();
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            advance(&manual_clock, 10);
            thread::yield_now();
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(granted, [true; 8]);
    assert_no_waiters(&throttle, 8);
}

/// Many more threads than slots, each taking one many times: all get through, and none is lost.
#[test]
fn threads_share_slots_through_queue() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("2 at once").unwrap();
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..200 {
                    let permit = limiter.blocking().key("pool").permit_queued(Waiter::new(1));
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
fn memory_limiter_queues_for_slots() {
    let (clock, manual_clock) = Clock::manual();
    let memory = Limiter::builder().clock(clock).max_waiters(2);
    let limiter = memory.build("1 at once").unwrap();
    let bucket = limiter.key("a");
    let stand = |waiter| TestTask::new(bucket.permit_queued(waiter));
    let mut first = stand(Waiter::new(1));
    let held = first.take_output().unwrap().unwrap();
    let mut line = [stand(Waiter::new(1).deadline(ms(50))), stand(Waiter::new(1).priority(WaitPriority(1)))];
    assert_eq!(stand(Waiter::new(1)).take_output().unwrap().unwrap_err(), WaitError::QueueFull);
    assert_eq!(finished_tasks(&mut line), []);
    drop(held);
    assert_eq!(finished_tasks(&mut line), [1]);
    advance(&manual_clock, 50);
    assert_eq!(finished_tasks(&mut line), [0, 1]);
    assert_eq!(line[0].take_output().unwrap().unwrap_err(), WaitError::DeadlineExceeded);
}
