//! The slots of a rate-limited stream.

use super::source::{ReservedToken, StreamSource};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A slot that is released on drop.
#[derive(Debug)]
#[must_use = "dropping a slot admits the next item"]
pub struct StreamPermit {
    _token: ReservedToken,
}

/// The source of slots.
pub(super) struct StreamPermits {
    source: StreamSource,
    pending: Option<Pin<Box<dyn Future<Output = Option<ReservedToken>> + Send + Sync>>>,
}

impl StreamPermits {
    pub(super) fn new(source: StreamSource) -> Self {
        Self { source, pending: None }
    }

    /// Ready with a slot, in queue order; `None` if none can ever be acquired.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<StreamPermit>> {
        let pending = self.pending.get_or_insert_with(|| Box::pin(self.source.clone().acquire_slot()));
        let taken = ready!(pending.as_mut().poll(context));
        self.pending = None;
        Poll::Ready(taken.map(|taken| StreamPermit { _token: taken }))
    }
}

impl fmt::Debug for StreamPermits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
