//! The tokens of a rate-limited stream: one is reserved before an item is polled, the remaining cost is charged after.

use super::source::{ReservedToken, StreamSource};
use crate::wait::Timer;
use std::task::{Context, Poll, ready};
use tidegate_core::{Micros, Outcome, Retry};

#[derive(Debug)]
pub(super) struct StreamTokens {
    source: StreamSource,
    /// A token, and when it is ready.
    reserved: Option<(ReservedToken, Micros)>,
    timer: Timer,
}

/// The retry interval if a denial contains no time.
const RETRY_INTERVAL: Micros = Micros::from_millis(100);

impl StreamTokens {
    pub(super) fn new(source: StreamSource) -> Self {
        Self { source, reserved: None, timer: Timer::default() }
    }

    /// Ready when a token can be used now.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let until = match &self.reserved {
                Some((_, ready_at)) => *ready_at,
                None => {
                    let (decision, taken) = self.source.reserve();
                    match (taken, decision.outcome()) {
                        (Some(taken), _) => {
                            let ready_at = taken.charged_at().saturating_add(decision.wait());
                            self.reserved = Some((taken, ready_at));
                            ready_at
                        }
                        (None, Outcome::Deny(Retry::After(wait))) => self.now().saturating_add(wait),
                        (None, _) => self.now().saturating_add(RETRY_INTERVAL),
                    }
                }
            };
            ready!(self.timer.poll(self.source.bucket().clock(), until, context));
            if self.reserved.is_some() {
                return Poll::Ready(());
            }
        }
    }

    /// Spends the cost of an item.
    pub(super) fn spend(&mut self, cost: u64) {
        if let Some((taken, _)) = self.reserved.take() {
            taken.spend(cost);
        }
    }

    /// Releases the token, because there is no item.
    pub(super) fn release(&mut self) {
        self.reserved = None;
    }

    fn now(&self) -> Micros {
        self.source.bucket().clock().now()
    }
}
