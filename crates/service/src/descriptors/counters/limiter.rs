//! Limits with quotas of their own: a limiter for each place in the files.

use super::{CountReservation, CountReservations, CounterStores, DescriptorKey, StoreKind};
use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};
use tidegate_core::{CarryOver, Decision, Quota};
use tidegate_limiter::{BuildError, Capacity, Check, CombinedReservation, Limiter, StoreError, reserve_all};

/// The limiter of one place. It is made when it is first asked for, so that files may have more limits than are used, and it
/// stays when files are read again.
#[derive(Clone, Debug)]
pub(crate) struct LazyLimiter {
    inner: Arc<LazyLimiterState>,
}

#[derive(Debug)]
struct LazyLimiterState {
    stores: CounterStores,
    name: String,
    settings: LazyLimiterSettings,
    /// What it counts by; whoever makes the limiter or changes it holds this.
    quotas: Mutex<Vec<Quota>>,
    limiter: OnceLock<Limiter>,
}

/// How the limiter of a place counts, besides its quotas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LazyLimiterSettings {
    pub(crate) capacity: Capacity,
    /// In which store.
    pub(crate) store_kind: StoreKind,
    /// For how long tokens of the store may lie here, if that is said of this place.
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
        let (home, quotas) = (stores.clone(), Mutex::new(quotas.to_vec()));
        Self {
            inner: Arc::new(LazyLimiterState {
                stores: home,
                name,
                settings,
                quotas,
                limiter: OnceLock::new(),
            }),
        }
    }

    /// The same limiter under these quotas: keys keep what they have used. `None` where that cannot be done.
    pub(crate) fn with_quotas(&self, settings: LazyLimiterSettings, quotas: &[Quota]) -> Option<Self> {
        let LazyLimiterSettings { store_kind: shelf, lease, .. } = self.inner.settings;
        if (shelf, lease) != (settings.store_kind, settings.lease) {
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
        let LazyLimiterState { stores: home, name, settings: terms, .. } = &*self.inner;
        let mut builder = home.builder(name, terms.capacity, terms.store_kind);
        if let Some(ahead) = home.prefetch(terms.lease) {
            builder = builder.prefetch(ahead);
        }
        let limiter = builder.build_all(&quotas)?;
        Ok(self.inner.limiter.get_or_init(|| limiter))
    }

    /// Whether tokens of the store are taken ahead.
    pub(crate) fn token_source(&self) -> TokenSource {
        match self.inner.stores.store.is_some()
            && self.inner.stores.prefetch(self.inner.settings.lease).is_some()
        {
            true => TokenSource::Prefetched,
            false => TokenSource::Store,
        }
    }

    /// Forgets what was counted of a key.
    pub(crate) async fn reset(&self, key: DescriptorKey<'_>) -> Result<(), StoreError> {
        // One that was never asked may have been, elsewhere.
        let limiter = self.get().map_err(|error| StoreError::Rejected(error.to_string()))?;
        limiter.key(&key).reset().await
    }
}

/// Where tokens come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenSource {
    /// They are asked for.
    Store,
    /// Some lie here already.
    Prefetched,
}

/// What is asked of one limiter.
#[derive(Debug)]
pub(crate) struct LimiterCharge<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) key: DescriptorKey<'a>,
    pub(crate) hits: u64,
    pub(crate) action: LimitAction,
    pub(crate) token_source: TokenSource,
}

/// What a limit that is over does to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimitAction {
    /// It refuses it.
    Deny,
    /// It refuses it if all others of this kind do.
    DenyTogether,
    /// Nothing.
    Shadow,
}

/// Why a request is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountPurpose {
    /// For good.
    Count,
    /// To be settled later: all or none.
    Reserve,
}

/// What has been said of a request before its limiters are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PriorResult {
    /// It is refused: nothing is charged any more.
    Denied,
    /// A limit of those that refuse together has room.
    GroupAllowed,
    /// Nothing.
    None,
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

/// Charges all, or none if the request is refused by any of them; those that only watch are charged if it is not. Says what
/// each decided, and what is held of it.
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
    let with_action = |manner| charges.iter().enumerate().filter(move |(_, charge)| charge.action == manner);
    let mut result = prior;

    // Those that refuse by themselves, all at once.
    let checks: Vec<_> = with_action(LimitAction::Deny).map(|(_, charge)| charge.check()).collect();
    if result != PriorResult::Denied && !checks.is_empty() {
        for ((place, _), claim) in with_action(LimitAction::Deny).zip(reserve_all(checks).await) {
            let Some(claim) = claim else { continue };
            decisions[place] = Some(*claim.decision());
            if !claim.decision().is_granted() {
                result = PriorResult::Denied;
            }
            claims.push(claim);
        }
    }

    // Those of which one that has room is enough.
    if result != PriorResult::Denied {
        let mut checked = 0;
        for (place, charge) in with_action(LimitAction::DenyTogether) {
            checked += 1;
            let Some(claim) = charge.reserve().await else { continue };
            decisions[place] = Some(*claim.decision());
            if claim.decision().is_granted() {
                result = PriorResult::GroupAllowed;
                claims.push(claim);
            }
        }
        if checked > 0 && result == PriorResult::None {
            result = PriorResult::Denied;
            // What was granted is given back below, and has to be looked at again.
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
        PriorResult::GroupAllowed | PriorResult::None => {
            for (place, charge) in with_action(LimitAction::Shadow) {
                let Some(claim) = charge.reserve().await else { continue };
                decisions[place] = Some(*claim.decision());
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

/// Tokens that lie here are spent by a request that nobody else decides, and by none that may want to give them back.
async fn decide_prefetched(
    charges: &[LimiterCharge<'_>],
    prior: PriorResult,
    purpose: CountPurpose,
) -> Option<Decision> {
    let [only] = charges else { return None };
    let can_spend = only.token_source == TokenSource::Prefetched && only.action == LimitAction::Deny;
    match (prior, purpose) {
        (PriorResult::None | PriorResult::GroupAllowed, CountPurpose::Count) if can_spend => {
            Some(only.limiter.decide(&only.key.to_string(), only.hits).await)
        }
        _ => None,
    }
}
