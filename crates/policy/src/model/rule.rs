//! Rules.

use super::{
    CostSpec, DEFAULT_COST, Expression, FailingSpec, KeySpec, Match, Network, OnLimit, ScaleSpec, ShedSpec,
};
use std::{fmt, str::FromStr, time::Duration};
use tidegate_access::BanRule;
use tidegate_core::{
    AlgorithmKind, CarryOver, LARGEST_EXACT, Percent, Quota, RateUnit, Ratio, SettingError, header::CostUnit,
};
use tidegate_limiter::{Capacity, FailureMode, Overflow};
use tidegate_overload::Schedule;
use tidegate_rule::{
    LoadScale, Mode,
    body::JsonPointer,
    request::{DuplicateKeys, MissingKey},
};

/// An item of `rules`: the requests that it applies to, the key, the limits, and the action over the limit.
///
/// ```yaml
/// templates:
///   usual: { key: ip, failure-mode: closed }      # keys that several rules share
/// rules:
///   - name: login
///     use: usual                               # provides the keys that the rule does not set
///     match: { method: POST, path: /login }
///     quota: 5/min
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RuleSpec {
    /// `name`: the unique name in headers, logs and metrics.
    pub name: String,
    /// `match`: the requests that the rule applies to; all by default.
    pub matching: Match,
    /// `key`: what requests are counted by; `all` by default.
    pub key: KeySpec,
    /// `missing`: what happens to requests without the key.
    pub missing: MissingKey,
    /// `duplicates`: what happens to requests that repeat a header, cookie or query parameter that the rule reads.
    pub duplicates: DuplicateKeys,
    /// `quota`, `quotas` or `tiers`.
    pub quotas: Quotas,
    /// `cost`.
    pub cost: CostSpec,
    /// `charge`: whether a request is charged, by the status of its response.
    pub charge: Option<ChargeSpec>,
    /// `settle`: the final cost of a request, which its response states.
    pub settle: Option<SettleSpec>,
    /// `adaptive`: a concurrency limit that adapts to the latency of the upstream.
    pub adaptive: Option<AdaptiveSpec>,
    /// `bandwidth`: bytes per second for each key.
    pub bandwidth: Option<BandwidthSpec>,
    /// `deny`, `allow` and `ban`.
    pub access: Option<AccessSpec>,
    /// `breaker`.
    pub breaker: Option<BreakerSpec>,
    /// `priority`: requests of the lowest priority are shed first.
    pub priority: Option<PrioritySpec>,
    /// `schedule`: factors that multiply all quotas and bandwidths, by time of day.
    pub schedule: Option<Schedule>,
    /// `scale`: shrinks all quotas while the load of the machine is high.
    pub scale: Option<ScaleSpec>,
    /// `shed`: rejects requests while the load of the machine is high.
    pub shed: Option<ShedSpec>,
    /// `feature`: rejects requests while this feature is off.
    pub feature: Option<String>,
    /// `while-failing`: the quotas apply only while calls fail.
    pub while_failing: Option<FailingSpec>,
    /// `mode`.
    pub enforcement: RuleEnforcement,
    /// `store`, by name; the default store if `None`.
    pub store: Option<String>,
    /// `failure-mode`; that of the policy if `None`.
    pub failure_mode: Option<FailureMode>,
    /// `prefetch`: how long tokens that were taken from the store in advance may be used.
    pub prefetch: Option<Duration>,
    /// `wait`: the maximum time that a request waits for capacity.
    pub wait: Duration,
    /// `queue`: the length and the order of the wait queue.
    pub queue: Option<QueueSpec>,
    /// `message` to rejected clients.
    pub message: Option<String>,
    /// `on-limit`.
    pub on_limit: OnLimit,
    /// `inherit`: what happens to counters when a new policy changes the quota: `keep` or `reset`.
    pub carry_over: CarryOver,
    /// `capacity`: the maximum number of keys in memory, as in `100000`, or their maximum size, as in `16MB`.
    pub capacity: Option<Capacity>,
    /// `overflow`: what happens to new keys when the memory is full: `replace`, `share` or `deny`.
    pub overflow: Overflow,
}

impl RuleSpec {
    /// A rule with default values and no limit.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            matching: Match::default(),
            key: KeySpec::All,
            missing: MissingKey::default(),
            duplicates: DuplicateKeys::default(),
            quotas: Quotas::All(Vec::new()),
            cost: CostSpec::Fixed(DEFAULT_COST),
            charge: None,
            settle: None,
            adaptive: None,
            bandwidth: None,
            access: None,
            breaker: None,
            priority: None,
            schedule: None,
            scale: None,
            shed: None,
            feature: None,
            while_failing: None,
            enforcement: RuleEnforcement::All(Mode::Enforce),
            store: None,
            failure_mode: None,
            prefetch: None,
            wait: Duration::ZERO,
            queue: None,
            message: None,
            on_limit: OnLimit::default(),
            carry_over: CarryOver::default(),
            capacity: None,
            overflow: Overflow::default(),
        }
    }

    /// Checks that its byte rates, times every factor of its schedule, are at least one byte per second.
    pub(crate) fn check_bandwidth(&self) -> Result<(), SettingError> {
        let rates = self.bandwidth.iter().flat_map(|spec| [spec.down, spec.up]).flatten();
        let factors = || self.schedule.iter().flat_map(Schedule::factors);
        rates.into_iter().try_for_each(|rate| rate.check_min_rate(factors()))
    }
}

impl RuleSpec {
    /// All of its quotas, also those of tiers.
    pub fn all_quotas(&self) -> Vec<Quota> {
        match &self.quotas {
            Quotas::All(quotas) => quotas.clone(),
            Quotas::Tiers(tiers) => tiers.all_quotas(),
        }
    }

    /// What its quotas count: tokens if requests can differ in cost.
    pub(crate) fn unit(&self) -> CostUnit {
        match (&self.cost, &self.settle) {
            (CostSpec::Fixed(DEFAULT_COST), None) => CostUnit::Requests,
            _ => CostUnit::Tokens,
        }
    }

    /// Checks that no total follows the load or a schedule; the error with its key.
    pub(crate) fn check_scaled_totals(&self) -> Result<(), (&'static str, SettingError)> {
        let quotas = self.all_quotas();
        let keys = [("scale", self.scale.is_some()), ("schedule", self.schedule.is_some())];
        keys.into_iter()
            .filter(|(_, is_set)| *is_set)
            .try_for_each(|(key, _)| LoadScale::reject_totals(key, &quotas).map_err(|error| (key, error)))
    }

    /// The maximum time that a request waits: `wait`, or else the whole queue of a leaky bucket.
    pub fn effective_wait(&self) -> Duration {
        let quotas = match &self.quotas {
            Quotas::All(quotas) => quotas.as_slice(),
            Quotas::Tiers(_) => &[],
        };
        let has_queue = |quota: &Quota| match quota.kind() {
            AlgorithmKind::LeakyBucket(bucket) => bucket.queue() > bucket.delay(),
            _ => false,
        };
        match self.wait.is_zero() && quotas.iter().any(has_queue) {
            true => MAX_LEAKY_WAIT,
            false => self.wait,
        }
    }
}

/// The wait of a request in the queue of a leaky bucket, which limits it by its length.
const MAX_LEAKY_WAIT: Duration = Duration::from_secs(3_600);

/// The quotas of a rule.
#[derive(Clone, Debug, PartialEq)]
pub enum Quotas {
    /// `quota: 5/min`, or `quotas: [5/min, 100/h]`: all of them apply. Empty for a rule with other limits only.
    All(Vec<Quota>),
    /// `tiers`: the quota of the tier of the request.
    Tiers(Tiers),
}

/// `tiers: { key: header x-plan, quotas: { gold: 1000/s, free: 10/s }, default: 1/s }`
#[derive(Clone, Debug, PartialEq)]
pub struct Tiers {
    /// `key`: the part of the request that names its tier.
    pub key: KeySpec,
    /// `quotas`, in order.
    pub quotas: Vec<(String, Quota)>,
    /// `default`: the quota of requests that name none of these tiers.
    pub default: Quota,
}

impl Tiers {
    /// The quotas in order, and then the default.
    pub(crate) fn all_quotas(&self) -> Vec<Quota> {
        self.quotas.iter().map(|(_, quota)| *quota).chain([self.default]).collect()
    }
}

/// `charge`: whether a request is charged, by the status of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChargeSpec {
    /// `if-status: [401, 5xx]`: charges a request only if its response has one of these statuses.
    If(Vec<StatusPattern>),
    /// `refund-status: [5xx]`: refunds a request if its response has one of these statuses.
    Unless(Vec<StatusPattern>),
}

/// `settle: header x-cost`, `settle: body /usage/total_tokens`, `settle: openai`, or `{ from: openai, max-debt: 1000 }`: the final
/// cost of a request. The cost before the call is charged until then, and also if the response states none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettleSpec {
    /// `from`, or `cel`.
    pub source: SettleSource,
    /// `max-debt`: the largest part of the final cost that exceeds the cost before the call; `None` for no limit.
    pub max_debt: Option<u64>,
}

/// The part of a response that states the cost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleSource {
    /// `header NAME`, in lower case.
    Header(String),
    /// `trailer NAME`, in lower case.
    Trailer(String),
    /// `body POINTER`: a number in the JSON body, or in the last event of a stream that has it.
    Body(JsonPointer),
    /// `openai`: the tokens that the APIs of OpenAI report, and those of compatible servers.
    OpenAi,
    /// `anthropic`: the tokens that the Messages API of Anthropic reports.
    Anthropic,
    /// `cel`: an expression of the members of the JSON body.
    Cel(Expression),
}

/// A status, or a class of statuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StatusPattern {
    /// `404`
    Status(u16),
    /// `4xx`
    Class(u16),
}

/// `adaptive: { target: 250ms, min: 4, max: 200 }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdaptiveSpec {
    /// `target`: the latency to keep.
    pub target: Duration,
    /// `min`: the lower bound of the concurrency limit.
    pub min: Option<u64>,
    /// `max`: the upper bound of the concurrency limit.
    pub max: Option<u64>,
}

/// `bandwidth: 1MB/s` for downloads, or `{ down: 100kB/s after 200kB, up: 200kB/s }`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BandwidthSpec {
    /// The rate from server to client.
    pub down: Option<BandwidthRate>,
    /// The rate from client to server.
    pub up: Option<BandwidthRate>,
}

/// `1MB/s`, `1MB/s burst 10MB`, or `100kB/s after 200kB`
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BandwidthRate {
    /// The rate in bytes, and the burst.
    pub quota: Quota,
    /// `after`: the number of bytes of each body that pass before the rate applies.
    pub after: u64,
}

impl BandwidthRate {
    /// Checks that the rate times each of these factors, and times 1, is at least one byte per second.
    pub(crate) fn check_min_rate(&self, factors: impl Iterator<Item = Ratio>) -> Result<(), SettingError> {
        let Some(rate) = self.quota.rate() else { return Ok(()) };
        let per_period = rate.amount().saturating_mul(1_000_000);
        let is_too_low = |factor: Ratio| factor.apply(per_period) < rate.period().get();
        if is_too_low(Ratio::ONE) {
            let problem = format!("`{}` is less than one byte per second", self.quota);
            return Err(SettingError::new(problem, "use a higher rate, as in `1kB/s`"));
        }
        match factors.into_iter().find(|factor| is_too_low(*factor)) {
            None => Ok(()),
            Some(factor) => Err(SettingError::new(
                format!("bandwidth `{}` {factor} is less than one byte per second", self.quota),
                "use a higher rate, or a larger factor in `schedule`",
            )),
        }
    }
}

/// The parser accepts this size, and larger ones, only as plain numbers: it reads others as an amount of a quota.
pub(crate) const MIN_PLAIN_SIZE: u64 = LARGEST_EXACT / 3;

impl From<Quota> for BandwidthRate {
    fn from(quota: Quota) -> Self {
        Self { quota, after: 0 }
    }
}

/// Writes the notation of policies.
impl fmt::Display for BandwidthRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.quota.fmt(f)?;
        match self.after {
            0 => Ok(()),
            MIN_PLAIN_SIZE.. => write!(f, " after {}", self.after),
            after => write!(f, " after {}", RateUnit::Bytes.display(after)),
        }
    }
}

impl FromStr for BandwidthRate {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        crate::read::parse_bandwidth_rate(text).map_err(|error| SettingError::new(error.problem, error.fix))
    }
}

/// `deny`, `allow` and `ban`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessSpec {
    /// `deny`: clients from these networks are denied.
    pub deny: Vec<Network>,
    /// `allow`: clients from these networks are exempt from all other limits of this rule, also from `deny: [all]`.
    pub allow: Vec<Network>,
    /// `ban: 10/min for 1h`: bans clients that are denied this often, for this time.
    pub ban: Option<BanRule>,
}

impl AccessSpec {
    /// Whether it denies all clients that it does not allow.
    pub(crate) fn denies_all(&self) -> bool {
        self.deny.iter().any(|network| matches!(network, Network::List(name) if name == "all"))
    }
}

/// `breaker: { failure-rate: 50%, window-size: 20, open-duration: 5s, half-open-calls: 3 }`, of a rule or of each server of an upstream.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct BreakerSpec {
    /// `failure-rate`: the share of failed calls at which the breaker opens.
    pub failure_rate: Option<Percent>,
    /// `slow-call-rate`: the share of slow calls at which the breaker opens.
    pub slow_call_rate: Option<Percent>,
    /// `slow-call-duration`: the duration from which a call is slow.
    pub slow_call_duration: Option<Duration>,
    /// `window-size`: the recent calls that the shares are computed of.
    pub window_size: Option<BreakerWindow>,
    /// `min-calls`: the minimum number of calls before the breaker can open.
    pub min_calls: Option<u64>,
    /// `open-duration`: the time that the breaker stays open before it admits probes.
    pub open_duration: Option<Duration>,
    /// `backoff`: the factor of the open duration each time that the probes fail.
    pub backoff: Option<Ratio>,
    /// `max-open-duration`: the upper bound of the open duration with `backoff`.
    pub max_open_duration: Option<Duration>,
    /// `jitter`: the share by which each open duration varies at random, in both directions.
    pub jitter: Option<Percent>,
    /// `half-open-calls`: the number of calls that are admitted while the breaker is half-open.
    pub half_open_calls: Option<u64>,
    /// `half-open-timeout`: the time after which a half-open breaker counts probes without an outcome as failed.
    pub half_open_timeout: Option<Duration>,
}

/// The recent calls that a circuit breaker evaluates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BreakerWindow {
    /// `20`: this number of calls.
    Calls(u64),
    /// `60s`: the calls of this time.
    Time(Duration),
}

/// `priority: high`, or a priority that the request names: `{ key: header x-priority, default: low, reserve: { critical: 20% } }`.
#[derive(Clone, Debug, PartialEq)]
pub enum PrioritySpec {
    /// The same priority for every request.
    Fixed(String),
    /// The priority that the request names.
    FromRequest {
        /// `key`: the part of the request that names it.
        key: KeySpec,
        /// `default`: the priority of requests that name none.
        default: String,
        /// `reserve`: the share of a quota that is reserved for each class, the highest class first.
        reserve: Option<[Option<Percent>; 4]>,
    },
}

/// `mode: enforce`, `shadow`, `off`, or `enforce 10%` with the remaining keys in shadow mode.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleEnforcement {
    /// For all keys.
    All(Mode),
    /// Enforced for this share of the keys, always the same ones, and in shadow mode for the others.
    Percent(Percent),
}

impl RuleEnforcement {
    /// This mode for a percentage of the keys; for all keys if that is `None` or 100.
    pub fn new(mode: Mode, percent: Option<f64>) -> Result<Self, SettingError> {
        match (mode, percent) {
            (mode, None) => Ok(Self::All(mode)),
            (Mode::Enforce, Some(percent)) => match Percent::new(percent)? {
                Percent::FULL => Ok(Self::All(Mode::Enforce)),
                Percent::ZERO => Err(SettingError::new(
                    "enforced for 0 % of the keys",
                    "use `shadow`, or a larger percentage",
                )),
                share => Ok(Self::Percent(share)),
            },
            (mode, Some(_)) => {
                let problem = format!("percentage of keys in mode `{mode}`");
                Err(SettingError::new(
                    problem,
                    "remove it, or use `enforce`, which leaves the other keys in shadow mode",
                ))
            }
        }
    }

    /// The mode for the selected keys.
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

    /// The share of selected keys; `None` for all.
    pub fn percent(&self) -> Option<Percent> {
        match self {
            Self::All(_) => None,
            Self::Percent(share) => Some(*share),
        }
    }
}

/// Writes the notation of policies.
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

/// `queue: { max: 100, max-total: 5000, order: fifo }`, or `queue: 100`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueSpec {
    /// `max`: the maximum number of waiting requests for one key.
    pub max: u64,
    /// `max-total`: the maximum number of waiting requests over all keys; by default 10,000, or `max` if that is larger.
    pub max_total: Option<u64>,
    /// `order`.
    pub order: QueueOrder,
}

/// The order in which waiting requests are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueOrder {
    /// In order of arrival.
    #[default]
    Fifo,
    /// By priority.
    Priority,
}
