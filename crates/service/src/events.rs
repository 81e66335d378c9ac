//! The log events of this crate, one struct each.

use crate::descriptors::{DomainRequest, LimitCode};
use std::{error::Error, fmt::Display};
use tidegate_observe::KeyLabel;
use tidegate_policy::{descriptors::DescriptorEntry, model::KeyDisplay};

/// The server waits for the management server before it accepts connections.
pub(crate) struct InitialConfigPending;

impl InitialConfigPending {
    #[allow(clippy::unused_self, reason = "the form of all events")]
    pub(crate) fn emit(self) {
        tracing::info!("waiting for the first configuration");
    }
}

/// The first configuration is invalid, so every decision is `UNAVAILABLE`.
pub(crate) struct InitialConfigRejected<'a> {
    pub(crate) error: &'a dyn Error,
}

impl InitialConfigRejected<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = %self.error, "configuration rejected; decisions are UNAVAILABLE until it is corrected");
    }
}

/// A changed configuration is active.
pub(crate) struct ConfigLoaded {
    pub(crate) limits: usize,
}

impl ConfigLoaded {
    pub(crate) fn emit(self) {
        tracing::info!(limits = self.limits, "configuration loaded");
    }
}

/// A changed configuration is invalid.
pub(crate) struct ConfigRejected<'a> {
    pub(crate) error: &'a str,
}

impl ConfigRejected<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = self.error, "configuration rejected, keeping the previous one");
    }
}

/// A request was decided.
pub(crate) struct RequestDecided<'a> {
    pub(crate) domain: &'a str,
    pub(crate) descriptors: usize,
    pub(crate) over_limit: LimitCode,
}

impl RequestDecided<'_> {
    pub(crate) fn emit(self) {
        let Self { domain, descriptors, over_limit } = self;
        tracing::debug!(domain, descriptors, ?over_limit, "request decided");
    }
}

/// An operator reset the state of a key.
pub(crate) struct KeyReset<'a> {
    pub(crate) rule: &'a str,
    pub(crate) key: &'a str,
    pub(crate) author: &'a str,
}

impl KeyReset<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(rule = self.rule, key = self.key, by = self.author, "key reset");
    }
}

/// An operator reset the counters of descriptors. Their values are hashed.
pub(crate) struct DescriptorsReset<'a> {
    pub(crate) request: &'a DomainRequest,
    pub(crate) counters: usize,
    pub(crate) author: &'a str,
}

impl DescriptorsReset<'_> {
    pub(crate) fn emit(self) {
        let domain = self.request.domain.as_str();
        let entry = |entry: &DescriptorEntry| {
            let value = KeyLabel::new(KeyDisplay::Hashed, domain, &entry.value);
            format!("{}={}", entry.key, value.text())
        };
        let descriptors = self
            .request
            .descriptors
            .iter()
            .map(|descriptor| descriptor.entries.iter().map(entry).collect::<Vec<_>>().join(","));
        let descriptors = descriptors.collect::<Vec<_>>().join(" ");
        tracing::info!(domain, descriptors, counters = self.counters, by = self.author, "descriptors reset");
    }
}

/// The reflection service cannot be built.
pub(crate) struct ReflectionUnavailable<'a> {
    pub(crate) error: &'a dyn Display,
}

impl ReflectionUnavailable<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = %self.error, "gRPC reflection unavailable");
    }
}

/// The statsd server does not accept metrics. They stay in memory and are sent later.
pub(crate) struct StatsdUnavailable<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
    pub(crate) error: &'a dyn Error,
}

impl StatsdUnavailable<'_> {
    pub(crate) fn emit(self) {
        let Self { host, port, error } = self;
        tracing::info!(
            host, port, %error,
            "statsd server unavailable, keeping metrics; set STATSD_HOST, or set USE_STATSD to false"
        );
    }
}

/// The statsd server accepts metrics again.
pub(crate) struct StatsdRecovered<'a> {
    pub(crate) host: &'a str,
    pub(crate) port: u16,
}

impl StatsdRecovered<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(host = self.host, port = self.port, "statsd server available again");
    }
}

/// The connection to the management server failed.
pub(crate) struct XdsUnavailable<'a> {
    pub(crate) server: &'a str,
    pub(crate) error: &'a dyn Error,
    /// The time until the next attempt.
    pub(crate) pause_ms: u128,
}

impl XdsUnavailable<'_> {
    pub(crate) fn emit(self) {
        let Self { server, error, pause_ms } = self;
        tracing::warn!(%server, pause_ms, %error, "xDS management server unavailable");
    }
}

/// The management server ended the stream.
pub(crate) struct XdsStreamEnded<'a> {
    pub(crate) server: &'a str,
    /// The time until the next attempt.
    pub(crate) pause_ms: u128,
}

impl XdsStreamEnded<'_> {
    pub(crate) fn emit(self) {
        let Self { server, pause_ms } = self;
        tracing::warn!(%server, pause_ms, "xDS stream ended by the management server");
    }
}

/// The HTTP/2 connection to the management server ended with an error.
pub(crate) struct XdsConnectionClosed<'a> {
    pub(crate) error: &'a dyn Error,
}

impl XdsConnectionClosed<'_> {
    pub(crate) fn emit(self) {
        tracing::debug!(error = %self.error, "xDS connection closed");
    }
}

/// The management server sent resources of a type that the client did not request.
pub(crate) struct XdsTypeUnexpected<'a> {
    pub(crate) type_url: &'a str,
}

impl XdsTypeUnexpected<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(type_url = self.type_url, "unexpected xDS resource type, ignoring the response");
    }
}

/// The management server sent an invalid configuration.
pub(crate) struct XdsConfigRejected<'a> {
    pub(crate) error: &'a str,
}

impl XdsConfigRejected<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(error = self.error, "xDS configuration rejected, keeping the previous one");
    }
}
