//! Whether a connection is still used.
//!
//! A timer for each request would be set and cleared, and hardly ever come to its end. Here requests and answers leave a mark,
//! and somebody looks now and then whether there is a new one.

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
    time,
};

/// What moves on a connection. What is read does not count by itself: a head has to come as a whole.
#[derive(Debug, Default)]
pub(crate) struct Pulse {
    /// Requests that have come or were answered, and pieces that were written.
    beats: AtomicU64,
    /// Requests that are being answered.
    busy: AtomicU64,
}

/// A request that is being answered.
pub(crate) struct Busy(Arc<Pulse>);

/// How often a connection is looked at in the time that it may rest.
const LOOKS: u32 = 4;

impl Pulse {
    fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// A request has come; it is being answered until what is returned is gone.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.beat();
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(self.clone())
    }

    /// Returns when nothing has moved for so long, and at most a quarter later.
    pub(crate) async fn stopped(&self, patience: Duration) {
        let (mut seen, mut rests) = (0, 0);
        while rests < LOOKS {
            time::sleep(patience / LOOKS).await;
            let beats = self.beats.load(Ordering::Relaxed);
            let rested = beats == seen && self.busy.load(Ordering::Relaxed) == 0;
            rests = if rested { rests + 1 } else { 0 };
            seen = beats;
        }
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.beat();
        self.0.busy.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection on which every piece that is written leaves its mark.
pub(crate) struct Pulsing<I> {
    pub(crate) io: I,
    pub(crate) pulse: Arc<Pulse>,
}

impl<I: AsyncRead + Unpin> AsyncRead for Pulsing<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, into)
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Pulsing<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write(context, bytes);
        if written.is_ready() {
            self.pulse.beat();
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.io).poll_write_vectored(context, slices);
        if written.is_ready() {
            self.pulse.beat();
        }
        written
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
