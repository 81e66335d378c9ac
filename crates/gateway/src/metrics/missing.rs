//! What there is of sending metrics in a build without it: a refusal.

use std::sync::Arc;
use tidegate_http_server::Fault;
use tidegate_observe::Observer;
use tidegate_policy::model::Metrics;

/// Nothing else can ever be.
pub(crate) enum Sending {}

impl Sending {
    pub(crate) fn start(terms: &Metrics, _: &Arc<Observer>) -> Result<Self, Fault> {
        Self::refuse(terms)
    }

    pub(crate) fn check(terms: &Metrics) -> Result<(), Fault> {
        Self::refuse(terms).map(drop)
    }

    fn refuse(terms: &Metrics) -> Result<Self, Fault> {
        let reason = "this build of the gateway sends no metrics: build it with the feature `otel`, or leave `metrics` out";
        Err(Fault::Metrics { endpoint: terms.endpoint.clone(), reason: reason.to_owned() })
    }
}
