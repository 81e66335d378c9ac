//! The store conformance kit on a key of the memory store.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::{LimiterTarget, MemorySubject};
use tidegate_testkit::conformance::{self, PermitLifetime};

#[test]
fn memory_key_conforms() {
    conformance::check(64, PermitLifetime::UntilReleased, |quota| {
        MemorySubject::new(LimiterTarget::Key, quota)
    });
}
