//! The result of one check.

use crate::units::Micros;
use core::fmt;

/// Flag in `Decision::quota`: the decision was made without its store.
const DEGRADED_BIT: u16 = 1 << 15;

/// What the caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Proceed now.
    Allow,
    /// Granted and charged; proceed after this time. Returned only when the demand has a maximum wait.
    Delay(Micros),
    /// Not granted; nothing was charged.
    Deny(Retry),
}

/// When a retry can succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same demand on an otherwise idle key is allowed after exactly this time, and not a microsecond earlier.
    After(Micros),
    /// The cost is larger than the quota ever grants at once, or more than is left of a total.
    Never,
    /// After another caller releases a permit; time alone changes nothing.
    WhenReleased,
}

/// The result of one check: what the caller may do, and the numbers for the response headers.
///
/// Deciding computes only the code. The numbers are computed when they are read: most callers read none of them,
/// and the divisions cost as much as the decision.
#[derive(Clone, Copy)]
pub struct Decision {
    code: DecisionCode,
    quota: u16,
    reading: PackedReading,
}

impl Decision {
    /// What the caller may do.
    pub fn outcome(&self) -> Outcome {
        match self.code {
            DecisionCode::Allow => Outcome::Allow,
            DecisionCode::Delay => Outcome::Delay(self.wait()),
            DecisionCode::Deny | DecisionCode::FailClosed => Outcome::Deny(Retry::After(self.wait())),
            DecisionCode::Never => Outcome::Deny(Retry::Never),
            DecisionCode::LimitReached => Outcome::Deny(Retry::WhenReleased),
        }
    }

    /// Whether the cost was granted, now or after a delay.
    #[inline]
    pub fn is_granted(&self) -> bool {
        matches!(self.code, DecisionCode::Allow | DecisionCode::Delay)
    }

    /// Whether the caller may proceed now.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        matches!(self.code, DecisionCode::Allow)
    }

    /// The index of the quota that made the decision: the one that denied, or else the one with the least remaining.
    pub fn quota(&self) -> usize {
        (self.quota & !DEGRADED_BIT).into()
    }

    /// Returns the same decision for the quota at this index.
    #[must_use]
    pub fn with_quota(self, index: usize) -> Self {
        let index = u16::try_from(index).unwrap_or(u16::MAX) & !DEGRADED_BIT;
        Self { quota: self.quota & DEGRADED_BIT | index, ..self }
    }

    /// Whether the store was unavailable and the failure mode of the limiter made the decision instead.
    pub fn is_degraded(&self) -> bool {
        self.quota & DEGRADED_BIT != 0
    }

    /// Whether it denies only because the store is unavailable, without a quota that is used up.
    pub fn is_fail_closed(&self) -> bool {
        self.code == DecisionCode::FailClosed
    }

    /// Returns the same decision, marked as made without its store.
    #[must_use]
    pub fn into_degraded(self) -> Self {
        Self { quota: self.quota | DEGRADED_BIT, ..self }
    }

    /// Returns the same decision, rebuilt from its fields.
    ///
    /// After a call that returned it through memory, this allows the compiler to move its fields to registers again.
    #[inline]
    #[must_use]
    pub fn repack(self) -> Self {
        let Self {
            code,
            quota,
            reading: PackedReading { level, excess, limit, units_per_token, units_per_us },
        } = self;
        Self { code, quota, reading: PackedReading { level, excess, limit, units_per_token, units_per_us } }
    }

    /// The most that the quota grants at once.
    pub fn limit(&self) -> u64 {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, limit, .. } => limit,
            PackedReading { units_per_token, limit: capacity, .. } => capacity / units_per_token,
        }
    }

    /// The amount that can still be granted at this time, after this decision.
    pub fn remaining(&self) -> u64 {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, level: remaining, .. } => remaining,
            PackedReading { level, units_per_token, limit: capacity, .. } => {
                capacity.saturating_sub(level) / units_per_token
            }
        }
    }

    /// The time until the state of an otherwise idle key is empty again.
    pub fn reset_after(&self) -> Micros {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, units_per_token: reset, .. } => Micros::new(reset),
            PackedReading { level, units_per_us, .. } => Micros::new(level.div_ceil(units_per_us)),
        }
    }

    /// The time until more can be granted than now, on an otherwise idle key.
    ///
    /// It is an upper bound for algorithms that do not store the exact time. Zero when the quota is full,
    /// [`Micros::MAX`] when time alone changes nothing.
    pub fn refill_after(&self) -> Micros {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, units_per_token: reset, .. } => Micros::new(reset),
            PackedReading { level, units_per_token, limit: capacity, units_per_us, .. } => {
                let after =
                    (capacity.saturating_sub(level) / units_per_token + 1).saturating_mul(units_per_token);
                match capacity.checked_sub(after) {
                    Some(goal) => Micros::new(level.saturating_sub(goal).div_ceil(units_per_us)),
                    None => Micros::ZERO,
                }
            }
        }
    }

    /// The wait before a retry; `None` when the cost was granted, is never granted, or waits for a release.
    pub fn retry_after(&self) -> Option<Micros> {
        match self.outcome() {
            Outcome::Deny(Retry::After(wait)) => Some(wait),
            _ => None,
        }
    }

    /// The wait before the caller proceeds (a delay) or retries (a denial); zero when allowed.
    pub fn wait(&self) -> Micros {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, excess: wait, .. } => Micros::new(wait),
            PackedReading { excess, units_per_us, .. } => Micros::new(excess.div_ceil(units_per_us)),
        }
    }

    /// A decision on a level that drains with time.
    #[inline]
    pub(crate) fn from_level(code: DecisionCode, level: LevelReading) -> Self {
        let LevelReading { level, excess, capacity, units_per_token, units_per_us } = level;
        Self {
            code,
            quota: 0,
            reading: PackedReading { level, excess, limit: capacity, units_per_token, units_per_us },
        }
    }

    /// A decision with computed numbers.
    #[inline]
    pub(crate) fn from_count(code: DecisionCode, limit: u64, count: CountReading) -> Self {
        let CountReading { remaining, reset, wait } = count;
        let reading = PackedReading {
            level: remaining,
            excess: wait.get(),
            limit,
            units_per_token: reset.get(),
            units_per_us: COUNT_SENTINEL,
        };
        Self { code, quota: 0, reading }
    }

    /// The decision when no quota applies.
    pub fn unlimited() -> Self {
        Self::from_count(
            DecisionCode::Allow,
            u64::MAX,
            CountReading { remaining: u64::MAX, reset: Micros::ZERO, wait: Micros::ZERO },
        )
    }

    /// A grant of prefetched tokens, of which `remaining` are left.
    pub fn prefetched(limit: u64, remaining: u64) -> Self {
        let count = CountReading { remaining, reset: Micros::ZERO, wait: Micros::ZERO };
        Self::from_count(DecisionCode::Allow, limit, count)
    }

    /// A grant of a permit, with `in_flight` of `limit` permits in use.
    #[inline]
    pub fn from_in_flight(limit: u64, in_flight: u64) -> Self {
        let count = CountReading {
            remaining: limit.saturating_sub(in_flight),
            reset: Micros::MAX,
            wait: Micros::ZERO,
        };
        Self::from_count(DecisionCode::Allow, limit, count)
    }

    /// A denial because the store is unavailable and the failure mode is to deny.
    pub fn fail_closed(limit: u64, retry: Micros) -> Self {
        Self { code: DecisionCode::FailClosed, ..Self::deny(limit, retry) }.into_degraded()
    }

    /// A denial that no algorithm made: the key table is full, or an earlier denial is still in force.
    pub fn deny(limit: u64, retry: Micros) -> Self {
        Self::from_count(DecisionCode::Deny, limit, CountReading { remaining: 0, reset: retry, wait: retry })
    }
}

/// Two decisions are equal when all their public values are.
impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        self.outcome() == other.outcome()
            && self.limit() == other.limit()
            && self.remaining() == other.remaining()
            && self.reset_after() == other.reset_after()
    }
}

impl Eq for Decision {}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("outcome", &self.outcome())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining())
            .field("reset_after", &self.reset_after())
            .finish()
    }
}

/// Prints in the format of a trace file: `allow  remaining 1`, `deny  retry 100ms`.
impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.outcome() {
            Outcome::Allow => write!(f, "allow  remaining {}", self.remaining()),
            Outcome::Delay(wait) => write!(f, "delay {wait}  remaining {}", self.remaining()),
            Outcome::Deny(Retry::After(wait)) => write!(f, "deny   retry {wait}"),
            Outcome::Deny(Retry::Never) => f.write_str("deny   never"),
            Outcome::Deny(Retry::WhenReleased) => f.write_str("deny   until a release"),
        }
    }
}

/// The kind of a decision, without its numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecisionCode {
    Allow,
    Delay,
    Deny,
    Never,
    LimitReached,
    /// A denial because the store is unavailable. No Lua script returns it.
    FailClosed,
}

impl DecisionCode {
    /// Decodes the number that the Lua scripts return.
    pub(crate) fn from_lua(number: u64) -> Option<Self> {
        [Self::Allow, Self::Delay, Self::Deny, Self::Never, Self::LimitReached]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// A level in units of its quota: the used part, and how far the demand exceeds the capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelReading {
    pub(crate) level: u64,
    pub(crate) excess: u64,
    pub(crate) capacity: u64,
    pub(crate) units_per_token: u64,
    pub(crate) units_per_us: u64,
}

/// The numbers of an algorithm that counts tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountReading {
    pub(crate) remaining: u64,
    pub(crate) reset: Micros,
    pub(crate) wait: Micros,
}

/// The numbers of either kind in one layout, so that a decision is a few plain integers that the compiler can keep
/// in registers and drop when unused.
#[derive(Clone, Copy)]
struct PackedReading {
    /// The level in units, or the remaining amount.
    level: u64,
    /// The units above the capacity, or the wait.
    excess: u64,
    /// The capacity in units, or the limit.
    limit: u64,
    /// The units per token, or the time until reset.
    units_per_token: u64,
    /// The units that drain in a microsecond, or [`COUNT_SENTINEL`].
    units_per_us: u64,
}

/// In `units_per_us`: the other fields are the numbers of a [`CountReading`].
const COUNT_SENTINEL: u64 = 0;
