//! The trace exporter in a build without the feature `otel`: an error. Its types cannot be constructed.

use super::Tracing;
use crate::{telemetry::RequestRecord, upstream::UpstreamEndpoint};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_http_server::{Roots, StartupError};
use tidegate_policy::head::HeaderFields;

#[derive(Clone)]
pub(crate) enum Tracer {}
pub(crate) enum Trace {}
pub(crate) enum TraceExporter {}

impl Tracer {
    pub(crate) fn check(tracing: &Tracing, roots: &Roots) -> Result<(), StartupError> {
        Self::open(tracing, roots).map(drop)
    }

    pub(crate) fn open(tracing: &Tracing, _: &Roots) -> Result<(Self, TraceExporter), StartupError> {
        let reason = "this build cannot export traces: build it with the feature `otel`, or remove `traces`";
        Err(StartupError::Traces { endpoint: tracing.settings.endpoint.clone(), reason: reason.to_owned() })
    }

    pub(crate) fn begin(&self, _: &mut HeaderFields) -> Option<Trace> {
        match *self {}
    }

    pub(crate) fn submit(&self, _: Arc<RequestRecord>) {
        match *self {}
    }
}

impl Trace {
    pub(crate) fn begin_attempt(&mut self, _: &UpstreamEndpoint, _: &mut HeaderFields, _: Micros) {
        match *self {}
    }

    pub(crate) fn on_response(&mut self, _: u16, _: Micros) {
        match *self {}
    }

    pub(crate) fn on_failure(&mut self, _: &'static str, _: Micros) {
        match *self {}
    }
}

impl TraceExporter {
    #[allow(clippy::unused_async, reason = "same signature as with the feature")]
    pub(crate) async fn shutdown(self) {
        match self {}
    }
}
