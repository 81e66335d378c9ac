//! Exports traces: a bounded queue from the workers to a thread that sends them.

use super::{
    SpanCounters, Tracing,
    collector::TraceCollector,
    context::{self, ParentHeader, TRACEPARENT, TRACESTATE, TraceContext},
    trace::Trace,
};
use crate::telemetry::RequestRecord;
use std::{
    sync::{Arc, atomic::Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};
use tidegate_core::Percent;
use tidegate_http_server::{Roots, StartupError};
use tidegate_policy::head::HeaderFields;
use tokio::{
    sync::{
        mpsc::{self, Receiver, Sender},
        oneshot,
    },
    time,
};

/// Starts traces, and queues them for export.
#[derive(Clone)]
pub(crate) struct Tracer {
    queue: Sender<Arc<RequestRecord>>,
    counters: Arc<SpanCounters>,
    sample: Percent,
}

/// The thread that exports traces.
pub(crate) struct TraceExporter {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// The capacity of the queue, in requests.
const QUEUE_CAPACITY: usize = 2_048;

/// The maximum number of requests in one batch.
const MAX_BATCH_SIZE: usize = 512;

/// How often the queue is polled. Queuing wakes no thread, so it costs a worker no system call.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The number of polls after which an incomplete batch is sent.
const MAX_BATCH_POLLS: u32 = 10;

/// The time limit for the last batches at shutdown.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl Tracer {
    /// Checks the settings of the export.
    pub(crate) fn check(tracing: &Tracing, roots: &Roots) -> Result<(), StartupError> {
        TraceCollector::new(tracing, roots).map(drop)
    }

    pub(crate) fn open(tracing: &Tracing, roots: &Roots) -> Result<(Self, TraceExporter), StartupError> {
        let collector = TraceCollector::new(tracing, roots)?;
        let (queue, receiver) = mpsc::channel(QUEUE_CAPACITY);
        let (stop, stopped) = oneshot::channel();
        let counts = tracing.counters.clone();
        let thread_counters = counts.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartupError::System)?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = export(receiver, collector, &thread_counters) => {}
                    () = wait_flush_timeout(stopped) => {}
                }
            });
            thread_counters.drop_queued();
        };
        let thread =
            thread::Builder::new().name("traces".to_owned()).spawn(work).map_err(StartupError::System)?;
        let sample = tracing.settings.sample;
        Ok((Self { queue, counters: counts, sample }, TraceExporter { stop, thread }))
    }

    /// Starts or continues a trace; `None` for a request that is not sampled; servers see that in its headers.
    pub(crate) fn begin(&self, fields: &mut HeaderFields) -> Option<Trace> {
        let (context, parent) = match context::parse_parent(fields) {
            // Servers receive the header of the client.
            ParentHeader::Parent(parent) if !parent.is_sampled() => return None,
            ParentHeader::Parent(parent) => (parent.child(), parent.span_id),
            ParentHeader::Missing | ParentHeader::Invalid => {
                // It belongs to an invalid trace.
                fields.remove(TRACESTATE);
                (TraceContext::new(self.sample), 0)
            }
        };
        if !context.is_sampled() {
            fields.set(TRACEPARENT, context.to_header().as_bytes());
            return None;
        }
        Some(Trace::new(context, parent, fields))
    }

    /// Queues a finished request; counts it as lost if the queue is full.
    pub(crate) fn submit(&self, record: Arc<RequestRecord>) {
        let spans = record.trace.as_ref().map_or(0, Trace::span_count);
        self.counters.on_queued(spans);
        if self.queue.try_send(record).is_err() {
            self.counters.on_lost(spans);
        }
    }
}

impl TraceExporter {
    /// Waits until all queued traces are sent, or the flush timeout expires. All senders must be dropped.
    pub(crate) async fn shutdown(self) {
        let _ = self.stop.send(());
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

async fn wait_flush_timeout(stopped: oneshot::Receiver<()>) {
    // A dropped sender means the same.
    let _ = stopped.await;
    time::sleep(FLUSH_TIMEOUT).await;
}

async fn export(
    mut queue: Receiver<Arc<RequestRecord>>,
    mut collector: TraceCollector,
    counts: &SpanCounters,
) {
    let mut batch = Vec::with_capacity(MAX_BATCH_SIZE);
    let mut logged_losses = 0;
    while collect_batch(&mut queue, &mut batch).await > 0 {
        collector.send(&batch, counts).await;
        batch.clear();
        let lost = counts.lost.load(Ordering::Relaxed);
        collector.log_losses(lost - logged_losses);
        logged_losses = lost;
    }
}

/// Collects a batch, and returns its size; 0 when all senders are dropped.
async fn collect_batch(
    queue: &mut Receiver<Arc<RequestRecord>>,
    batch: &mut Vec<Arc<RequestRecord>>,
) -> usize {
    queue.recv_many(batch, MAX_BATCH_SIZE).await;
    for _ in 0..MAX_BATCH_POLLS {
        while batch.len() < MAX_BATCH_SIZE
            && let Ok(trace) = queue.try_recv()
        {
            batch.push(trace);
        }
        if batch.len() >= MAX_BATCH_SIZE || queue.is_closed() {
            break;
        }
        time::sleep(POLL_INTERVAL).await;
    }
    batch.len()
}
