//! The log events of this crate, one struct each.

use std::{fmt::Display, io, path::Path};
use tidegate_admin::{FeatureChange, GatewayError, ReloadScope, RuleChange};
use tidegate_core::Percent;
use tidegate_observe::RequestBodyOutcome;
use tidegate_overload::{FeatureOffCause, FeatureOverride, LoadLevel};

/// The policy was reloaded and is in force.
pub(crate) struct PolicyReloaded<'a> {
    pub(crate) version: &'a str,
    pub(crate) rules: usize,
    pub(crate) scope: ReloadScope,
}

impl PolicyReloaded<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(version = self.version, rules = self.rules, scope = ?self.scope, "policy reloaded");
    }
}

/// The changed policy is invalid, and the previous one stays in force.
pub(crate) struct PolicyRejected<'a> {
    pub(crate) error: &'a GatewayError,
}

impl PolicyRejected<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = %self.error, "policy rejected, keeping the previous one");
    }
}

/// Rules need the body of a request, and it was not parsed. Logged once for each policy.
pub(crate) struct RequestBodyNotParsed {
    pub(crate) outcome: RequestBodyOutcome,
}

impl RequestBodyNotParsed {
    pub(crate) fn emit(self) {
        let reason = match self.outcome {
            RequestBodyOutcome::TooLarge => "larger than max-parsed-body-size",
            RequestBodyOutcome::Parsed | RequestBodyOutcome::Invalid => "not JSON, or compressed",
        };
        tracing::warn!(
            reason,
            "request body not parsed; rules use their default cost and have no key from it"
        );
    }
}

/// The response to a request of a rule with `settle` does not state the cost. Logged once for each policy.
pub(crate) struct CostNotStated<'a> {
    pub(crate) rule: &'a str,
}

impl CostNotStated<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(rule = self.rule, "response states no cost; the cost of the request is charged");
    }
}

/// A key set cannot be fetched. The previous keys stay.
pub(crate) struct KeySetUnavailable<'a> {
    pub(crate) url: &'a str,
    pub(crate) reason: &'a str,
}

impl KeySetUnavailable<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(
            url = self.url,
            reason = self.reason,
            "key set unavailable, keeping the previous keys"
        );
    }
}

/// A key set is fetched again.
pub(crate) struct KeySetRecovered<'a> {
    pub(crate) url: &'a str,
    pub(crate) keys: usize,
}

impl KeySetRecovered<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(url = self.url, keys = self.keys, "key set recovered");
    }
}

/// A call of the admin API changed the policy file.
pub(crate) struct PolicyChanged<'a> {
    pub(crate) change: &'a RuleChange,
}

impl PolicyChanged<'_> {
    pub(crate) fn emit(self) {
        let RuleChange { id, author, .. } = self.change;
        tracing::info!(id, change = %self.change, by = author, "policy changed");
    }
}

/// A call of the admin API set or cleared the override of a feature.
pub(crate) struct FeatureOverridden<'a> {
    pub(crate) change: &'a FeatureChange,
}

impl FeatureOverridden<'_> {
    pub(crate) fn emit(self) {
        let FeatureChange { feature, to, reason, author } = self.change;
        let (reason, by) = (reason.as_deref(), &**author);
        match to {
            FeatureOverride::On => tracing::info!(feature, reason, by, "feature turned on"),
            FeatureOverride::Off => tracing::info!(feature, reason, by, "feature turned off"),
            FeatureOverride::Automatic => {
                tracing::info!(feature, reason, by, "feature set to automatic");
            }
        }
    }
}

/// The load or the schedule disabled a feature.
pub(crate) struct FeatureDisabled<'a> {
    pub(crate) feature: &'a str,
    pub(crate) cause: FeatureOffCause,
    /// `None` if the load is not the cause.
    pub(crate) level: Option<LoadLevel>,
}

impl FeatureDisabled<'_> {
    pub(crate) fn emit(self) {
        let (cause, level) = (self.cause.name(), self.level.map(LoadLevel::name));
        tracing::warn!(feature = self.feature, cause, level, "feature off");
    }
}

/// A feature that the load or the schedule had disabled is enabled again.
pub(crate) struct FeatureEnabled<'a> {
    pub(crate) feature: &'a str,
}

impl FeatureEnabled<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(feature = self.feature, "feature on");
    }
}

/// The load of the machine reached another level.
pub(crate) struct LoadLevelChanged {
    pub(crate) level: LoadLevel,
    pub(crate) share: Option<Percent>,
}

impl LoadLevelChanged {
    pub(crate) fn emit(self) {
        let share = self.share.map(|share| share.to_string());
        tracing::info!(level = self.level.name(), share, "load level changed");
    }
}

/// The policy in force contains a likely mistake.
pub(crate) struct PolicyWarning<'a> {
    pub(crate) warning: &'a dyn Display,
}

impl PolicyWarning<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(warning = %self.warning, "policy warning");
    }
}

/// An expression of a rule or route failed for requests.
pub(crate) struct ExpressionFailed<'a> {
    pub(crate) part: &'a str,
    pub(crate) failures: u64,
}

impl ExpressionFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(
            part = self.part,
            failures = self.failures,
            "expression failed; a rule applies, a route does not match"
        );
    }
}

/// The access log was moved, and a new file cannot be opened.
pub(crate) struct AccessLogReopenFailed<'a> {
    pub(crate) file: &'a Path,
    pub(crate) error: &'a io::Error,
}

impl AccessLogReopenFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(
            file = %self.file.display(),
            error = %self.error,
            "cannot reopen the log file; still writing to the old one"
        );
    }
}

/// A write to the access log failed, and its thread ends.
pub(crate) struct AccessLogFailed<'a> {
    pub(crate) file: &'a Path,
    pub(crate) error: &'a io::Error,
}

impl AccessLogFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(
            file = %self.file.display(),
            error = %self.error,
            "cannot write the access log; logging stopped"
        );
    }
}

/// The queue of the access log was full.
pub(crate) struct AccessLogRecordsLost {
    pub(crate) lost: u64,
}

impl AccessLogRecordsLost {
    pub(crate) fn emit(self) {
        tracing::warn!(lost = self.lost, "access log queue full; requests not logged");
    }
}

/// A server failed several requests in a row, and receives requests only if no server is healthy.
pub(crate) struct UpstreamServerUnhealthy<'a> {
    pub(crate) server: &'a str,
    pub(crate) failures: u64,
}

impl UpstreamServerUnhealthy<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(server = self.server, failures = self.failures, "upstream server unhealthy");
    }
}

/// An unhealthy server responded to a request.
pub(crate) struct UpstreamServerRecovered<'a> {
    pub(crate) server: &'a str,
}

impl UpstreamServerRecovered<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(server = self.server, "upstream server recovered");
    }
}

/// A server failed its health checks, and receives no requests.
pub(crate) struct HealthCheckFailed<'a> {
    pub(crate) server: &'a str,
    pub(crate) status: Option<u16>,
}

impl HealthCheckFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(
            server = self.server,
            status = self.status,
            "health check failed; server receives no requests"
        );
    }
}

/// A server passed its health checks after it had failed them.
pub(crate) struct HealthCheckPassed<'a> {
    pub(crate) server: &'a str,
}

impl HealthCheckPassed<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(server = self.server, "health check passed; server receives requests");
    }
}

/// A collector does not accept traces or metrics.
#[cfg(feature = "otel")]
pub(crate) struct CollectorUnavailable<'a> {
    pub(crate) signal: &'a str,
    pub(crate) endpoint: &'a str,
    pub(crate) lost: u64,
    pub(crate) reason: &'a str,
}

#[cfg(feature = "otel")]
impl CollectorUnavailable<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(
            signal = self.signal,
            endpoint = self.endpoint,
            lost = self.lost,
            reason = self.reason,
            "collector unavailable"
        );
    }
}

/// A collector accepts traces or metrics again.
#[cfg(feature = "otel")]
pub(crate) struct CollectorRecovered<'a> {
    pub(crate) signal: &'a str,
    pub(crate) endpoint: &'a str,
    pub(crate) lost: u64,
}

#[cfg(feature = "otel")]
impl CollectorRecovered<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(
            signal = self.signal,
            endpoint = self.endpoint,
            lost = self.lost,
            "collector recovered"
        );
    }
}
