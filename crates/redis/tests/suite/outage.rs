//! Outages of every kind, and the recovery from them.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print their progress"
)]

use crate::common::{
    FIVE_PER_YEAR, LONG_DEADLINE, build_limiter, build_limiter_with, connect_store, poll_until, summarize,
};
use std::{
    future::{Future as _, poll_fn},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::Poll,
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{FailureMode, Limiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{NetworkFault, Proxy, RedisServer};
use tokio::task::JoinSet;

/// Short enough for a test that often waits for it, long enough for most replies on a busy machine.
const DEADLINE: Duration = Duration::from_millis(100);

const LARGE_QUOTA: &str = "1000 per 52w";

async fn connect_short_deadline(url: &str) -> RedisStore {
    RedisStore::builder().deadline(DEADLINE).connect(url).await.unwrap()
}

async fn wait_until_decides(limiter: &Limiter) {
    poll_until("the store decides", async || !limiter.key("health").peek(1).await.is_degraded()).await;
}

/// Runs an outage: it begins, the failure mode decides, it ends, and the store recovers by itself.
async fn assert_outage(url: &str, begin: impl Fn(), end: impl Fn()) {
    for outage in [FailureMode::Open, FailureMode::Closed, FailureMode::Local { nodes: 2 }] {
        let store = connect_short_deadline(url).await;
        let limiter = build_limiter_with(&store, &format!("{outage:?}"), FIVE_PER_YEAR, outage);
        wait_until_decides(&limiter).await;

        begin();
        // One late reply is not an outage.
        poll_until("the store is unavailable", async || {
            limiter.key("other").peek(1).await.is_degraded() && store.last_error().is_some()
        })
        .await;
        let before = limiter.degraded_count();
        let mut allowed = 0;
        for _ in 0..10 {
            let decision = limiter.decide("a", 1).await;
            assert!(decision.is_degraded(), "{outage:?} {decision:?}");
            allowed += u64::from(decision.is_granted());
            if outage == FailureMode::Closed {
                assert_eq!(decision.retry_after(), Some(Micros::from_secs(1)));
            }
        }
        let expected = match outage {
            FailureMode::Open => 10,
            FailureMode::Closed => 0,
            FailureMode::Local { .. } => 2,
        };
        assert_eq!((allowed, limiter.degraded_count()), (expected, before + 10), "{outage:?}");
        poll_until("the store reports the cause", async || {
            limiter.decide("a", 1).await;
            store.last_error().is_some_and(|error| !error.is_empty())
        })
        .await;
        assert!(store.outages() >= 1);
        assert!(limiter.key("a").reset().await.is_err());

        end();
        wait_until_decides(&limiter).await;
        poll_until("the outage is over", async || {
            limiter.key("health").peek(1).await;
            store.last_error().is_none()
        })
        .await;
    }
}

async fn assert_fault_outage(fault: NetworkFault) {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    assert_outage(proxy.url(), || proxy.inject(fault), || proxy.heal()).await;
}

#[tokio::test]
async fn stalled_connection_is_an_outage() {
    assert_fault_outage(NetworkFault::Stall).await;
}

#[tokio::test]
async fn reset_connection_is_an_outage() {
    assert_fault_outage(NetworkFault::Reset).await;
}

#[tokio::test]
async fn closed_connection_is_an_outage() {
    assert_fault_outage(NetworkFault::CutReplies { after: 0 }).await;
}

#[tokio::test]
async fn truncated_reply_is_an_outage() {
    assert_fault_outage(NetworkFault::CutReplies { after: 3 }).await;
}

#[tokio::test]
async fn lost_requests_are_an_outage() {
    assert_fault_outage(NetworkFault::DropRequests).await;
}

/// A lost reply puts one connection out of step, while the other works.
#[tokio::test]
async fn connection_out_of_step_is_replaced() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    let store = connect_short_deadline(proxy.url()).await;
    let limiter = Arc::new(build_limiter(&store, "out-of-step", LARGE_QUOTA));
    wait_until_decides(&limiter).await;
    proxy.inject(NetworkFault::DropRequests);
    assert!(limiter.decide("lost", 1).await.is_degraded());
    proxy.heal();
    poll_until("no connection is out of step", async || {
        let mut tasks = JoinSet::new();
        for _ in 0..16 {
            let limiter = limiter.clone();
            let _task = tasks.spawn(async move { limiter.key("key").peek(1).await.is_degraded() });
        }
        tasks.join_all().await.iter().all(|is_degraded| !is_degraded)
    })
    .await;
}

#[tokio::test]
async fn slow_server_is_an_outage() {
    assert_fault_outage(NetworkFault::Delay(4 * DEADLINE)).await;
}

#[tokio::test]
async fn refused_connection_is_an_outage() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    let begin = || {
        proxy.inject(NetworkFault::RejectConnections);
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    };
    assert_outage(proxy.url(), begin, || proxy.heal()).await;
}

#[tokio::test]
async fn killed_server_is_an_outage() {
    let server = RedisServer::start().unwrap();
    assert_outage(&server.url(), || server.kill(), || server.restart().unwrap()).await;
}

#[tokio::test]
async fn paused_server_is_an_outage() {
    let server = RedisServer::start().unwrap();
    assert_outage(&server.url(), || server.pause().unwrap(), || server.resume().unwrap()).await;
}

/// A new limiter first announces its quota. A failure of that must be detected as an outage too.
#[tokio::test]
async fn limiter_created_in_outage_recovers() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    for fault in [NetworkFault::Reset, NetworkFault::Stall, NetworkFault::DropRequests] {
        let store = connect_short_deadline(proxy.url()).await;
        proxy.inject(fault);
        let new = build_limiter(&store, &format!("{fault:?}"), FIVE_PER_YEAR);
        poll_until("the outage is detected", async || {
            assert!(new.decide("a", 1).await.is_degraded());
            store.last_error().is_some()
        })
        .await;
        proxy.heal();
        wait_until_decides(&new).await;
    }
}

#[tokio::test]
async fn flushed_scripts_are_reloaded() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    for quota in [FIVE_PER_YEAR, "5 per 52w sliding-log"] {
        let limiter = build_limiter(&store, quota, quota);
        for left in (0..5).rev() {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            assert_eq!(summarize(&limiter.decide("a", 1).await), format!("allow {left} of 5"));
        }
    }
    assert_eq!(store.outages(), 0);
}

#[tokio::test]
async fn store_opens_before_server() {
    let server = RedisServer::start().unwrap();
    server.stop().unwrap();
    let store = RedisStore::builder().deadline(LONG_DEADLINE).open(&server.url()).unwrap();
    let limiter = build_limiter_with(&store, "early", FIVE_PER_YEAR, FailureMode::Closed);
    assert!(limiter.decide("a", 1).await.is_degraded());
    poll_until("the cause is reported", async || {
        store.last_error().is_some_and(|error| error.contains("refused"))
    })
    .await;

    server.restart().unwrap();
    wait_until_decides(&limiter).await;
    assert_eq!(summarize(&limiter.decide("a", 1).await), "allow 4 of 5");
    assert_eq!(store.last_error(), None);
}

#[tokio::test]
async fn wrong_password_is_reported_after_open() {
    let server = RedisServer::builder().password("right").start().unwrap();
    let url = format!("redis://:wr0ng@{}", server.address());
    let store = RedisStore::builder().deadline(LONG_DEADLINE).open(&url).unwrap();
    let limiter = build_limiter_with(&store, "early", FIVE_PER_YEAR, FailureMode::Closed);
    poll_until("the cause is reported", async || {
        assert!(limiter.decide("a", 1).await.is_degraded());
        store.last_error().is_some_and(|error| error.contains("WRONGPASS") || error.contains("uthentication"))
    })
    .await;
    assert!(!store.last_error().unwrap().contains("wr0ng"));
    assert!(!format!("{store:?} {limiter:?}").contains("wr0ng"));
}

/// After a truncated reply it is unknown whether the request was charged; it was charged at most once.
#[tokio::test]
async fn request_is_charged_at_most_once() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    let observer = build_limiter(&connect_store(&server.url()).await, "once", LARGE_QUOTA);
    let (mut sent, mut counted) = (0, 0);
    for after in 0..25 {
        // A new store each time: one that relapses has an ever longer hold-off.
        let limiter = build_limiter_with(
            &connect_short_deadline(proxy.url()).await,
            "once",
            LARGE_QUOTA,
            FailureMode::Open,
        );
        // The script is loaded before the fault, so that the truncated reply is a decision.
        poll_until("the script is loaded", async || !limiter.decide("b", 1).await.is_degraded()).await;
        proxy.inject(NetworkFault::CutReplies { after });
        for _ in 0..2 {
            let decision = limiter.decide("a", 1).await;
            sent += 1;
            counted += u64::from(!decision.is_degraded());
        }
        proxy.heal();
    }
    let used = 1_000 - observer.key("a").peek(1).await.remaining();
    println!("sent {sent}, decided {counted}, charged {used}");
    assert!(counted <= used && used <= sent, "sent {sent}, decided {counted}, charged {used}");
    assert!(used > 0);
}

#[tokio::test]
async fn canceled_calls_do_not_block_queue() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let limiter = Arc::new(build_limiter(&store, "leave", LARGE_QUOTA));
    wait_until_decides(&limiter).await;
    for _ in 0..5 {
        server.pause().unwrap();
        let call = |_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.decide("a", 1).await })
        };
        let calls: Vec<_> = (0..50).map(call).collect();
        tokio::task::yield_now().await;
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        for call in calls {
            assert!(call.await.is_err());
        }
        server.resume().unwrap();
        assert!(!limiter.decide("b", 1).await.is_degraded());
    }
    assert_eq!((store.last_error(), store.outages()), (None, 0));
}

/// Futures may be dropped outside a runtime; that must neither block other callers nor panic.
#[test]
fn calls_dropped_outside_runtime_do_not_block_queue() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limiter = runtime.block_on(async {
        let limiter = build_limiter(&connect_store(&server.url()).await, "outside", LARGE_QUOTA);
        wait_until_decides(&limiter).await;
        limiter
    });
    for _ in 0..3 {
        server.pause().unwrap();
        let mut calls: Vec<_> = (0..10).map(|_| Box::pin(limiter.decide("a", 1))).collect();
        runtime.block_on(poll_fn(|context| {
            calls.iter_mut().for_each(|call| assert!(call.as_mut().poll(context).is_pending()));
            Poll::Ready(())
        }));
        drop(calls);
        server.resume().unwrap();
        runtime.block_on(wait_until_decides(&limiter));
    }
}

/// A limiter outlives the runtime it was used in, like a static one in tests.
#[test]
fn ended_runtime_does_not_block_queue() {
    let server = RedisServer::start().unwrap();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let first = runtime();
    let limiter = Arc::new(first.block_on(async {
        let limiter = build_limiter(&connect_store(&server.url()).await, "static", LARGE_QUOTA);
        wait_until_decides(&limiter).await;
        limiter
    }));
    for _ in 0..3 {
        let brief = runtime();
        server.pause().unwrap();
        for _ in 0..20 {
            let limiter = limiter.clone();
            drop(brief.spawn(async move { limiter.decide("a", 1).await }));
        }
        brief.block_on(tokio::task::yield_now());
        drop(brief);
        server.resume().unwrap();
        first.block_on(wait_until_decides(&limiter));
    }
    // Also the runtime of the connection.
    drop(first);
    runtime().block_on(wait_until_decides(&limiter));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_is_answered_under_faults() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    let store = RedisStore::builder().deadline(Duration::from_millis(20)).connect(proxy.url()).await.unwrap();
    let limiter = Arc::new(build_limiter_with(&store, "tasks", "1000000 per 52w", FailureMode::Open));
    let (is_over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..200)
        .map(|index| {
            let (limiter, is_over, answers) = (limiter.clone(), is_over.clone(), answers.clone());
            tokio::spawn(async move {
                while !is_over.load(Ordering::Relaxed) {
                    assert!(limiter.decide(&format!("{}", index % 20), 1).await.is_allowed());
                    answers.fetch_add(1, Ordering::Relaxed);
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    let faults = [
        NetworkFault::Stall,
        NetworkFault::CutReplies { after: 100 },
        NetworkFault::Reset,
        NetworkFault::Delay(Duration::from_millis(3)),
        NetworkFault::DropRequests,
        NetworkFault::RejectConnections,
    ];
    for fault in faults.into_iter().cycle().take(18) {
        for next_fault in [Some(fault), None] {
            next_fault.map_or_else(|| proxy.heal(), |fault| proxy.inject(fault));
            let before = answers.load(Ordering::Relaxed);
            poll_until("calls return", async || answers.load(Ordering::Relaxed) > before + 1_000).await;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for one in tasks {
        tokio::time::timeout(Duration::from_secs(20), one).await.unwrap().unwrap();
    }
    wait_until_decides(&limiter).await;
    let (degraded, outages) = (limiter.degraded_count(), store.outages());
    println!("{answers:?} decisions, {degraded} of them degraded, {outages} outages");
}
