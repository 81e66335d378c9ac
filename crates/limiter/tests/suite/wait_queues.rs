//! Wait queues: bounds, priorities, deadlines, and which waiter is woken when one leaves.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::advance;
use std::{thread, time::Duration};
use tidegate_core::{CarryOver, Decision, Micros};
use tidegate_limiter::{
    Clock, DirectLimiter, DirectLimiterBuilder, Limiter, ManualClock, Permit, WaitError, WaitPriority, Waiter,
};
use tidegate_testkit::test_task::{TestTask, finished_tasks};

type QueueResult = Result<Decision, WaitError>;

/// A limiter of one per 100 ms whose token is used, with this many waiters.
fn busy_limiter(max_waiters: usize, ttl: Option<Duration>) -> (DirectLimiter, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let builder = DirectLimiter::builder().clock(clock).max_waiters(max_waiters);
    let builder = ttl.into_iter().fold(builder, DirectLimiterBuilder::waiter_ttl);
    let limiter = builder.build("10/s burst 1").unwrap();
    assert!(limiter.check().is_allowed());
    (limiter, manual_clock)
}

fn enqueue(limiter: &DirectLimiter, waiter: Waiter) -> TestTask<'_, QueueResult> {
    TestTask::new(async move { limiter.bucket().acquire_queued(waiter).await })
}

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn poll_result(task: &mut TestTask<'_, QueueResult>) -> Option<Result<(), WaitError>> {
    task.poll_if_woken();
    task.take_output().map(|result| result.map(|decision| assert!(decision.is_granted())))
}

/// Asserts that the queue is empty: `max_waiters` callers can enqueue.
fn assert_no_waiters(limiter: &DirectLimiter, max_waiters: usize) {
    let mut all: Vec<_> = (0..max_waiters).map(|_| enqueue(limiter, Waiter::new(1))).collect();
    assert!(
        all.iter_mut().filter_map(poll_result).all(|result| result.is_ok()),
        "a waiter is left in the queue"
    );
}

#[test]
fn full_queue_rejects_at_once() {
    let (limiter, manual_clock) = busy_limiter(2, None);
    let mut waiters = [enqueue(&limiter, Waiter::new(1)), enqueue(&limiter, Waiter::new(1))];
    assert_eq!(poll_result(&mut enqueue(&limiter, Waiter::new(1))), Some(Err(WaitError::QueueFull)));
    let important = Waiter::new(1).priority(WaitPriority(9));
    assert_eq!(poll_result(&mut enqueue(&limiter, important)), Some(Err(WaitError::QueueFull)));
    advance(&manual_clock, 100);
    assert_eq!(finished_tasks(&mut waiters), [0]);
    let mut third = enqueue(&limiter, Waiter::new(1));
    assert_eq!(poll_result(&mut third), None);
    advance(&manual_clock, 100);
    assert_eq!(finished_tasks(&mut waiters), [0, 1]);
    advance(&manual_clock, 100);
    assert_eq!(poll_result(&mut third), Some(Ok(())));
    assert_no_waiters(&limiter, 2);
}

#[test]
fn waiter_limit_is_shared_by_all_keys() {
    let (clock, _manual_clock) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).max_waiters(2).build("1/s").unwrap();
    let enqueue = |key: &'static str| {
        let limiter = &limiter;
        TestTask::new(async move { limiter.key(key).acquire_queued(Waiter::new(1)).await })
    };
    assert_eq!(poll_result(&mut enqueue("a")), Some(Ok(())));
    assert_eq!(poll_result(&mut enqueue("b")), Some(Ok(())));
    let (waiting, _also_waiting) = (enqueue("a"), enqueue("b"));
    assert_eq!(poll_result(&mut enqueue("c")), Some(Err(WaitError::QueueFull)));
    drop(waiting);
    assert_eq!(poll_result(&mut enqueue("c")), Some(Ok(())));
}

#[test]
fn higher_priority_goes_first() {
    let (limiter, manual_clock) = busy_limiter(9, None);
    let priorities = [0, 5, 0, 9, 5];
    let mut waiters: Vec<_> =
        priorities.map(|priority| enqueue(&limiter, Waiter::new(1).priority(WaitPriority(priority)))).into();
    let mut order = Vec::new();
    for _ in priorities {
        advance(&manual_clock, 100);
        let finished = finished_tasks(&mut waiters);
        order.extend(finished.into_iter().filter(|one| !order.contains(one)).collect::<Vec<_>>());
    }
    assert_eq!(order, [3, 1, 4, 0, 2]);
    assert_no_waiters(&limiter, 9);
}

/// Without an advance of the clock: the overtaken waiter is woken to release its tokens, and then the other one.
#[test]
fn overtaken_waiter_releases_its_tokens() {
    let (limiter, manual_clock) = busy_limiter(9, None);
    let mut first = enqueue(&limiter, Waiter::new(1));
    assert!(!first.poll_if_woken(), "it waits for its time");
    let mut important = enqueue(&limiter, Waiter::new(1).priority(WaitPriority(1)));
    assert!(!important.poll_if_woken(), "another waiter still holds the tokens");
    assert!(first.poll_if_woken() && important.poll_if_woken());
    assert!(!first.poll_if_woken() && !important.poll_if_woken());
    advance(&manual_clock, 100);
    assert_eq!((poll_result(&mut important), poll_result(&mut first)), (Some(Ok(())), None));
    advance(&manual_clock, 100);
    assert_eq!(poll_result(&mut first), Some(Ok(())));
}

/// The quota's own bounded queue may be full. The first waiter then retries when there is capacity, to the microsecond, or
/// when the key is reset.
#[test]
fn first_waiter_waits_for_bucket_capacity() {
    for is_reset in [false, true] {
        let (clock, manual_clock) = Clock::manual();
        let limiter = DirectLimiter::builder().clock(clock).build("10/s leaky-bucket queue 0").unwrap();
        assert!(limiter.check().is_allowed());
        let mut first = enqueue(&limiter, Waiter::new(1));
        assert_eq!(poll_result(&mut first), None);
        if is_reset {
            limiter.blocking().reset().unwrap();
        } else {
            manual_clock.advance(Duration::from_micros(99_999));
            assert_eq!(poll_result(&mut first), None);
            manual_clock.advance(Duration::from_micros(1));
        }
        assert_eq!(poll_result(&mut first), Some(Ok(())), "reset: {is_reset}");
        assert!(!limiter.check().is_granted());
    }
}

/// The first waiter leaves, one in the middle, or the last: the others are served in order and without delay.
#[test]
fn leaving_waiter_wakes_the_next() {
    for leaving in 0..3 {
        let (limiter, manual_clock) = busy_limiter(3, None);
        let mut waiters: Vec<_> = (0..3).map(|_| enqueue(&limiter, Waiter::new(1))).collect();
        advance(&manual_clock, 50);
        drop(waiters.remove(leaving));
        advance(&manual_clock, 50);
        assert_eq!(finished_tasks(&mut waiters), [0], "without {leaving}");
        advance(&manual_clock, 100);
        assert_eq!(finished_tasks(&mut waiters), [0, 1], "without {leaving}");
        assert_no_waiters(&limiter, 3);
    }
}

#[test]
fn unreachable_deadline_fails_at_once() {
    let (limiter, manual_clock) = busy_limiter(3, None);
    assert_eq!(
        poll_result(&mut enqueue(&limiter, Waiter::new(1).deadline(ms(99)))),
        Some(Err(WaitError::DeadlineExceeded))
    );
    let mut exact = enqueue(&limiter, Waiter::new(1).deadline(ms(100)));
    assert_eq!(poll_result(&mut exact), None);
    advance(&manual_clock, 100);
    assert_eq!(poll_result(&mut exact), Some(Ok(())));
    assert_eq!(poll_result(&mut enqueue(&limiter, Waiter::new(2))), Some(Err(WaitError::ExceedsLimit)));
    assert_no_waiters(&limiter, 3);
}

/// Behind others, the deadline passes during the wait; a clock that is exactly at it must not cause a busy loop.
#[test]
fn deadline_expires_behind_other_waiters() {
    for steps in [vec![150], vec![149, 1], vec![149, 2], vec![1_000]] {
        let (limiter, manual_clock) = busy_limiter(3, None);
        let _first = enqueue(&limiter, Waiter::new(1));
        let mut second = enqueue(&limiter, Waiter::new(1).deadline(ms(150)));
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
    let (limiter, manual_clock) = busy_limiter(4, Some(ms(150)));
    let mut first = enqueue(&limiter, Waiter::new(1));
    let mut second = enqueue(&limiter, Waiter::new(1).deadline(ms(1_000)));
    let mut third = enqueue(&limiter, Waiter::new(1).deadline(ms(120)));
    let mut fourth = enqueue(&limiter, Waiter::new(1));
    advance(&manual_clock, 120);
    assert_eq!(poll_result(&mut first), Some(Ok(())));
    assert_eq!(poll_result(&mut third), Some(Err(WaitError::DeadlineExceeded)));
    assert_eq!(poll_result(&mut second), Some(Err(WaitError::Expired)), "it would be served at 200ms");
    assert_eq!(
        poll_result(&mut fourth),
        Some(Err(WaitError::Expired)),
        "the queue limit applies without a deadline too"
    );
    assert_no_waiters(&limiter, 4);
}

#[tokio::test(start_paused = true)]
async fn queue_works_on_tokio_clock() {
    let clock = Clock::tokio();
    let limiter = Limiter::builder().clock(clock.clone()).max_waiters(2).build("10/s burst 1").unwrap();
    let key = limiter.key("k");
    assert!(limiter.check("k").is_allowed());
    let start = clock.now();
    let wait = async |waiter: Waiter| {
        let result = key.acquire_queued(waiter).await;
        (result.map(|decision| decision.is_granted()), clock.now().saturating_sub(start).get() / 1_000)
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

fn has_slot(task: &TestTask<'_, Result<Permit, WaitError>>) -> bool {
    matches!(task.output(), Some(Ok(permit)) if permit.decision().is_granted())
}

#[test]
fn released_slot_wakes_first_waiter() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("2 at once").unwrap();
    let mut waiters: Vec<_> = (0..5).map(|_| wait_for_slot(&limiter, Waiter::new(1))).collect();
    assert_eq!(finished_tasks(&mut waiters), [0, 1]);
    assert!(!limiter.blocking().key("pool").permit().decision().is_granted());
    drop(waiters.remove(0));
    assert_eq!(finished_tasks(&mut waiters), [0, 1]);
    assert!(waiters[..2].iter().all(has_slot));
    // One waiter leaves, and one permit is released.
    drop(waiters.remove(2));
    drop(waiters.remove(0));
    assert_eq!(finished_tasks(&mut waiters), [0, 1]);
    drop(waiters);
    assert_eq!(limiter.blocking().key("pool").peek(0).remaining(), 2);
}

#[test]
fn slot_of_cancelled_waiter_is_not_lost() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let permit = limiter.blocking().key("pool").permit();
    let mut waiters: Vec<_> = (0..3).map(|_| wait_for_slot(&limiter, Waiter::new(1))).collect();
    drop(permit);
    // The first was notified, and leaves before it is polled.
    drop(waiters.remove(0));
    assert_eq!(finished_tasks(&mut waiters), [0]);
    drop(waiters.remove(0));
    assert_eq!(finished_tasks(&mut waiters), [0]);
}

/// A slot is released before the overtaken waiter is polled; the other waiter must still be notified.
#[test]
fn overtaking_loses_no_slot() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let permit = limiter.blocking().key("pool").permit();
    let mut first = wait_for_slot(&limiter, Waiter::new(1));
    let mut important = wait_for_slot(&limiter, Waiter::new(1).priority(WaitPriority(1)));
    drop(permit);
    assert!(
        important.poll_if_woken() && important.output().is_none(),
        "the other waiter still holds the claim"
    );
    assert!(first.poll_if_woken() && first.output().is_none());
    assert!(important.poll_if_woken() && has_slot(&important));
    drop(important);
    assert!(first.poll_if_woken() && has_slot(&first));
}

#[test]
fn slot_wait_respects_deadline() {
    let (clock, manual_clock) = Clock::manual();
    let limiter = Limiter::builder().clock(clock).build("1 at once").unwrap();
    let _permit = limiter.blocking().key("pool").permit();
    let mut waiting = wait_for_slot(&limiter, Waiter::new(1).deadline(ms(100)));
    assert!(waiting.output().is_none());
    advance(&manual_clock, 100);
    waiting.poll_if_woken();
    assert!(matches!(waiting.output(), Some(Err(WaitError::DeadlineExceeded))), "in the same poll");
    // A slot released after the deadline is too late, even without a poll in between.
    let permit = limiter.blocking().key("other pool").permit();
    let other = || limiter.blocking().key("other pool");
    let mut late = TestTask::new(async {
        limiter.key("other pool").permit_queued(Waiter::new(1).deadline(ms(100))).await
    });
    advance(&manual_clock, 101);
    drop(permit);
    late.poll_if_woken();
    assert!(matches!(late.output(), Some(Err(WaitError::DeadlineExceeded))));
    assert_eq!(other().peek(0).remaining(), 1);
    let mut too_many = wait_for_slot(&limiter, Waiter::new(2));
    assert!(matches!(too_many.take_output(), Some(Err(WaitError::ExceedsLimit))));
}

/// Beside a rate, a waiter holds a slot and a reserved token; one that leaves, or is overtaken, releases both.
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
    let mut normal = wait_for_slot(&limiter, Waiter::new(1));
    assert!(normal.output().is_none());
    let mut important = wait_for_slot(&limiter, Waiter::new(1).priority(WaitPriority(1)));
    assert!(normal.poll_if_woken() && normal.output().is_none(), "its reservation is released");
    important.poll_if_woken();
    advance(&manual_clock, 1_000);
    assert!(important.poll_if_woken() && has_slot(&important), "no token is lost");
    drop(important);
    advance(&manual_clock, 1_000);
    assert!(normal.poll_if_woken() && has_slot(&normal));
    // A granted permit has spent its token, and releases only its slot.
    drop((first, normal));
    assert_eq!(limiter.blocking().key("pool").peek(1).retry_after(), Some(Duration::from_secs(1).into()));
}

#[test]
fn larger_limit_wakes_waiters() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let mut waiters: Vec<_> = (0..4).map(|_| wait_for_slot(&limiter, Waiter::new(1))).collect();
    assert_eq!(finished_tasks(&mut waiters), [0]);
    limiter.change("3 at once", CarryOver::Keep).unwrap();
    assert_eq!(finished_tasks(&mut waiters), [0, 1, 2]);
    let limiter = DirectLimiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let (bucket, permit) = (limiter.bucket(), limiter.blocking().permit());
    let mut waiting = TestTask::new(bucket.permit_queued(Waiter::new(1)));
    limiter.change("2 at once", CarryOver::Keep).unwrap();
    waiting.poll_if_woken();
    assert!(waiting.output().is_some());
    drop(permit);
}

/// Threads wait in the queue too, and all are served as the clock advances.
#[test]
fn threads_wait_in_queue() {
    let (limiter, manual_clock) = busy_limiter(8, None);
    let granted = thread::scope(|scope| {
        let wait = || limiter.blocking().acquire_queued(Waiter::new(1)).is_ok();
        let workers: Vec<_> = (0..8).map(|_| scope.spawn(wait)).collect();
        while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
            advance(&manual_clock, 10);
            thread::yield_now();
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(granted, [true; 8]);
    assert_no_waiters(&limiter, 8);
}

/// Many more threads than slots, each acquiring one many times: all succeed, and no slot is lost.
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

/// The same quota in memory as in a store: a waiter for a slot is notified of the release.
#[test]
fn memory_limiter_queues_for_slots() {
    let (clock, manual_clock) = Clock::manual();
    let memory = Limiter::builder().clock(clock).max_waiters(2);
    let limiter = memory.build("1 at once").unwrap();
    let bucket = limiter.key("a");
    let enqueue = |waiter| TestTask::new(bucket.permit_queued(waiter));
    let mut first = enqueue(Waiter::new(1));
    let permit = first.take_output().unwrap().unwrap();
    let mut waiters =
        [enqueue(Waiter::new(1).deadline(ms(50))), enqueue(Waiter::new(1).priority(WaitPriority(1)))];
    assert_eq!(enqueue(Waiter::new(1)).take_output().unwrap().unwrap_err(), WaitError::QueueFull);
    assert_eq!(finished_tasks(&mut waiters), []);
    drop(permit);
    assert_eq!(finished_tasks(&mut waiters), [1]);
    advance(&manual_clock, 50);
    assert_eq!(finished_tasks(&mut waiters), [0, 1]);
    assert_eq!(waiters[0].take_output().unwrap().unwrap_err(), WaitError::DeadlineExceeded);
}
