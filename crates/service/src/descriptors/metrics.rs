//! Metrics of the service: one registry whose size depends on the configuration, not on the requests.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tidegate_policy::descriptors::{DescriptorEntry, MetricName};

/// The series of everything beyond the capacity of the registry.
pub(super) const OTHER_NAME: &str = "other";
/// The maximum length of a name with its own series.
const MAX_NAME_LEN: usize = 1_024;
/// The series of limit overrides beyond the capacity of the registry.
pub(super) const OVERRIDE_NAME: &str = "override";
/// The number of unknown domains with their own series.
const MAX_UNKNOWN_DOMAINS: usize = 64;

/// Upper bounds of the buckets of response times, in microseconds.
pub(super) const BUCKET_BOUNDS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000];

/// The metrics of the service. Counters only grow; a reload removes the counters of limits that no longer exist.
#[derive(Debug)]
pub struct ServiceMetrics {
    pub(super) total_requests: AtomicU64,
    pub(super) store_errors: AtomicU64,
    pub(super) service_errors: AtomicU64,
    pub(super) config_load_success: AtomicU64,
    pub(super) config_load_error: AtomicU64,
    pub(super) global_shadow_mode: AtomicU64,
    /// One counter per bucket, and a last one for longer times.
    pub(super) response_times: [AtomicU64; BUCKET_BOUNDS.len() + 1],
    pub(super) response_time_sum: AtomicU64,
    unknown_domains: Mutex<BTreeMap<String, u64>>,
    limits: RwLock<BTreeMap<Arc<str>, Arc<LimitMetrics>>>,
    /// By domain, then by the name after the domain.
    overrides: RwLock<HashMap<String, HashMap<String, Arc<LimitCounters>>>>,
    max_details: usize,
}

/// The metrics of one limit.
#[derive(Debug)]
pub(super) struct LimitMetrics {
    name: Arc<str>,
    /// The path does not show where the domain ends, since domains may contain dots.
    domain: OnceLock<String>,
    total: Arc<LimitCounters>,
    details: RwLock<HashMap<String, Arc<LimitCounters>>>,
    max_details: usize,
}

/// The counters of a limit, weighted by hits.
#[derive(Debug, Default)]
pub(super) struct LimitCounters {
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    over_limit_with_local_cache: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
}

/// The names of [`LimitCounters`], in the order of [`LimitCounters::values`].
pub(super) const COUNTER_NAMES: [&str; 6] =
    ["total_hits", "over_limit", "near_limit", "over_limit_with_local_cache", "within_limit", "shadow_mode"];

/// The hits of one request on a limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct LimitHit {
    pub(super) hits: u64,
    /// The count after these hits.
    pub(super) after: u64,
    pub(super) limit: u64,
    /// See [`near_limit`].
    pub(super) near_limit: u64,
    pub(super) shadow: ShadowMode,
    pub(super) source: HitSource,
}

/// The source of a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HitSource {
    /// A counter.
    Counter,
    /// The local cache of keys over their limit.
    LocalCache,
}

/// Whether a limit is in shadow mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ShadowMode {
    Enabled,
    Disabled,
}

/// The counters of a limit with its name and domain.
pub(super) struct LimitSeries {
    pub(super) domain: String,
    /// The name after the domain.
    pub(super) name: String,
    pub(super) counts: [u64; COUNTER_NAMES.len()],
}

impl ServiceMetrics {
    pub(super) fn new(max_details: usize) -> Self {
        Self {
            total_requests: AtomicU64::default(),
            store_errors: AtomicU64::default(),
            service_errors: AtomicU64::default(),
            config_load_success: AtomicU64::default(),
            config_load_error: AtomicU64::default(),
            global_shadow_mode: AtomicU64::default(),
            response_times: Default::default(),
            response_time_sum: AtomicU64::default(),
            unknown_domains: Mutex::default(),
            limits: RwLock::default(),
            overrides: RwLock::default(),
            max_details,
        }
    }

    /// Records that a configuration was loaded.
    pub fn record_config_load(&self) {
        self.config_load_success.fetch_add(1, Relaxed);
    }

    /// Records that a configuration was rejected.
    pub fn record_config_error(&self) {
        self.config_load_error.fetch_add(1, Relaxed);
    }

    /// The current number of series.
    pub fn series_count(&self) -> usize {
        self.limit_series().len() + self.unknown_domains().len()
    }

    /// Records the response time of a request, successful or not.
    pub(super) fn record_response(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKET_BOUNDS.iter().position(|end| micros <= *end).unwrap_or(BUCKET_BOUNDS.len());
        self.total_requests.fetch_add(1, Relaxed);
        self.response_times[bucket].fetch_add(1, Relaxed);
        self.response_time_sum.fetch_add(micros, Relaxed);
    }

    /// Records the descriptors of a request for an unknown domain.
    pub(super) fn record_unknown_domain(&self, domain: &str, descriptors: usize) {
        let descriptors = descriptors as u64;
        let mut domains = self.unknown_domains.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = domains.get_mut(domain) {
            *count += descriptors;
            return;
        }
        let name =
            if domains.len() < MAX_UNKNOWN_DOMAINS && domain.len() <= 128 { domain } else { OTHER_NAME };
        *domains.entry(name.to_owned()).or_default() += descriptors;
    }

    pub(super) fn unknown_domains(&self) -> Vec<(String, u64)> {
        let domains = self.unknown_domains.lock().unwrap_or_else(PoisonError::into_inner);
        domains.iter().map(|(domain, count)| (domain.clone(), *count)).collect()
    }

    /// Keeps the counters of the limits in `names` and of the overrides of loaded domains; removes all others. A request that
    /// the previous configuration still decides may add one again, until the next reload.
    pub(super) fn retain<'a>(
        &self,
        names: impl Iterator<Item = &'a Arc<str>>,
        is_loaded: impl Fn(&str) -> bool,
    ) {
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        if !limits.is_empty() {
            *limits = names.filter_map(|name| limits.remove_entry(name)).collect();
        }
        self.overrides.write().unwrap_or_else(PoisonError::into_inner).retain(|domain, _| is_loaded(domain));
    }

    /// Returns the metrics of a limit. The limit must exist in the configuration; otherwise the registry is unbounded.
    pub(super) fn for_limit(&self, name: &Arc<str>) -> Arc<LimitMetrics> {
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(LimitMetrics::new(name.clone(), self.max_details));
        limits.entry(name.clone()).or_insert_with(new).clone()
    }

    /// Returns the counters of a limit override, under the name of its descriptor or, beyond the capacity, under
    /// [`OVERRIDE_NAME`]. The domain must exist in the configuration; otherwise the registry is unbounded.
    pub(super) fn for_override(&self, domain: &str, entries: &[DescriptorEntry]) -> Arc<LimitCounters> {
        let mut name = String::new();
        for entry in entries {
            if !name.is_empty() {
                name.push('.');
            }
            name.push_str(&entry.key);
            if !entry.value.is_empty() {
                name.push('_');
                name.push_str(&entry.value);
            }
        }
        let overrides = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        let known = overrides.get(domain).and_then(|names| names.get(&name)).cloned();
        drop(overrides);
        known.unwrap_or_else(|| {
            let mut overrides = self.overrides.write().unwrap_or_else(PoisonError::into_inner);
            let names = overrides.entry(domain.to_owned()).or_default();
            let fits = names.len() < self.max_details && name.len() <= MAX_NAME_LEN;
            let name = if fits || names.contains_key(&name) { name } else { OVERRIDE_NAME.to_owned() };
            names.entry(name).or_default().clone()
        })
    }

    /// The series of all limits with hits.
    pub(super) fn limit_series(&self) -> Vec<LimitSeries> {
        let mut all = Vec::new();
        for limit in self.limits.read().unwrap_or_else(PoisonError::into_inner).values() {
            let details = limit.details.read().unwrap_or_else(PoisonError::into_inner);
            let mut details: Vec<_> = details.iter().map(|(name, counts)| (name.as_str(), counts)).collect();
            details.sort_by_key(|(name, _)| *name);
            for (name, counts) in [(&*limit.name, &limit.total)].into_iter().chain(details) {
                let counts = counts.values();
                if counts != [0; COUNTER_NAMES.len()] {
                    let (domain, rest) = limit.split_domain(name);
                    all.push(LimitSeries { domain, name: rest, counts });
                }
            }
        }
        let overrides = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        let overrides = overrides
            .iter()
            .flat_map(|(domain, names)| names.iter().map(move |(name, counts)| (domain, name, counts)));
        let mut overrides: Vec<_> = overrides.collect();
        overrides.sort_by_key(|(domain, name, _)| (*domain, *name));
        all.extend(overrides.into_iter().map(|(domain, name, counts)| LimitSeries {
            domain: domain.clone(),
            name: name.clone(),
            counts: counts.values(),
        }));
        all
    }
}

impl LimitMetrics {
    fn new(name: Arc<str>, max_details: usize) -> Self {
        Self { name, domain: OnceLock::new(), total: Arc::default(), details: RwLock::default(), max_details }
    }

    /// Returns the counters for a hit in this domain.
    pub(super) fn counters_for(&self, domain: &str, metric: &MetricName) -> Arc<LimitCounters> {
        self.domain.get_or_init(|| domain.to_owned());
        let MetricName::Detailed(name) = metric else { return self.total.clone() };
        let known = self.details.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        known.unwrap_or_else(|| {
            let mut details = self.details.write().unwrap_or_else(PoisonError::into_inner);
            if details.len() < self.max_details && name.len() <= MAX_NAME_LEN || details.contains_key(name) {
                return details.entry(name.clone()).or_default().clone();
            }
            let folded = format!("{}.{OTHER_NAME}", self.name);
            details.entry(folded).or_default().clone()
        })
    }

    /// Splits a name into the domain and the rest.
    fn split_domain(&self, name: &str) -> (String, String) {
        let domain = self.domain.get().map_or("", String::as_str);
        match name.strip_prefix(domain).and_then(|rest| rest.strip_prefix('.')) {
            Some(rest) => (domain.to_owned(), rest.to_owned()),
            None => (domain.to_owned(), name.to_owned()),
        }
    }
}

impl LimitCounters {
    /// Counts the hits within the limit, near it and over it.
    pub(super) fn record(&self, hit: LimitHit) {
        let LimitHit { hits, after, limit, near_limit: near, shadow, source } = hit;
        let before = after.saturating_sub(hits);
        self.total_hits.fetch_add(hits, Relaxed);
        if after <= limit {
            self.within_limit.fetch_add(hits, Relaxed);
            self.near_limit.fetch_add(after.saturating_sub(near.max(before)), Relaxed);
            return;
        }
        let over = after - limit.max(before);
        self.over_limit.fetch_add(over, Relaxed);
        self.near_limit.fetch_add(limit.saturating_sub(near.max(before)), Relaxed);
        if source == HitSource::LocalCache {
            self.over_limit_with_local_cache.fetch_add(hits, Relaxed);
        }
        if shadow == ShadowMode::Enabled {
            self.shadow_mode.fetch_add(over, Relaxed);
        }
    }

    fn values(&self) -> [u64; COUNTER_NAMES.len()] {
        let Self {
            total_hits,
            over_limit,
            near_limit,
            over_limit_with_local_cache,
            within_limit,
            shadow_mode,
        } = self;
        [total_hits, over_limit, near_limit, over_limit_with_local_cache, within_limit, shadow_mode]
            .map(|count| count.load(Relaxed))
    }
}

/// The count above which hits are near the limit: `limit * ratio`, rounded down, in single precision as envoyproxy/ratelimit
/// computes it.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the ratio is at most one, and the result is rounded down"
)]
pub(super) fn near_limit(limit: u64, ratio: f32) -> u64 {
    (limit as f32 * ratio).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_count_as_within_near_or_over_limit() {
        // (hits, after, limit) -> (total, over, near, within)
        let table = [
            ((1, 1, 10), (1, 0, 0, 1)),
            ((1, 8, 10), (1, 0, 0, 1)),
            ((1, 9, 10), (1, 0, 1, 1)),
            ((5, 10, 10), (5, 0, 2, 5)),
            ((1, 11, 10), (1, 1, 0, 0)),
            ((5, 12, 10), (5, 2, 2, 0)),
            ((20, 20, 10), (20, 10, 2, 0)),
            ((1, 1, 0), (1, 1, 0, 0)),
            ((0, 10, 10), (0, 0, 0, 0)),
        ];
        for ((hits, after, limit), expected) in table {
            let counts = LimitCounters::default();
            let (near, shadow, source) = (near_limit(limit, 0.8), ShadowMode::Disabled, HitSource::Counter);
            counts.record(LimitHit { hits, after, limit, near_limit: near, shadow, source });
            let [total, over, near, _, within, _] = counts.values();
            assert_eq!((total, over, near, within), expected, "{hits} hits to {after} of {limit}");
        }
    }

    #[test]
    fn near_limit_is_rounded_down_in_single_precision() {
        for (limit, ratio, expected) in
            [(10, 0.8, 8), (15, 0.8, 12), (16, 0.8, 12), (1, 0.8, 0), (20, 0.5, 10)]
        {
            assert_eq!(near_limit(limit, ratio), expected, "{limit} x {ratio}");
        }
    }

    #[test]
    fn registry_size_is_bounded() {
        let metrics = ServiceMetrics::new(100);
        let name: Arc<str> = "shop.user".into();
        let limit = metrics.for_limit(&name);
        let hit = LimitHit {
            hits: 1,
            after: 1,
            limit: 5,
            near_limit: 4,
            shadow: ShadowMode::Disabled,
            source: HitSource::Counter,
        };
        for number in 0..1_000_000 {
            limit.counters_for("shop", &MetricName::Detailed(format!("shop.user_{number}"))).record(hit);
            let entry = DescriptorEntry { key: "user".to_owned(), value: number.to_string() };
            metrics.for_override("shop", &[entry]).record(hit);
            metrics.record_unknown_domain(&number.to_string(), 1);
        }
        // 100 names and `other` for limits, 100 names and `override` for overrides, 64 unknown domains and `other`.
        assert_eq!(metrics.series_count(), 101 + 101 + 65);
        let all: u64 = metrics.limit_series().iter().map(|series| series.counts[0]).sum();
        assert_eq!(all, 2_000_000);
        assert_eq!(metrics.unknown_domains().iter().map(|(_, count)| count).sum::<u64>(), 1_000_000);
    }
}
