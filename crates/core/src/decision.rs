//! One answer to one question.

use crate::units::Micros;
use core::fmt;

/// Set beside the place of a quota in decisions that were made without their store.
const DEGRADED_BIT: u16 = 1 << 15;

/// What a caller may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Go now.
    Allow,
    /// Granted and charged, but go only after this time. Only callers that declared patience get this answer.
    Delay(Micros),
    /// Not granted; nothing was charged.
    Deny(Retry),
}

/// When it is worth asking again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// On an idle key the same question is allowed after exactly this time, and not a microsecond before.
    After(Micros),
    /// The cost is larger than the quota ever grants at once.
    Never,
    /// As soon as another caller gives back what it holds: time alone changes nothing.
    WhenReleased,
}

/// The answer to one question: what to do, and the numbers that a client wants to know.
///
/// Only the verb is worked out when deciding; the numbers are computed when they are read, because most callers
/// read none of them and the divisions would cost as much as the decision.
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
            DecisionCode::Deny | DecisionCode::Closed => Outcome::Deny(Retry::After(self.wait())),
            DecisionCode::Never => Outcome::Deny(Retry::Never),
            DecisionCode::Full => Outcome::Deny(Retry::WhenReleased),
        }
    }

    /// Whether the cost was granted, now or after a delay.
    #[inline]
    pub fn is_granted(&self) -> bool {
        matches!(self.code, DecisionCode::Allow | DecisionCode::Delay)
    }

    /// Whether the caller may go now.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        matches!(self.code, DecisionCode::Allow)
    }

    /// Which of several quotas this is the answer of, counted from zero: the one that denied, or else the one
    /// with the least left.
    pub fn quota(&self) -> usize {
        (self.quota & !DEGRADED_BIT).into()
    }

    /// The same decision, as that of the quota with this place in a list.
    #[must_use]
    pub fn with_quota(self, index: usize) -> Self {
        let place = u16::try_from(index).unwrap_or(u16::MAX) & !DEGRADED_BIT;
        Self { quota: self.quota & DEGRADED_BIT | place, ..self }
    }

    /// Whether it was made without the store that should have made it: the store was away, and this is what was
    /// declared for that case.
    pub fn is_degraded(&self) -> bool {
        self.quota & DEGRADED_BIT != 0
    }

    /// Whether it denies for no other reason than that its store is away: nobody has used up anything.
    pub fn is_fail_closed(&self) -> bool {
        self.code == DecisionCode::Closed
    }

    /// The same decision, made without the store that should have made it.
    #[must_use]
    pub fn into_degraded(self) -> Self {
        Self { quota: self.quota | DEGRADED_BIT, ..self }
    }

    /// The same decision, taken apart and put together: after a call that returned it through memory, the compiler
    /// is free again to keep its words in registers.
    #[inline]
    #[must_use]
    pub fn repack(self) -> Self {
        let Self {
            code: verb,
            quota,
            reading: PackedReading { level, excess, limit, units_per_token: price, units_per_us: drain },
        } = self;
        Self {
            code: verb,
            quota,
            reading: PackedReading { level, excess, limit, units_per_token: price, units_per_us: drain },
        }
    }

    /// The most that the quota grants at once.
    pub fn limit(&self) -> u64 {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, limit, .. } => limit,
            PackedReading { units_per_token: price, limit: capacity, .. } => capacity / price,
        }
    }

    /// How much could still be granted at this moment, after this decision.
    pub fn remaining(&self) -> u64 {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, level: remaining, .. } => remaining,
            PackedReading { level, units_per_token: price, limit: capacity, .. } => {
                capacity.saturating_sub(level) / price
            }
        }
    }

    /// How long until the key is as if it had never been seen, when nothing more is asked.
    pub fn reset_after(&self) -> Micros {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, units_per_token: reset, .. } => Micros::new(reset),
            PackedReading { level, units_per_us: drain, .. } => Micros::new(level.div_ceil(drain)),
        }
    }

    /// How long until more could be granted than now, when nothing more is asked; at the latest, where an algorithm does
    /// not keep the moment. Zero when nothing is missing, [`Micros::MAX`] when time alone does not help.
    pub fn refill_after(&self) -> Micros {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, units_per_token: reset, .. } => Micros::new(reset),
            PackedReading { level, units_per_token: price, limit: capacity, units_per_us: drain, .. } => {
                let after = (capacity.saturating_sub(level) / price + 1).saturating_mul(price);
                match capacity.checked_sub(after) {
                    Some(goal) => Micros::new(level.saturating_sub(goal).div_ceil(drain)),
                    None => Micros::ZERO,
                }
            }
        }
    }

    /// How long to wait before asking again; `None` when the cost was granted or never will be.
    pub fn retry_after(&self) -> Option<Micros> {
        match self.outcome() {
            Outcome::Deny(Retry::After(wait)) => Some(wait),
            _ => None,
        }
    }

    /// The wait before going (after a delay) or before asking again (after a denial); zero when allowed.
    pub fn wait(&self) -> Micros {
        match self.reading {
            PackedReading { units_per_us: COUNT_SENTINEL, excess: wait, .. } => Micros::new(wait),
            PackedReading { excess, units_per_us: drain, .. } => Micros::new(excess.div_ceil(drain)),
        }
    }

    /// A decision on a level that drains with time.
    #[inline]
    pub(crate) fn from_level(code: DecisionCode, level: LevelReading) -> Self {
        let LevelReading { level, excess, capacity, units_per_token: price, units_per_us: drain } = level;
        Self {
            code,
            quota: 0,
            reading: PackedReading {
                level,
                excess,
                limit: capacity,
                units_per_token: price,
                units_per_us: drain,
            },
        }
    }

    /// A decision on numbers that are already known.
    #[inline]
    pub(crate) fn from_count(code: DecisionCode, limit: u64, count: CountReading) -> Self {
        let CountReading { remaining, reset, wait } = count;
        let meter = PackedReading {
            level: remaining,
            excess: wait.get(),
            limit,
            units_per_token: reset.get(),
            units_per_us: COUNT_SENTINEL,
        };
        Self { code, quota: 0, reading: meter }
    }

    /// The answer where nothing is limited.
    pub fn unlimited() -> Self {
        Self::from_count(
            DecisionCode::Allow,
            u64::MAX,
            CountReading { remaining: u64::MAX, reset: Micros::ZERO, wait: Micros::ZERO },
        )
    }

    /// A grant of tokens that were taken ahead, of which some may be left.
    pub fn prefetched(limit: u64, remaining: u64) -> Self {
        let count = CountReading { remaining, reset: Micros::ZERO, wait: Micros::ZERO };
        Self::from_count(DecisionCode::Allow, limit, count)
    }

    /// A grant of permits, of which `held` of `limit` are held now, until they are given back.
    #[inline]
    pub fn from_in_flight(limit: u64, in_flight: u64) -> Self {
        let count = CountReading {
            remaining: limit.saturating_sub(in_flight),
            reset: Micros::MAX,
            wait: Micros::ZERO,
        };
        Self::from_count(DecisionCode::Allow, limit, count)
    }

    /// A denial because the store that counts is away, and none is to be made without it.
    pub fn fail_closed(limit: u64, retry: Micros) -> Self {
        Self { code: DecisionCode::Closed, ..Self::deny(limit, retry) }.into_degraded()
    }

    /// A denial that no algorithm made: there is no room to count the key, or an earlier denial still holds.
    pub fn deny(limit: u64, retry: Micros) -> Self {
        Self::from_count(DecisionCode::Deny, limit, CountReading { remaining: 0, reset: retry, wait: retry })
    }
}

/// Two decisions are equal when everything that a caller can see of them is.
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

/// Reads like a line of a trace: `allow  remaining 1`, `deny  retry 100ms`.
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

/// The bare answer, before its numbers are worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DecisionCode {
    Allow,
    Delay,
    Deny,
    Never,
    Full,
    /// A denial by nobody: the store is away. No twin says so.
    Closed,
}

impl DecisionCode {
    /// The verb that the twins in Lua mean by a number.
    pub(crate) fn from_lua(number: u64) -> Option<Self> {
        [Self::Allow, Self::Delay, Self::Deny, Self::Never, Self::Full]
            .get(usize::try_from(number).ok()?)
            .copied()
    }
}

/// A level in units of its quota: what is used, and by how much the question exceeds the capacity.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LevelReading {
    pub(crate) level: u64,
    pub(crate) excess: u64,
    pub(crate) capacity: u64,
    pub(crate) units_per_token: u64,
    pub(crate) units_per_us: u64,
}

/// Numbers of an algorithm that counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CountReading {
    pub(crate) remaining: u64,
    pub(crate) reset: Micros,
    pub(crate) wait: Micros,
}

/// The numbers of either kind, in one shape: a decision is then a handful of plain words, which a compiler can
/// keep in registers and drop when nobody reads them.
#[derive(Clone, Copy)]
struct PackedReading {
    /// The level in units, or what remains.
    level: u64,
    /// The units over the capacity, or the wait.
    excess: u64,
    /// The capacity in units, or the limit.
    limit: u64,
    /// The units per token, or the time until reset.
    units_per_token: u64,
    /// The units that drain in a microsecond, or [`COUNT_SENTINEL`].
    units_per_us: u64,
}

/// Instead of a drain: the numbers are not a level, they are the answers themselves.
const COUNT_SENTINEL: u64 = 0;
