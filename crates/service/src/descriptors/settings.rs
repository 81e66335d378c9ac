//! How a decision service counts, and what it tells.

use std::{fmt, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::{Capacity, Clock, CounterStore, FailureMode, Store};

/// How a decision service counts, and what it tells. The default is what envoyproxy/ratelimit does unless told otherwise.
#[derive(Clone)]
pub struct ServiceSettings {
    /// How it counts.
    pub counting: CountingMode,
    /// What becomes of the counts of a request that is refused, where [`CountingMode::Reference`] is chosen.
    pub over_limit_counting: OverLimitCounting,
    /// Where it counts; in this process unless there is a store.
    pub store: Option<Arc<dyn Store>>,
    /// Where limits per second are counted, if that is another store.
    pub per_second: Option<Arc<dyn Store>>,
    /// Under whose keys limits per unit are counted, if those are not our own.
    pub shared_keys: Option<SharedKeys>,
    /// `LOCAL_CACHE_SIZE_IN_BYTES`: how much memory there is for keys that are over, so that the store is not asked about them
    /// until their window ends. Only where [`CountingMode::Reference`] is chosen: else a key that is over may have room again.
    pub local_cache: Option<u64>,
    /// For how long tokens of a store may lie in this process, if they are taken ahead at all: those of limits with quotas, and
    /// of all where [`CountingMode::Atomic`] is chosen.
    pub lease: Option<Duration>,
    /// What is decided when that store is away or late.
    pub outage: FailureMode,
    /// How long the store may take with all that it is asked for one decision, if the caller does not wait for less.
    pub deadline: Duration,
    /// The most memory that counts of one unit take in this process, and those of all limits with quotas together.
    pub capacity: Capacity,
    /// The time, in this process; a store has its own.
    pub clock: Clock,
    /// `SHADOW_MODE`: whether a refusal is only told, and not meant.
    pub enforcement: GlobalEnforcement,
    /// `QUOTA_MODE`: whether all limits are as those with `quota_mode`.
    pub quota_mode: QuotaMode,
    /// What clients are told of limits.
    pub headers: ResponseHeaderMode,
    /// What clients that are refused are told.
    pub body: ResponseBodyMode,
    /// `RESPONSE_DYNAMIC_METADATA`: what Envoy is told of the request.
    pub metadata: ResponseMetadataMode,
    /// `NEAR_LIMIT_RATIO`: from which part of a limit on hits are near it.
    pub near_limit_ratio: f32,
    /// The most descriptors that one request may have.
    pub max_descriptors: usize,
    /// The most entries that one descriptor may have.
    pub max_entries: usize,
    /// The most names that metrics have for one limit with `detailed_metric` or `value_to_metric`.
    pub max_details: usize,
}

/// Keys that a fleet of envoyproxy/ratelimit counts with, too: fixed windows of plain numbers.
#[derive(Clone, Debug)]
pub struct SharedKeys {
    /// Where the numbers are.
    pub counter_store: Arc<dyn CounterStore>,
    /// Where those of limits per second are, if that is elsewhere.
    pub per_second: Option<Arc<dyn CounterStore>>,
    /// `CACHE_KEY_PREFIX`: what all keys start with.
    pub prefix: String,
    /// `EXPIRATION_JITTER_MAX_SECONDS`: numbers are kept for up to so much longer than their window.
    pub jitter: Duration,
    /// Which window it is.
    pub window_time: WindowClock,
}

/// By which time windows begin that others count in, too.
#[derive(Clone, Debug, Default)]
pub enum WindowClock {
    /// That of the machine's wall clock, also when it has been set: so do others. Other clocks of ours never jump.
    #[default]
    System,
    /// That of this clock.
    Custom(Clock),
}

impl WindowClock {
    pub(super) fn now(&self) -> Micros {
        match self {
            // One that is made now begins with what the wall clock says.
            Self::System => Clock::tokio().now(),
            Self::Custom(clock) => clock.now(),
        }
    }
}

/// How a decision service counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountingMode {
    /// As envoyproxy/ratelimit: every hit counts, also one beyond the limit, and also for those descriptors of a refused
    /// request that had room.
    #[default]
    Reference,
    /// What is refused costs nothing: all descriptors of a request are charged, or none.
    Atomic,
}

/// What becomes of the counts of a request that is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverLimitCounting {
    /// All stay.
    #[default]
    CountAll,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: only those are counted that go over, and none where one is known to be.
    CountOverLimit,
}

/// Whether a refusal is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GlobalEnforcement {
    /// It is.
    #[default]
    Enforce,
    /// The request is let through; what is said of its descriptors stays.
    Shadow,
}

/// Which limits deny only together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaMode {
    /// Those that say so.
    #[default]
    Declared,
    /// All.
    All,
}

/// Which headers tell clients of limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseHeaderMode {
    /// None.
    #[default]
    None,
    /// Three with these names, of the limit that is closest to its end: how many, how many are left, and when the window
    /// ends.
    Custom(HeaderNames),
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10, of all limits that apply.
    Ietf,
}

/// Names of headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// How many there are.
    pub limit: String,
    /// How many are left.
    pub remaining: String,
    /// The seconds until the window ends.
    pub reset: String,
}

impl HeaderNames {
    /// `RateLimit-Limit`, `-Remaining`, `-Reset`: those of envoyproxy/ratelimit.
    pub fn rate_limit() -> Self {
        Self::with_prefix("RateLimit")
    }

    /// `X-RateLimit-Limit`, `-Remaining`, `-Reset`.
    pub fn x_rate_limit() -> Self {
        Self::with_prefix("X-RateLimit")
    }

    fn with_prefix(family: &str) -> Self {
        let name = |what: &str| format!("{family}-{what}");
        Self { limit: name("Limit"), remaining: name("Remaining"), reset: name("Reset") }
    }
}

/// What clients that are refused are told in the body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseBodyMode {
    /// Nothing: it is Envoy's.
    #[default]
    None,
    /// A problem as in RFC 9457.
    Problem,
}

/// What Envoy is told of the request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseMetadataMode {
    /// Nothing.
    #[default]
    None,
    /// What was asked, and the metadata of the limits that had room.
    Request,
}

/// How long a store may take by default, as in envoyproxy/ratelimit. Envoy sends how long it waits itself with each request.
pub(super) const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);

impl Default for ServiceSettings {
    fn default() -> Self {
        Self {
            counting: CountingMode::default(),
            over_limit_counting: OverLimitCounting::default(),
            store: None,
            per_second: None,
            shared_keys: None,
            local_cache: None,
            lease: None,
            outage: FailureMode::Closed,
            deadline: DEFAULT_DEADLINE,
            capacity: Capacity::Bytes(64 << 20),
            clock: Clock::system(),
            enforcement: GlobalEnforcement::default(),
            quota_mode: QuotaMode::default(),
            headers: ResponseHeaderMode::default(),
            body: ResponseBodyMode::default(),
            metadata: ResponseMetadataMode::default(),
            near_limit_ratio: 0.8,
            max_descriptors: 1_000,
            max_entries: 64,
            max_details: 100,
        }
    }
}

impl fmt::Debug for ServiceSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceSettings")
            .field("counting", &self.counting)
            .field("when_over", &self.over_limit_counting)
            .field("store", &self.store)
            .field("shared", &self.shared_keys)
            .field("outage", &self.outage)
            .finish_non_exhaustive()
    }
}
