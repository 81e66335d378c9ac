//! What HTTP headers say of quotas: text that is written for clients, and read from servers.
//!
//! | header | says |
//! |---|---|
//! | `Retry-After` | whole seconds, rounded up, never zero |
//! | `RateLimit-Policy` | the quotas that apply: `"login";q=5;w=60`; see [`PolicyField::policy`] |
//! | `RateLimit` | what is left of them: `"login";r=3;t=12`; see [`PolicyField::remaining`] |
//!
//! The last two follow draft-ietf-httpapi-ratelimit-headers-10, whose values are lists of strings as in RFC 9651.

mod parse;
mod policy_field;
mod small_string;

pub use parse::{RateLimitItems, parse_items, parse_rate_limit, parse_seconds};
pub use policy_field::PolicyField;
pub use small_string::SmallString;

use crate::{decision::Decision, units::Micros};
use core::fmt;

/// The largest number that a structured field may hold: fifteen digits.
pub const MAX_INTEGER: u64 = 999_999_999_999_999;

/// What is left of a quota, as a header tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remaining {
    /// How much could be granted now.
    pub remaining: u64,
    /// The seconds until there is more; `None` if time alone does not bring it, or nothing is missing.
    pub refill_after: Option<u64>,
}

impl Remaining {
    /// The one that leaves less; of two that leave the same, the one that takes longer.
    #[must_use]
    pub fn more_restrictive(self, other: Self) -> Self {
        let is_tighter = |a: Self, b: Self| {
            a.remaining < b.remaining || a.remaining == b.remaining && a.refill_after > b.refill_after
        };
        if is_tighter(other, self) { other } else { self }
    }
}

/// A wait in whole seconds: rounded up, and never zero, so that whoever waits that long has waited long enough.
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

/// What `Retry-After` says of a decision; `None` where there is nothing to retry, or time alone does not help.
pub fn retry_after(decision: &Decision) -> Option<u64> {
    decision.retry_after().map(ceil_seconds)
}

/// Writes a number without the machinery of formatting, which would cost more than the rest of a header.
pub fn write_number(out: &mut impl fmt::Write, number: u64) -> fmt::Result {
    // Most are short, and then nothing has to be put together.
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
