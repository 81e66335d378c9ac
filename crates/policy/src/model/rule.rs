//! One rule.

use super::{CostSpec, KeySpec, Match, Network, OnLimit};
use std::{fmt, str::FromStr, time::Duration};
use tidegate_access::BanRule;
use tidegate_core::{CarryOver, Percent, Quota, SettingError};
use tidegate_limiter::{Capacity, FailureMode, Overflow};
use tidegate_overload::Schedule;
use tidegate_rule::{
    Mode,
    request::{DuplicateKeys, MissingKey},
};

/// One of `rules`: which requests, for whom, how much, and what happens then.
///
/// ```yaml
/// templates:
///   usual: { key: ip, on-outage: closed }      # what several rules say alike
/// rules:
///   - name: login
///     use: usual                               # all that it says and the rule does not, key by key
///     match: { method: POST, path: /login }
///     quota: 5/min
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    /// `name`: what headers, logs and counters call it; no two rules have the same.
    pub name: String,
    /// `match`: which requests; all where it is left out.
    pub matching: Match,
    /// `key`: for whom it counts; `all` where it is left out.
    pub key: KeySpec,
    /// `missing`: what becomes of requests in which the key is not found.
    pub missing: MissingKey,
    /// `duplicates`: what becomes of requests with several values of a header, a cookie or a parameter that the rule takes
    /// one of.
    pub duplicates: DuplicateKeys,
    /// `quota`, `quotas` or `tiers`.
    pub quotas: Quotas,
    /// `cost`.
    pub cost: CostSpec,
    /// `charge`: what a request pays, knowing how it was answered.
    pub charge: Option<ChargeSpec>,
    /// `adaptive`: as many in flight as the upstream can take.
    pub adaptive: Option<AdaptiveSpec>,
    /// `bandwidth`: bytes per second for each key.
    pub bandwidth: Option<BandwidthSpec>,
    /// `deny`, `allow` and `ban`.
    pub access: Option<AccessSpec>,
    /// `breaker`.
    pub breaker: Option<BreakerSpec>,
    /// `priority`: who is shed first where a limit is full.
    pub priority: Option<PrioritySpec>,
    /// `schedule`: factors of all quotas by time of day.
    pub schedule: Option<Schedule>,
    /// `mode`.
    pub enforcement: RuleEnforcement,
    /// `store`, by its name; the default one where it is left out.
    pub store: Option<String>,
    /// `on-outage`; that of the policy where it is left out.
    pub on_outage: Option<FailureMode>,
    /// `wait`: how long a request may wait for its turn.
    pub wait: Duration,
    /// `queue`: who waits, and in which order.
    pub queue: Option<QueueSpec>,
    /// `message`: what to tell whoever is refused.
    pub message: Option<String>,
    /// `on-limit`.
    pub on_limit: OnLimit,
    /// `inherit`: what becomes of what was counted when a new policy gives the rule another quota; `keep`, or `reset`.
    pub carry_over: CarryOver,
    /// `capacity`: how many keys it has room for in memory, as in `100000`, or how many bytes they may take, as in `16MB`.
    pub capacity: Option<Capacity>,
    /// `overflow`: what becomes of new keys when there is no room; `replace`, `share` or `deny`.
    pub overflow: Overflow,
}

impl RuleSpec {
    /// A rule that says nothing yet.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            matching: Match::default(),
            key: KeySpec::All,
            missing: MissingKey::default(),
            duplicates: DuplicateKeys::default(),
            quotas: Quotas::All(Vec::new()),
            cost: CostSpec::Fixed(1),
            charge: None,
            adaptive: None,
            bandwidth: None,
            access: None,
            breaker: None,
            priority: None,
            schedule: None,
            enforcement: RuleEnforcement::All(Mode::Enforce),
            store: None,
            on_outage: None,
            wait: Duration::ZERO,
            queue: None,
            message: None,
            on_limit: OnLimit::default(),
            carry_over: CarryOver::default(),
            capacity: None,
            overflow: Overflow::default(),
        }
    }
}

/// How much.
#[derive(Clone, Debug, PartialEq)]
pub enum Quotas {
    /// `quota: 5/min`, or `quotas: [5/min, 100/h]`: all of them. A rule that only lists or shapes has none.
    All(Vec<Quota>),
    /// `tiers`: the one that the request is of.
    Tiers(Tiers),
}

/// `tiers: { by: header x-plan, each: { gold: 1000/s, free: 10/s }, else: 1/s }`
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// `by`: what of a request names its tier.
    pub key: KeySpec,
    /// `each`, in their order.
    pub quotas: Vec<(String, Quota)>,
    /// `else`: that of requests that name none of these.
    pub default: Quota,
}

/// `charge`: what a request pays, knowing how it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeSpec {
    /// `if-status: [401, 5xx]`: only if it was answered so.
    If(Vec<StatusPattern>),
    /// `refund-status: [5xx]`: nothing if it was answered so.
    Unless(Vec<StatusPattern>),
    /// `header: x-cost`: what a header of the answer says, in lower case.
    Header(String),
}

/// A status, or a hundred of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPattern {
    /// `404`
    Status(u16),
    /// `4xx`
    Class(u16),
}

/// `adaptive: { target: 250ms, least: 4, most: 200 }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveSpec {
    /// `target`: the latency that is promised.
    pub target: Duration,
    /// `least`: the fewest in flight that it goes down to.
    pub min: Option<u64>,
    /// `most`: the most in flight that it goes up to.
    pub max: Option<u64>,
}

/// `bandwidth: 1MB/s` for what is sent, or `{ down: 1MB/s, up: 200kB/s }`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BandwidthSpec {
    /// What clients are sent.
    pub down: Option<Quota>,
    /// What they send.
    pub up: Option<Quota>,
}

/// Who is let in.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessSpec {
    /// `deny`: nobody from these.
    pub deny: Vec<Network>,
    /// `allow`: from these, and past all other limits of this rule; with `deny: [all]`, nobody else.
    pub allow: Vec<Network>,
    /// `ban: 10/min for 1h`: whoever is denied so often is shut out for so long.
    pub ban: Option<BanRule>,
}

/// `breaker: { failure-rate: 50%, over: 20, open: 5s, probes: 3 }`, for the upstream as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BreakerSpec {
    /// `failure-rate`: from which it opens.
    pub failure_rate: Option<Percent>,
    /// `slow-rate`: the same for slow answers.
    pub slow_call_rate: Option<Percent>,
    /// `slow`: from when an answer is slow.
    pub slow_call_duration: Option<Duration>,
    /// `over`: of so many calls.
    pub window_size: Option<u64>,
    /// `least`: not before so many calls.
    pub min_calls: Option<u64>,
    /// `open`: how long before it is tried again.
    pub open_duration: Option<Duration>,
    /// `probes`: with so many calls.
    pub half_open_calls: Option<u64>,
}

/// `priority: high`, or one that a request names itself: `{ by: header x-priority, else: low }`.
#[derive(Clone, Debug, PartialEq)]
pub enum PrioritySpec {
    /// Always this.
    Fixed(String),
    /// What is found in the request.
    FromRequest {
        /// `by`: where.
        key: KeySpec,
        /// `else`: that of requests that name none.
        default: String,
    },
}

/// `mode: enforce`, `shadow`, `off`, or `enforce 10%`: the rest of the keys in shadow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleEnforcement {
    /// For all keys.
    All(Mode),
    /// Enforced for so many of a hundred keys, always the same ones, and in shadow for the others.
    Percent(Percent),
}

impl RuleEnforcement {
    /// This mode, for so many of a hundred keys; for all where it is not said, or 100.
    pub fn new(mode: Mode, percent: Option<f64>) -> Result<Self, SettingError> {
        match (mode, percent) {
            (mode, None) => Ok(Self::All(mode)),
            (Mode::Enforce, Some(percent)) => match Percent::new(percent)? {
                Percent::FULL => Ok(Self::All(Mode::Enforce)),
                Percent::ZERO => Err(SettingError::new(
                    "enforced for no key at all",
                    "say `shadow`, or a larger percentage",
                )),
                share => Ok(Self::Percent(share)),
            },
            (mode, Some(_)) => {
                let problem = format!("a percentage of keys in mode `{mode}`");
                Err(SettingError::new(
                    problem,
                    "leave it out, or say `enforce`: the others are in shadow then",
                ))
            }
        }
    }

    /// What it does for the keys that are meant.
    pub fn mode(&self) -> Mode {
        match self {
            Self::All(mode) => *mode,
            Self::Percent(_) => Mode::Enforce,
        }
    }

    /// Whether it is enforced for fewer keys than the other.
    pub fn is_weaker_than(&self, other: &Self) -> bool {
        let enforced = |one: &Self| match one {
            Self::All(Mode::Enforce) => Percent::FULL,
            Self::All(Mode::Shadow | Mode::Off) => Percent::ZERO,
            Self::Percent(share) => *share,
        };
        enforced(self) < enforced(other)
    }

    /// The keys that are meant, where these are not all.
    pub fn percent(&self) -> Option<Percent> {
        match self {
            Self::All(_) => None,
            Self::Percent(share) => Some(*share),
        }
    }
}

/// As it is written in a policy.
impl fmt::Display for RuleEnforcement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All(mode) => mode.fmt(f),
            Self::Percent(share) => write!(f, "enforce {share}"),
        }
    }
}

impl FromStr for RuleEnforcement {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        match text.strip_prefix("enforce ") {
            Some(share) => share.parse().map(Self::Percent),
            None => text.parse::<Mode>().map(Self::All).map_err(|_| {
                SettingError::new(format!("unknown mode `{text}`"), "use one of enforce, shadow, off")
            }),
        }
    }
}

/// `queue: { most: 100, in-all: 5000, order: fifo }`, or `queue: 100`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// `most`: how many may wait for one key.
    pub max: u64,
    /// `in-all`: how many may wait over all keys; 10,000 where it is left out, or `most` if that is more.
    pub max_total: Option<u64>,
    /// `order`.
    pub order: QueueOrder,
}

/// Whose turn is next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// Who came first.
    #[default]
    Fifo,
    /// Who is more important.
    Priority,
}
