//! All operations of a limiter in Redis, with the same results as in memory.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print their progress"
)]

use crate::common::{
    FIVE_PER_YEAR, LONG_DEADLINE, build_limiter, connect_store, count_calls, integer_reply, matching_keys,
    poll_until, summarize,
};
use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};
use tidegate_core::{CarryOver, Demand, Micros, Quota, StateEntries};
use tidegate_limiter::{Limiter, WaitError, WaitPriority, Waiter};
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::RedisServer;

/// Five per year or in all, with every algorithm.
const ALGORITHMS: [&str; 11] = [
    "5 per 52w",
    "5 per 52w burst 3",
    "5 per 52w leaky-bucket queue 4",
    "5 per 52w leaky-bucket queue 4 nodelay",
    "5 per 52w fixed-window from-first-hit",
    "5 per 52w sliding-window",
    "5 per 52w sliding-strict 4",
    "5 per 52w sliding-log",
    "5 per 52w smooth burst 4",
    "5 per 52w warm-up 4s cold 3",
    "5 total",
];

/// Executes every operation and returns the results.
async fn record_transcript(limiter: &Limiter) -> Vec<String> {
    let max_wait = Duration::from_secs(52 * 7 * 86_400);
    let mut lines = Vec::new();
    lines.push(format!("peek {}", summarize(&limiter.key("a").peek(1).await)));
    lines.push(format!("check {}", summarize(&limiter.decide("a", 1).await)));
    lines.push(format!("two {}", summarize(&limiter.decide("a", 2).await)));
    lines.push(format!("none {}", summarize(&limiter.decide("a", 0).await)));
    let (taken, decision) = limiter.key("a").take_up_to(10).await;
    lines.push(format!("took {taken} {}", summarize(&decision)));
    let (taken, decision) = limiter.key("a").take_up_to(0).await;
    lines.push(format!("took {taken} {}", summarize(&decision)));
    lines.push(format!("check {}", summarize(&limiter.decide("a", 1).await)));
    lines.push(format!("much {}", summarize(&limiter.decide("a", 100).await)));
    lines.push(format!("huge {}", summarize(&limiter.decide("a", u64::MAX).await)));
    lines
        .push(format!("try {}", summarize(&limiter.key("a").try_acquire(1, Duration::from_micros(1)).await)));
    lines.push(format!("wait {}", summarize(limiter.key("a").reserve(1, max_wait).await.decision())));

    let reserved = limiter.key("b").reserve(2, Duration::ZERO).await;
    lines.push(format!("reserve {}", summarize(reserved.decision())));
    reserved.cancel().await;
    lines.push(format!("cancelled {}", summarize(&limiter.key("b").peek(1).await)));
    limiter.key("b").reserve(1, Duration::ZERO).await.keep();
    lines.push(format!("charged {}", summarize(&limiter.key("b").peek(1).await)));
    limiter.key("c").reserve(3, Duration::ZERO).await.commit(1).await;
    lines.push(format!("less {}", summarize(&limiter.key("c").peek(1).await)));
    limiter.key("d").reserve(1, Duration::ZERO).await.commit(3).await;
    lines.push(format!("more {}", summarize(&limiter.key("d").peek(1).await)));

    lines.push(format!("credit {}", summarize(&limiter.key("e").check_with_overdraft(20).await)));
    lines.push(format!("in debt {}", summarize(&limiter.decide("e", 1).await)));
    limiter.key("e").reset().await.unwrap();
    lines.push(format!("reset {}", summarize(&limiter.key("e").peek(1).await)));
    lines.push(format!("acquire {}", summarize(&limiter.key("e").acquire(1).await)));
    lines
}

#[tokio::test]
async fn answers_match_memory() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    for (index, quota) in ALGORITHMS.into_iter().enumerate() {
        let name = format!("rule-{index}");
        let memory = record_transcript(&Limiter::builder().name(&name).build(quota).unwrap()).await;
        let redis = build_limiter(&store, &name, quota);
        assert_eq!(record_transcript(&redis).await, memory, "{quota}");
        assert_eq!(redis.degraded_count(), 0);
    }
    for key in matching_keys(&server, "*") {
        let is_total = key.contains(&format!("rule-{}", ALGORITHMS.len() - 1));
        assert_eq!(integer_reply(&server, &["PTTL", &key]) > 0, !is_total, "{key}");
    }
    assert_eq!(store.last_error(), None);
}

/// A key expires no earlier than its state resets and at most two seconds later, whether it is created, written in place
/// or given a new TTL.
#[tokio::test]
async fn key_expiry_follows_reset_time() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let all = ["1000/s burst 5000", "7/s burst 1000", "100000/s burst 5000", "1000000000/s burst 5000000000"];
    let mut rules: Vec<Vec<Quota>> = all.iter().map(|quota| vec![quota.parse().unwrap()]).collect();
    rules.push(rules.concat());
    rules.push(vec!["1000/s sliding-window".parse().unwrap()]);
    for (index, quotas) in rules.iter().enumerate() {
        let name = format!("rule-{index}");
        let limiter = Limiter::builder().name(&name).store(store.clone()).build_all(quotas).unwrap();
        for cost in [1, 1, 1, 1, 500, 1, 1, 250, 1, 1] {
            let before = server_time(&server);
            let decision = limiter.decide("key", cost).await;
            assert!(decision.is_allowed() && !decision.is_degraded());
            let last = limiter.key("key").peek(0).await.reset_after();
            let after = server_time(&server);
            let expires_at = integer_reply(&server, &["PEXPIRETIME", &format!("tidegate:{{{name}:key}}:1")])
                as u64
                * 1_000;
            let (earliest, latest) = (before + last.get(), after + decision.reset_after().get() + 2_001_000);
            assert!(
                (earliest..=latest).contains(&expires_at),
                "{quotas:?}: {expires_at} is not in {earliest}..={latest}"
            );
        }
    }
    assert!(count_calls(&server, "setrange") > 0, "no key was written in place");
}

/// Neither the state of a total nor the text of its quota expires: otherwise a key would get its total again.
#[tokio::test]
async fn total_never_expires() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let limiter = build_limiter(&store, "trial", "3 total");
    let ttls = || {
        let keys = matching_keys(&server, "tidegate:*");
        keys.iter().map(|key| integer_reply(&server, &["PTTL", key])).collect::<Vec<_>>()
    };
    assert_eq!(summarize(&limiter.decide("a", 2).await), "allow 1 of 3");
    assert_eq!(ttls(), [-1, -1]);
    let reserved = limiter.key("a").reserve(1, Duration::ZERO).await;
    assert_eq!(limiter.decide("a", 1).await.retry_after(), None);
    reserved.cancel().await;
    assert_eq!(summarize(&limiter.key("a").peek(1).await), "allow 1 of 3");

    // Another process with another total, a long time after the first one has ended.
    let other = build_limiter(&connect_store(&server.url()).await, "trial", "4 total");
    assert_eq!(summarize(&other.decide("a", 2).await), "allow 0 of 4");
    limiter.key("a").reset().await.unwrap();
    assert_eq!(summarize(&limiter.decide("a", 3).await), "allow 0 of 3");
    assert_eq!(ttls(), [-1, -1, -1]);
    // A refund of all of it leaves an unused key, which needs no memory; this one was reset, so it stays.
    limiter.key("b").reserve(3, Duration::ZERO).await.cancel().await;
    assert_eq!(matching_keys(&server, "tidegate:{*"), ["tidegate:{trial:a}:1"]);
}

/// A total that another quota has replaced is stored for thirty days; a total that returns within them finds what is used.
#[tokio::test]
async fn replaced_total_expires_after_thirty_days() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let total = build_limiter(&store, "trial", "3 total");
    let rate = build_limiter(&store, "trial", "9/min");
    for (key, is_reset) in [("a", false), ("b", true)] {
        let name = format!("tidegate:{{trial:{key}}}:1");
        let ttl = || integer_reply(&server, &["PTTL", &name]);
        assert_eq!(summarize(&total.decide(key, 2).await), "allow 1 of 3");
        if is_reset {
            total.key(key).reset().await.unwrap();
        }
        assert_eq!(ttl(), -1, "{key}");
        assert_eq!(summarize(&rate.decide(key, 1).await), "allow 8 of 9");
        let days = 30 * 86_400_000;
        assert!((days - 60_000..=days + 60_000).contains(&ttl()), "{key}: {}", ttl());
        rate.key(key).reserve(1, Duration::ZERO).await.cancel().await;
        assert!((days - 60_000..=days + 60_000).contains(&ttl()), "{key}: {}", ttl());
        // The total is in force again.
        let expected = if is_reset { "allow 2 of 3" } else { "allow 0 of 3" };
        assert_eq!(summarize(&total.decide(key, 1).await), expected, "{key}");
        assert_eq!(ttl(), -1, "{key}");
        // A denial by the total writes nothing, but the key is permanent again.
        assert_eq!(summarize(&rate.decide(key, 1).await), "allow 7 of 9", "{key}");
        assert!((days - 60_000..=days + 60_000).contains(&ttl()), "{key}: {}", ttl());
        assert_eq!(total.key(key).peek(4).await.remaining(), if is_reset { 2 } else { 0 }, "{key}");
        assert!(ttl() > 0, "{key}: a peek changes nothing");
        assert!(!total.decide(key, 4).await.is_granted(), "{key}");
        assert_eq!(ttl(), -1, "{key}");
        rate.key(key).reset().await.unwrap();
        assert!((days - 60_000..=days + 60_000).contains(&ttl()), "{key}: {}", ttl());
    }
}

/// A denial by a total that has returned is no error, and is not written, on a server without memory.
#[tokio::test]
async fn denial_by_returned_total_needs_no_memory() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let total = build_limiter(&store, "trial", "1 total");
    let rate = build_limiter(&store, "trial", "9/min");
    assert_eq!(summarize(&total.decide("a", 1).await), "allow 0 of 1");
    assert_eq!(summarize(&rate.decide("a", 1).await), "allow 8 of 9");
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let denied = total.decide("a", 1).await;
    assert!(!denied.is_granted() && !denied.is_degraded(), "{denied:?}");
    assert_eq!(integer_reply(&server, &["PTTL", "tidegate:{trial:a}:1"]), -1);
}

/// The server's clock, in microseconds.
fn server_time(server: &RedisServer) -> u64 {
    let reply = server.command(&["TIME"]).unwrap();
    let part = |index: usize| reply.items()[index].text().unwrap().parse::<u64>().unwrap();
    part(0) * 1_000_000 + part(1)
}

#[tokio::test]
async fn several_quotas_are_charged_together_or_not_at_all() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let quotas: Vec<Quota> = ["5 per 52w", "2 per 52w sliding-log", "9 per 52w fixed-window from-first-hit"]
        .map(|quota| quota.parse().unwrap())
        .to_vec();
    let memory = Limiter::builder().name("all").build_all(&quotas).unwrap();
    let redis = Limiter::builder().name("all").store(store).build_all(&quotas).unwrap();
    for limiter in [&memory, &redis] {
        assert_eq!(summarize(&limiter.decide("a", 1).await), "allow 1 of 2");
        assert_eq!(summarize(&limiter.decide("a", 3).await), "never 1 of 2");
        assert_eq!(summarize(&limiter.decide("a", 1).await), "allow 0 of 2");
        let denied = limiter.decide("a", 1).await;
        assert_eq!((summarize(&denied), denied.quota()), ("deny 0 of 2".to_owned(), 1));
    }
    // If the denied checks were charged to the first quota, it would have no tokens left.
    let wider: Vec<Quota> = ["5 per 52w", "9 per 52w sliding-log", "9 per 52w fixed-window from-first-hit"]
        .map(|quota| quota.parse().unwrap())
        .to_vec();
    redis.change_all(&wider, CarryOver::Keep).unwrap();
    assert_eq!(redis.key("a").peek(1).await.remaining(), 3);
    assert!(redis.change_all(&wider[..2], CarryOver::Keep).is_err());
}

#[tokio::test]
async fn dropped_reservation_is_refunded() {
    let server = RedisServer::start().unwrap();
    let limiter = build_limiter(&connect_store(&server.url()).await, "drop", FIVE_PER_YEAR);
    let reserved = limiter.key("a").reserve(5, Duration::ZERO).await;
    assert!(reserved.decision().is_allowed());
    assert!(!limiter.decide("a", 1).await.is_granted());
    drop(reserved);
    poll_until("it is refunded", async || limiter.key("a").peek(1).await.remaining() == 5).await;
}

#[tokio::test]
async fn acquire_waits_for_tokens() {
    let server = RedisServer::start().unwrap();
    let limiter = build_limiter(&connect_store(&server.url()).await, "wait", "50/s burst 1");
    for _ in 0..5 {
        assert!(limiter.key("a").acquire(1).await.is_granted());
        assert!(limiter.key("a").try_acquire(1, LONG_DEADLINE).await.is_granted());
    }
    assert_eq!(limiter.degraded_count(), 0);
}

#[tokio::test]
async fn permit_is_released_on_drop() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let limiter = build_limiter(&store, "slots", "2 at once");
    assert_eq!(limiter.quotas()[0].to_string(), "2 at once lease 30s");
    let (first, second) = (limiter.key("a").permit().await, limiter.key("a").permit().await);
    assert!(first.decision().is_allowed() && second.decision().is_allowed());
    assert_eq!(summarize(limiter.key("a").permit().await.decision()), "full 0 of 2");
    assert_eq!(summarize(&limiter.decide("a", 1).await), "full 0 of 2");
    drop(first);
    poll_until("the slot is free", async || limiter.key("a").permit().await.decision().is_allowed()).await;
    drop(second);
    poll_until("both are free", async || limiter.key("a").peek(2).await.is_allowed()).await;
    assert_eq!(matching_keys(&server, "tidegate:{*"), [""; 0]);
}

#[tokio::test]
async fn permit_lease_is_renewed() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let limiter = build_limiter(&store, "renewed", "1 at once lease 2s");
    let permit = limiter.key("a").permit().await;
    let key = &matching_keys(&server, "tidegate:{*")[0];
    // Every renewal extends the TTL of the key.
    let expires_at = || integer_reply(&server, &["PEXPIRETIME", key]);
    let first = expires_at();
    poll_until("the lease was renewed twice", async || expires_at() >= first + 1_000).await;
    assert!(!permit.is_lost());
    assert!(!limiter.key("a").permit().await.decision().is_granted());
}

#[tokio::test]
async fn permit_lease_is_renewed_with_other_quotas() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    for quotas in [["9 per 52w", "1 at once lease 2s"], ["1 at once lease 2s", "9 per 52w"]] {
        let name = quotas[0].replace(' ', "-");
        let quotas = quotas.map(|quota| quota.parse::<Quota>().unwrap());
        let limiter = Limiter::builder().name(&name).store(store.clone()).build_all(&quotas).unwrap();
        let permit = limiter.key("a").permit().await;
        assert!(permit.decision().is_allowed());
        // Only renewals write here.
        let calls = || count_calls(&server, "psetex");
        let before = calls();
        poll_until("it was renewed twice", async || calls() >= before + 2).await;
        assert!(!permit.is_lost(), "{quotas:?}");
        assert!(!limiter.key("a").permit().await.decision().is_granted(), "{quotas:?}");
        drop(permit);
        poll_until("the slot is free", async || limiter.key("a").peek(1).await.is_allowed()).await;
        for _ in 0..8 {
            assert!(limiter.decide("a", 1).await.is_allowed(), "{quotas:?}");
        }
        assert!(!limiter.decide("a", 1).await.is_allowed(), "{quotas:?}: a renewal reset the usage");
    }
}

#[test]
fn lease_of_dead_holder_expires() {
    let server = RedisServer::start().unwrap();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let process = runtime();
    process.block_on(async {
        let limiter = build_limiter(&connect_store(&server.url()).await, "dead", "2 at once lease 400ms");
        // Like a killed process, without a release.
        std::mem::forget((limiter.key("a").permit().await, limiter.key("a").permit().await));
        std::mem::forget(limiter);
    });
    process.shutdown_background();

    runtime().block_on(async {
        let limiter = build_limiter(&connect_store(&server.url()).await, "dead", "2 at once lease 400ms");
        poll_until("the slots are free", async || limiter.key("a").peek(2).await.is_allowed()).await;
        assert!(limiter.key("a").permit().await.decision().is_allowed());
    });
}

#[tokio::test]
async fn quota_change_keeps_usage() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    for (carry_over, left) in [(CarryOver::Keep, 17), (CarryOver::Reset, 20)] {
        let memory = Limiter::builder().name("change").build(FIVE_PER_YEAR).unwrap();
        let redis = build_limiter(&store, &format!("change-{carry_over:?}"), FIVE_PER_YEAR);
        for limiter in [&memory, &redis] {
            limiter.decide("a", 3).await;
            limiter.change_all(&["20 per 52w".parse().unwrap()], carry_over).unwrap();
            assert_eq!(limiter.key("a").peek(1).await.remaining(), left, "{carry_over:?} {limiter:?}");
            assert_eq!(summarize(&limiter.decide("a", 1).await), format!("allow {} of 20", left - 1));
        }
    }
}

/// Two stores stand for two processes: they share only the server.
#[tokio::test]
async fn processes_with_different_quotas_share_state() {
    let server = RedisServer::start().unwrap();
    let (old, new) = (connect_store(&server.url()).await, connect_store(&server.url()).await);
    let (old, new) = (build_limiter(&old, "login", FIVE_PER_YEAR), build_limiter(&new, "login", "8 per 52w"));
    assert_eq!(summarize(&old.decide("a", 1).await), "allow 4 of 5");
    assert_eq!(summarize(&new.decide("a", 1).await), "allow 6 of 8");
    assert_eq!(summarize(&old.decide("a", 1).await), "allow 2 of 5");
    assert_eq!(summarize(&new.decide("a", 5).await), "allow 0 of 8");
    assert!(!old.decide("a", 1).await.is_granted());
    assert!(!new.decide("a", 1).await.is_granted());

    // Different algorithms have separate states, so neither denies because of the other.
    let log = build_limiter(&connect_store(&server.url()).await, "login", "5 per 52w sliding-log");
    assert_eq!(summarize(&log.decide("b", 1).await), "allow 4 of 5");
    assert_eq!(summarize(&old.decide("b", 1).await), "allow 4 of 5");
    assert_eq!(summarize(&log.decide("b", 1).await), "allow 3 of 5");
    assert_eq!(summarize(&old.decide("b", 1).await), "allow 3 of 5");
    assert_eq!(old.degraded_count() + new.degraded_count() + log.degraded_count(), 0);
}

/// With few quotas each process has its own state; with more quotas than a key has entries, they share states.
#[tokio::test]
async fn carry_over_reset_is_per_process() {
    let server = RedisServer::start().unwrap();
    let stores = [connect_store(&server.url()).await, connect_store(&server.url()).await];
    for (count, algorithm) in
        [(2, ""), (2, " fixed-window"), (9, " sliding-log"), (14, ""), (14, " fixed-window")]
    {
        let quotas: Vec<Quota> =
            (3..3 + count).map(|limit| format!("{limit} per 52w{algorithm}").parse().unwrap()).collect();
        let build = |(index, quota): (usize, &Quota)| {
            let builder = Limiter::builder().name(&format!("reset-{count}{algorithm}"));
            builder.store(stores[index % 2].clone()).carry_over(CarryOver::Reset).build(*quota).unwrap()
        };
        let nodes: Vec<_> = quotas.iter().enumerate().map(build).collect();
        let (mut model, now, mut admitted) = (StateEntries::new(), Micros::from_secs(1_000), 0);
        for step in 0..300 {
            let (node, quota) = (&nodes[step % nodes.len()], quotas[step % nodes.len()]);
            let expected = model.decide(&[quota], CarryOver::Reset, now, Demand::new(1)).remove(0).decision;
            let decision = node.decide("a", 1).await;
            assert_eq!(summarize(&decision), summarize(&expected), "{quota}, step {step}");
            admitted += u64::from(decision.is_allowed());
        }
        let sum: u64 = quotas.iter().map(Quota::limit).sum();
        assert!(admitted <= sum.min(9 * (2 + count)), "{count} of {algorithm}: {admitted} of {sum}");
        assert_eq!(nodes.iter().map(Limiter::degraded_count).sum::<u64>(), 0);
    }
}

#[tokio::test]
async fn different_quotas_recover_after_flush() {
    let server = RedisServer::start().unwrap();
    let (old, new) = (connect_store(&server.url()).await, connect_store(&server.url()).await);
    let (old, new) = (build_limiter(&old, "login", FIVE_PER_YEAR), build_limiter(&new, "login", "8 per 52w"));
    assert!(old.decide("a", 1).await.is_allowed() && new.decide("b", 1).await.is_allowed());
    server.command(&["FLUSHALL"]).unwrap();
    // The quota that wrote the state is unknown; decisions do not fail.
    assert_eq!(summarize(&old.decide("a", 1).await), "allow 4 of 5");
    assert_eq!(summarize(&new.decide("a", 1).await), "allow 7 of 8");
    // Once the quotas are announced again, the states are shared again.
    let again = build_limiter(&connect_store(&server.url()).await, "login", FIVE_PER_YEAR);
    let anew = build_limiter(&connect_store(&server.url()).await, "login", "8 per 52w");
    assert!(again.decide("c", 1).await.is_allowed() && anew.decide("d", 1).await.is_allowed());
    assert_eq!(summarize(&old.decide("a", 1).await), "allow 3 of 5");
    assert_eq!(summarize(&new.decide("a", 1).await), "allow 5 of 8");
    assert_eq!(old.degraded_count() + new.degraded_count(), 0);
}

#[tokio::test]
async fn any_text_is_a_valid_key() {
    let server = RedisServer::start().unwrap();
    let limiter = build_limiter(&connect_store(&server.url()).await, "keys", FIVE_PER_YEAR);
    let long = "k".repeat(10_000);
    let longer = format!("{long}k");
    let names = ["", " ", "{", "}", "{}", "a}b{c", "*", "\r\n", "\0", "ключ 🗝", "a:b", "#1", &long, &longer];
    for name in names {
        assert_eq!(summarize(&limiter.decide(name, 2).await), "allow 3 of 5", "{name:?}");
        assert_eq!(summarize(&limiter.decide(name, 2).await), "allow 1 of 5", "{name:?}");
    }
    let written = matching_keys(&server, "tidegate:{*");
    assert_eq!(written.len(), names.len());
    assert!(written.iter().all(|key| key.len() < 300));
    // A key equal to the hash of a long key does not share its state.
    let hash = written.iter().find_map(|key| key.strip_prefix("tidegate:{keys:#")?.strip_suffix("}:1"));
    for key in written.iter().filter(|key| key.contains('#')) {
        let name = &key["tidegate:{keys:".len()..key.len() - "}:1".len()];
        if name.len() > 10 {
            assert_eq!(limiter.key(name).peek(1).await.remaining(), 5, "{name} is {hash:?}");
        }
    }
}

#[tokio::test]
async fn key_names_are_as_documented() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let plain = build_limiter(&store, "login", FIVE_PER_YEAR);
    plain.decide("alice", 1).await;
    assert_eq!(matching_keys(&server, "tidegate:{*"), ["tidegate:{login:alice}:1"]);
    let tag = FIVE_PER_YEAR.parse::<Quota>().unwrap().tag();
    assert_eq!(matching_keys(&server, "tidegate:q*"), [format!("tidegate:quota:login:{tag:04x}")]);

    let other =
        RedisStore::builder().prefix("acme").deadline(LONG_DEADLINE).connect(&server.url()).await.unwrap();
    let other = build_limiter(&other, "login", FIVE_PER_YEAR);
    assert_eq!(summarize(&other.decide("alice", 1).await), "allow 4 of 5");
    assert_eq!(matching_keys(&server, "acme:{*"), ["acme:{login:alice}:1"]);
    assert_eq!(summarize(&plain.decide("alice", 1).await), "allow 3 of 5");
}

#[tokio::test]
async fn unused_state_is_not_stored() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    for (index, quota) in ALGORITHMS.into_iter().enumerate() {
        let limiter = build_limiter(&store, &format!("idle-{index}"), quota);
        limiter.key("a").peek(1).await;
        limiter.key("a").reset().await.unwrap();
        // Shapers grant any cost to a new key.
        if !quota.contains("smooth") && !quota.contains("warm-up") {
            limiter.decide("a", 1_000).await;
        }
        assert_eq!(matching_keys(&server, "tidegate:{*"), [""; 0], "{quota}");
    }
    for quota in ["1000/s burst 5", "200/s sliding-log", "50/s fixed-window", "100/s sliding-strict 4"] {
        let limiter = build_limiter(&store, quota, quota);
        assert!(limiter.decide("a", 5).await.is_allowed());
        poll_until("the key is gone", async || matching_keys(&server, "tidegate:{*").is_empty()).await;
    }
    let limiter = build_limiter(&store, "cancelled", FIVE_PER_YEAR);
    limiter.key("a").reserve(5, Duration::ZERO).await.cancel().await;
    poll_until("the key is gone", async || matching_keys(&server, "tidegate:{*").is_empty()).await;
}

#[tokio::test]
async fn queued_permits_follow_priority_and_deadline() {
    let server = RedisServer::start().unwrap();
    let store = connect_store(&server.url()).await;
    let near = Arc::new(build_limiter(&store, "line", "1 at once"));
    let far = build_limiter(&store, "line", "1 at once");

    // A deadline that passes, and a cost above the limit.
    let permit = far.key("a").permit().await;
    let hurried = Waiter::new(1).deadline(Duration::from_millis(20));
    assert_eq!(near.key("a").permit_queued(hurried).await.unwrap_err(), WaitError::DeadlineExceeded);
    assert_eq!(near.key("a").permit_queued(Waiter::new(2)).await.unwrap_err(), WaitError::ExceedsLimit);

    // A release by another process is found by polling; waiters of this process are served by priority.
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for priority in [0, 9, 5] {
        let (limiter, order) = (near.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let waiter = Waiter::new(1).priority(WaitPriority(priority));
            let permit = limiter.key("a").permit_queued(waiter).await.unwrap();
            assert!(permit.decision().is_allowed());
            order.lock().unwrap().push(priority);
        }));
        tokio::task::yield_now().await;
    }
    // Wait until all are queued, and the checks of those that were first only temporarily have their reply.
    let calls = count_calls(&server, "evalsha");
    poll_until("the first waiter polls", async || count_calls(&server, "evalsha") >= calls + 4).await;
    drop(permit);
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(*order.lock().unwrap(), [9, 5, 0]);
    // The queue is empty, and the slot is free.
    poll_until("the slot is free", async || far.key("a").permit().await.decision().is_allowed()).await;
}

#[test]
fn bound_store_serves_other_runtimes() {
    let server = RedisServer::start().unwrap();
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let main_runtime = runtime();
    let store = RedisStore::builder().bind_to_runtime().deadline(Duration::from_secs(10));
    let store = main_runtime.block_on(store.connect(&server.url())).unwrap();
    let limiter = Limiter::builder().name("resident").store(store).build("10 per 1h").unwrap();
    let limiter = Arc::new(limiter);
    // A runtime without timers, which ends after the call.
    let other_runtime = || tokio::runtime::Builder::new_current_thread().build().unwrap();
    for left in [9, 8] {
        let decision = other_runtime().block_on(limiter.decide("a", 1));
        assert!(decision.is_allowed() && !decision.is_degraded());
        assert_eq!(decision.remaining(), left);
    }
    // Many concurrent calls from several threads.
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let limiter = limiter.clone();
            thread::spawn(move || {
                let runtime = other_runtime();
                runtime.block_on(async {
                    let calls: Vec<_> = (0..8).map(|_| tokio::spawn(is_admitted(limiter.clone()))).collect();
                    let mut admitted = 0;
                    for one in calls {
                        admitted += u64::from(one.await.unwrap());
                    }
                    admitted
                })
            })
        })
        .collect();
    assert_eq!(threads.into_iter().map(|one| one.join().unwrap()).sum::<u64>(), 8);
}

async fn is_admitted(limiter: Arc<Limiter>) -> bool {
    limiter.decide("a", 1).await.is_allowed()
}
