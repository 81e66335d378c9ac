//! Sixteen threads in parallel get exactly what sequential calls would get.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{
    sync::{
        Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use tidegate_core::{CarryOver, Decision, Micros, Quota};
use tidegate_limiter::{BlockingLimiter, Capacity, Clock, DirectLimiter, Limiter, Overflow};

const THREADS: u64 = 16;

/// Starts all threads together, and sums their results.
fn run_threads(work: impl Fn(u64) -> u64 + Sync) -> u64 {
    let (barrier, total) = (Barrier::new(THREADS as usize), AtomicU64::new(0));
    thread::scope(|scope| {
        for index in 0..THREADS {
            let (barrier, total, work) = (&barrier, &total, &work);
            scope.spawn(move || {
                barrier.wait();
                total.fetch_add(work(index), Ordering::Relaxed);
            });
        }
    });
    total.into_inner()
}

fn count(times: u64, mut check: impl FnMut(u64) -> bool) -> u64 {
    (0..times).filter(|time| check(*time)).count() as u64
}

/// All algorithms that count; shapers admit by debt, one at a time.
const BURSTS_OF_1000: [&str; 8] = [
    "1000/min",
    "10000000007 per 60s burst 1000",
    "1000/min leaky-bucket queue 999 nodelay",
    "1000/min fixed-window",
    "1000/min fixed-window from-first-hit",
    "1000/min sliding-window",
    "1000/min sliding-strict 60",
    "1000/min sliding-log",
];

#[test]
fn stopped_clock_admits_exactly_the_burst() {
    for quota in BURSTS_OF_1000 {
        let direct = DirectLimiter::builder().clock(Clock::manual().0).build(quota).unwrap();
        let admitted = run_threads(|_| count(200, |_| direct.check().is_allowed()));
        assert_eq!(admitted, 1_000, "{quota} without keys");

        let limiter = Limiter::builder().clock(Clock::manual().0).build(quota).unwrap();
        let admitted = run_threads(|_| count(200, |_| limiter.check("hot").is_allowed()));
        assert_eq!(admitted, 1_000, "{quota} as one hot key");

        let limiter = Limiter::builder().clock(Clock::manual().0).build(quota).unwrap();
        let admitted = run_threads(|thread| {
            let cost = 1 + thread % 2;
            let large = cost * count(200, |time| limiter.check_cost(&(time % 3), cost).is_allowed());
            large + count(600, |time| limiter.check(&(time % 3)).is_allowed())
        });
        assert_eq!(admitted, 3_000, "{quota}: every token of every key is granted");
    }
}

#[test]
fn refunded_tokens_are_reusable_once() {
    for quota in ["100/min", "10000000007 per 60s burst 100", "100/min sliding-log", "100/min fixed-window"] {
        let direct = DirectLimiter::builder().clock(Clock::manual().0).build(quota).unwrap();
        let bucket = direct.blocking();
        let committed = run_threads(|thread| {
            count(300, |time| {
                let tokens = bucket.reserve(1 + time % 3, Duration::ZERO);
                let is_committed = tokens.decision().is_granted() && (thread + time) % 3 == 0;
                match is_committed {
                    true => drop(tokens.commit(1)),
                    false => drop(tokens),
                }
                is_committed
            })
        });
        let (remaining, _) = bucket.take_up_to(1_000);
        assert_eq!(committed + remaining, 100, "{quota}");
    }
}

#[test]
fn take_up_to_distributes_all_tokens() {
    for quota in BURSTS_OF_1000 {
        let limiter = Limiter::builder().clock(Clock::manual().0).build(quota).unwrap();
        let taken =
            run_threads(|thread| (0..50).map(|_| limiter.blocking().key("k").take_up_to(1 + thread).0).sum());
        assert_eq!(taken, 1_000, "{quota}");
    }
}

#[test]
fn new_keys_get_one_cell_each() {
    for quota in ["3/min", "3/min sliding-log"] {
        let builder = Limiter::builder().clock(Clock::manual().0).capacity(Capacity::Keys(400));
        let limiter = builder.build(quota).unwrap();
        // All threads use the same new keys.
        let admitted = run_threads(|_| count(400, |key| limiter.check(&key).is_allowed()));
        let stats = limiter.stats().unwrap();
        assert_eq!((admitted, stats.used, stats.overflowed), (1_200, 400, 0), "{quota}");
    }
}

/// Cells are reassigned between keys while other threads still read them; every key is admitted exactly its burst.
#[test]
fn reused_cells_are_safe_for_readers() {
    for quota in ["1000000/s burst 2", "2 per 2us sliding-log", "10000000007/s burst 2"] {
        let (clock, manual_clock) = Clock::manual();
        let builder = Limiter::builder().clock(clock).capacity(Capacity::Keys(1)).overflow(Overflow::Deny);
        let limiter = builder.build(quota).unwrap();
        // Each round has its own four keys in a table of eight cells: those of the previous round must be replaced.
        let (rounds, keys) = (300_u64, 4);
        let admitted = AtomicU64::new(0);
        let barrier = Barrier::new(THREADS as usize);
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (limiter, manual_clock, barrier, admitted) =
                    (&limiter, &manual_clock, &barrier, &admitted);
                scope.spawn(move || {
                    for round in 0..rounds {
                        if barrier.wait().is_leader() {
                            manual_clock.advance(Duration::from_micros(10));
                        }
                        barrier.wait();
                        let allowed = count(2 * keys, |time| {
                            limiter.check(&(round * keys + (thread + time) % keys)).is_allowed()
                        });
                        admitted.fetch_add(allowed, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(admitted.into_inner(), rounds * keys * 2, "{quota}");
        assert_eq!(limiter.stats().unwrap().overflowed, 0);
    }
}

/// Far more keys than cells, and an advancing clock: no key gets more than its bound.
#[test]
fn full_table_admits_within_bound() {
    for text in ["1000/s burst 2", "10000000007 per 10000000us burst 2", "2 per 2ms sliding-log"] {
        let quota: Quota = text.parse().unwrap();
        let (clock, manual_clock) = Clock::manual();
        let builder = Limiter::builder().clock(clock).capacity(Capacity::Keys(8)).overflow(Overflow::Share);
        let limiter = builder.build(quota).unwrap();
        let keys = 40;
        let admitted: Vec<AtomicU64> = (0..keys).map(|_| AtomicU64::new(0)).collect();
        run_threads(|thread| {
            count(2_000, |time| {
                if thread == 0 && time % 4 == 0 {
                    manual_clock.advance(Duration::from_micros(100));
                }
                let key = (time * 7 + thread) % keys;
                let allowed = limiter.check(&key).is_allowed();
                admitted[key as usize].fetch_add(u64::from(allowed), Ordering::Relaxed);
                allowed
            })
        });
        let max_admitted = quota.bound().max_in_window(Micros::new(50_001));
        for count in admitted.into_iter().map(AtomicU64::into_inner) {
            assert!(count <= max_admitted, "{text}: {count} of {max_admitted}");
        }
    }
}

#[test]
fn quotas_of_one_key_lose_no_tokens() {
    let (clock, manual_clock) = Clock::manual();
    let quotas: Vec<Quota> =
        ["100/s", "150/min", "120/min fixed-window"].iter().map(|text| text.parse().unwrap()).collect();
    let limiter = Limiter::builder().clock(clock).build_all(&quotas).unwrap();
    assert_eq!(run_threads(|_| count(50, |_| limiter.check("k").is_allowed())), 100);
    manual_clock.advance(Duration::from_secs(1));
    // Denied calls are charged nothing: exactly the remaining tokens of the scarcest quota are left.
    assert_eq!(run_threads(|_| count(50, |_| limiter.check("k").is_allowed())), 20);
}

/// Batches in opposite orders, over limiters of both kinds: no deadlock, and all or none is charged.
#[test]
fn batch_checks_in_any_order_do_not_deadlock() {
    let build = |quota: &str| Limiter::builder().clock(Clock::manual().0).build(quota).unwrap();
    let limiters = [build("1000/min"), build("900/min sliding-log"), build("2000/min")];
    let all = run_threads(|thread| {
        count(500, |time| {
            let mut checks: Vec<_> =
                limiters.iter().flat_map(|limiter| [limiter.prepare("a"), limiter.prepare("b")]).collect();
            let offset = (thread + time) as usize % checks.len();
            checks.rotate_left(offset);
            if thread % 2 == 0 {
                checks.reverse();
            }
            BlockingLimiter::decide_all(&checks).iter().all(Decision::is_allowed)
        })
    });
    assert_eq!(all, 900);
    let remaining = |limiter: &Limiter| ["a", "b"].map(|key| limiter.blocking().key(key).peek(0).remaining());
    assert_eq!(limiters.each_ref().map(remaining), [[100, 100], [0, 0], [1_100, 1_100]]);
}

#[test]
fn permits_stay_within_limit_and_return() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("5 at once").unwrap();
    let (in_flight, max_in_flight) = (AtomicU64::new(0), AtomicU64::new(0));
    let granted = run_threads(|_| {
        count(500, |time| {
            let permit = limiter.blocking().key("pool").permit();
            let granted = permit.decision().is_granted();
            if granted {
                max_in_flight.fetch_max(in_flight.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if time % 3 == 0 {
                    thread::yield_now();
                }
                in_flight.fetch_sub(1, Ordering::SeqCst);
            }
            drop(permit);
            granted
        })
    });
    assert!(granted >= 5 && max_in_flight.into_inner() <= 5);
    assert_eq!(limiter.blocking().key("pool").peek(0).remaining(), 5);
}

#[test]
fn panic_releases_permit() {
    let limiter = Limiter::builder().clock(Clock::manual().0).build("1 at once").unwrap();
    let panicked = thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let _permit = limiter.blocking().key("pool").permit();
            std::panic::resume_unwind(Box::new("work failed"));
        });
        worker.join().is_err()
    });
    assert!(panicked);
    assert_eq!(limiter.blocking().key("pool").peek(0).remaining(), 1);
}

/// The quota changes continuously; nothing hangs, and admissions stay within the larger quota.
#[test]
fn quota_changes_run_alongside_decisions() {
    let pairs = [
        ("100/h", "300/h"),
        ("10000000007/h burst 100", "600/h burst 300"),
        ("300/h sliding-log", "100/h sliding-log"),
        ("100/h fixed-window", "300/h fixed-window"),
    ];
    for (first, second) in pairs {
        let how = CarryOver::Keep;
        let builder = Limiter::builder().clock(Clock::manual().0).capacity(Capacity::Keys(50));
        let limiter = builder.build(first).unwrap();
        let other = Limiter::builder().clock(Clock::manual().0).build("1000000/h").unwrap();
        let batch_admitted = AtomicU64::new(0);
        let admitted = run_threads(|thread| match thread {
            0 => {
                for quota in [second, first, second].iter().cycle().take(60) {
                    let _rejected = limiter.change(*quota, how);
                }
                0
            }
            1..4 => count(400, |_| {
                let checks = [limiter.prepare(&0_u64), other.prepare("k")];
                let all = BlockingLimiter::decide_all(&checks).iter().all(Decision::is_allowed);
                batch_admitted.fetch_add(u64::from(all), Ordering::Relaxed);
                all
            }),
            _ => count(400, |time| {
                limiter.check(&(1 + time % 20));
                limiter.check(&0_u64).is_allowed()
            }),
        });
        // With a stopped clock each change may round one token against the callers, and never in their favour.
        assert!(admitted <= 300, "{first} and {second} {how:?}: {admitted}");
        let charged = 1_000_000 - other.blocking().key("k").peek(0).remaining();
        assert_eq!(charged, batch_admitted.into_inner(), "{first}: all or none");
    }
}

#[test]
fn running_clock_admits_within_bound() {
    for text in BURSTS_OF_1000.iter().chain(&["1000/min smooth", "500/s warm-up 1s"]) {
        let quota: Quota = text.parse().unwrap();
        let (clock, manual_clock) = Clock::manual();
        let direct = DirectLimiter::builder().clock(clock.clone()).build(quota).unwrap();
        let admitted = run_threads(|thread| match thread {
            0 => {
                (0..1_000).for_each(|_| manual_clock.advance(Duration::from_millis(90)));
                0
            }
            _ => count(1_000, |_| direct.check().is_allowed()),
        });
        let max_admitted = quota.bound().max_in_window(clock.now().saturating_add(Micros::new(1)));
        assert!(admitted <= max_admitted, "{text}: {admitted} of {max_admitted}");
    }
}

/// As many tokens as callers, on the system clock: a caller whose time is slightly stale when it is served still gets one.
#[test]
fn slightly_stale_time_denies_no_request() {
    for quota in BURSTS_OF_1000 {
        let quota = quota
            .replace("1000/min", "16/h")
            .replace("burst 1000", "burst 16")
            .replace("queue 999", "queue 15");
        let limiter = Limiter::builder().capacity(Capacity::Keys(4_000)).build(quota.as_str()).unwrap();
        let denied = run_threads(|_| count(3_000, |key| !limiter.check(&key).is_allowed()));
        assert_eq!(denied, 0, "{quota}");
    }
}
