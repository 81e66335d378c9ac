//! Rules in Redis, selected by the settings.

#![cfg(all(feature = "redis", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};
use tidegate::{FailureMode, Rule, RuleConfig, Rules, rule::Settings};
use tidegate_testkit::servers::{RedisServer, wait_until};
use tokio::runtime::{Builder, Runtime};

/// Returns settings with this server as the store and a long deadline.
fn settings(server: &RedisServer) -> Settings {
    Settings::new()
        .store_url(server.url())
        .prefix("shop")
        .deadline(Duration::from_secs(5))
        .failure_mode(FailureMode::Closed)
}

/// Returns rules in this server, connected.
fn rules(server: &RedisServer) -> Rules {
    let rules = tidegate::rules();
    rules.apply(settings(server)).unwrap();
    wait_for_store(&rules);
    rules
}

/// Waits until the store is connected.
fn wait_for_store(rules: &Rules) {
    let probe = rules.declare(RuleConfig::new("probe").quota("1000000 per 52w").unwrap()).unwrap();
    wait_until("the store is connected", || {
        probe.admit_blocking("", 1).map_err(|limited| limited.to_string())
    })
    .unwrap();
}

fn rule(rules: &Rules, name: &'static str, quota: &str) -> Rule {
    rules.declare(RuleConfig::new(name).quota(quota).unwrap()).unwrap()
}

const TEN_PER_YEAR: &str = "10 per 52w";

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

fn many_threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
}

/// Returns the number of admitted calls.
fn count_admitted(rule: &Rule, calls: usize) -> usize {
    (0..calls).filter(|_| rule.admit_blocking("all", 1).is_ok()).count()
}

async fn count_admitted_async(rule: &Rule, calls: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..calls {
        admitted += usize::from(rule.admit("all", 1).await.is_ok());
    }
    admitted
}

/// An executor without tokio.
fn block_on_thread<F: Future>(future: F) -> F::Output {
    struct ThreadWaker(Thread);
    impl Wake for ThreadWaker {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(ThreadWaker(thread::current())));
    let (mut context, mut future) = (Context::from_waker(&waker), pin!(future));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Calls a rule, and returns the number of admitted calls.
type RuleCaller<'a> = dyn Fn(&Rule) -> usize + 'a;

#[test]
fn every_runtime_can_call_rule() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server);
    let callers: [(&'static str, &RuleCaller<'_>); 6] = [
        ("a thread", &|rule| count_admitted(rule, 15)),
        ("a function within a runtime of one thread", &|rule| {
            one_thread().block_on(async { count_admitted(rule, 15) })
        }),
        ("a function within a runtime of many", &|rule| {
            many_threads().block_on(async { count_admitted(rule, 15) })
        }),
        ("a task of one thread", &|rule| one_thread().block_on(count_admitted_async(rule, 15))),
        ("a task of many", &|rule| many_threads().block_on(count_admitted_async(rule, 15))),
        ("another executor", &|rule| block_on_thread(count_admitted_async(rule, 15))),
    ];
    for (name, call) in callers {
        let rule = rule(&rules, name, TEN_PER_YEAR);
        assert_eq!(call(&rule), 10, "{name}");
        assert_eq!(rule.limiter().unwrap().degraded_count(), 0, "{name}");
    }
    // Keys contain the prefix and the name of the rule.
    let keys = server.command(&["KEYS", "shop*a thread*"]).unwrap();
    assert!(!keys.items().is_empty());
}

#[test]
fn ten_of_hundred_threads_are_admitted() {
    let server = RedisServer::start().unwrap();
    let rule = rule(&rules(&server), "threads", TEN_PER_YEAR);
    let (barrier, admitted) = (Barrier::new(100), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..100 {
            scope.spawn(|| {
                barrier.wait();
                admitted.fetch_add(usize::from(rule.admit_blocking("all", 1).is_ok()), Ordering::Relaxed);
            });
        }
    });
    assert_eq!(admitted.into_inner(), 10);
}

#[test]
fn two_processes_admit_ten_of_hundred_tasks() {
    let server = RedisServer::start().unwrap();
    let processes = [rules(&server), rules(&server)];
    let both = processes.each_ref().map(|rules| rule(rules, "tasks", TEN_PER_YEAR));
    for runtime in [one_thread(), many_threads()] {
        let admitted = runtime.block_on(async {
            let calls = (0..100).map(|index| {
                let rule = both[index % 2].clone();
                tokio::spawn(async move { rule.admit("all", 1).await.is_ok() })
            });
            let mut admitted = 0;
            for call in calls.collect::<Vec<_>>() {
                admitted += usize::from(call.await.unwrap());
            }
            admitted
        });
        assert_eq!(admitted, 10);
        server.command(&["FLUSHALL"]).unwrap();
    }
}

/// A runtime whose only thread is blocked cannot drive the connection, so the store has its own thread.
#[test]
fn blocking_calls_do_not_stall_runtime() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server);
    let (tasks, blocking) = (rule(&rules, "tasks", "1000 per 52w"), rule(&rules, "blocking", "1000 per 52w"));
    one_thread().block_on(async {
        for _ in 0..20 {
            let calls: Vec<_> = (0..20)
                .map(|_| {
                    let rule = tasks.clone();
                    tokio::spawn(async move { rule.admit("all", 1).await })
                })
                .collect();
            // The checks of all tasks are in flight while this thread is blocked.
            tokio::task::yield_now().await;
            blocking.admit_blocking("all", 1).unwrap();
            for call in calls {
                call.await.unwrap().unwrap();
            }
        }
    });
    assert_eq!(
        (tasks.limiter().unwrap().degraded_count(), blocking.limiter().unwrap().degraded_count()),
        (0, 0)
    );
}

#[test]
fn outage_settings_decide_without_server() {
    let server = RedisServer::start().unwrap();
    let rules = tidegate::rules();
    let with_failure_mode =
        |failure_mode| settings(&server).deadline(Duration::from_millis(20)).failure_mode(failure_mode);
    rules.apply(with_failure_mode(FailureMode::Closed)).unwrap();
    wait_for_store(&rules);
    let rule = rule(&rules, "login", TEN_PER_YEAR);
    server.kill();
    for (outage, expected) in
        [(FailureMode::Open, 15), (FailureMode::Local { nodes: 2 }, 5), (FailureMode::Closed, 0)]
    {
        let callers: [(&str, &dyn Fn() -> usize); 3] = [
            ("a thread", &|| count_admitted(&rule, 15)),
            ("within a runtime", &|| one_thread().block_on(async { count_admitted(&rule, 15) })),
            ("another executor", &|| block_on_thread(count_admitted_async(&rule, 15))),
        ];
        for (name, call) in callers {
            // Changing the quota resets the local counters for each caller.
            rules.apply(with_failure_mode(FailureMode::Open).quota("login", "11 per 52w").unwrap()).unwrap();
            rules.apply(with_failure_mode(outage)).unwrap();
            assert_eq!(call(), expected, "{outage:?} from {name}");
        }
    }
    server.restart().unwrap();
    wait_for_store(&rules);
    assert_eq!(count_admitted(&rule, 15), 10);

    // A paused server delays a call at most by the deadline.
    server.pause().unwrap();
    rules.apply(with_failure_mode(FailureMode::Open)).unwrap();
    assert_eq!(one_thread().block_on(async { count_admitted(&rule, 15) }), 15);
    server.resume().unwrap();
}

#[test]
fn invalid_address_is_an_error_and_absent_server_is_not() {
    let server = RedisServer::start().unwrap();
    server.stop().unwrap();
    let rules = tidegate::rules();
    let rule = rule(&rules, "login", TEN_PER_YEAR);
    for bad in ["redis://:hunter2@", "http://:hunter2@db", "hunter2", "redis://a:hunter2@b,c"] {
        let error = rules.apply(Settings::new().store_url(bad)).unwrap_err();
        let message = format!("{error} {error:?}");
        assert!(message.starts_with("store: ") && !message.contains("hunter2"), "{message}");
    }
    rules.apply(settings(&server)).unwrap();
    assert_eq!(count_admitted(&rule, 15), 0);
    server.restart().unwrap();
    wait_for_store(&rules);
    assert_eq!(count_admitted(&rule, 15), 10);
}

/// Acquires a slot, with retries, because slots are released in the background.
async fn acquire_slot(rule: &Rule) -> tidegate::rule::RulePermit {
    loop {
        if let Ok(hold) = rule.acquire("all").await {
            return hold;
        }
    }
}

#[test]
fn slots_are_released_from_any_thread() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server);
    let rule = rule(&rules, "jobs", "2 at once");
    let other = tidegate::rules();
    other.apply(settings(&server)).unwrap();
    wait_for_store(&other);
    let elsewhere = other.declare(RuleConfig::new("jobs").quota("2 at once").unwrap()).unwrap();
    // Another process can acquire both slots after they are released.
    let free = |what: &str| {
        let take = || elsewhere.acquire_blocking("all").map_err(|limited| limited.to_string());
        let both = wait_until(what, || Ok([take()?, take()?])).unwrap();
        assert!(take().is_err());
        drop(both);
        wait_until("the slots are free for this process", || {
            let both = [rule.acquire_blocking("all"), rule.acquire_blocking("all")];
            both.iter().all(Result::is_ok).then_some(()).ok_or_else(String::new)
        })
        .unwrap();
    };
    free("before the first acquisition");

    let permits = [wait_until("a slot is free", || {
        rule.acquire_blocking("all").map_err(|limited| limited.to_string())
    })
    .unwrap()];
    let permits = (permits, one_thread().block_on(acquire_slot(&rule)));
    assert!(elsewhere.acquire_blocking("all").is_err());
    drop(permits);
    free("dropped on a thread");

    let runtime = one_thread();
    let permits = runtime.block_on(async { [acquire_slot(&rule).await, acquire_slot(&rule).await] });
    drop(runtime);
    drop(permits);
    free("dropped after their runtime");

    let runtime = many_threads();
    let task_rule = rule.clone();
    let (has_slot, slot) = std::sync::mpsc::channel();
    let task = runtime.spawn(async move {
        let _permit = acquire_slot(&task_rule).await;
        has_slot.send(()).unwrap();
        std::future::pending::<()>().await;
    });
    slot.recv().unwrap();
    drop((task, runtime));
    free("dropped by a runtime that shuts down");

    block_on_thread(async { drop(acquire_slot(&rule).await) });
    free("dropped on another executor");

    // Cancelled before the reply arrived.
    one_thread().block_on(async {
        for _ in 0..10 {
            let mut call = pin!(rule.acquire("all"));
            std::future::poll_fn(|context| {
                let _ = call.as_mut().poll(context);
                Poll::Ready(())
            })
            .await;
        }
    });
    free("cancelled in flight");
}

#[test]
fn rule_moves_to_redis_under_load() {
    let server = RedisServer::start().unwrap();
    let rules = tidegate::rules();
    let rule = rule(&rules, "login", "100 per 52w");
    let (is_over, admitted) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    admitted.fetch_add(usize::from(rule.admit_blocking("all", 1).is_ok()), Ordering::Relaxed);
                }
            });
        }
        let enough = |count| {
            wait_until("enough calls are admitted", || match admitted.load(Ordering::Relaxed) {
                now if now >= count => Ok(()),
                now => Err(now.to_string()),
            })
            .unwrap();
        };
        enough(100);
        rules.apply(settings(&server)).unwrap();
        enough(200);
        // The same settings again, and another failure mode: the counters in Redis stay.
        rules.apply(settings(&server)).unwrap();
        rules.apply(settings(&server).failure_mode(FailureMode::Open)).unwrap();
        wait_for_store(&rules);
        is_over.store(true, Ordering::Relaxed);
    });
    assert_eq!(admitted.into_inner(), 200);
}

#[test]
fn changed_quota_keeps_counters() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server);
    let rule = rule(&rules, "login", TEN_PER_YEAR);
    assert_eq!(count_admitted(&rule, 15), 10);
    rules.apply(settings(&server).quota("login", "14 per 52w").unwrap()).unwrap();
    assert_eq!(count_admitted(&rule, 15), 4);
    rules.apply(settings(&server).quota("login", "5 per 52w").unwrap()).unwrap();
    assert_eq!(count_admitted(&rule, 15), 0);
    // In memory the counters start from zero.
    rules.apply(Settings::new()).unwrap();
    assert_eq!(count_admitted(&rule, 15), 10);
    rules.apply(settings(&server)).unwrap();
    wait_for_store(&rules);
    assert_eq!(count_admitted(&rule, 15), 0);
}
