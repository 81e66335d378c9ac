//! Waiting for tokens: Guava's `acquire` and `tryAcquire` to the microsecond, and first come, first served for the
//! other algorithms.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::advance;
use std::{thread, time::Duration};
use tidegate_core::{Decision, Micros, Outcome, Quota, Retry};
use tidegate_limiter::{Bucket, Clock, DirectLimiter, Limiter, ManualClock};
use tidegate_testkit::test_task::{TestTask, finished_tasks};

/// A call in Guava's test, with its expected wait.
enum GuavaCall {
    /// Acquires this many permits and waits this many microseconds.
    Acquire(u64, u64),
    /// Sleeps for this many milliseconds.
    Sleep(u64),
    /// Tries to acquire one permit within this many milliseconds; the expected wait, or `None` for a denial.
    TryAcquire(u64, Option<u64>),
}
use GuavaCall::{Acquire, Sleep, TryAcquire};

fn unit_acquires(waits: &[u64]) -> Vec<GuavaCall> {
    waits.iter().map(|wait| Acquire(1, *wait)).collect()
}

fn manual_limiter(quota: &str) -> (DirectLimiter, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::new(1_700_000_000_000_000));
    (DirectLimiter::builder().clock(clock).build(quota).unwrap(), manual_clock)
}

/// Waits for a future on a manual clock: pending one microsecond before its time, ready at its time.
fn wait_for(future: impl Future<Output = Decision>, manual_clock: &ManualClock, wait: u64) -> Decision {
    let mut task = TestTask::new(future);
    if wait > 0 {
        assert_eq!(task.output(), None, "should wait {wait}");
        manual_clock.advance(Duration::from_micros(wait - 1));
        task.poll_if_woken();
        assert_eq!(task.output(), None, "a microsecond before {wait}");
        manual_clock.advance(Duration::from_micros(1));
        task.poll_if_woken();
    }
    task.take_output().unwrap_or_else(|| panic!("still waiting after {wait}"))
}

fn run_script(quota: &str, script: &[GuavaCall]) {
    let (limiter, manual_clock) = manual_limiter(quota);
    let bucket = limiter.bucket();
    for (index, call) in script.iter().enumerate() {
        match *call {
            Sleep(ms) => advance(&manual_clock, ms),
            Acquire(permits, wait) => {
                let decision = wait_for(bucket.acquire(permits), &manual_clock, wait);
                assert_eq!(
                    (decision.is_granted(), decision.wait().get()),
                    (true, wait),
                    "{quota}, call {index}"
                );
            }
            TryAcquire(ms, wait) => {
                let tried = bucket.try_acquire(1, Duration::from_millis(ms));
                let decision = wait_for(tried, &manual_clock, wait.unwrap_or(0));
                assert_eq!(decision.is_granted(), wait.is_some(), "{quota}, call {index}");
            }
        }
    }
}

#[test]
fn acquire_waits_like_guava() {
    run_script("5/s smooth", &unit_acquires(&[0, 200_000, 200_000]));
    run_script("5/s smooth", &[Acquire(1, 0), Sleep(200), Acquire(1, 0), Acquire(1, 200_000)]);
    run_script("5/s smooth", &[Acquire(1, 0), Sleep(400), Acquire(1, 0), Acquire(1, 0), Acquire(1, 200_000)]);
    run_script(
        "5/s smooth",
        &[
            Sleep(1_000),
            Sleep(1_000),
            Acquire(1, 0),
            Acquire(1, 0),
            Acquire(3, 0),
            Acquire(1, 0),
            Acquire(1, 200_000),
        ],
    );
    let weights = [
        Acquire(1, 0),
        Acquire(1, 1_000_000),
        Acquire(2, 1_000_000),
        Acquire(4, 2_000_000),
        Acquire(8, 4_000_000),
        Acquire(1, 8_000_000),
    ];
    run_script("1/s smooth", &weights);
}

#[test]
fn acquire_warms_up_like_guava() {
    let then = |first: Vec<GuavaCall>, sleeps: [u64; 2], second: Vec<GuavaCall>| {
        first.into_iter().chain(sleeps.map(Sleep)).chain(second).collect::<Vec<_>>()
    };
    let cold = || unit_acquires(&[0, 1_375_000, 1_125_000, 875_000, 625_000, 500_000, 500_000, 500_000]);
    let warm = || unit_acquires(&[0, 500_000, 500_000, 500_000, 500_000, 500_000, 500_000, 500_000]);
    let script = then(then(cold(), [500, 4_000], cold()), [500, 2_000], warm());
    run_script("2/s warm-up 4s", &script);

    let cold = || unit_acquires(&[0, 1_752_500, 1_257_500, 762_500, 300_227, 200_000, 200_000, 200_000]);
    let warm = || unit_acquires(&[0, 200_000, 200_000, 200_000, 200_000, 200_000, 200_000, 200_000]);
    let script = then(then(cold(), [200, 4_000], cold()), [200, 1_000], warm());
    run_script("5/s warm-up 4s cold 10", &script);
    run_script("5/s warm-up 4s cold 1", &then(warm(), [340, 0], warm()));
}

#[test]
fn try_acquire_rejects_like_guava() {
    run_script(
        "5/s smooth",
        &[TryAcquire(0, Some(0)), TryAcquire(0, None), TryAcquire(0, None), Sleep(100), TryAcquire(0, None)],
    );
    run_script(
        "5/s smooth",
        &[
            TryAcquire(0, Some(0)),
            TryAcquire(200, Some(200_000)),
            TryAcquire(100, None),
            Sleep(100),
            TryAcquire(100, Some(100_000)),
        ],
    );
}

#[tokio::test(start_paused = true)]
async fn acquire_waits_on_tokio_timer() {
    for (quota, waits) in [
        ("5/s smooth", vec![0, 200, 200]),
        ("2/s warm-up 4s", vec![0, 1_375, 1_125, 875, 625, 500, 500, 500]),
        ("10/s burst 2", vec![0, 0, 100, 100]),
        ("10/s leaky-bucket queue 5", vec![0, 100, 100]),
        ("2/s fixed-window from-first-hit", vec![0, 0, 1_000, 0, 1_000]),
        ("2/s sliding-log", vec![0, 0, 1_000, 0, 1_000]),
    ] {
        let clock = Clock::tokio();
        let limiter = DirectLimiter::builder().clock(clock.clone()).build(quota).unwrap();
        let mut measured = Vec::new();
        for _ in &waits {
            let before = clock.now();
            assert!(limiter.bucket().acquire(1).await.is_granted());
            measured.push(clock.now().saturating_sub(before).get().div_ceil(1_000));
        }
        assert_eq!(measured, waits, "{quota}");
    }
}

/// Quotas of ten per second, one at a time.
const ONE_AT_A_TIME: [&str; 5] = [
    "10/s burst 1",
    "10/s leaky-bucket queue 9",
    "1 per 100ms fixed-window from-first-hit",
    "1 per 100ms sliding-log",
    "10/s smooth",
];

fn acquire(bucket: &Bucket) -> TestTask<'_, Decision> {
    TestTask::new(bucket.acquire(1))
}

#[test]
fn acquire_is_first_come_first_served() {
    for quota in ONE_AT_A_TIME {
        let (limiter, manual_clock) = manual_limiter(quota);
        let bucket = limiter.bucket();
        let mut callers: Vec<_> = (0..5).map(|_| acquire(&bucket)).collect();
        for done in 1..=5 {
            assert_eq!(finished_tasks(&mut callers), (0..done).collect::<Vec<_>>(), "{quota}");
            advance(&manual_clock, 99);
            assert_eq!(finished_tasks(&mut callers).len(), done, "{quota}: too early");
            advance(&manual_clock, 1);
        }
        assert!(callers.iter().all(|caller| caller.output().is_some_and(Decision::is_granted)));
    }
}

/// The position of a dropped call goes to the next caller.
#[test]
fn dropped_acquire_releases_its_turn() {
    for quota in ONE_AT_A_TIME {
        let (limiter, manual_clock) = manual_limiter(quota);
        let bucket = limiter.bucket();
        let mut callers: Vec<_> = (0..3).map(|_| acquire(&bucket)).collect();
        callers.pop();
        callers.push(acquire(&bucket));
        advance(&manual_clock, 100);
        assert_eq!(finished_tasks(&mut callers), [0, 1], "{quota}");
        advance(&manual_clock, 100);
        assert_eq!(finished_tasks(&mut callers), [0, 1, 2], "{quota}: at the time of the dropped call");
        advance(&manual_clock, 1_000);
        assert!(limiter.check().is_allowed(), "{quota}: nothing stays charged");
    }
}

/// In a queue, later callers move up when one leaves; a caller that leaves is charged nothing.
#[test]
fn cancelled_acquire_moves_later_callers_up() {
    for quota in ["10/s burst 1", "1 per 100ms fixed-window from-first-hit", "1 per 100ms sliding-log"] {
        for cancelled in 1..4 {
            let (limiter, manual_clock) = manual_limiter(quota);
            let bucket = limiter.bucket();
            let mut callers: Vec<_> = (0..4).map(|_| acquire(&bucket)).collect();
            advance(&manual_clock, 40);
            drop(callers.remove(cancelled));
            for done in 1..=3 {
                assert_eq!(
                    finished_tasks(&mut callers),
                    (0..done).collect::<Vec<_>>(),
                    "{quota} without {cancelled}"
                );
                advance(&manual_clock, if done == 1 { 60 } else { 100 });
            }
        }
    }
}

/// If one of the quotas is a shaper, each caller has a fixed time; a cancelled one leaves a gap.
#[test]
fn cancelled_wait_keeps_wait_times_of_later_callers() {
    // The number of immediate grants: the second caller of a shaper pays for the first.
    let cases: [(&[&str], usize); 4] = [
        (&["10/s leaky-bucket queue 9"], 1),
        (&["10/s smooth burst 1"], 2),
        (&["10/s burst 1", "10/s smooth burst 1"], 1),
        (&["10/s leaky-bucket queue 9", "10/s burst 1"], 1),
    ];
    for (texts, immediate) in cases {
        let (clock, manual_clock) = Clock::manual();
        let quotas: Vec<Quota> = texts.iter().map(|text| text.parse().unwrap()).collect();
        let limiter = Limiter::builder().clock(clock).build_all(&quotas).unwrap();
        let bucket = limiter.key("k");
        let mut callers: Vec<_> = (0..4).map(|_| acquire(&bucket)).collect();
        assert_eq!(finished_tasks(&mut callers).len(), immediate, "{texts:?}");
        // The next is ready after 100 ms; it is cancelled, and the others do not move up.
        drop(callers.remove(immediate));
        advance(&manual_clock, 100);
        assert_eq!(finished_tasks(&mut callers).len(), immediate, "{texts:?}");
        advance(&manual_clock, 100);
        assert_eq!(finished_tasks(&mut callers).len(), immediate + 1, "{texts:?}");
    }
}

#[test]
fn impossible_acquire_is_denied_at_once() {
    let (limiter, manual_clock) = manual_limiter("10/s burst 3");
    let bucket = limiter.bucket();
    let output_of = |future| TestTask::new(future).take_output();
    assert!(output_of(bucket.acquire(0)).unwrap().is_allowed());
    assert_eq!(output_of(bucket.acquire(4)).unwrap().outcome(), Outcome::Deny(Retry::Never));
    assert_eq!(output_of(bucket.acquire(u64::MAX)).unwrap().outcome(), Outcome::Deny(Retry::Never));
    assert!(output_of(bucket.acquire(3)).unwrap().is_allowed());
    let soon = Duration::from_millis(99);
    assert!(!TestTask::new(bucket.try_acquire(1, soon)).take_output().unwrap().is_granted());
    let mut in_time = TestTask::new(bucket.try_acquire(1, Duration::from_millis(100)));
    let mut behind = TestTask::new(bucket.try_acquire(1, Duration::from_millis(199)));
    assert!(!behind.take_output().unwrap().is_granted(), "another caller waits ahead");
    // The same behind another waiter: the denial does not wait.
    assert_eq!(output_of(bucket.acquire(4)).unwrap().outcome(), Outcome::Deny(Retry::Never));
    advance(&manual_clock, 100);
    assert!(in_time.poll_if_woken() && in_time.take_output().unwrap().is_granted());
    assert!(!limiter.check().is_granted(), "denied calls are charged nothing");
    advance(&manual_clock, 100);
    assert!(limiter.check().is_allowed());

    let (pool, _manual_clock) = self::manual_limiter("1 at once");
    let bucket = pool.bucket();
    let _permit = pool.blocking().permit();
    assert_eq!(output_of(bucket.acquire(1)).unwrap().outcome(), Outcome::Deny(Retry::WhenReleased));
}

/// The first waiter ahead holds its tokens already, the others will take theirs; each is counted once.
#[test]
fn timeout_accounts_for_earlier_waiters() {
    for (quota, before, timeout, in_time) in [
        ("10/s burst 3", 1, 199, false),
        ("10/s burst 3", 1, 200, true),
        ("10/s burst 3", 2, 299, false),
        ("10/s burst 3", 2, 300, true),
        // Together they exceed the burst, but none of them does.
        ("10/s burst 1", 2, 299, false),
        ("10/s burst 1", 2, 300, true),
        ("1 per 100ms fixed-window", 2, 299, false),
        ("1 per 100ms fixed-window", 2, 300, true),
        ("1 per 100ms sliding-log", 3, 399, false),
        ("1 per 100ms sliding-log", 3, 400, true),
    ] {
        let (limiter, manual_clock) = manual_limiter(quota);
        let bucket = limiter.bucket();
        limiter.blocking().take_up_to(u64::MAX);
        let mut callers: Vec<_> = (0..before).map(|_| acquire(&bucket)).collect();
        callers.push(TestTask::new(bucket.try_acquire(1, Duration::from_millis(timeout))));
        let result = callers[before].output().map(Decision::is_granted);
        assert_eq!(result, (!in_time).then_some(false), "{quota} behind {before} within {timeout}ms");
        for _ in 0..=before {
            advance(&manual_clock, 100);
            finished_tasks(&mut callers);
        }
        let granted: Vec<_> =
            callers.iter().map(|caller| caller.output().is_some_and(Decision::is_granted)).collect();
        assert!(granted[..before].iter().all(|granted| *granted), "{quota} behind {before}");
        assert_eq!(granted[before], in_time, "{quota} behind {before} within {timeout}ms");
    }
}

/// The evaluation of a long queue stops at the maximum time.
#[test]
fn long_queue_is_evaluated_quickly() {
    for quota in ["1 per 52w", "1 per 52w fixed-window", "1 per 52w sliding-log"] {
        let (limiter, _manual_clock) = manual_limiter(quota);
        let bucket = limiter.bucket();
        assert!(limiter.check().is_allowed());
        let _callers: Vec<_> = (0..400).map(|_| acquire(&bucket)).collect();
        let last = TestTask::new(bucket.try_acquire(1, Duration::MAX));
        assert!(last.output().is_none_or(|decision| !decision.is_granted()), "{quota}");
    }
}

/// The timeout is evaluated on the state that the call will find: in another tier, with the usage of the previous one.
#[test]
fn timeout_accounts_for_other_tier() {
    let tiers = ["1 per 200ms sliding-log", "2 per 200ms sliding-log"].map(|quota| quota.parse().unwrap());
    for (tier, before, timeout, in_time) in
        [(0, 2, 599, false), (0, 2, 600, true), (1, 2, 399, false), (1, 2, 400, true)]
    {
        let (clock, _manual_clock) = Clock::manual();
        let limiter = Limiter::builder().clock(clock).build_tiers(&tiers).unwrap();
        assert!(limiter.blocking().key("k").tier(1).unwrap().check(2).is_allowed());
        let bucket = limiter.key("k").tier(tier).unwrap();
        let _before: Vec<_> = (0..before).map(|_| acquire(&bucket)).collect();
        let last = TestTask::new(bucket.try_acquire(1, Duration::from_millis(timeout)));
        let result = last.output().map(Decision::is_granted);
        assert_eq!(result, (!in_time).then_some(false), "tier {tier} within {timeout}ms");
    }
}

/// The same for threads; the test advances the clock until they are done.
#[test]
fn threads_wait_on_manual_clock() {
    for quota in ONE_AT_A_TIME {
        let (clock, manual_clock) = Clock::manual();
        let limiter = DirectLimiter::builder().clock(clock.clone()).build(quota).unwrap();
        let granted = thread::scope(|scope| {
            let wait = || limiter.blocking().acquire(1).is_granted();
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(wait)).collect();
            while !workers.iter().all(thread::ScopedJoinHandle::is_finished) {
                advance(&manual_clock, 10);
                thread::yield_now();
            }
            workers.into_iter().map(|worker| worker.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(granted, [true; 4], "{quota}");
        assert!(clock.now() >= Micros::from_millis(300), "{quota}: {:?}", clock.now());
    }
}

/// A caller that polls late gets the tokens that were ready in time, and no others.
#[test]
fn late_poll_returns_correct_result() {
    // The callers of a shaper hold their own reservations.
    let is_evenly_spaced = |quota: &&str| quota.contains("leaky") || quota.contains("smooth");
    for quota in ONE_AT_A_TIME.into_iter().filter(|quota| !is_evenly_spaced(quota)) {
        for late in [101, 10_000] {
            let (clock, manual_clock) = Clock::manual();
            let limiter = DirectLimiter::builder().clock(clock).build(quota).unwrap();
            let bucket = limiter.bucket();
            assert!(limiter.check().is_allowed());
            let mut first = TestTask::new(bucket.try_acquire(1, Duration::from_millis(100)));
            let mut second = TestTask::new(bucket.try_acquire(1, Duration::from_millis(200)));
            advance(&manual_clock, late);
            // The second polls before the first, which still holds its claim.
            second.poll_if_woken();
            first.poll_if_woken();
            assert!(first.take_output().unwrap().is_granted(), "{quota}: its tokens were ready at 100ms");
            second.poll_if_woken();
            let second = second.take_output().is_some_and(|decision| decision.is_granted());
            let granted = u64::from(second) + u64::from(limiter.check().is_granted());
            let max_granted = u64::from(late > 200);
            assert!(granted <= max_granted, "{quota}: {granted} more after {late}ms");
        }
    }
}
