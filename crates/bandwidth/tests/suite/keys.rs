//! The keys of a keyed bandwidth: which are stored, and what happens when the table is full.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::transfers::{EVEN_STEPS, EndlessStream, Transfer, run_transfers};
use std::{thread, time::Duration};
use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
use tidegate_limiter::{Capacity, Clock, Overflow};
use tidegate_testkit::test_task::TestTask;
use tokio::io::AsyncReadExt;

/// The holder of the bandwidth of a key, which may have its own rate, shares it with later callers.
#[test]
fn key_is_retained_while_its_bandwidth_is_in_use() {
    let per_user = KeyedBandwidth::new("100kB/s").unwrap();
    let alice = per_user.key("alice");
    alice.change("1MB/s").unwrap();
    (0..1_000_u32).for_each(|user| drop(per_user.key(&user)));
    assert!(per_user.key_count() < 200);
    assert_eq!(per_user.key("alice").quota(), alice.quota());
}

#[test]
fn streams_of_one_key_share_its_rate() {
    let (clock, manual_clock) = Clock::manual();
    let per_user = Bandwidth::builder().clock(clock.clone()).build_keyed("100kB/s").unwrap();
    let reads = |user: &str| {
        Transfer::read_from(per_user.key(user).limit_reads(EndlessStream { chunk: 1 << 16 }), 1 << 16)
    };
    let mut movers = [reads("alice"), reads("alice"), reads("alice"), reads("bob")];
    run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 10);
    let moved = movers.each_ref().map(|mover| mover.bytes_moved() / 10_000);
    assert_eq!(moved, [33, 33, 33, 100]);

    per_user.change("1MB/s").unwrap();
    let mut changed = [reads("bob"), reads("carol")];
    drop(movers);
    run_transfers(&mut changed, &manual_clock, &clock, EVEN_STEPS, 10);
    assert_eq!(changed.each_ref().map(|mover| mover.bytes_moved() / 100_000), [100, 100]);
}

#[test]
fn key_is_retained_while_in_debt() {
    let (clock, manual_clock) = Clock::manual();
    let per_user: KeyedBandwidth = Bandwidth::builder().clock(clock).build_keyed("100kB/s").unwrap();
    let read_once = |user: u32| {
        let mut stream = per_user.key(&user).limit_reads(EndlessStream { chunk: 1 << 16 });
        TestTask::new(async { stream.read(&mut [0; 400]).await.unwrap() }).take_output()
    };
    for user in 0..10_000 {
        assert_eq!(read_once(user), Some(400));
        manual_clock.advance(Duration::from_micros(100));
        // Each has a debt of 4 ms, in which 40 keys are added. Keys are removed with the next new keys of their shard, so the
        // number varies with their hashes.
        assert!(per_user.key_count() <= 400, "{} keys are stored", per_user.key_count());
    }
    assert_eq!(read_once(1), Some(400));
    assert_eq!((read_once(1), read_once(1)), (Some(400), None));
}

/// Reads 400 bytes for a key, if its rate allows them now.
fn read_once(keys: &KeyedBandwidth, key: u32) -> Option<usize> {
    let mut stream = keys.key(&key).limit_reads(EndlessStream { chunk: 1 << 16 });
    TestTask::new(async { stream.read(&mut [0; 400]).await.unwrap() }).take_output()
}

#[test]
fn key_flood_is_bounded_by_capacity() {
    for (overflow, capacity) in [
        (Overflow::Replace, 100),
        (Overflow::Share, 100),
        (Overflow::Deny, 100),
        (Overflow::Replace, 5_000),
        (Overflow::Share, 5_000),
    ] {
        let (clock, manual_clock) = Clock::manual();
        let builder = Bandwidth::builder().clock(clock).capacity(Capacity::Keys(capacity)).overflow(overflow);
        let keys = builder.build_keyed("100kB/s").unwrap();
        for key in 0..20_000 {
            read_once(&keys, key);
            assert!(keys.key_count() as u64 <= capacity, "{} keys, {overflow:?}", keys.key_count());
        }
        let stored = keys.key_count() as u64;
        assert!(stored * 10 >= capacity * 9, "{stored} of {capacity} keys, {overflow:?}");
        // Idle keys are removed as others come.
        manual_clock.advance(Duration::from_secs(1));
        for key in 0..20_000 {
            drop(keys.key(&(key % 10)));
            drop(keys.key(&(1_000_000 + key)));
        }
        assert!(keys.key_count() < 64, "{} keys, {overflow:?}", keys.key_count());
    }
}

#[test]
fn default_capacity_bounds_memory() {
    let keys = Bandwidth::builder().clock(Clock::manual().0).build_keyed("1kB/s").unwrap();
    for key in 0..300_000_u32 {
        read_once(&keys, key);
    }
    // 64 MiB of keys of several hundred bytes.
    assert!((50_000..200_000).contains(&keys.key_count()), "{} keys", keys.key_count());
}

#[test]
fn replace_overwrites_unused_keys_only() {
    let (clock, _manual_clock) = Clock::manual();
    let builder = Bandwidth::builder().clock(clock).capacity(Capacity::Keys(8));
    let keys = builder.build_keyed("100kB/s").unwrap();
    let used: Vec<_> = (0..4_u32).map(|key| keys.key(&key)).collect();
    used[0].change("1MB/s").unwrap();
    // New keys get their burst: 400 of 900 bytes, twice.
    for key in 100..200 {
        assert_eq!((read_once(&keys, key), read_once(&keys, key)), (Some(400), Some(400)), "key {key}");
    }
    assert_eq!(keys.key(&0_u32).quota(), used[0].quota(), "a key in use keeps its rate");
}

#[test]
fn share_gives_new_keys_one_rate() {
    let (clock, _manual_clock) = Clock::manual();
    for overflow in [Overflow::Share, Overflow::Deny] {
        let builder = Bandwidth::builder().clock(clock.clone()).capacity(Capacity::Keys(8));
        let keys = builder.overflow(overflow).build_keyed("100kB/s").unwrap();
        assert!((0..8).all(|key| read_once(&keys, key).is_some()));
        let passed = (100..200).filter(|key| read_once(&keys, *key).is_some()).count();
        assert_eq!(passed, 2, "100 keys share the burst of one, {overflow:?}");
        // A key with a place of its own has its own rate.
        assert_eq!(read_once(&keys, 3), Some(400));
    }
}

#[test]
fn full_table_of_used_keys_shares_one_rate() {
    let builder = Bandwidth::builder().clock(Clock::manual().0).capacity(Capacity::Keys(8));
    let keys = builder.build_keyed("100kB/s").unwrap();
    let _used: Vec<_> = (0..8_u32).map(|key| keys.key(&key)).collect();
    assert_eq!((100..200).filter(|key| read_once(&keys, *key).is_some()).count(), 2);
    keys.change("1MB/s").unwrap();
    assert_eq!(keys.key(&100_u32).quota().rate().unwrap().amount(), 1_000_000, "the shared rate changes too");
}

#[test]
fn reconfigured_keys_use_the_new_settings() {
    let (clock, manual_clock) = Clock::manual();
    let keys = Bandwidth::builder().clock(clock.clone()).build_keyed("100kB/s").unwrap();
    let known = keys.key(&1);
    let builder = Bandwidth::builder().limit_after(10_000).capacity(Capacity::Keys(3));
    keys.reconfigure(&builder, "200kB/s").unwrap();
    assert_eq!((known.quota(), keys.quota()), ("200kB/s burst 1800B".parse().unwrap(), known.quota()));
    let endless = EndlessStream { chunk: 1 << 16 };
    let mut movers = [Transfer::read_from(known.limit_reads(endless), 1 << 16)];
    assert_eq!(run_transfers(&mut movers, &manual_clock, &clock, EVEN_STEPS, 0), [(0, 10_000 + 1_600)]);
    (0..20).for_each(|key| drop(keys.key(&key).limit_reads(endless)));
    assert!(keys.key_count() <= 3);
    assert!(keys.reconfigure(&builder, "5/s").is_err());
}

#[test]
fn concurrent_threads_keep_the_capacity() {
    let builder = Bandwidth::builder().clock(Clock::manual().0).capacity(Capacity::Keys(2_000));
    let keys = builder.build_keyed("100kB/s").unwrap();
    thread::scope(|scope| {
        for thread in 0..4 {
            let keys = &keys;
            scope.spawn(move || {
                for key in 0..20_000 {
                    read_once(keys, thread * 1_000_000 + key);
                    assert!(keys.key_count() <= 2_000);
                }
            });
        }
    });
}
