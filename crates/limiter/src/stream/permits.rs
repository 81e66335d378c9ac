//! The slots of a paced stream: the one place that knows how items in flight are counted.

use super::source::{ReservedToken, StreamSource};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A slot that gives itself back when it is dropped.
#[derive(Debug)]
#[must_use = "dropping a slot lets the next item come"]
pub struct StreamPermit {
    _token: ReservedToken,
}

/// Where slots come from.
pub(super) struct StreamPermits {
    source: StreamSource,
    pending: Option<Pin<Box<dyn Future<Output = Option<ReservedToken>> + Send + Sync>>>,
}

impl StreamPermits {
    pub(super) fn new(source: StreamSource) -> Self {
        Self { source, pending: None }
    }

    /// A slot, when it is this stream's turn; `None` if there will never be one.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamPermit>> {
        let waiting = self.pending.get_or_insert_with(|| Box::pin(self.source.clone().acquire_slot()));
        let taken = ready!(waiting.as_mut().poll(context));
        self.pending = None;
        Poll::Ready(taken.map(|taken| StreamPermit { _token: taken }))
    }
}

impl fmt::Debug for StreamPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
