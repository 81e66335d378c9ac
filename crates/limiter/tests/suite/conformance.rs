//! The store conformance kit on the memory store: on a key, and on a throttle.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::common::{Home, Memory};
use tidegate_testkit::conformance::{self, Permits};

#[test]
fn a_key_in_memory_conforms() {
    conformance::check(64, Permits::Held, |quota| Memory::new(Home::Key, quota));
}
