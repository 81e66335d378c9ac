//! The store conformance kit on the memory store: on a key, and on a throttle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::{LimiterTarget, MemorySubject};
use tidegate_testkit::conformance::{self, PermitLifetime};

#[test]
fn memory_key_conforms() {
    conformance::check(64, PermitLifetime::UntilReleased, |quota| {
        MemorySubject::new(LimiterTarget::Key, quota)
    });
}
