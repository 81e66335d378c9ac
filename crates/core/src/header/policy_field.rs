//! A quota in the rate limit headers.

use super::{MAX_INTEGER, Remaining, ceil_seconds, write_number};
use crate::{
    algorithm::AlgorithmKind,
    decision::Decision,
    math::{mul_div_ceil, mul_div_floor},
    quota::{Quota, RateUnit},
    units::Micros,
};
use alloc::{
    format,
    string::{String, ToString as _},
};
use core::fmt::{self, Write as _};

/// A quota in the rate limit headers: its name and its numbers, formatted once and used for every response.
///
/// A client expects an amount to count down from and a time in whole seconds. So `w` is the time that an empty
/// quota needs to fill up, rounded up and at least a second, and `q` is the amount that it grants in that time.
/// For a window these are the limit and the period, for a token bucket the burst and its fill time. The remaining
/// amount is never more than `q`, and `q` per `w` is never faster than the rate.
///
/// ```
/// use tidegate_core::{Quota, header::PolicyField};
///
/// let policy = |quota: &str| Ok::<_, tidegate_core::QuotaError>(PolicyField::new("api", &quota.parse::<Quota>()?));
/// assert_eq!(policy("100/min")?.policy(), r#""api";q=100;w=60"#);
/// assert_eq!(policy("100/min burst 20")?.policy(), r#""api";q=20;w=12"#);
/// assert_eq!(policy("100/s burst 10")?.policy(), r#""api";q=100;w=1"#);
/// assert_eq!(policy("3 at once")?.policy(), r#""api";q=3;qu="concurrent-requests""#);
/// assert_eq!(policy("1000 total")?.policy(), r#""api";q=1000"#);
/// assert_eq!(policy("5MB/s")?.policy(), r#""api";q=5000000;qu="content-bytes";w=1"#);
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyField {
    name: String,
    /// The quoted name, and then the parameters.
    policy: String,
    /// The length of the quoted name.
    name_len: usize,
    limit: u64,
    window: Option<u64>,
    unit: Option<CostUnit>,
}

/// What a quota counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CostUnit {
    /// Requests, each at a cost of one.
    #[default]
    Requests,
    /// Tokens: requests differ in cost.
    Tokens,
}

impl PolicyField {
    /// A field for a quota with this name.
    pub fn new(name: &str, quota: &Quota) -> Self {
        let (most, window) = limit_and_window(quota);
        let mut policy = String::with_capacity(name.len() + 32);
        // Writing to a string does not fail.
        let _ = write_string(&mut policy, name);
        let quoted = policy.len();
        let _ = write_parameters(&mut policy, quota, most, window);
        let unit = quota_unit(quota).is_none().then(CostUnit::default);
        Self { name: name.to_string(), policy, name_len: quoted, limit: most, window, unit }
    }

    /// A field for the quota at `index` of a rule. The first has the name of the rule, the others are `login.2`,
    /// `login.3` and so on, because names in a header must be unique.
    pub fn for_indexed_quota(rule: &str, index: usize, quota: &Quota) -> Self {
        match index {
            0 => Self::new(rule, quota),
            _ => Self::new(&format!("{rule}.{}", index.saturating_add(1)), quota),
        }
    }

    /// Sets what the quota counts. Concurrent requests and bytes remain what they are.
    #[must_use]
    pub fn with_unit(self, unit: CostUnit) -> Self {
        Self { unit: self.unit.map(|_| unit), ..self }
    }

    /// What the quota counts; `None` for concurrent requests and bytes.
    pub fn unit(&self) -> Option<CostUnit> {
        self.unit
    }

    /// The name of the quota.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The item for `RateLimit-Policy`.
    pub fn policy(&self) -> &str {
        &self.policy
    }

    /// The value of `q`: the amount that a client counts down from.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The value of `w`: the seconds in which `q` is granted; `None` for a concurrency limit and a total.
    pub fn window(&self) -> Option<u64> {
        self.window
    }

    /// The remaining amount after a decision. After a denial the time is the retry time, so that it agrees with
    /// `Retry-After`.
    pub fn remaining(&self, decision: &Decision) -> Remaining {
        let more = match decision.is_granted() {
            true => {
                Some(decision.refill_after()).filter(|more| *more != Micros::ZERO && *more != Micros::MAX)
            }
            false => decision.retry_after(),
        };
        Remaining {
            remaining: decision.remaining().min(self.limit),
            refill_after: more.map(|more| ceil_seconds(more).min(MAX_INTEGER)),
        }
    }

    /// Writes the item for `RateLimit`.
    ///
    /// ```
    /// use tidegate_core::{Demand, Micros, Quota, header::{PolicyField, SmallString}};
    ///
    /// let quota: Quota = "100/min burst 20".parse()?;
    /// let decision = quota.decide([0; 2].as_mut_slice(), Micros::ZERO, Demand::new(5)).decision;
    /// let mut text = SmallString::default();
    /// PolicyField::new("api", &quota).write_remaining(&mut text, &decision)?;
    /// assert_eq!(text.as_str(), r#""api";r=15;t=1"#);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn write_remaining(&self, out: &mut impl fmt::Write, decision: &Decision) -> fmt::Result {
        self.write_item(out, self.remaining(decision))
    }

    /// Writes the item for `RateLimit` from computed numbers.
    pub fn write_item(&self, out: &mut impl fmt::Write, left: Remaining) -> fmt::Result {
        self.write_item_with(out, left, |out, number| write_number(out, number))
    }

    /// The same, with a function that writes the numbers: the remaining amount, and then the seconds, if they are known.
    pub fn write_item_with<W: fmt::Write>(
        &self,
        out: &mut W,
        left: Remaining,
        mut write: impl FnMut(&mut W, u64) -> fmt::Result,
    ) -> fmt::Result {
        let Remaining { remaining, refill_after: more_after } = left;
        out.write_str(self.policy.get(..self.name_len).unwrap_or_default())?;
        out.write_str(";r=")?;
        write(out, remaining)?;
        match more_after {
            Some(more) => {
                out.write_str(";t=")?;
                write(out, more)
            }
            None => Ok(()),
        }
    }

    /// Writes `RateLimit-Limit` of draft 03: the limit, then its policy, as in `5, 5;w=60`.
    pub fn write_limit_draft_03(&self, out: &mut impl fmt::Write) -> fmt::Result {
        write_number(out, self.limit)?;
        match self.window {
            Some(window) => {
                out.write_str(", ")?;
                write_number(out, self.limit)?;
                out.write_str(";w=")?;
                write_number(out, window)
            }
            None => Ok(()),
        }
    }
}

/// The values of `q` and `w`.
fn limit_and_window(quota: &Quota) -> (u64, Option<u64>) {
    let Some(rate) = quota.rate() else { return (quota.limit().min(MAX_INTEGER), None) };
    let (amount, period) = (rate.amount().max(1), rate.period().get().max(1));
    let whole = Micros::new(mul_div_ceil(quota.limit(), period, amount));
    let window = ceil_seconds(whole);
    let granted = mul_div_floor(window.saturating_mul(1_000_000), amount, period);
    // The window grants at least the limit, except when its length was cut to the range of `Micros`.
    (granted.max(quota.limit()).min(MAX_INTEGER), Some(window))
}

/// The value of `qu`; `None` if the quota counts requests or tokens.
fn quota_unit(quota: &Quota) -> Option<&'static str> {
    match (quota.kind(), quota.rate()) {
        (AlgorithmKind::Concurrency(_), _) => Some("concurrent-requests"),
        (AlgorithmKind::Total(total), _) if total.unit() == RateUnit::Bytes => Some("content-bytes"),
        (_, Some(rate)) if rate.unit() == RateUnit::Bytes => Some("content-bytes"),
        _ => None,
    }
}

fn write_parameters(out: &mut String, quota: &Quota, limit: u64, window: Option<u64>) -> fmt::Result {
    write!(out, ";q={limit}")?;
    if let Some(unit) = quota_unit(quota) {
        write!(out, ";qu=\"{unit}\"")?;
    }
    match window {
        Some(window) => write!(out, ";w={window}"),
        None => Ok(()),
    }
}

/// Writes a string of RFC 9651, which allows only printable ASCII. Other bytes and `%` are percent-encoded, so
/// that different names stay different.
fn write_string(out: &mut String, text: &str) -> fmt::Result {
    out.push('"');
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => {
                out.push('\\');
                out.push(byte.into());
            }
            b'%' => out.push_str("%25"),
            b' '..=b'~' => out.push(byte.into()),
            _ => write!(out, "%{byte:02X}")?,
        }
    }
    out.push('"');
    Ok(())
}
