//! Where questions are answered: the policy in force, who may ask, and what is held.

use super::response::{DenyStatus, RuleResponse};
use crate::reservations::{CAPACITY, ReservationKind, Reservations};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tidegate_http_server::Authorization;
use tidegate_limiter::{Clock, Permit, Reservation};
use tidegate_observe::RequestRecorder;
use tidegate_policy::compile::PolicyGate;
use tokio::runtime::Handle;

/// Where questions are answered. It outlives policies and listeners: what is held stays held.
pub struct AppState {
    active: ArcSwap<ActiveRules>,
    authorization: ArcSwap<Authorization>,
    pub(super) reservations: Reservations<HeldTokens>,
    pub(super) permits: Reservations<HeldPermit>,
    /// Where permits are renewed: threads of a listener may end before them.
    runtime: Handle,
}

/// A policy in force, and what counts and keeps what it decides.
pub(super) struct ActiveRules {
    pub(super) gate: PolicyGate,
    pub(super) recorder: Arc<RequestRecorder>,
}

impl ActiveRules {
    /// Counts what was answered, and keeps why it was no.
    pub(super) fn record(&self, responses: &mut [RuleResponse<'_>], deny: DenyStatus) {
        for told in responses {
            if let Some((rule, counted, decision)) = told.outcome_count() {
                self.recorder.counters.record_decision(rule, counted, decision);
            }
            told.record_denial(&self.recorder, &self.gate, deny);
        }
    }
}

/// What was reserved; nothing where a rule is off, or only watches.
pub(super) type HeldTokens = Option<Reservation>;
/// What was acquired; nothing where a rule is off, or only watches.
pub(super) type HeldPermit = Option<Permit>;

impl AppState {
    /// One for this policy. Only inside of a runtime, which is to outlive it.
    pub fn new(gate: PolicyGate, recorder: Arc<RequestRecorder>, authorization: Authorization) -> Self {
        Self::with_clock(gate, recorder, authorization, Clock::system(), CAPACITY)
    }

    /// One with this clock and capacity.
    pub(super) fn with_clock(
        gate: PolicyGate,
        recorder: Arc<RequestRecorder>,
        authorization: Authorization,
        clock: Clock,
        capacity: usize,
    ) -> Self {
        let keep = |reserved: HeldTokens| {
            if let Some(reserved) = reserved {
                reserved.keep();
            }
        };
        Self {
            active: ArcSwap::from_pointee(ActiveRules { gate, recorder }),
            authorization: ArcSwap::from_pointee(authorization),
            reservations: Reservations::new(clock.clone(), capacity, ReservationKind::Reservation, keep),
            permits: Reservations::new(clock, capacity, ReservationKind::Permit, drop),
            runtime: Handle::current(),
        }
    }

    /// Answers by this policy from now on.
    pub fn replace(&self, gate: PolicyGate, recorder: Arc<RequestRecorder>, authorization: Authorization) {
        self.active.store(Arc::new(ActiveRules { gate, recorder }));
        self.authorization.store(Arc::new(authorization));
    }

    /// Closes what nobody has settled in time; to be called every second or so.
    pub fn close_expired(&self) {
        self.reservations.close_expired();
        self.permits.close_expired();
    }

    pub(super) fn active(&self) -> Arc<ActiveRules> {
        self.active.load_full()
    }

    pub(super) fn authorization(&self) -> Guard<Arc<Authorization>> {
        self.authorization.load()
    }

    /// Does this where it goes on when the thread that asked has ended; `None` if everything has.
    pub(super) async fn spawn_detached<F>(&self, work: F) -> Option<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(work).await.ok()
    }
}
