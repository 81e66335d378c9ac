//! Metrics export, and records of single requests.

use std::time::Duration;
use tidegate_core::Percent;

/// `observe: { denials: 10000, keys: hashed, history: 10000, share: 10% }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observe {
    /// `denials`: the number of recent denials to record, each with an id; 0 by default.
    pub denials: u64,
    /// `keys`: how keys, addresses and users are shown.
    pub keys: KeyDisplay,
    /// `history`: the number of recent requests to record; 0 by default.
    pub history: u64,
    /// `share`: the share of clients whose requests are recorded; all by default.
    pub share: Percent,
}

/// How keys are shown to operators.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDisplay {
    /// `plain`: unchanged.
    #[default]
    Plain,
    /// `hashed`: as a hash; the key itself is not recorded.
    Hashed,
}

impl Default for Observe {
    fn default() -> Self {
        Self { denials: 0, keys: KeyDisplay::Plain, history: 0, share: Percent::FULL }
    }
}

/// `metrics: http://127.0.0.1:4318`, or `{ endpoint: http://127.0.0.1:4318, every: 10s, service: shop }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metrics {
    /// `endpoint`: the URL of an OTLP collector over HTTP; `/v1/metrics` is added.
    pub endpoint: String,
    /// `interval`: the export interval.
    pub interval: Duration,
    /// `service`: the service name of the gateway.
    pub service: String,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { endpoint: String::new(), interval: Duration::from_secs(10), service: "tidegate".to_owned() }
    }
}
