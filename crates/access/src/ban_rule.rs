//! Automatic bans after repeated denials: `10/min for 1h`.

use std::{fmt, str::FromStr, time::Duration};
use tidegate_core::{AlgorithmKind, Micros, Quota, SettingError};
use tidegate_limiter::{BuildError, Capacity, Clock, LimitKey, Limiter, Overflow};

/// The number of denials that ban a key, and the duration of the ban.
///
/// `10/min for 1h`: the tenth denial within a minute bans for an hour. A plain rate is counted exactly, by a
/// sliding log. A quota with an algorithm is counted by that algorithm, and the denial that takes its last token
/// bans: `1000/h sliding-window for 1d` needs little memory, `10/min burst 20 for 1h` forgives one denial every
/// six seconds.
///
/// ```
/// use tidegate_access::BanRule;
///
/// let rule: BanRule = "10/min for 1h growing 2 up to 1d".parse()?; // 1h, 2h, 4h, … at most a day
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

/// The growth of repeated bans of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Growth {
    factor: u32,
    max_length: Micros,
}

impl BanRule {
    /// Bans a key for `length` when its denials use up the quota.
    pub fn new(denials: Quota, length: Duration) -> Result<Self, SettingError> {
        let length = length.into();
        SettingError::require_finite("a ban", length)?;
        Ok(Self { quota: denial_quota(denials)?, length, growth: None })
    }

    /// Multiplies the duration of each further ban of a key by `factor`, up to `max_length`. The count of bans of
    /// a key is dropped `max_length` after its last ban ends.
    pub fn with_growth(self, factor: u32, max_length: Duration) -> Result<Self, SettingError> {
        let longest = max_length.into();
        SettingError::require_in_range("a growth factor", factor, 2, 1_000)?;
        SettingError::require_finite("a maximum ban duration", longest)?;
        if longest < self.length {
            let problem =
                format!("the maximum ban duration of {longest} is below the first of {}", self.length);
            return Err(SettingError::new(problem, "give a maximum above the first duration"));
        }
        Ok(Self { growth: Some(Growth { factor, max_length: longest }), ..self })
    }
}

/// Parses `10/min for 1h` and `10/min for 1h growing 2 up to 1d`.
impl FromStr for BanRule {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let invalid = |what: &dyn fmt::Display| {
            SettingError::new(format!("invalid ban rule `{text}`: {what}"), "write it as `10/min for 1h`")
        };
        let time = |text: &str| text.parse::<Micros>().map_err(|error| invalid(&error));
        let Some((quota, length)) = text.split_once(" for ") else {
            return Err(invalid(&"missing `for` and a duration"));
        };
        let quota: Quota = quota.trim().parse().map_err(|error| invalid(&error))?;
        let Some((length, growth)) = length.split_once(" growing ") else {
            return Self::new(quota, time(length.trim())?.into());
        };
        let Some((factor, longest)) = growth.split_once(" up to ") else {
            let fix = "write it as `growing 2 up to 1d`";
            return Err(SettingError::new(format!("invalid ban rule `{text}`: missing `up to`"), fix));
        };
        let factor = factor.trim().parse().map_err(|error| invalid(&error))?;
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
        // Keys without room must not share a counter: one would be banned for the denials of others.
        let denials = Limiter::builder().clock(clock).capacity(capacity).overflow(Overflow::Deny);
        Ok(Self { limiter: denials.build(rule.quota)?, rule })
    }

    /// Counts a denial. Returns whether it took the last token: the key must be banned, and its count restarts.
    pub(super) fn record_denial<K: LimitKey + ?Sized>(&self, key: &K) -> bool {
        let decision = self.limiter.check(key);
        // A denied check does not ban: another thread took the last token, or there is no room to count.
        let last = decision.is_allowed() && decision.remaining() == 0;
        if last {
            self.reset(key);
        }
        last
    }

    pub(super) fn reset<K: LimitKey + ?Sized>(&self, key: &K) {
        // An in-memory limiter does not fail.
        let _ = self.limiter.blocking().key(key).reset();
    }

    /// The duration of the next ban of a key with this number of earlier bans.
    pub(super) fn ban_length(&self, bans: u32) -> Micros {
        let Some(Growth { factor, max_length: longest }) = self.rule.growth else { return self.rule.length };
        let times = u64::from(factor).checked_pow(bans).unwrap_or(u64::MAX);
        Micros::new(self.rule.length.get().saturating_mul(times)).min(longest)
    }

    /// How long an ended ban still counts for the growth.
    pub(super) fn retention(&self) -> Micros {
        self.rule.growth.map_or(Micros::ZERO, |growth| growth.max_length)
    }

    pub(super) fn uncounted_denials(&self) -> u64 {
        self.limiter.size().map_or(0, |size| size.overflowed)
    }
}

/// The quota that counts denials.
fn denial_quota(quota: Quota) -> Result<Quota, SettingError> {
    match (quota.kind(), quota.rate()) {
        (AlgorithmKind::TokenBucket(_), Some(rate)) if quota.limit() == rate.amount() => {
            rate.sliding_log().map_err(|error| {
                let fix = format!("add an algorithm, as in `{quota} sliding-window`");
                SettingError::new(format!("`{quota}` is too large to count denials exactly: {error}"), fix)
            })
        }
        (
            AlgorithmKind::Concurrency(_)
            | AlgorithmKind::LeakyBucket(_)
            | AlgorithmKind::Smooth(_)
            | AlgorithmKind::Total(_)
            | AlgorithmKind::WarmUp(_),
            _,
        ) => {
            let fix = "use a rate or a window, as in `10/min` or `1000/h sliding-window`";
            Err(SettingError::new(format!("`{quota}` cannot count denials"), fix))
        }
        _ => Ok(quota),
    }
}
