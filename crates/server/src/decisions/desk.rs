//! Where questions are answered: the policy in force, who may ask, and what is held.

use super::{
    ledger::Ledger,
    tokens::Tokens,
    told::{DenyAs, Told},
};
use crate::observe::{Tally, Watcher};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tidegate_engine::{Clock, Permit, Reservation};
use tidegate_policy::compile::PolicyGate;
use tokio::runtime::Handle;

/// Where questions are answered. It outlives policies and listeners: what is held stays held.
pub(crate) struct Desk {
    now: ArcSwap<InForce>,
    tokens: ArcSwap<Tokens>,
    pub(super) reservations: Ledger<Reserved>,
    pub(super) permits: Ledger<Permitted>,
    /// Where permits are renewed: threads of a listener may end before them.
    runtime: Handle,
}

/// A policy in force, and where it is counted what it says.
pub(super) struct InForce {
    pub(super) gate: PolicyGate,
    pub(super) tally: Arc<Tally>,
    /// Who keeps why requests were denied, where the policy says so.
    pub(super) watcher: Option<Watcher>,
}

impl InForce {
    /// Counts what was answered, and keeps why it was no.
    pub(super) fn count(&self, told: &mut [Told<'_>], deny: DenyAs) {
        for told in told {
            if let Some((rule, counted, decision)) = told.counted() {
                self.tally.asked(rule, counted, decision);
            }
            if let Some(watcher) = &self.watcher {
                told.keep(watcher, &self.gate, deny);
            }
        }
    }
}

/// What was reserved; nothing where a rule is off, or only watches.
pub(super) type Reserved = Option<Reservation>;
/// What was acquired; nothing where a rule is off, or only watches.
pub(super) type Permitted = Option<Permit>;

/// The most that can be held at once, of each kind.
const MOST_HELD: usize = 100_000;

impl Desk {
    /// One for this policy. Only inside of a runtime, which is to outlive it.
    pub(crate) fn new(gate: PolicyGate, seen: (Arc<Tally>, Option<Watcher>), tokens: Tokens) -> Self {
        Self::with(gate, seen, tokens, Clock::system(), MOST_HELD)
    }

    /// One by this clock, where so many can be held at once.
    pub(super) fn with(
        gate: PolicyGate,
        (tally, watcher): (Arc<Tally>, Option<Watcher>),
        tokens: Tokens,
        clock: Clock,
        most_held: usize,
    ) -> Self {
        let keep = |reserved: Reserved| {
            if let Some(reserved) = reserved {
                reserved.keep();
            }
        };
        Self {
            now: ArcSwap::from_pointee(InForce { gate, tally, watcher }),
            tokens: ArcSwap::from_pointee(tokens),
            reservations: Ledger::new(clock.clone(), most_held, keep),
            permits: Ledger::new(clock, most_held, drop),
            runtime: Handle::current(),
        }
    }

    /// Answers by this policy from now on.
    pub(crate) fn replace(
        &self,
        gate: PolicyGate,
        (tally, watcher): (Arc<Tally>, Option<Watcher>),
        tokens: Tokens,
    ) {
        self.now.store(Arc::new(InForce { gate, tally, watcher }));
        self.tokens.store(Arc::new(tokens));
    }

    /// Closes what nobody has settled in time; to be called every second or so.
    pub(crate) fn follow_time(&self) {
        self.reservations.close_ended();
        self.permits.close_ended();
    }

    pub(super) fn now(&self) -> Arc<InForce> {
        self.now.load_full()
    }

    pub(super) fn tokens(&self) -> Guard<Arc<Tokens>> {
        self.tokens.load()
    }

    /// Does this where it goes on when the thread that asked has ended; `None` if everything has.
    pub(super) async fn lasting<F>(&self, work: F) -> Option<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(work).await.ok()
    }
}
