// The generated code causes no warnings.

#![deny(
    warnings,
    unused,
    missing_docs,
    unreachable_code,
    future_incompatible,
    let_underscore,
    nonstandard_style
)]
#![allow(dead_code)]
#![forbid(unsafe_code)]

//! A crate.

use tidegate::{CallOutcome, Limited, breaker, concurrency, limit};

/// Documented.
#[limit("10/s", key = id)]
#[concurrency(3)]
#[breaker]
#[inline]
#[must_use = "as before"]
pub fn all(id: u64) -> Result<u64, Limited> {
    Ok(id)
}

/// Documented.
#[breaker(classify = |_| CallOutcome::Success, on_limit = other)]
#[limit("10/s", on_limit = other)]
pub async fn nothing(mut ids: Vec<u64>, _: u8) {
    #![allow(unused_assignments)]
    let mut last = 0;
    last = 1;
    ids.push(last);
}

async fn other(_: Vec<u64>, _: u8) {}

/// Documented.
#[limit("10/s", key = *name, cost = if name.is_empty() { 1 } else { 5 })]
pub fn borrowed(name: &str) -> Result<&str, Limited> {
    const FROM: usize = 0;
    fn cut(name: &str) -> &str {
        &name[FROM..]
    }
    Ok(cut(name))
}

fn main() {}
