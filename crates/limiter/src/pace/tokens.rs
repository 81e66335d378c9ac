//! The tokens of a paced stream: one is had before an item is pulled, the rest of its cost is owed after.

use super::source::{Source, Taken};
use crate::wait::Alarm;
use std::task::{Context, Poll, ready};
use tidegate_core::{Micros, Outcome, Retry};

#[derive(Debug)]
pub(super) struct Tokens {
    source: Source,
    /// A token, and when it may be used.
    taken: Option<(Taken, Micros)>,
    alarm: Alarm,
}

/// When to ask again where nobody can tell.
const LATER: Micros = Micros::from_millis(100);

impl Tokens {
    pub(super) fn new(source: Source) -> Self {
        Self { source, taken: None, alarm: Alarm::default() }
    }

    /// Ready when there is a token that may be used now.
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        loop {
            let until = match &self.taken {
                Some((_, ready_at)) => *ready_at,
                None => {
                    let (decision, taken) = self.source.reserve();
                    match (taken, decision.outcome()) {
                        (Some(taken), _) => {
                            let ready_at = taken.charged_at().plus(decision.wait());
                            self.taken = Some((taken, ready_at));
                            ready_at
                        }
                        (None, Outcome::Deny(Retry::After(wait))) => self.now().plus(wait),
                        (None, _) => self.now().plus(LATER),
                    }
                }
            };
            ready!(self.alarm.poll(self.source.bucket().clock(), until, context));
            if self.taken.is_some() {
                return Poll::Ready(());
            }
        }
    }

    /// Spends what an item costs.
    pub(super) fn spend(&mut self, cost: u64) {
        if let Some((taken, _)) = self.taken.take() {
            taken.spend(cost);
        }
    }

    /// There is no item: the token is for others.
    pub(super) fn rest(&mut self) {
        self.taken = None;
    }

    fn now(&self) -> Micros {
        self.source.bucket().clock().now()
    }
}
