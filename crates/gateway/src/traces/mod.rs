//! Exports traces of requests to an OpenTelemetry collector.
//!
//! ```text
//!   worker ──trace──▶ ┌ at most 2048 ┐ ──▶ one thread ──OTLP──▶ collector
//! ```
//!
//! A traced request has a server span, and a client span for each attempt. Workers queue traces, and one thread sends them in
//! batches. Spans that the collector does not accept are lost and counted. It requires the cargo feature `otel`; without it, a
//! gateway with `traces` does not start.

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

/// The export of traces, with counts of sent and lost spans. Clones share the counts.
#[derive(Clone, Debug)]
pub struct Tracing {
    pub(crate) settings: Traces,
    pub(crate) counters: Arc<SpanCounters>,
}

/// Counts of spans.
#[derive(Debug, Default)]
pub(crate) struct SpanCounters {
    #[cfg(feature = "otel")]
    queued: AtomicU64,
    sent: AtomicU64,
    lost: AtomicU64,
}

impl Tracing {
    /// The export with these settings.
    pub fn new(settings: Traces) -> Self {
        Self { settings, counters: Arc::default() }
    }

    /// The number of spans that the collector accepted.
    pub fn sent(&self) -> u64 {
        self.counters.sent.load(Ordering::Relaxed)
    }

    /// The number of spans that the collector did not accept, or that did not fit in the queue.
    pub fn lost(&self) -> u64 {
        self.counters.lost.load(Ordering::Relaxed)
    }
}

#[cfg(feature = "otel")]
impl SpanCounters {
    fn on_queued(&self, spans: u64) {
        self.queued.fetch_add(spans, Ordering::Relaxed);
    }

    /// Counts queued spans as sent.
    fn on_sent(&self, spans: u64) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
        self.sent.fetch_add(spans, Ordering::Relaxed);
    }

    /// Counts queued spans as lost.
    fn on_lost(&self, spans: u64) {
        self.queued.fetch_sub(spans, Ordering::Relaxed);
        self.lost.fetch_add(spans, Ordering::Relaxed);
    }

    /// Counts all queued spans as lost.
    fn drop_queued(&self) {
        self.lost.fetch_add(self.queued.swap(0, Ordering::Relaxed), Ordering::Relaxed);
    }
}
