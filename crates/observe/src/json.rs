//! JSON parts that several responses share.

use super::denial::seconds;
use serde_json::{Value, json};
use tidegate_core::{Percent, Quota};
use tidegate_overload::{BreakerSnapshot, FeatureOffCause, FeatureStatus, LoadMonitor};

/// A quota as JSON: its text and its numbers.
pub fn quota_json(quota: &Quota) -> Value {
    json!({
        "text": quota.to_string(),
        "algorithm": quota.kind().name(),
        "limit": quota.limit(),
        "rate": rate_per_second(quota),
    })
}

/// The rate per second; `None` for a concurrency limit.
pub(crate) fn rate_per_second(quota: &Quota) -> Option<f64> {
    let rate = quota.rate()?;
    Some(rate.amount() as f64 / seconds(rate.period()))
}

pub(crate) fn breaker_json(breaker: &BreakerSnapshot) -> Value {
    json!({
        "state": breaker.state.to_string(),
        "failure-rate": breaker.failure_rate.map(Percent::as_f64),
        "slow-call-rate": breaker.slow_rate.map(Percent::as_f64),
        "rejected": breaker.rejected,
        "remaining": breaker.remaining.map(seconds),
    })
}

/// The load of the machine as JSON.
pub(crate) fn load_json(monitor: &LoadMonitor) -> Value {
    let reading = monitor.load();
    let signals =
        monitor.signals().map(|(name, share)| json!({ "name": name, "percent": share.map(percent) }));
    json!({
        "percent": reading.share.map(percent),
        "level": reading.level.name(),
        "signals": signals.collect::<Vec<_>>(),
    })
}

/// A feature as JSON.
pub fn feature_json(status: &FeatureStatus) -> Value {
    json!({
        "name": status.feature.name(),
        "on": status.off_cause.is_none(),
        "override": status.manual_override.name(),
        "cause": status.off_cause.map(FeatureOffCause::name),
    })
}

/// A share in percent, without the rounding error of a product.
fn percent(share: Percent) -> f64 {
    f64::from(share.millionths()) / 1e4
}
