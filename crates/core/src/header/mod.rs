//! The HTTP rate limit headers: written for clients, and parsed from servers.
//!
//! | header | value |
//! |---|---|
//! | `Retry-After` | whole seconds, rounded up, never zero |
//! | `RateLimit-Policy` | the quotas: `"login";q=5;w=60`; see [`PolicyField::policy`] |
//! | `RateLimit` | the remaining amounts: `"login";r=3;t=12`; see [`PolicyField::remaining`] |
//!
//! The last two follow draft-ietf-httpapi-ratelimit-headers-10, whose values are lists of strings as in RFC 9651.

mod parse;
mod policy_field;
mod small_string;

pub use parse::{RateLimitItems, parse_items, parse_rate_limit, parse_seconds};
pub use policy_field::{CostUnit, PolicyField};
pub use small_string::SmallString;

use crate::{decision::Decision, units::Micros};
use core::fmt;

/// The largest integer in a structured field: fifteen digits.
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

/// The remaining amount of a quota, as in a `RateLimit` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// The amount that can be granted now.
    pub remaining: u64,
    /// The seconds until more can be granted; `None` if the quota is full or time alone changes nothing.
    pub refill_after: Option<u64>,
}

impl Remaining {
    /// Returns the one with the smaller amount or, if equal, the longer time.
    #[must_use]
    pub fn more_restrictive(self, other: Self) -> Self {
        let is_tighter = |a: Self, b: Self| {
            a.remaining < b.remaining || a.remaining == b.remaining && a.refill_after > b.refill_after
        };
        if is_tighter(other, self) { other } else { self }
    }
}

/// Rounds a wait up to whole seconds, at least one, so that a client that waits that long never retries too early.
///
/// ```
/// use tidegate_core::{Micros, header::ceil_seconds};
///
/// assert_eq!(ceil_seconds(Micros::ZERO), 1);
/// assert_eq!(ceil_seconds(Micros::from_secs(2)), 2);
/// assert_eq!(ceil_seconds(Micros::from_millis(2_001)), 3);
/// ```
pub fn ceil_seconds(wait: Micros) -> u64 {
    wait.get().div_ceil(1_000_000).max(1)
}

/// The value of `Retry-After`; `None` if there is nothing to retry, or time alone changes nothing.
pub fn retry_after(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(ceil_seconds)
}

/// Writes a number without `core::fmt`, which costs more than the remaining parts of a header.
pub fn write_number(out: &mut impl fmt::Write, number: u64) -> fmt::Result {
    // Most numbers are short and need at most two writes.
    let pair = |number: usize| 2 * number..2 * number + 2;
    match usize::try_from(number) {
        Ok(number @ 0..10) => out.write_str(&DIGIT_PAIRS[pair(number)][1..]),
        Ok(number @ 10..100) => out.write_str(&DIGIT_PAIRS[pair(number)]),
        Ok(number @ 100..10_000) => {
            write_number(out, number as u64 / 100)?;
            out.write_str(&DIGIT_PAIRS[pair(number % 100)])
        }
        _ => write!(out, "{number}"),
    }
}

/// All pairs of digits.
const DIGIT_PAIRS: &str = "00010203040506070809101112131415161718192021222324252627282930313233343536373839404142434445464748495051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899";
