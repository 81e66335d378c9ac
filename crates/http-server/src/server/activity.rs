//! Activity of a connection, for its idle timeout.
//!
//! A timer per request would almost never fire. Requests and writes increment a counter instead, and the task of the
//! connection compares it a few times per timeout.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time,
};

/// Counters of one connection. Reads do not count as progress: a client that sends half of a head is idle.
#[derive(Debug, Default)]
pub(super) struct Activity {
    /// Requests received, requests finished, and writes.
    progress: AtomicU64,
    in_flight: AtomicU64,
    bytes_read: AtomicU64,
    first_byte: Notify,
}

/// A request in flight, until it is dropped.
pub(super) struct InFlightRequest(Arc<Activity>);

/// Comparisons per idle timeout.
const CHECKS_PER_TIMEOUT: u32 = 4;

impl Activity {
    fn add_progress(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn begin_request(self: &Arc<Self>) -> InFlightRequest {
        self.add_progress();
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        InFlightRequest(self.clone())
    }

    pub(super) fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }

    /// Waits for the first byte from the client.
    pub(super) async fn wait_first_byte(&self) {
        self.first_byte.notified().await;
    }

    /// Returns when the connection has been idle for `timeout`, at most a quarter of it later.
    pub(super) async fn wait_idle(&self, timeout: Duration) {
        let (mut previous, mut idle_checks) = (0, 0);
        while idle_checks < CHECKS_PER_TIMEOUT {
            time::sleep(timeout / CHECKS_PER_TIMEOUT).await;
            let progress = self.progress.load(Ordering::Relaxed);
            let is_idle = progress == previous && self.in_flight.load(Ordering::Relaxed) == 0;
            idle_checks = if is_idle { idle_checks + 1 } else { 0 };
            previous = progress;
        }
    }
}

impl Drop for InFlightRequest {
    fn drop(&mut self) {
        self.0.add_progress();
        self.0.in_flight.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that records its activity.
pub(super) struct TrackedIo<I> {
    pub(super) io: I,
    pub(super) activity: Arc<Activity>,
}

impl<I> TrackedIo<I> {
    fn record_write(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if written.is_ready() {
            self.activity.add_progress();
        }
        written
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for TrackedIo<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.io).poll_read(context, into);
        let length = into.filled().len() - before;
        if length > 0 && self.activity.bytes_read.fetch_add(length as u64, Ordering::Relaxed) == 0 {
            self.activity.first_byte.notify_one();
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for TrackedIo<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        self.record_write(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        self.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
