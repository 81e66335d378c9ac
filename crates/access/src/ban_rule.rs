//! Bans for those who are denied too often: `10/min for 1h`.

use std::{fmt, str::FromStr, time::Duration};
use tidegate_core::{AlgorithmKind, Micros, Quota, SettingError};
use tidegate_limiter::{BuildError, Capacity, Clock, LimitKey, Limiter, Overflow};

/// When a key is banned for being denied, and for how long.
///
/// `10/min for 1h`: the tenth denial within a minute bans for an hour. A quota that is only a rate is counted exactly,
/// by a log: so many within any such time. One that names an algorithm is counted by that, and bans when nothing is
/// left of it: `1000/h sliding-window for 1d` takes little memory, `10/min burst 20 for 1h` forgives one in six seconds.
///
/// ```
/// use tidegate_access::BanRule;
///
/// let rule: BanRule = "10/min for 1h growing 2 up to 1d".parse()?; // 1h, 2h, 4h, … but never over a day
/// assert_eq!(rule.to_string(), "10/min sliding-log for 1h growing 2 up to 1d");
/// assert!("10/min for never".parse::<BanRule>().is_err());
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct BanRule {
    quota: Quota,
    length: Micros,
    growth: Option<Growth>,
}

/// How much longer the next ban of the same key is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    factor: u32,
    max_length: Micros,
}

impl BanRule {
    /// Bans for `length` whoever uses up the quota with denials.
    pub fn new(denials: Quota, length: Duration) -> Result<Self, SettingError> {
        let length = length.into();
        SettingError::require_finite("a ban", length)?;
        Ok(Self { quota: denial_quota(denials)?, length, growth: None })
    }

    /// Makes each further ban of a key longer by a factor, up to a longest. A key is forgiven when its last ban is
    /// over for as long as the longest lasts.
    pub fn with_growth(self, factor: u32, max_length: Duration) -> Result<Self, SettingError> {
        let longest = max_length.into();
        SettingError::require_in_range("a growth", factor, 2, 1_000)?;
        SettingError::require_finite("a longest ban", longest)?;
        if longest < self.length {
            let problem = format!("a longest ban of {longest} after a first of {}", self.length);
            return Err(SettingError::new(problem, "give a longest that is longer than the first"));
        }
        Ok(Self { growth: Some(Growth { factor, max_length: longest }), ..self })
    }
}

/// Reads `10/min for 1h` and `10/min for 1h growing 2 up to 1d`.
impl FromStr for BanRule {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let refused = |what: &dyn fmt::Display| {
            SettingError::new(format!("`{text}`: {what}"), "write it as `10/min for 1h`")
        };
        let time = |text: &str| text.parse::<Micros>().map_err(|error| refused(&error));
        let Some((quota, length)) = text.split_once(" for ") else {
            return Err(refused(&"a rule says how many denials ban, and for how long"));
        };
        let quota: Quota = quota.trim().parse().map_err(|error| refused(&error))?;
        let Some((length, growth)) = length.split_once(" growing ") else {
            return Self::new(quota, time(length.trim())?.into());
        };
        let Some((factor, longest)) = growth.split_once(" up to ") else {
            let fix = "write it as `growing 2 up to 1d`";
            return Err(SettingError::new(format!("`{text}`: a growth without an end"), fix));
        };
        let factor = factor.trim().parse().map_err(|error| refused(&error))?;
        Self::new(quota, time(length.trim())?.into())?.with_growth(factor, time(longest.trim())?.into())
    }
}

impl fmt::Display for BanRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} for {}", self.quota, self.length)?;
        match self.growth {
            Some(Growth { factor, max_length: longest }) => write!(f, " growing {factor} up to {longest}"),
            None => Ok(()),
        }
    }
}

/// Counts denials.
#[derive(Debug)]
pub(super) struct DenialCounter {
    rule: BanRule,
    limiter: Limiter,
}

impl DenialCounter {
    pub(super) fn new(rule: BanRule, clock: Clock, capacity: Capacity) -> Result<Self, BuildError> {
        // Keys without room must not share a count: one would be banned for the others.
        let denials = Limiter::builder().clock(clock).capacity(capacity).overflow(Overflow::Deny);
        Ok(Self { limiter: denials.build(rule.quota)?, rule })
    }

    /// Counts a denial; whoever takes the last that is left is to be banned, and its count starts anew.
    pub(super) fn record_denial<K: LimitKey + ?Sized>(&self, key: &K) -> bool {
        let decision = self.limiter.check(key);
        // Not so a key that gets nothing: another thread took the last, or there is no room to count.
        let last = decision.is_allowed() && decision.remaining() == 0;
        if last {
            self.reset(key);
        }
        last
    }

    pub(super) fn reset<K: LimitKey + ?Sized>(&self, key: &K) {
        // In memory, where it cannot fail.
        let _ = self.limiter.blocking().key(key).reset();
    }

    /// How long the next ban is for a key that was banned so often before.
    pub(super) fn ban_length(&self, bans: u32) -> Micros {
        let Some(Growth { factor, max_length: longest }) = self.rule.growth else { return self.rule.length };
        let times = u64::from(factor).checked_pow(bans).unwrap_or(u64::MAX);
        Micros::new(self.rule.length.get().saturating_mul(times)).min(longest)
    }

    /// How long an ended ban makes the next one longer.
    pub(super) fn retention(&self) -> Micros {
        self.rule.growth.map_or(Micros::ZERO, |growth| growth.max_length)
    }

    pub(super) fn uncounted_denials(&self) -> u64 {
        self.limiter.size().map_or(0, |size| size.overflowed)
    }
}

/// The quota as denials are counted by it.
fn denial_quota(quota: Quota) -> Result<Quota, SettingError> {
    match (quota.kind(), quota.rate()) {
        (AlgorithmKind::TokenBucket(_), Some(rate)) if quota.limit() == rate.amount() => {
            rate.sliding_log().map_err(|error| {
                let fix = format!("name how to count, as in `{quota} sliding-window`");
                SettingError::new(format!("`{quota}` denials are too many to count exactly: {error}"), fix)
            })
        }
        (
            AlgorithmKind::Concurrency(_)
            | AlgorithmKind::LeakyBucket(_)
            | AlgorithmKind::Smooth(_)
            | AlgorithmKind::WarmUp(_),
            _,
        ) => {
            let fix = "give a number per time, as in `10/min` or `1000/h sliding-window`";
            Err(SettingError::new(format!("`{quota}` does not count how often something happened"), fix))
        }
        _ => Ok(quota),
    }
}
