//! The state of the decision API: the active policy, the tokens, the reservations.

use super::response::{DenyStatus, RuleResponse};
use crate::reservations::{CAPACITY, ReservationKind, Reservations};
use arc_swap::{ArcSwap, Guard};
use std::sync::Arc;
use tidegate_http_server::{Authorization, SharedAuthorization};
use tidegate_limiter::{Clock, Permit, Reservation};
use tidegate_observe::{RequestRecorder, ResponseEnd};
use tidegate_policy::compile::PolicyGate;
use tidegate_rule::SettledCost;
use tokio::runtime::Handle;

/// The state of the decision API. It outlives policies and listeners, so reservations and permits survive a reload.
pub struct AppState {
    active: ArcSwap<ActiveRules>,
    authorization: ArcSwap<Authorization>,
    /// The tokens of Envoy's rate limit service.
    envoy_authorization: SharedAuthorization,
    pub(super) reservations: Reservations<ReservedTokens>,
    pub(super) permits: Reservations<ReservedPermit>,
    /// Renews permits, since they may outlive the threads of a listener.
    runtime: Handle,
}

/// The active policy with the recorder of its decisions.
pub(super) struct ActiveRules {
    pub(super) gate: PolicyGate,
    pub(super) recorder: Arc<RequestRecorder>,
}

impl ActiveRules {
    /// Counts a settlement by the rule of this name, if it is still in the policy.
    pub(super) fn record_settlement(&self, rule: &str, settled: &SettledCost) {
        let counters = &self.recorder.counters;
        if let Some(index) = counters.rule_index(rule) {
            counters.record_settlement(index, settled, ResponseEnd::Complete);
        }
    }

    /// Counts the decisions and records the denials.
    pub(super) fn record(&self, responses: &mut [RuleResponse<'_>], deny: DenyStatus) {
        for response in responses {
            if let Some((rule, counted, decision)) = response.outcome_count() {
                self.recorder.counters.record_decision(rule, counted, decision);
            }
            response.record_denial(&self.recorder, &self.gate, deny);
        }
    }
}

/// Reserved tokens, and how their rule settles them. `None` if the rule is off or in shadow mode.
pub(super) type ReservedTokens = Option<RuleReservation>;

/// Tokens that a rule has reserved.
pub(super) struct RuleReservation {
    pub(super) tokens: Reservation,
    /// The name of the rule.
    pub(super) rule: String,
    /// The largest part of the final cost that exceeds the reserved one; `None` for no limit.
    pub(super) max_debt: Option<u64>,
}

impl RuleReservation {
    /// How a final cost is charged.
    pub(super) fn settlement(&self, cost: u64) -> SettledCost {
        let reserved = self.tokens.cost();
        let charged = self.max_debt.map_or(cost, |debt| cost.min(reserved.saturating_add(debt)));
        SettledCost { limit: 0, reserved, stated: Some(cost), charged }
    }
}
/// Acquired slots; `None` if the rule is off or in shadow mode.
pub(super) type ReservedPermit = Option<Permit>;

impl AppState {
    /// Creates the state for a policy.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime. The runtime must outlive the state.
    pub fn new(gate: PolicyGate, recorder: Arc<RequestRecorder>, authorization: Authorization) -> Self {
        Self::with_clock(gate, recorder, authorization, Clock::system(), CAPACITY)
    }

    /// Creates the state with a clock, and a capacity per kind of reservation.
    pub(super) fn with_clock(
        gate: PolicyGate,
        recorder: Arc<RequestRecorder>,
        authorization: Authorization,
        clock: Clock,
        capacity: usize,
    ) -> Self {
        let keep = |reserved: ReservedTokens| {
            if let Some(reserved) = reserved {
                reserved.tokens.keep();
            }
        };
        Self {
            active: ArcSwap::from_pointee(ActiveRules { gate, recorder }),
            authorization: ArcSwap::from_pointee(authorization),
            envoy_authorization: SharedAuthorization::default(),
            reservations: Reservations::new(clock.clone(), capacity, ReservationKind::Reservation, keep),
            permits: Reservations::new(clock, capacity, ReservationKind::Permit, drop),
            runtime: Handle::current(),
        }
    }

    /// Replaces the policy, the recorder and the tokens.
    pub fn replace(&self, gate: PolicyGate, recorder: Arc<RequestRecorder>, authorization: Authorization) {
        self.active.store(Arc::new(ActiveRules { gate, recorder }));
        self.authorization.store(Arc::new(authorization));
    }

    /// Replaces the tokens of Envoy's rate limit service, on open connections too.
    pub fn replace_envoy_authorization(&self, authorization: Authorization) {
        self.envoy_authorization.store(Arc::new(authorization));
    }

    pub(super) fn envoy_authorization(&self) -> &SharedAuthorization {
        &self.envoy_authorization
    }

    /// Closes expired reservations and permits. Call it about once per second.
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

    /// Runs `work` on the runtime of the state, so that it completes even if the calling thread ends. `None` if the runtime
    /// has shut down.
    pub(super) async fn spawn_detached<F>(&self, work: F) -> Option<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(work).await.ok()
    }
}
