//! Limits with their own quotas: one limiter per limit in the configuration.

use super::{CountReservation, CountReservations, CounterStores, DescriptorKey, StoreKind};
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tidegate_core::{CarryOver, Decision, Quota};
use tidegate_limiter::{BuildError, Capacity, Check, CombinedReservation, Limiter, StoreError, reserve_all};

/// The limiter of one limit. It is created on first use, since a configuration may have many unused limits, and it survives
/// a reload.
#[derive(Clone, Debug)]
pub(crate) struct LazyLimiter {
    inner: Arc<LazyLimiterState>,
}

#[derive(Debug)]
struct LazyLimiterState {
    stores: CounterStores,
    name: String,
    settings: LazyLimiterSettings,
    /// The current quotas. The lock also serializes creation and changes of the limiter.
    quotas: Mutex<Vec<Quota>>,
    limiter: OnceLock<Limiter>,
}

/// The settings of a limiter besides its quotas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LazyLimiterSettings {
    pub(crate) capacity: Capacity,
    pub(crate) store_kind: StoreKind,
    /// How long this process may keep prefetched tokens, if the limit sets it.
    pub(crate) lease: Option<Duration>,
}

impl LazyLimiter {
    pub(crate) fn new(
        stores: &CounterStores,
        limit_name: &str,
        settings: LazyLimiterSettings,
        quotas: &[Quota],
    ) -> Self {
        let name = format!("descriptors.{limit_name}");
        let (stores, quotas) = (stores.clone(), Mutex::new(quotas.to_vec()));
        Self {
            inner: Arc::new(LazyLimiterState { stores, name, settings, quotas, limiter: OnceLock::new() }),
        }
    }

    /// Changes the quotas; keys keep their usage. `None` if that is not possible.
    pub(crate) fn with_quotas(&self, settings: LazyLimiterSettings, quotas: &[Quota]) -> Option<Self> {
        let LazyLimiterSettings { store_kind, lease, .. } = self.inner.settings;
        if (store_kind, lease) != (settings.store_kind, settings.lease) {
            return None;
        }
        let mut current = self.inner.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        if *current != quotas {
            if let Some(limiter) = self.inner.limiter.get() {
                limiter.change_all(quotas, CarryOver::Keep).ok()?;
            }
            *current = quotas.to_vec();
        }
        Some(self.clone())
    }

    pub(crate) fn get(&self) -> Result<&Limiter, BuildError> {
        if let Some(limiter) = self.inner.limiter.get() {
            return Ok(limiter);
        }
        let quotas = self.inner.quotas.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(limiter) = self.inner.limiter.get() {
            return Ok(limiter);
        }
        let LazyLimiterState { stores, name, settings, .. } = &*self.inner;
        let mut builder = stores.builder(name, settings.capacity, settings.store_kind);
        if let Some(prefetch) = stores.prefetch(settings.lease) {
            builder = builder.prefetch(prefetch);
        }
        let limiter = builder.build_all(&quotas)?;
        Ok(self.inner.limiter.get_or_init(|| limiter))
    }

    /// Whether tokens are prefetched from the store.
    pub(crate) fn token_source(&self) -> TokenSource {
        match self.inner.stores.store.is_some()
            && self.inner.stores.prefetch(self.inner.settings.lease).is_some()
        {
            true => TokenSource::Prefetched,
            false => TokenSource::Store,
        }
    }

    /// Resets the counters of a key.
    pub(crate) async fn reset(&self, key: DescriptorKey<'_>) -> Result<(), StoreError> {
        // Create the limiter if needed: another process may have counted the key in the store.
        let limiter = self.get().map_err(|error| StoreError::ErrorReply(error.to_string()))?;
        limiter.key(&key).reset().await
    }
}

/// The source of tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// The store, for each request.
    Store,
    /// Tokens that this process prefetched.
    Prefetched,
}

/// A charge to one limiter.
#[derive(Debug)]
pub(crate) struct LimiterCharge<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) key: DescriptorKey<'a>,
    pub(crate) hits: u64,
    pub(crate) action: LimitAction,
    pub(crate) token_source: TokenSource,
}

/// The effect on a request of a limit that is exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitAction {
    /// Denies the request.
    Deny,
    /// Denies the request if every limit of the quota group is exceeded.
    DenyWithGroup,
    /// Only counts.
    Shadow,
}

/// The purpose of counting a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountPurpose {
    /// Counts the request.
    Count,
    /// Reserves the hits, all or none, to be settled later.
    Reserve,
}

/// The result of a request before its limiters are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PriorResult {
    /// The request is denied: nothing else is charged.
    Denied,
    /// A limit of the quota group has capacity.
    GroupAllowed,
    /// Not decided yet.
    Undecided,
}

impl LimiterCharge<'_> {
    fn check(&self) -> Check {
        self.limiter.prepare(&self.key).cost(self.hits)
    }

    async fn peek(&self) -> Decision {
        self.limiter.key(&self.key).peek(self.hits).await
    }

    async fn reserve(&self) -> Option<CombinedReservation> {
        reserve_all(vec![self.check()]).await.pop().flatten()
    }
}

/// Charges all limiters, or none if one of them denies the request; shadow limits are charged only if the request is allowed.
/// Returns the decision of each, and the reservations.
pub(crate) async fn charge_all(
    charges: &[LimiterCharge<'_>],
    prior: PriorResult,
    purpose: CountPurpose,
) -> (Vec<Decision>, CountReservations) {
    if let Some(decision) = decide_prefetched(charges, prior, purpose).await {
        return (vec![decision], Vec::new());
    }
    let mut decisions: Vec<Option<Decision>> = vec![None; charges.len()];
    let mut claims: Vec<CombinedReservation> = Vec::with_capacity(charges.len());
    let with_action = |action| charges.iter().enumerate().filter(move |(_, charge)| charge.action == action);
    let mut result = prior;

    // First the limits that deny on their own, in one batch.
    let checks: Vec<_> = with_action(LimitAction::Deny).map(|(_, charge)| charge.check()).collect();
    if result != PriorResult::Denied && !checks.is_empty() {
        for ((index, _), claim) in with_action(LimitAction::Deny).zip(reserve_all(checks).await) {
            let Some(claim) = claim else { continue };
            decisions[index] = Some(*claim.decision());
            if !claim.decision().is_granted() {
                result = PriorResult::Denied;
            }
            claims.push(claim);
        }
    }

    // Then the quota group, where one limit with capacity is enough.
    if result != PriorResult::Denied {
        let mut checked = 0;
        for (index, charge) in with_action(LimitAction::DenyWithGroup) {
            checked += 1;
            let Some(claim) = charge.reserve().await else { continue };
            decisions[index] = Some(*claim.decision());
            if claim.decision().is_granted() {
                result = PriorResult::GroupAllowed;
                claims.push(claim);
            }
        }
        if checked > 0 && result == PriorResult::Undecided {
            result = PriorResult::Denied;
            // Granted tokens are refunded below, so their decisions have to be read again.
            decisions.iter_mut().for_each(|decision| *decision = decision.filter(|it| !it.is_granted()));
        }
    }

    let mut reserved: CountReservations = claims.into_iter().map(CountReservation::from_claim).collect();
    match result {
        PriorResult::Denied => {
            for hold in reserved.drain(..) {
                hold.cancel().await;
            }
        }
        PriorResult::GroupAllowed | PriorResult::Undecided => {
            for (index, charge) in with_action(LimitAction::Shadow) {
                let Some(claim) = charge.reserve().await else { continue };
                decisions[index] = Some(*claim.decision());
                reserved.push(CountReservation::from_claim(claim));
            }
        }
    }
    let mut all = Vec::with_capacity(charges.len());
    for (charge, decision) in charges.iter().zip(decisions) {
        all.push(match decision {
            Some(decision) => decision,
            None => charge.peek().await,
        });
    }
    (all, reserved)
}

/// Decides with prefetched tokens. They cannot be refunded, so this applies only if one limiter alone decides and the request
/// is not a reservation.
async fn decide_prefetched(
    charges: &[LimiterCharge<'_>],
    prior: PriorResult,
    purpose: CountPurpose,
) -> Option<Decision> {
    let [only] = charges else { return None };
    let can_spend = only.token_source == TokenSource::Prefetched && only.action == LimitAction::Deny;
    match (prior, purpose) {
        (PriorResult::Undecided | PriorResult::GroupAllowed, CountPurpose::Count) if can_spend => {
            Some(only.limiter.decide(&only.key.to_string(), only.hits).await)
        }
        _ => None,
    }
}
