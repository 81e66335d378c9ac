//! Metrics as text: for Prometheus, and as `/stats` has them.

use super::metrics::{BUCKETS, KINDS, ServiceMetrics};
use crate::prometheus::{header, line, seconds};
use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The only method there is.
const METHOD: &str = "ShouldRateLimit";

/// In the text format of Prometheus, under the names that envoyproxy/ratelimit has there.
///
/// Of a name with more than two parts behind the domain, only the first two are told, and such names are added up.
pub(super) fn prometheus(
    metrics: &ServiceMetrics,
    store_failures: u64,
    local_cache: &[(&str, u64)],
) -> String {
    let mut out = String::new();
    let mut folded: BTreeMap<[String; 3], [u64; KINDS.len()]> = BTreeMap::new();
    for series in metrics.limit_series() {
        let rest = clean(&series.rest);
        let mut keys = rest.split('.').map(str::to_owned);
        let labels = [series.domain, keys.next().unwrap_or_default(), keys.next().unwrap_or_default()];
        let sums = folded.entry(labels).or_default();
        sums.iter_mut().zip(series.counts).for_each(|(sum, count)| *sum += count);
    }
    for (place, kind) in KINDS.iter().enumerate() {
        let name = format!("ratelimit_service_rate_limit_{kind}");
        header(&mut out, &name, "counter");
        for ([domain, key1, key2], counts) in &folded {
            let mut labels = vec![("domain", domain.as_str()), ("key1", key1.as_str())];
            if !key2.is_empty() {
                labels.push(("key2", key2));
            }
            line(&mut out, &name, &labels, &counts[place]);
        }
    }
    let name = "ratelimit_service_rate_limit_domain_not_found";
    header(&mut out, name, "counter");
    for (domain, count) in metrics.strangers() {
        line(&mut out, name, &[("domain", &domain)], &count);
    }
    let name = "ratelimit_service_should_rate_limit_error";
    header(&mut out, name, "counter");
    line(&mut out, name, &[("err_type", "redis_error")], &get(&metrics.store_errors));
    line(&mut out, name, &[("err_type", "service_error")], &get(&metrics.service_errors));
    for (name, count) in [
        ("ratelimit_service_config_load_success", get(&metrics.config_load_success)),
        ("ratelimit_service_config_load_error", get(&metrics.config_load_error)),
        ("ratelimit_service_global_shadow_mode", get(&metrics.global_shadow_mode)),
        ("ratelimit_service_store_failures", store_failures),
    ] {
        header(&mut out, name, "counter");
        line(&mut out, name, &[], &count);
    }
    for (kind, count) in local_cache {
        let name = format!("ratelimit_localcache_{kind}");
        header(&mut out, &name, "gauge");
        line(&mut out, &name, &[], count);
    }
    let name = "ratelimit_service_total_requests";
    header(&mut out, name, "counter");
    line(&mut out, name, &[("grpc_method", METHOD)], &get(&metrics.total_requests));
    response_times(&mut out, metrics);
    out
}

/// All numbers, under the names that envoyproxy/ratelimit gives them.
pub(super) struct Statistics {
    pub(super) counters: Vec<(String, u64)>,
    pub(super) gauges: Vec<(String, u64)>,
    /// How many requests took how long, in microseconds: up to this, and longer than the one before.
    pub(super) times: Vec<(u64, u64)>,
}

pub(super) fn statistics(
    metrics: &ServiceMetrics,
    store_failures: u64,
    local_cache: &[(&str, u64)],
) -> Statistics {
    let mut counters = Vec::new();
    // A request may bring along a limit for a descriptor that has one of its own.
    let mut limits: BTreeMap<String, [u64; KINDS.len()]> = BTreeMap::new();
    for series in metrics.limit_series() {
        let name = format!("ratelimit.service.rate_limit.{}.{}", clean(&series.domain), clean(&series.rest));
        let sums = limits.entry(name).or_default();
        sums.iter_mut().zip(series.counts).for_each(|(sum, count)| *sum += count);
    }
    for (name, counts) in limits {
        counters.extend(KINDS.iter().zip(counts).map(|(kind, count)| (format!("{name}.{kind}"), count)));
    }
    for (domain, count) in metrics.strangers() {
        let domain = clean(&domain);
        counters.push((format!("ratelimit.service.rate_limit.{domain}.domain_not_found"), count));
    }
    let more = [
        ("ratelimit.service.call.should_rate_limit.redis_error", get(&metrics.store_errors)),
        ("ratelimit.service.call.should_rate_limit.service_error", get(&metrics.service_errors)),
        ("ratelimit.service.config_load_error", get(&metrics.config_load_error)),
        ("ratelimit.service.config_load_success", get(&metrics.config_load_success)),
        ("ratelimit.service.global_shadow_mode", get(&metrics.global_shadow_mode)),
        ("ratelimit.service.store_failures", store_failures),
        ("ratelimit_server.ShouldRateLimit.total_requests", get(&metrics.total_requests)),
    ];
    counters.extend(more.map(|(name, count)| (name.to_owned(), count)));
    let gauges = local_cache.iter().map(|(kind, count)| (format!("ratelimit.localcache.{kind}"), *count));
    // Those that took longer than the last bucket are told as twice as long.
    let ends = BUCKETS.iter().copied().chain(BUCKETS.last().map(|last| last * 2));
    let times = ends.zip(metrics.times.iter().map(get)).collect();
    Statistics { counters, gauges: gauges.collect(), times }
}

/// As `/stats` has them: a name and a number in each line.
pub(super) fn stats(metrics: &ServiceMetrics, store_failures: u64, local_cache: &[(&str, u64)]) -> String {
    let Statistics { counters, gauges, .. } = statistics(metrics, store_failures, local_cache);
    let all = counters.into_iter().chain(gauges);
    let mut lines: Vec<_> = all.map(|(name, count)| format!("{name}: {count}\n")).collect();
    lines.sort();
    lines.concat()
}

fn response_times(out: &mut String, metrics: &ServiceMetrics) {
    let name = "ratelimit_service_response_time_seconds";
    header(out, name, "histogram");
    let mut sum = 0;
    let ends = BUCKETS.iter().map(|end| seconds(*end)).chain(["+Inf".to_owned()]);
    for (end, count) in ends.zip(&metrics.times) {
        sum += get(count);
        line(out, &format!("{name}_bucket"), &[("grpc_method", METHOD), ("le", &end)], &sum);
    }
    line(out, &format!("{name}_sum"), &[("grpc_method", METHOD)], &seconds(get(&metrics.time_sum)));
    line(out, &format!("{name}_count"), &[("grpc_method", METHOD)], &sum);
}

fn get(count: &AtomicU64) -> u64 {
    count.load(Relaxed)
}

/// A part of a name: colons and bars mean something to others, and dots of an address are none between parts.
fn clean(name: &str) -> String {
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
    use super::clean;

    #[test]
    fn names_are_cleaned() {
        let table = [
            ("user", "user"),
            ("ip_10.0.0.1.path", "ip_10_0_0_1.path"),
            ("a:b|c", "a_b_c"),
            ("version_1.2.3", "version_1.2.3"),
            ("path_/a.b.c", "path_/a.b.c"),
        ];
        for (name, expected) in table {
            assert_eq!(clean(name), expected);
        }
    }
}
