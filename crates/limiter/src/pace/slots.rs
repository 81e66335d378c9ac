//! The slots of a paced stream: the one place that knows how items in flight are counted.

use super::source::{Source, Taken};
use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

/// A slot that gives itself back when it is dropped.
#[derive(Debug)]
#[must_use = "dropping a slot lets the next item come"]
pub struct PaceSlot {
    _taken: Taken,
}

/// Where slots come from.
pub(super) struct Slots {
    source: Source,
    waiting: Option<Pin<Box<dyn Future<Output = Option<Taken>> + Send + Sync>>>,
}

impl Slots {
    pub(super) fn new(source: Source) -> Self {
        Self { source, waiting: None }
    }

    /// A slot, when it is this stream's turn; `None` if there will never be one.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<PaceSlot>> {
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(self.source.clone().slot()));
        let taken = ready!(waiting.as_mut().poll(context));
        self.waiting = None;
        Poll::Ready(taken.map(|taken| PaceSlot { _taken: taken }))
    }
}

impl fmt::Debug for Slots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.source.fmt(f)
    }
}
