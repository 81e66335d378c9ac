//! What operators see: numbers that are sent to them, and what is kept of single requests.

use std::time::Duration;
use tidegate_core::Percent;

/// `observe: { denials: 10000, keys: hashed, history: 10000, share: 10% }`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observe {
    /// `denials`: how many of the last ones are kept, each with an id; none where it is left out.
    pub denials: u64,
    /// `keys`: what is shown of keys, addresses and users.
    pub keys: KeyDisplay,
    /// `history`: how many of the last requests are kept; none where it is left out.
    pub history: u64,
    /// `share`: of the clients of which requests are kept; all where it is left out.
    pub share: Percent,
}

/// What operators see of keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDisplay {
    /// `plain`: the keys.
    #[default]
    Plain,
    /// `hashed`: a number that stands for a key; the key itself is not kept.
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
    /// `endpoint`: a collector that speaks OTLP over HTTP; `/v1/metrics` is added.
    pub endpoint: String,
    /// `every`: how often.
    pub interval: Duration,
    /// `service`: what the gateway is called in them.
    pub service: String,
}

impl Default for Metrics {
    fn default() -> Self {
        Self { endpoint: String::new(), interval: Duration::from_secs(10), service: "tidegate".to_owned() }
    }
}
