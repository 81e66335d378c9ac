//! From workers to the collector: a queue that is bounded, and the thread at its end.

use super::{
    SpanCounters, Tracing,
    collector::TraceCollector,
    context::{self, ParentHeader, TRACEPARENT, TRACESTATE, TraceContext},
    trace::Trace,
};
use crate::telemetry::RequestRecord;
use http::request;
use std::{
    sync::{Arc, atomic::Ordering},
    thread::{self, JoinHandle},
    time::Duration,
};
use tidegate_core::Percent;
use tidegate_http_server::{Roots, StartupError};
use tokio::{
    sync::{
        mpsc::{self, Receiver, Sender},
        oneshot,
    },
    time,
};

/// Where workers begin traces, and hand them over.
#[derive(Clone)]
pub(crate) struct Tracer {
    queue: Sender<Arc<RequestRecord>>,
    counters: Arc<SpanCounters>,
    sample: Percent,
}

/// The thread that sends.
pub(crate) struct TraceExporter {
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Requests that may wait.
const QUEUE_CAPACITY: usize = 2_048;

/// Requests that are sent together, at most.
const MAX_BATCH_SIZE: usize = 512;

/// How often the queue is emptied. Nobody is woken in between, so that to hand over costs a worker no call of the system.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Pauses until what has come is sent, however little it is.
const MAX_BATCH_POLLS: u32 = 10;

/// How long the last ones may take when the gateway ends.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);

impl Tracer {
    /// Whether traces can be sent there.
    pub(crate) fn check(tracing: &Tracing, roots: &Roots) -> Result<(), StartupError> {
        TraceCollector::new(tracing, roots).map(drop)
    }

    pub(crate) fn open(tracing: &Tracing, roots: &Roots) -> Result<(Self, TraceExporter), StartupError> {
        let collector = TraceCollector::new(tracing, roots)?;
        let (queue, handed) = mpsc::channel(QUEUE_CAPACITY);
        let (ending, ended) = oneshot::channel();
        let counts = tracing.counters.clone();
        let thread_counters = counts.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(StartupError::System)?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = export(handed, collector, &thread_counters) => {}
                    () = wait_flush_timeout(ended) => {}
                }
            });
            thread_counters.drop_queued();
        };
        let thread =
            thread::Builder::new().name("traces".to_owned()).spawn(work).map_err(StartupError::System)?;
        let sample = tracing.settings.sample;
        Ok((Self { queue, counters: counts, sample }, TraceExporter { stop: ending, thread }))
    }

    /// Begins a trace, or goes on with one; `None` for a request that is not traced, which then says so to others.
    pub(crate) fn begin(&self, head: &mut request::Parts) -> Option<Trace> {
        let (context, parent) = match context::parse_parent(&head.headers) {
            // Whoever comes after it sees what it says.
            ParentHeader::Parent(parent) if !parent.is_sampled() => return None,
            ParentHeader::Parent(parent) => (parent.child(), parent.span_id),
            ParentHeader::Missing | ParentHeader::Invalid => {
                // It belongs to a trace that nobody knows.
                head.headers.remove(TRACESTATE);
                (TraceContext::new(self.sample), 0)
            }
        };
        if !context.is_sampled() {
            head.headers.insert(TRACEPARENT, context.to_header());
            return None;
        }
        Some(Trace::new(context, parent, &head.headers))
    }

    /// Hands over a request that has ended, if there is room.
    pub(crate) fn submit(&self, record: Arc<RequestRecord>) {
        let spans = record.trace.as_ref().map_or(0, Trace::span_count);
        self.counters.on_queued(spans);
        if self.queue.try_send(record).is_err() {
            self.counters.on_lost(spans);
        }
    }
}

impl TraceExporter {
    /// Waits until all that was handed over is sent, or has had its time. Whoever could hand over more is gone.
    pub(crate) async fn shutdown(self) {
        let _ = self.stop.send(());
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

async fn wait_flush_timeout(ended: oneshot::Receiver<()>) {
    // Whoever forgets to say so has gone as well.
    let _ = ended.await;
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

/// Waits for traces, and a little longer for more; how many there are. None when there will be no more.
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
