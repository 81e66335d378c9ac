//! From workers to the collector: a queue that is bounded, and the thread at its end.

use super::{
    Counts, Tracing,
    collector::Collector,
    context::{self, Context, Said, TRACEPARENT, TRACESTATE},
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
use tidegate_http_server::{Fault, Roots};
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
    counts: Arc<Counts>,
    sample: Percent,
}

/// The thread that sends.
pub(crate) struct Exporting {
    ending: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

/// Requests that may wait.
const WAITING: usize = 2_048;

/// Requests that are sent together, at most.
const TOGETHER: usize = 512;

/// How often the queue is emptied. Nobody is woken in between, so that to hand over costs a worker no call of the system.
const PAUSE: Duration = Duration::from_millis(100);

/// Pauses until what has come is sent, however little it is.
const MOST_PAUSES: u32 = 10;

/// How long the last ones may take when the gateway ends.
const FLUSH: Duration = Duration::from_secs(5);

impl Tracer {
    /// Whether traces can be sent there.
    pub(crate) fn check(tracing: &Tracing, roots: &Roots) -> Result<(), Fault> {
        Collector::of(tracing, roots).map(drop)
    }

    pub(crate) fn open(tracing: &Tracing, roots: &Roots) -> Result<(Self, Exporting), Fault> {
        let collector = Collector::of(tracing, roots)?;
        let (queue, handed) = mpsc::channel(WAITING);
        let (ending, ended) = oneshot::channel();
        let counts = tracing.counts.clone();
        let told = counts.clone();
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Fault::Machine)?;
        let work = move || {
            runtime.block_on(async {
                tokio::select! {
                    () = export(handed, collector, &told) => {}
                    () = overdue(ended) => {}
                }
            });
            told.ended();
        };
        let thread = thread::Builder::new().name("traces".to_owned()).spawn(work).map_err(Fault::Machine)?;
        let sample = tracing.terms.sample;
        Ok((Self { queue, counts, sample }, Exporting { ending, thread }))
    }

    /// Begins a trace, or goes on with one; `None` for a request that is not traced, which then says so to others.
    pub(crate) fn begin(&self, head: &mut request::Parts) -> Option<Trace> {
        let (context, parent) = match context::said(&head.headers) {
            // Whoever comes after it sees what it says.
            Said::Parent(parent) if !parent.is_sampled() => return None,
            Said::Parent(parent) => (parent.child(), parent.span),
            Said::Nothing | Said::Nonsense => {
                // It belongs to a trace that nobody knows.
                head.headers.remove(TRACESTATE);
                (Context::new(self.sample), 0)
            }
        };
        if !context.is_sampled() {
            head.headers.insert(TRACEPARENT, context.header());
            return None;
        }
        Some(Trace::new(context, parent, &head.headers))
    }

    /// Hands over a request that has ended, if there is room.
    pub(crate) fn hand_over(&self, record: Arc<RequestRecord>) {
        let spans = record.trace.as_ref().map_or(0, Trace::spans);
        self.counts.joined(spans);
        if self.queue.try_send(record).is_err() {
            self.counts.given_up(spans);
        }
    }
}

impl Exporting {
    /// Waits until all that was handed over is sent, or has had its time. Whoever could hand over more is gone.
    pub(crate) async fn end(self) {
        let _ = self.ending.send(());
        let _ = tokio::task::spawn_blocking(move || self.thread.join()).await;
    }
}

async fn overdue(ended: oneshot::Receiver<()>) {
    // Whoever forgets to say so has gone as well.
    let _ = ended.await;
    time::sleep(FLUSH).await;
}

async fn export(mut queue: Receiver<Arc<RequestRecord>>, mut collector: Collector, counts: &Counts) {
    let mut batch = Vec::with_capacity(TOGETHER);
    let mut told = 0;
    while gather(&mut queue, &mut batch).await > 0 {
        collector.send(&batch, counts).await;
        batch.clear();
        let lost = counts.lost.load(Ordering::Relaxed);
        collector.log_losses(lost - told);
        told = lost;
    }
}

/// Waits for traces, and a little longer for more; how many there are. None when there will be no more.
async fn gather(queue: &mut Receiver<Arc<RequestRecord>>, batch: &mut Vec<Arc<RequestRecord>>) -> usize {
    queue.recv_many(batch, TOGETHER).await;
    for _ in 0..MOST_PAUSES {
        while batch.len() < TOGETHER
            && let Ok(trace) = queue.try_recv()
        {
            batch.push(trace);
        }
        if batch.len() >= TOGETHER || queue.is_closed() {
            break;
        }
        time::sleep(PAUSE).await;
    }
    batch.len()
}
