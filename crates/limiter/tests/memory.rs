//! Memory stays within the configured bound, and is touched only when a key needs it.
//!
//! In a separate file and serialized: the tests measure the memory of the whole process.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::{
    fs,
    sync::{Mutex, PoisonError},
};
use tidegate_core::CarryOver;
use tidegate_limiter::{Capacity, Clock, Limiter};

const MEBIBYTE: u64 = 1 << 20;

static SERIAL_LOCK: Mutex<()> = Mutex::new(());

/// The resident memory of this process, for pages of at least 4 KiB.
fn resident_bytes() -> u64 {
    let pages = fs::read_to_string("/proc/self/statm").unwrap();
    pages.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 4_096
}

/// Queues without waiters are removed.
#[test]
fn empty_queues_take_no_memory() {
    let _serial = SERIAL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let builder = Limiter::builder().clock(Clock::manual().0).capacity(Capacity::Bytes(MEBIBYTE));
    let limiter = builder.build("100/min").unwrap();
    let before = resident_bytes();
    for key in 0..300_000_u64 {
        assert!(limiter.blocking().key(&key).acquire(0).is_allowed());
    }
    let grown = resident_bytes().saturating_sub(before);
    assert!(grown < 8 * MEBIBYTE, "{} MiB in memory", grown / MEBIBYTE);
}

#[test]
fn quota_change_touches_only_used_cells() {
    let _serial = SERIAL_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    for (quota, other) in [
        ("100/min", "200/min"),
        ("100/min sliding-window", "50/min sliding-window"),
        ("9 at once", "8 at once"),
    ] {
        let before = resident_bytes();
        let builder = Limiter::builder().clock(Clock::manual().0).capacity(Capacity::Bytes(128 * MEBIBYTE));
        let limiter = builder.build(quota).unwrap();
        for key in 0..4_u64 {
            limiter.check(&key);
        }
        for quota in [other, quota, other] {
            limiter.change(quota, CarryOver::Keep).unwrap();
            assert!(limiter.stats().unwrap().bytes > 120 * MEBIBYTE);
        }
        // Four keys are on four pages, which may be 2 MiB each.
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 32 * MEBIBYTE, "{quota}: {} MiB in memory", grown / MEBIBYTE);
    }
}
