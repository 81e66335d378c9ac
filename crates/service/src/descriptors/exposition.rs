//! The metrics of the service as families, each sample with its name in `/stats` and statsd.

use super::metrics::{BUCKET_BOUNDS, COUNTER_NAMES, ServiceMetrics};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};
use tidegate_http_server::{MetricFamily, MetricKind, MetricLabels, MetricValue, prometheus_text};

/// The value of the label `grpc_method`: the service has one method.
const GRPC_METHOD: &str = "ShouldRateLimit";
/// The statsd name of the response times.
pub(super) const RESPONSE_TIME_STAT: &str = "ratelimit_server.ShouldRateLimit.response_time";

/// Names and help texts of the counters of limits, in the order of [`COUNTER_NAMES`].
const LIMIT_METRICS: [(&str, &str); COUNTER_NAMES.len()] = [
    ("ratelimit_service_rate_limit_total_hits", "Hits on a limit."),
    ("ratelimit_service_rate_limit_over_limit", "Hits over a limit, including limits in shadow mode."),
    (
        "ratelimit_service_rate_limit_near_limit",
        "Hits above the near-limit ratio of a limit and not over the limit.",
    ),
    (
        "ratelimit_service_rate_limit_over_limit_with_local_cache",
        "Hits over a limit that were decided from the local cache.",
    ),
    ("ratelimit_service_rate_limit_within_limit", "Hits within a limit."),
    ("ratelimit_service_rate_limit_shadow_mode", "Hits over a limit that were allowed in shadow mode."),
];

const LOCAL_CACHE_METRICS: [(&str, &str); 7] = [
    ("ratelimit_localcache_entryCount", "Keys in the local cache."),
    ("ratelimit_localcache_evacuateCount", "Keys that were removed from the full local cache."),
    ("ratelimit_localcache_expiredCount", "Keys of the local cache that expired."),
    ("ratelimit_localcache_hitCount", "Lookups that found a key in the local cache."),
    ("ratelimit_localcache_lookupCount", "Lookups in the local cache."),
    ("ratelimit_localcache_missCount", "Lookups that found no key in the local cache."),
    ("ratelimit_localcache_overwriteCount", "Keys of the local cache that were replaced by a newer entry."),
];

/// All metrics of the service at one time, under the names of envoyproxy/ratelimit.
pub(super) struct Exposition(Vec<(MetricFamily, Vec<String>)>);

impl Exposition {
    /// Reads all counters. A name with more than two parts after the domain is cut to the first two in the labels.
    pub(super) fn new(metrics: &ServiceMetrics, store_failures: u64, local_cache: &[(&str, u64)]) -> Self {
        let mut all = Self(Vec::new());
        let series: Vec<_> = metrics
            .limit_series()
            .into_iter()
            .map(|series| (sanitize_name(&series.domain), sanitize_name(&series.name), series))
            .collect();
        for (index, (name, help)) in LIMIT_METRICS.into_iter().enumerate() {
            all.start_family(MetricFamily::counter(name, help));
            for (domain, rest, series) in &series {
                let mut keys = rest.split('.');
                let mut labels = vec![("domain", &*series.domain), ("key1", keys.next().unwrap_or_default())];
                labels.extend(keys.next().filter(|key| !key.is_empty()).map(|key| ("key2", key)));
                let stat = format!("ratelimit.service.rate_limit.{domain}.{rest}.{}", COUNTER_NAMES[index]);
                all.add(stat, &labels, series.counts[index]);
            }
        }
        all.start_family(MetricFamily::counter(
            "ratelimit_service_rate_limit_domain_not_found",
            "Descriptors of requests for a domain that is not configured.",
        ));
        for (domain, count) in metrics.unknown_domains() {
            let stat = format!("ratelimit.service.rate_limit.{}.domain_not_found", sanitize_name(&domain));
            all.add(stat, &[("domain", &domain)], count);
        }
        all.start_family(MetricFamily::counter(
            "ratelimit_service_should_rate_limit_error",
            "Requests that failed, because of the store or because they were invalid.",
        ));
        for (kind, count) in
            [("redis_error", &metrics.store_errors), ("service_error", &metrics.service_errors)]
        {
            let stat = format!("ratelimit.service.call.should_rate_limit.{kind}");
            all.add(stat, &[("err_type", kind)], load(count));
        }
        for (name, stat, count, help) in [
            (
                "ratelimit_service_config_load_success",
                "ratelimit.service.config_load_success",
                load(&metrics.config_load_success),
                "Configurations that were loaded.",
            ),
            (
                "ratelimit_service_config_load_error",
                "ratelimit.service.config_load_error",
                load(&metrics.config_load_error),
                "Configurations that were rejected.",
            ),
            (
                "ratelimit_service_global_shadow_mode",
                "ratelimit.service.global_shadow_mode",
                load(&metrics.global_shadow_mode),
                "Requests over a limit that were allowed in global shadow mode.",
            ),
            (
                "ratelimit_service_store_failures",
                "ratelimit.service.store_failures",
                store_failures,
                "Calls to the store that failed.",
            ),
        ] {
            all.start_family(MetricFamily::counter(name, help));
            all.add(stat.to_owned(), &[], count);
        }
        for (name, help) in LOCAL_CACHE_METRICS {
            all.start_family(MetricFamily::gauge(name, help));
            let is_same = |kind: &str| name.strip_prefix("ratelimit_localcache_") == Some(kind);
            if let Some((kind, count)) = local_cache.iter().find(|(kind, _)| is_same(kind)) {
                all.add(format!("ratelimit.localcache.{kind}"), &[], *count);
            }
        }
        all.start_family(MetricFamily::counter(
            "ratelimit_service_total_requests",
            "Requests for a decision.",
        ));
        let stat = "ratelimit_server.ShouldRateLimit.total_requests".to_owned();
        all.add(stat, &[("grpc_method", GRPC_METHOD)], load(&metrics.total_requests));
        all.start_family(MetricFamily::histogram(
            "ratelimit_service_response_time_seconds",
            "Time to decide about a request, the store included.",
        ));
        let counts = metrics.response_times.iter().map(load).collect();
        let times = MetricValue::Histogram {
            bounds: BUCKET_BOUNDS.to_vec(),
            counts,
            sum: load(&metrics.response_time_sum),
        };
        all.add(RESPONSE_TIME_STAT.to_owned(), &[("grpc_method", GRPC_METHOD)], times);
        all
    }

    /// Starts a family; samples are added to the last one.
    fn start_family(&mut self, family: MetricFamily) {
        self.0.push((family, Vec::new()));
    }

    fn add(&mut self, stat: String, labels: &[(&'static str, &str)], value: impl Into<MetricValue>) {
        if let Some((family, stats)) = self.0.last_mut() {
            family.add(labels, value);
            stats.push(stat);
        }
    }

    /// All metrics in the Prometheus text format. Samples with the same labels are added up.
    pub(super) fn prometheus(mut self) -> String {
        for (family, _) in &mut self.0 {
            let mut sums: BTreeMap<MetricLabels, MetricValue> = BTreeMap::new();
            for (labels, value) in family.samples.drain(..) {
                match (sums.get_mut(&labels), &value) {
                    (Some(MetricValue::Integer(sum)), MetricValue::Integer(count)) => *sum += count,
                    _ => _ = sums.insert(labels, value),
                }
            }
            family.samples.extend(sums);
        }
        prometheus_text(self.0.iter().map(|(family, _)| family))
    }

    /// Counters and gauges by their statsd names. A limit of a request and one of the configuration may share a name; their
    /// counts are added up.
    pub(super) fn stats(&self) -> BTreeMap<&str, (MetricKind, u64)> {
        let mut all: BTreeMap<&str, (MetricKind, u64)> = BTreeMap::new();
        for (family, stats) in &self.0 {
            for (stat, (_, value)) in stats.iter().zip(&family.samples) {
                if let MetricValue::Integer(count) = value {
                    all.entry(stat).or_insert((family.kind, 0)).1 += count;
                }
            }
        }
        all
    }

    /// The page `/stats`: one name and value per line.
    pub(super) fn stats_page(&self) -> String {
        self.stats().into_iter().map(|(name, (_, count))| format!("{name}: {count}\n")).collect()
    }

    /// The number of requests in each bucket of response times, by its upper bound in microseconds. The last bucket has no
    /// bound and gets twice that of the one before.
    pub(super) fn response_times(&self) -> Vec<(u64, u64)> {
        let mut samples = self.0.iter().flat_map(|(family, _)| &family.samples);
        let histogram = samples.find_map(|(_, value)| match value {
            MetricValue::Histogram { bounds, counts, .. } => Some((bounds, counts)),
            _ => None,
        });
        let Some((bounds, counts)) = histogram else { return Vec::new() };
        let last = bounds.last().map(|last| last * 2);
        bounds.iter().copied().chain(last).zip(counts.iter().copied()).collect()
    }
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}

/// Replaces the characters that statsd reserves, and the dots of IP addresses, which separate no parts of a name.
fn sanitize_name(name: &str) -> String {
    let name = name.replace([':', '|', '\n', '\r'], "_");
    let parts: Vec<&str> = name.split('.').collect();
    let is_octet =
        |text: &str| (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    let ends = |text: &str| text.ends_with(|c: char| c.is_ascii_digit());
    let starts = |text: &str| text.starts_with(|c: char| c.is_ascii_digit());
    let (mut cleaned, mut rest) = (String::with_capacity(name.len()), parts.as_slice());
    while let Some(first) = rest.first() {
        if !cleaned.is_empty() {
            cleaned.push('.');
        }
        match rest {
            [a, b, c, d, ..] if ends(a) && is_octet(b) && is_octet(c) && starts(d) => {
                cleaned.push_str(&[*a, *b, *c, *d].join("_"));
                rest = &rest[4..];
            }
            _ => {
                cleaned.push_str(first);
                rest = &rest[1..];
            }
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use super::sanitize_name;

    #[test]
    fn statsd_names_are_sanitized() {
        let table = [
            ("user", "user"),
            ("ip_10.0.0.1.path", "ip_10_0_0_1.path"),
            ("a:b|c", "a_b_c"),
            ("version_1.2.3", "version_1.2.3"),
            ("path_/a.b.c", "path_/a.b.c"),
        ];
        for (name, expected) in table {
            assert_eq!(sanitize_name(name), expected);
        }
    }
}
