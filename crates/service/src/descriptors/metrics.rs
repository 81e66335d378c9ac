//! What is counted for operators: one registry that is bounded by what the files say, not by what requests do.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, OnceLock, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};
use tidegate_policy::descriptors::{DescriptorEntry, MetricName};

/// What everything is called that there is no room for by its own name.
pub(super) const OTHER: &str = "other";
/// A longer name is not kept.
const MAX_NAME: usize = 1_024;
/// What limits are called that requests bring along, where there is no room for the names of their descriptors.
pub(super) const OVERRIDE: &str = "override";
/// So many domains that are not loaded are told apart.
const MOST_STRANGERS: usize = 64;

/// Upper ends of the buckets of response times, in microseconds.
pub(super) const BUCKETS: [u64; 12] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000, 1_000_000];

/// Counts of a decision service. They only grow, except when files are read that lack a limit: then its counts go.
#[derive(Debug)]
pub struct ServiceMetrics {
    pub(super) total_requests: AtomicU64,
    pub(super) store_errors: AtomicU64,
    pub(super) service_errors: AtomicU64,
    pub(super) config_load_success: AtomicU64,
    pub(super) config_load_error: AtomicU64,
    pub(super) global_shadow_mode: AtomicU64,
    /// One more than there are buckets: the last is for those that took longer.
    pub(super) times: [AtomicU64; BUCKETS.len() + 1],
    pub(super) time_sum: AtomicU64,
    strangers: Mutex<BTreeMap<String, u64>>,
    limits: RwLock<BTreeMap<Arc<str>, Arc<LimitMetrics>>>,
    /// By domain, and in it by what follows the domain in the name.
    overrides: RwLock<HashMap<String, HashMap<String, Arc<Counts>>>>,
    most_details: usize,
}

/// Counts of one limit.
#[derive(Debug)]
pub(super) struct LimitMetrics {
    place: Arc<str>,
    /// The place alone does not say where its first part ends.
    domain: OnceLock<String>,
    plain: Arc<Counts>,
    details: RwLock<HashMap<String, Arc<Counts>>>,
    most: usize,
}

/// What is counted of a limit, weighted by hits.
#[derive(Debug, Default)]
pub(super) struct Counts {
    total_hits: AtomicU64,
    over_limit: AtomicU64,
    near_limit: AtomicU64,
    over_limit_with_local_cache: AtomicU64,
    within_limit: AtomicU64,
    shadow_mode: AtomicU64,
}

/// The names of [`Counts`], in the order of [`Counts::values`].
pub(super) const KINDS: [&str; 6] =
    ["total_hits", "over_limit", "near_limit", "over_limit_with_local_cache", "within_limit", "shadow_mode"];

/// Hits on a limit, as metrics see them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hit {
    pub(super) hits: u64,
    /// How many there are with these.
    pub(super) after: u64,
    pub(super) limit: u64,
    /// From how many on it is near; see [`near`].
    pub(super) near: u64,
    pub(super) shadow: Shadow,
    pub(super) source: Source,
}

/// How it is known how many there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// They were counted.
    Counted,
    /// The key was over before, and its window has not ended.
    Remembered,
}

/// Whether a limit only watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shadow {
    Yes,
    No,
}

/// A name with its counts, and the domain that it starts with if that is known.
pub(super) struct Series {
    pub(super) domain: String,
    /// What follows the domain.
    pub(super) rest: String,
    pub(super) counts: [u64; KINDS.len()],
}

impl ServiceMetrics {
    pub(super) fn new(most_details: usize) -> Self {
        Self {
            total_requests: AtomicU64::default(),
            store_errors: AtomicU64::default(),
            service_errors: AtomicU64::default(),
            config_load_success: AtomicU64::default(),
            config_load_error: AtomicU64::default(),
            global_shadow_mode: AtomicU64::default(),
            times: Default::default(),
            time_sum: AtomicU64::default(),
            strangers: Mutex::default(),
            limits: RwLock::default(),
            overrides: RwLock::default(),
            most_details,
        }
    }

    /// Files were read, and are good.
    pub fn config_loaded(&self) {
        self.config_load_success.fetch_add(1, Relaxed);
    }

    /// Files were read, and are not.
    pub fn config_refused(&self) {
        self.config_load_error.fetch_add(1, Relaxed);
    }

    /// How many names it has counts for at the moment.
    pub fn series(&self) -> usize {
        self.limit_series().len() + self.strangers().len()
    }

    /// A request was answered, or not, after so long.
    pub(super) fn answered(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bucket = BUCKETS.iter().position(|end| micros <= *end).unwrap_or(BUCKETS.len());
        self.total_requests.fetch_add(1, Relaxed);
        self.times[bucket].fetch_add(1, Relaxed);
        self.time_sum.fetch_add(micros, Relaxed);
    }

    /// A domain was asked for that is not loaded, with so many descriptors.
    pub(super) fn unknown_domain(&self, domain: &str, descriptors: usize) {
        let descriptors = descriptors as u64;
        let mut strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = strangers.get_mut(domain) {
            *count += descriptors;
            return;
        }
        let name = if strangers.len() < MOST_STRANGERS && domain.len() <= 128 { domain } else { OTHER };
        *strangers.entry(name.to_owned()).or_default() += descriptors;
    }

    pub(super) fn strangers(&self) -> Vec<(String, u64)> {
        let strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner);
        strangers.iter().map(|(domain, count)| (domain.clone(), *count)).collect()
    }

    /// Keeps the counts of these places; those of others go, and of limits that came along to domains that are not loaded any
    /// more. A request that is being decided by files before these may bring one back, until the next are loaded.
    pub(super) fn keep<'a>(
        &self,
        places: impl Iterator<Item = &'a Arc<str>>,
        is_loaded: impl Fn(&str) -> bool,
    ) {
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        if !limits.is_empty() {
            *limits = places.filter_map(|place| limits.remove_entry(place)).collect();
        }
        self.overrides.write().unwrap_or_else(PoisonError::into_inner).retain(|domain, _| is_loaded(domain));
    }

    /// Counts of the limits at a place. There must be such a place, or there is no bound.
    pub(super) fn of_place(&self, place: &Arc<str>) -> Arc<LimitMetrics> {
        let mut limits = self.limits.write().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(LimitMetrics::new(place.clone(), self.most_details));
        limits.entry(place.clone()).or_insert_with(new).clone()
    }

    /// Counts of a limit that a request brings along to a domain, under the name of its descriptor as long as there is room
    /// for names. There must be such a domain, or there is no bound.
    pub(super) fn of_override(&self, domain: &str, entries: &[DescriptorEntry]) -> Arc<Counts> {
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
            let has_room = names.len() < self.most_details && name.len() <= MAX_NAME;
            let name = if has_room || names.contains_key(&name) { name } else { OVERRIDE.to_owned() };
            names.entry(name).or_default().clone()
        })
    }

    /// All names of limits that were hit.
    pub(super) fn limit_series(&self) -> Vec<Series> {
        let mut all = Vec::new();
        for limit in self.limits.read().unwrap_or_else(PoisonError::into_inner).values() {
            let details = limit.details.read().unwrap_or_else(PoisonError::into_inner);
            let mut details: Vec<_> = details.iter().map(|(name, counts)| (name.as_str(), counts)).collect();
            details.sort_by_key(|(name, _)| *name);
            for (name, counts) in [(&*limit.place, &limit.plain)].into_iter().chain(details) {
                let counts = counts.values();
                if counts != [0; KINDS.len()] {
                    let (domain, rest) = limit.split(name);
                    all.push(Series { domain, rest, counts });
                }
            }
        }
        let overrides = self.overrides.read().unwrap_or_else(PoisonError::into_inner);
        let overrides = overrides
            .iter()
            .flat_map(|(domain, names)| names.iter().map(move |(name, counts)| (domain, name, counts)));
        let mut overrides: Vec<_> = overrides.collect();
        overrides.sort_by_key(|(domain, name, _)| (*domain, *name));
        all.extend(overrides.into_iter().map(|(domain, name, counts)| Series {
            domain: domain.clone(),
            rest: name.clone(),
            counts: counts.values(),
        }));
        all
    }
}

impl LimitMetrics {
    fn new(place: Arc<str>, most: usize) -> Self {
        Self { place, domain: OnceLock::new(), plain: Arc::default(), details: RwLock::default(), most }
    }

    /// The counts that a hit of this domain belongs to.
    pub(super) fn of(&self, domain: &str, metric: &MetricName) -> Arc<Counts> {
        self.domain.get_or_init(|| domain.to_owned());
        let MetricName::Detailed(name) = metric else { return self.plain.clone() };
        let known = self.details.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned();
        known.unwrap_or_else(|| {
            let mut details = self.details.write().unwrap_or_else(PoisonError::into_inner);
            if details.len() < self.most && name.len() <= MAX_NAME || details.contains_key(name) {
                return details.entry(name.clone()).or_default().clone();
            }
            let folded = format!("{}.{OTHER}", self.place);
            details.entry(folded).or_default().clone()
        })
    }

    /// A name without its domain, and the domain.
    fn split(&self, name: &str) -> (String, String) {
        let domain = self.domain.get().map_or("", String::as_str);
        match name.strip_prefix(domain).and_then(|rest| rest.strip_prefix('.')) {
            Some(rest) => (domain.to_owned(), rest.to_owned()),
            None => (domain.to_owned(), name.to_owned()),
        }
    }
}

impl Counts {
    /// Counts hits: how much of them was within the limit, near it, and over it.
    pub(super) fn hit(&self, hit: Hit) {
        let Hit { hits, after, limit, near, shadow, source } = hit;
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
        if source == Source::Remembered {
            self.over_limit_with_local_cache.fetch_add(hits, Relaxed);
        }
        if shadow == Shadow::Yes {
            self.shadow_mode.fetch_add(over, Relaxed);
        }
    }

    fn values(&self) -> [u64; KINDS.len()] {
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

/// From how many hits on they are near a limit: so much of it, rounded down, in the numbers that envoyproxy/ratelimit uses.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the ratio is one, and the rest is rounded"
)]
pub(super) fn near(limit: u64, ratio: f32) -> u64 {
    (limit as f32 * ratio).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_within_near_or_over() {
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
            let counts = Counts::default();
            let (near, shadow, source) = (near(limit, 0.8), Shadow::No, Source::Counted);
            counts.hit(Hit { hits, after, limit, near, shadow, source });
            let [total, over, near, _, within, _] = counts.values();
            assert_eq!((total, over, near, within), expected, "{hits} hits to {after} of {limit}");
        }
    }

    #[test]
    fn near_is_rounded_down_in_single_precision() {
        for (limit, ratio, expected) in
            [(10, 0.8, 8), (15, 0.8, 12), (16, 0.8, 12), (1, 0.8, 0), (20, 0.5, 10)]
        {
            assert_eq!(near(limit, ratio), expected, "{limit} x {ratio}");
        }
    }

    #[test]
    fn a_million_names_leave_the_registry_at_its_bound() {
        let metrics = ServiceMetrics::new(100);
        let place: Arc<str> = "shop.user".into();
        let limit = metrics.of_place(&place);
        let hit = Hit { hits: 1, after: 1, limit: 5, near: 4, shadow: Shadow::No, source: Source::Counted };
        for number in 0..1_000_000 {
            limit.of("shop", &MetricName::Detailed(format!("shop.user_{number}"))).hit(hit);
            let entry = DescriptorEntry { key: "user".to_owned(), value: number.to_string() };
            metrics.of_override("shop", &[entry]).hit(hit);
            metrics.unknown_domain(&number.to_string(), 1);
        }
        // A hundred names and the rest, twice; as many unknown domains as have names, and the rest.
        assert_eq!(metrics.series(), 101 + 101 + 65);
        let all: u64 = metrics.limit_series().iter().map(|series| series.counts[0]).sum();
        assert_eq!(all, 2_000_000);
        assert_eq!(metrics.strangers().iter().map(|(_, count)| count).sum::<u64>(), 1_000_000);
    }
}
