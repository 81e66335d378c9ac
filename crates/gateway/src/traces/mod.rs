//! Traces: what became of a request, for a collector that puts it together with what others saw of it.
//!
//! ```text
//!   worker ──trace──▶ ┌ at most 2048 ┐ ──▶ one thread ──OTLP──▶ collector
//! ```
//!
//! A request that is traced has a span of its own, and one for each server that it was sent to. A worker hands them over and
//! goes on; a thread of its own sends them, many at a time. What the collector does not take is lost and counted.
//! The cargo feature `otel` brings it; without it, a gateway that is to send traces does not start.

#[cfg(feature = "otel")]
mod collector;
#[cfg(feature = "otel")]
mod context;
#[cfg(feature = "otel")]
mod export;
#[cfg(not(feature = "otel"))]
mod noop;
#[cfg(feature = "otel")]
mod otlp;
#[cfg(feature = "otel")]
mod otlp_client;
#[cfg(feature = "otel")]
mod trace;

#[cfg(feature = "otel")]
pub(crate) use export::{TraceExporter, Tracer};
#[cfg(not(feature = "otel"))]
pub(crate) use noop::{Trace, TraceExporter, Tracer};
#[cfg(feature = "otel")]
pub(crate) use otlp::{KeyValue, Resource, Scope};
#[cfg(feature = "otel")]
pub(crate) use otlp_client::{ExportError, ExportState, OtlpClient};
#[cfg(feature = "otel")]
pub(crate) use trace::Trace;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};
use tidegate_policy::model::Traces;

/// Where traces are sent, and how many spans arrived. Clones count together, so that whoever keeps one can tell.
#[derive(Clone, Debug)]
pub struct Tracing {
    pub(crate) settings: Traces,
    pub(crate) counters: Arc<SpanCounters>,
}

/// Spans.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    #[cfg(feature = "otel")]
    queued: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Tracing {
    /// As a policy says.
    pub fn new(terms: Traces) -> Self {
        Self { settings: terms, counters: Arc::default() }
    }

    /// Spans that the collector took.
    pub fn sent(&self) -> u64 {
        self.counters.sent.load(Ordering::Relaxed)
    }

    /// Spans that it did not take, and those for which there was no room.
    pub fn lost(&self) -> u64 {
        self.counters.lost.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "otel")]
impl SpanCounters {
    fn on_queued(&self, spans: u64) {
        self.queued.fetch_add(spans, Ordering::Relaxed);
    }

    /// So many that waited have arrived.
    fn on_sent(&self, spans: u64) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
        self.sent.fetch_add(spans, Ordering::Relaxed);
    }

    /// So many that waited never will.
    fn on_lost(&self, spans: u64) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
        self.lost.fetch_add(spans, Ordering::Relaxed);
    }

    /// None that waits will.
    fn drop_queued(&self) {
        self.lost.fetch_add(self.queued.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}
