//! Settings of the rate limit service.

use std::{fmt, sync::Arc, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::{Capacity, Clock, CounterStore, FailureMode, Store};

/// Settings of the rate limit service. The defaults match those of envoyproxy/ratelimit.
#[derive(Clone)]
pub struct ServiceSettings {
    /// How hits are counted.
    pub counting: CountingMode,
    /// Which hits of a denied request are counted, in the mode [`CountingMode::Reference`].
    pub over_limit_counting: OverLimitCounting,
    /// The store of the counters; without it, the service counts in memory.
    pub store: Option<Arc<dyn Store>>,
    /// The store of limits per second, if it is a separate one.
    pub per_second: Option<Arc<dyn Store>>,
    /// Counts limits per unit in the keys of envoyproxy/ratelimit, if set.
    pub shared_keys: Option<SharedKeys>,
    /// `LOCAL_CACHE_SIZE_IN_BYTES`: the size of the cache of keys over their limit, which saves requests to the store until
    /// the window ends. Only in the mode [`CountingMode::Reference`]; in the other mode such a key may regain capacity.
    pub local_cache: Option<u64>,
    /// How long this process may keep prefetched tokens; `None` disables prefetching. Applies to limits with quotas, and to
    /// all limits in the mode [`CountingMode::Atomic`].
    pub lease: Option<Duration>,
    /// What happens while the store is unavailable.
    pub outage: FailureMode,
    /// The deadline for all store requests of one decision; the timeout of the caller may shorten it.
    pub deadline: Duration,
    /// The maximum memory of the counters of one unit, and of all limits with quotas together.
    pub capacity: Capacity,
    /// The clock of this process; a store has its own.
    pub clock: Clock,
    /// `SHADOW_MODE`: whether denials are enforced.
    pub enforcement: GlobalEnforcement,
    /// `QUOTA_MODE`: whether all limits behave as if they had `quota_mode`.
    pub quota_mode: QuotaMode,
    /// The response headers.
    pub headers: ResponseHeaderMode,
    /// The body of denials.
    pub body: ResponseBodyMode,
    /// `RESPONSE_DYNAMIC_METADATA`: the dynamic metadata of responses.
    pub metadata: ResponseMetadataMode,
    /// `NEAR_LIMIT_RATIO`: the share of a limit above which hits count as near the limit.
    pub near_limit_ratio: f32,
    /// The maximum number of descriptors per request.
    pub max_descriptors: usize,
    /// The maximum number of entries per descriptor.
    pub max_entries: usize,
    /// The maximum number of metric names per limit with `detailed_metric` or `value_to_metric`.
    pub max_details: usize,
}

/// Counters in the keys of envoyproxy/ratelimit: fixed windows, one plain number per key.
#[derive(Clone, Debug)]
pub struct SharedKeys {
    /// The store of the counters.
    pub counter_store: Arc<dyn CounterStore>,
    /// The store of limits per second, if it is a separate one.
    pub per_second: Option<Arc<dyn CounterStore>>,
    /// `CACHE_KEY_PREFIX`: the prefix of all keys.
    pub prefix: String,
    /// `EXPIRATION_JITTER_MAX_SECONDS`: the maximum random extension of the TTL of a key.
    pub jitter: Duration,
    /// The clock that selects the window.
    pub window_time: WindowClock,
}

/// The clock that selects the window of shared counters.
#[derive(Clone, Debug, Default)]
pub enum WindowClock {
    /// The wall clock, including its adjustments, as in envoyproxy/ratelimit. Other clocks of Tidegate never jump.
    #[default]
    System,
    /// A custom clock.
    Custom(Clock),
}

impl WindowClock {
    pub(super) fn now(&self) -> Micros {
        match self {
            // A new clock starts at the current wall-clock time.
            Self::System => Clock::tokio().now(),
            Self::Custom(clock) => clock.now(),
        }
    }
}

/// How hits are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CountingMode {
    /// As in envoyproxy/ratelimit: counts every hit, also hits over the limit, and also for the descriptors of a denied
    /// request that are within their limit.
    #[default]
    Reference,
    /// Charges all descriptors of a request, or none if it is denied.
    Atomic,
}

/// Which hits of a denied request are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OverLimitCounting {
    /// Counts all hits.
    #[default]
    CountAll,
    /// `STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT`: counts only the keys that go over their limit, and none if a key is known
    /// to be over.
    CountOverLimit,
}

/// Whether denials are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GlobalEnforcement {
    /// Enforces denials.
    #[default]
    Enforce,
    /// Allows every request, and still reports the status of each descriptor.
    Shadow,
}

/// Which limits belong to the quota group, which denies a request only if every member is over its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuotaMode {
    /// Limits with `quota_mode`.
    #[default]
    Declared,
    /// All limits.
    All,
}

/// The rate limit headers of responses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ResponseHeaderMode {
    /// None.
    #[default]
    None,
    /// Three headers with these names, for the most restrictive limit: limit, remaining, reset.
    Custom(HeaderNames),
    /// `RateLimit-Policy` and `RateLimit` of draft-ietf-httpapi-ratelimit-headers-10, for all limits that apply.
    Ietf,
}

/// Names of headers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderNames {
    /// The limit.
    pub limit: String,
    /// The remaining requests.
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
        let name = |suffix: &str| format!("{family}-{suffix}");
        Self { limit: name("Limit"), remaining: name("Remaining"), reset: name("Reset") }
    }
}

/// The body of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseBodyMode {
    /// None; Envoy sends its own.
    #[default]
    None,
    /// RFC 9457 problem details.
    Problem,
}

/// The dynamic metadata of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseMetadataMode {
    /// None.
    #[default]
    None,
    /// The request, and the metadata of the limits that are not exceeded.
    Request,
}

/// The default deadline, as in envoyproxy/ratelimit. Envoy also sends its own timeout with each request.
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
            .field("over_limit_counting", &self.over_limit_counting)
            .field("store", &self.store)
            .field("shared_keys", &self.shared_keys)
            .field("outage", &self.outage)
            .finish_non_exhaustive()
    }
}
