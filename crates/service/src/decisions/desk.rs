//! Where questions are answered: the policy in force, who may ask, and what is held.

use super::told::{DenyAs, Told};
use crate::reservations::{CAPACITY, EntryKind, Reservations};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tidegate_http_server::Authorization;
use tidegate_limiter::{Clock, Permit, Reservation};
use tidegate_observe::RequestRecorder;
use tidegate_policy::compile::PolicyGate;
use tokio::runtime::Handle;

/// Where questions are answered. It outlives policies and listeners: what is held stays held.
pub struct Desk {
    now: ArcSwap<InForce>,
    authorization: ArcSwap<Authorization>,
    pub(super) reservations: Reservations<Reserved>,
    pub(super) permits: Reservations<Permitted>,
    /// Where permits are renewed: threads of a listener may end before them.
    runtime: Handle,
}

/// A policy in force, and what counts and keeps what it decides.
pub(super) struct InForce {
    pub(super) gate: PolicyGate,
    pub(super) recorder: Arc<RequestRecorder>,
}

impl InForce {
    /// Counts what was answered, and keeps why it was no.
    pub(super) fn count(&self, told: &mut [Told<'_>], deny: DenyAs) {
        for told in told {
            if let Some((rule, counted, decision)) = told.counted() {
                self.recorder.tally.asked(rule, counted, decision);
            }
            told.keep(&self.recorder, &self.gate, deny);
        }
    }
}

/// What was reserved; nothing where a rule is off, or only watches.
pub(super) type Reserved = Option<Reservation>;
/// What was acquired; nothing where a rule is off, or only watches.
pub(super) type Permitted = Option<Permit>;

impl Desk {
    /// One for this policy. Only inside of a runtime, which is to outlive it.
    pub fn new(gate: PolicyGate, recorder: Arc<RequestRecorder>, authorization: Authorization) -> Self {
        Self::with(gate, recorder, authorization, Clock::system(), CAPACITY)
    }

    /// One with this clock and capacity.
    pub(super) fn with(
        gate: PolicyGate,
        recorder: Arc<RequestRecorder>,
        authorization: Authorization,
        clock: Clock,
        capacity: usize,
    ) -> Self {
        let keep = |reserved: Reserved| {
            if let Some(reserved) = reserved {
                reserved.keep();
            }
        };
        Self {
            now: ArcSwap::from_pointee(InForce { gate, recorder }),
            authorization: ArcSwap::from_pointee(authorization),
            reservations: Reservations::new(clock.clone(), capacity, EntryKind::Reservation, keep),
            permits: Reservations::new(clock, capacity, EntryKind::Permit, drop),
            runtime: Handle::current(),
        }
    }

    /// Answers by this policy from now on.
    pub fn replace(&self, gate: PolicyGate, recorder: Arc<RequestRecorder>, authorization: Authorization) {
        self.now.store(Arc::new(InForce { gate, recorder }));
        self.authorization.store(Arc::new(authorization));
    }

    /// Closes what nobody has settled in time; to be called every second or so.
    pub fn follow_time(&self) {
        self.reservations.close_expired();
        self.permits.close_expired();
    }

    pub(super) fn now(&self) -> Arc<InForce> {
        self.now.load_full()
    }

    pub(super) fn authorization(&self) -> Guard<Arc<Authorization>> {
        self.authorization.load()
    }

    /// Does this where it goes on when the thread that asked has ended; `None` if everything has.
    pub(super) async fn lasting<F>(&self, work: F) -> Option<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(work).await.ok()
    }
}
