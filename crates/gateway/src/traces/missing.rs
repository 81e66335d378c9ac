//! What there is of traces in a build without them: a refusal. Nothing else can ever be.

use super::Tracing;
use crate::{telemetry::RequestRecord, upstream::Server};
use http::{HeaderMap, request};
use std::sync::Arc;
use tidegate_core::Micros;
use tidegate_http_server::{Fault, Roots};

#[derive(Clone)]
pub(crate) enum Tracer {}
pub(crate) enum Trace {}
pub(crate) enum Exporting {}

impl Tracer {
    pub(crate) fn check(tracing: &Tracing, roots: &Roots) -> Result<(), Fault> {
        Self::open(tracing, roots).map(drop)
    }

    pub(crate) fn open(tracing: &Tracing, _: &Roots) -> Result<(Self, Exporting), Fault> {
        let reason = "this build of the gateway sends no traces: build it with the feature `otel`, or leave `traces` out";
        Err(Fault::Traces { endpoint: tracing.terms.endpoint.clone(), reason: reason.to_owned() })
    }

    pub(crate) fn begin(&self, _: &mut request::Parts) -> Option<Trace> {
        match *self {}
    }

    pub(crate) fn hand_over(&self, _: Arc<RequestRecord>) {
        match *self {}
    }
}

impl Trace {
    pub(crate) fn sent_to(&mut self, _: &Server, _: &mut HeaderMap, _: Micros) {
        match *self {}
    }

    pub(crate) fn answered(&mut self, _: u16, _: Micros) {
        match *self {}
    }

    pub(crate) fn missed(&mut self, _: &'static str, _: Micros) {
        match *self {}
    }
}

impl Exporting {
    #[allow(clippy::unused_async, reason = "as where there is one")]
    pub(crate) async fn end(self) {
        match self {}
    }
}
