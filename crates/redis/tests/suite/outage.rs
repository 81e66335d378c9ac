//! A server that goes away, in every way that there is, and comes back.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "this is how a test fails, and what it did"
)]

use crate::common::{AMPLE, FIVE, limiter, limiter_for, soon, store, verdict};
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
use tidegate_testkit::servers::{Fault, Proxy, RedisServer};
use tokio::task::JoinSet;

/// Short enough for a test that lets it pass often, long enough for a busy machine to answer most of the time.
const DEADLINE: Duration = Duration::from_millis(100);

const MANY: &str = "1000 per 52w";

async fn hasty(url: &str) -> RedisStore {
    RedisStore::builder().deadline(DEADLINE).connect(url).await.unwrap()
}

async fn decides(limiter: &Limiter) {
    soon("the store decides", async || !limiter.key("health").peek(1).await.is_degraded()).await;
}

/// One story for every kind of trouble: it begins, decisions are made without the store, it ends, and the store is
/// back by itself.
async fn suffer(url: &str, begin: impl Fn(), end: impl Fn()) {
    for outage in [FailureMode::Open, FailureMode::Closed, FailureMode::Local { nodes: 2 }] {
        let store = hasty(url).await;
        let limiter = limiter_for(&store, &format!("{outage:?}"), FIVE, outage);
        decides(&limiter).await;

        begin();
        // A late answer is not an outage yet.
        soon("the store is unavailable", async || {
            limiter.key("other").peek(1).await.is_degraded() && store.trouble().is_some()
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
        soon("the store says why", async || {
            limiter.decide("a", 1).await;
            store.trouble().is_some_and(|why| !why.is_empty())
        })
        .await;
        assert!(store.outages() >= 1);
        assert!(limiter.key("a").reset().await.is_err());

        end();
        decides(&limiter).await;
        soon("the trouble is over", async || {
            limiter.key("health").peek(1).await;
            store.trouble().is_none()
        })
        .await;
    }
}

async fn suffer_fault(fault: Fault) {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    suffer(proxy.url(), || proxy.inject(fault), || proxy.heal()).await;
}

#[tokio::test]
async fn nothing_comes_through() {
    suffer_fault(Fault::Stall).await;
}

#[tokio::test]
async fn connections_are_reset() {
    suffer_fault(Fault::Reset).await;
}

#[tokio::test]
async fn replies_are_cut_off() {
    suffer_fault(Fault::CutReplies { after: 0 }).await;
}

#[tokio::test]
async fn replies_are_cut_in_the_middle() {
    suffer_fault(Fault::CutReplies { after: 3 }).await;
}

#[tokio::test]
async fn requests_are_lost() {
    suffer_fault(Fault::LoseRequests).await;
}

/// An answer that never comes puts a connection out of step, while the others go on.
#[tokio::test]
async fn one_connection_is_out_of_step() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    let store = hasty(proxy.url()).await;
    let limiter = Arc::new(limiter(&store, "out-of-step", MANY));
    decides(&limiter).await;
    proxy.inject(Fault::LoseRequests);
    assert!(limiter.decide("lost", 1).await.is_degraded());
    proxy.heal();
    soon("no connection is out of step", async || {
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
async fn everything_takes_too_long() {
    suffer_fault(Fault::Delay(4 * DEADLINE)).await;
}

#[tokio::test]
async fn connections_are_refused() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    let begin = || {
        proxy.inject(Fault::Refuse);
        server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    };
    suffer(proxy.url(), begin, || proxy.heal()).await;
}

#[tokio::test]
async fn the_server_dies_and_comes_back_with_nothing() {
    let server = RedisServer::start().unwrap();
    suffer(&server.url(), || server.kill(), || server.restart().unwrap()).await;
}

#[tokio::test]
async fn the_server_stands_still() {
    let server = RedisServer::start().unwrap();
    suffer(&server.url(), || server.pause().unwrap(), || server.resume().unwrap()).await;
}

/// The first thing that a new limiter says is what its quota is. That must not hide that the server is gone.
#[tokio::test]
async fn a_limiter_that_is_new_in_an_outage_recovers_as_any_other() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    for fault in [Fault::Reset, Fault::Stall, Fault::LoseRequests] {
        let store = hasty(proxy.url()).await;
        proxy.inject(fault);
        let new = limiter(&store, &format!("{fault:?}"), FIVE);
        soon("it is known that the server is away", async || {
            assert!(new.decide("a", 1).await.is_degraded());
            store.trouble().is_some()
        })
        .await;
        proxy.heal();
        decides(&new).await;
    }
}

#[tokio::test]
async fn scripts_are_forgotten_while_running() {
    let server = RedisServer::start().unwrap();
    let store = store(&server.url()).await;
    for quota in [FIVE, "5 per 52w sliding-log"] {
        let limiter = limiter(&store, quota, quota);
        for left in (0..5).rev() {
            server.command(&["SCRIPT", "FLUSH"]).unwrap();
            assert_eq!(verdict(&limiter.decide("a", 1).await), format!("allow {left} of 5"));
        }
    }
    assert_eq!(store.outages(), 0);
}

#[tokio::test]
async fn a_start_without_a_server() {
    let server = RedisServer::start().unwrap();
    server.stop().unwrap();
    let store = RedisStore::builder().deadline(AMPLE).open(&server.url()).unwrap();
    let limiter = limiter_for(&store, "early", FIVE, FailureMode::Closed);
    assert!(limiter.decide("a", 1).await.is_degraded());
    soon("it says why", async || store.trouble().is_some_and(|why| why.contains("refused"))).await;

    server.restart().unwrap();
    decides(&limiter).await;
    assert_eq!(verdict(&limiter.decide("a", 1).await), "allow 4 of 5");
    assert_eq!(store.trouble(), None);
}

#[tokio::test]
async fn a_start_with_a_wrong_password_says_so() {
    let server = RedisServer::builder().password("right").start().unwrap();
    let url = format!("redis://:wr0ng@{}", server.address());
    let store = RedisStore::builder().deadline(AMPLE).open(&url).unwrap();
    let limiter = limiter_for(&store, "early", FIVE, FailureMode::Closed);
    soon("it says why", async || {
        assert!(limiter.decide("a", 1).await.is_degraded());
        store.trouble().is_some_and(|why| why.contains("WRONGPASS") || why.contains("uthentication"))
    })
    .await;
    assert!(!store.trouble().unwrap().contains("wr0ng"));
    assert!(!format!("{store:?} {limiter:?}").contains("wr0ng"));
}

/// A reply that is cut leaves it open whether the request was charged; it was once at most.
#[tokio::test]
async fn a_request_is_never_charged_twice() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    let observer = limiter(&store(&server.url()).await, "once", MANY);
    let (mut asked, mut counted) = (0, 0);
    for after in 0..25 {
        // Another connection each time: one that is lost again and again is tried less and less often.
        let limiter = limiter_for(&hasty(proxy.url()).await, "once", MANY, FailureMode::Open);
        // The server knows the script from then on: what is cut is an answer.
        soon("the script is known", async || !limiter.decide("b", 1).await.is_degraded()).await;
        proxy.inject(Fault::CutReplies { after });
        for _ in 0..2 {
            let decision = limiter.decide("a", 1).await;
            asked += 1;
            counted += u64::from(!decision.is_degraded());
        }
        proxy.heal();
    }
    let used = 1_000 - observer.key("a").peek(1).await.remaining();
    println!("asked {asked}, answered {counted}, charged {used}");
    assert!(counted <= used && used <= asked, "asked {asked}, answered {counted}, charged {used}");
    assert!(used > 0);
}

#[tokio::test]
async fn callers_that_give_up_leave_the_queue_to_others() {
    let server = RedisServer::start().unwrap();
    let store = store(&server.url()).await;
    let limiter = Arc::new(limiter(&store, "leave", MANY));
    decides(&limiter).await;
    for _ in 0..5 {
        server.pause().unwrap();
        let ask = |_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.decide("a", 1).await })
        };
        let calls: Vec<_> = (0..50).map(ask).collect();
        tokio::task::yield_now().await;
        calls.iter().for_each(tokio::task::JoinHandle::abort);
        for call in calls {
            assert!(call.await.is_err());
        }
        server.resume().unwrap();
        assert!(!limiter.decide("b", 1).await.is_degraded());
    }
    assert_eq!((store.trouble(), store.outages()), (None, 0));
}

/// Futures may be dropped anywhere; those of others who wait must not suffer, nor may the thread.
#[test]
fn calls_that_are_dropped_outside_of_a_runtime_leave_the_queue_to_others() {
    let server = RedisServer::start().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let limiter = runtime.block_on(async {
        let limiter = limiter(&store(&server.url()).await, "outside", MANY);
        decides(&limiter).await;
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
        runtime.block_on(decides(&limiter));
    }
}

/// A limiter that outlives the runtime it was used in, as a static one does in tests.
#[test]
fn a_runtime_that_ends_in_mid_call_leaves_the_queue_to_others() {
    let server = RedisServer::start().unwrap();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let first = runtime();
    let limiter = Arc::new(first.block_on(async {
        let limiter = limiter(&store(&server.url()).await, "static", MANY);
        decides(&limiter).await;
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
        first.block_on(decides(&limiter));
    }
    // Even the runtime that the connection lived in.
    drop(first);
    runtime().block_on(decides(&limiter));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everybody_is_answered_whatever_happens() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::before(&server).unwrap();
    let store = RedisStore::builder().deadline(Duration::from_millis(20)).connect(proxy.url()).await.unwrap();
    let limiter = Arc::new(limiter_for(&store, "crowd", "1000000 per 52w", FailureMode::Open));
    let (is_over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let crowd: Vec<_> = (0..200)
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
        Fault::Stall,
        Fault::CutReplies { after: 100 },
        Fault::Reset,
        Fault::Delay(Duration::from_millis(3)),
        Fault::LoseRequests,
        Fault::Refuse,
    ];
    for fault in faults.into_iter().cycle().take(18) {
        for turn in [Some(fault), None] {
            turn.map_or_else(|| proxy.heal(), |fault| proxy.inject(fault));
            let before = answers.load(Ordering::Relaxed);
            soon("some were answered", async || answers.load(Ordering::Relaxed) > before + 1_000).await;
        }
    }
    is_over.store(true, Ordering::Relaxed);
    for one in crowd {
        tokio::time::timeout(Duration::from_secs(20), one).await.unwrap().unwrap();
    }
    decides(&limiter).await;
    let (degraded, outages) = (limiter.degraded_count(), store.outages());
    println!("{answers:?} answers, {degraded} of them degraded, {outages} outages");
}
