//! One decision over keys of several limiters.

use super::{
    BlockingLimiter, Limiter, LimiterBackend, LocalBackend, LocalCheck, MemoryLimiter, Permit, Reservation,
};
#[cfg(feature = "tokio")]
use super::{
    fallback::LocalCount,
    queue::StoreQueue,
    remote::{RemoteLimiter, UNEXPECTED_REPLY, merge_decisions},
};
#[cfg(feature = "tokio")]
use crate::{
    background,
    store::{PermitMode, StoreCheck, StoreDecision, StoreError, StoreReply, StoreRequest},
};
use crate::{
    key::LimitKey,
    memory::{CellCharge, decide_batch, reserve_batch},
};
use std::{fmt, sync::Arc, time::Duration};
#[cfg(feature = "tokio")]
use tidegate_core::Demand;
use tidegate_core::{Decision, Micros};

/// A check of one key of a limiter, to be decided together with others; see [`Limiter::prepare`]. It borrows nothing.
#[derive(Clone)]
pub struct Check {
    key: CheckKey,
    cost: u64,
    tier: usize,
    max_wait: Micros,
}

/// A key, in the form that the backend of its limiter needs.
#[derive(Clone)]
enum CheckKey {
    Memory {
        memory: Arc<MemoryLimiter>,
        owner: u64,
    },
    #[cfg(feature = "tokio")]
    Store {
        remote: Arc<RemoteLimiter>,
        key: String,
    },
}

impl CheckKey {
    /// The tier of the override of the key, or the requested one; the first if there is no such tier.
    fn tier_for(&self, requested: usize) -> usize {
        match self {
            Self::Memory { memory, owner } => memory.tier_for(*owner, requested),
            #[cfg(feature = "tokio")]
            Self::Store { remote, key } => remote.tier_for(key, requested),
        }
    }
}

impl Limiter {
    /// Prepares a check of one token, or one slot, of `key`, to be decided together with others by [`decide_all`] or
    /// [`reserve_all`].
    pub fn prepare<K: LimitKey + ?Sized>(&self, key: &K) -> Check {
        let key = match &self.backend {
            LimiterBackend::Memory(memory) => {
                CheckKey::Memory { memory: memory.clone(), owner: memory.fingerprint(key) }
            }
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => CheckKey::Store { remote: remote.clone(), key: key.to_string() },
        };
        let tier = key.tier_for(super::FIRST_TIER);
        Check { key, cost: 1, tier, max_wait: Micros::ZERO }
    }
}

impl Check {
    /// Sets the cost: the number of tokens, and of slots if the limiter counts permits.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Sets the tier; the first if there is no such tier. An override of the key has precedence.
    #[must_use]
    pub fn tier(self, tier: usize) -> Self {
        Self { tier: self.key.tier_for(tier), ..self }
    }

    /// Sets the longest wait for tokens that the caller accepts.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: max_wait.into(), ..self }
    }

    /// Whether the decision needs no store.
    pub fn is_in_memory(&self) -> bool {
        self.local_check().is_some()
    }

    /// Takes the cost from [prefetched tokens](super::TokenPrefetch), without the store; `None` if there are too few.
    #[cfg(feature = "tokio")]
    pub fn spend_prefetched(&self) -> Option<Decision> {
        match &self.key {
            CheckKey::Store { remote, key } if self.tier == 0 => remote.spend(key, self.cost),
            CheckKey::Memory { .. } | CheckKey::Store { .. } => None,
        }
    }

    /// Decides this check alone, without a wait and without a later refund. Prefetches tokens if its limiter does so.
    #[cfg(feature = "tokio")]
    pub async fn decide(self) -> Decision {
        match &self.key {
            CheckKey::Store { remote, key } if self.tier == 0 => remote.check_store(key, self.cost).await,
            CheckKey::Store { remote, key } => remote.decide(key, self.tier, Demand::new(self.cost)).await,
            CheckKey::Memory { memory, owner } => memory.bucket_of(*owner, self.tier).check(self.cost),
        }
    }

    fn local_check(&self) -> Option<LocalCheck<'_>> {
        let &Self { ref key, cost, tier, max_wait } = self;
        match key {
            CheckKey::Memory { memory, owner } => {
                Some(LocalCheck { memory, owner: *owner, cost, tier, max_wait })
            }
            #[cfg(feature = "tokio")]
            CheckKey::Store { .. } => None,
        }
    }

    fn local_backend(&self) -> Option<LocalBackend> {
        match &self.key {
            CheckKey::Memory { memory, owner } => {
                Some(LocalBackend::Key { memory: memory.clone(), owner: *owner, tier: self.tier })
            }
            #[cfg(feature = "tokio")]
            CheckKey::Store { .. } => None,
        }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { cost, tier, max_wait, .. } = self;
        let mut debug = f.debug_struct("Check");
        debug.field("cost", cost).field("tier", tier).field("max_wait", max_wait);
        debug.finish_non_exhaustive()
    }
}

/// The result of one of several checks: tokens that can still be settled, and slots that are in use until drop.
///
/// Dropping it releases the slots and refunds the tokens that have not expired, in a store in the background.
#[derive(Debug)]
#[must_use = "dropping it releases the slots and refunds the tokens"]
pub struct CombinedReservation {
    decision: Decision,
    tokens: Option<Reservation>,
    slots: Option<Permit>,
}

impl CombinedReservation {
    /// The decision: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// The remaining wait until the tokens may be used; zero if they are ready or nothing was granted.
    pub fn wait(&self) -> Duration {
        self.tokens.as_ref().map(Reservation::wait).unwrap_or_default()
    }

    /// Waits until the tokens may be used; see [`Reservation::ready`].
    #[cfg(feature = "tokio")]
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let ready = self.tokens.as_ref().map(Reservation::ready);
        async move {
            if let Some(ready) = ready {
                ready.await;
            }
        }
    }

    /// Splits it into tokens and slots, which are settled and released separately. `None` for a part that the limiter does
    /// not count, or if nothing was granted.
    pub fn into_parts(self) -> (Option<Reservation>, Option<Permit>) {
        (self.tokens, self.slots)
    }

    /// Spends the tokens and releases the slots.
    pub fn keep(self) -> Decision {
        if let Some(tokens) = self.tokens {
            tokens.keep();
        }
        self.decision
    }

    pub(super) fn denied(decision: Decision) -> Self {
        Self { decision, tokens: None, slots: None }
    }

    /// The result of a check in memory.
    fn from_local(backend: LocalBackend, cost: u64, taken: (Decision, CellCharge)) -> Self {
        let (decision, reservation) = (taken.0, Reservation::from_charge(backend, cost, taken));
        let (tokens, slots) = reservation.split();
        Self { decision, tokens, slots: slots.map(Permit::from_reservation) }
    }
}

/// For threads that can block.
impl BlockingLimiter<'_> {
    /// Decides several checks atomically; see [`decide_all`].
    pub fn decide_all(checks: &[Check]) -> Vec<Decision> {
        match local_checks(checks) {
            Some(checks) => decide_batch(&checks),
            #[cfg(feature = "tokio")]
            None => {
                let count = checks.len();
                let decided = background::block_on(longest_wait(checks), decide_all(checks.to_vec()));
                decided.unwrap_or_else(|| vec![unavailable_decision(); count])
            }
            #[cfg(not(feature = "tokio"))]
            None => Vec::new(),
        }
    }

    /// Decides several checks atomically and holds what they reserve; see `reserve_all`. It does not wait for the delay of a
    /// granted check.
    pub fn reserve_all(checks: &[Check]) -> Vec<Option<CombinedReservation>> {
        match local_checks(checks) {
            Some(local) => reserve_in_memory(checks, &local).into_iter().map(Some).collect(),
            #[cfg(feature = "tokio")]
            None => {
                let reservations = background::block_on(Duration::ZERO, reserve_all(checks.to_vec()));
                reservations.unwrap_or_else(|| {
                    checks.iter().map(|_| Some(CombinedReservation::denied(unavailable_decision()))).collect()
                })
            }
            #[cfg(not(feature = "tokio"))]
            None => Vec::new(),
        }
    }
}

#[cfg(feature = "tokio")]
fn longest_wait(checks: &[Check]) -> Duration {
    checks.iter().map(|check| check.max_wait).max().unwrap_or(Micros::ZERO).into()
}

#[cfg(feature = "tokio")]
fn unavailable_decision() -> Decision {
    Decision::fail_closed(0, Micros::from_secs(1))
}

/// The checks for memory, if no check needs a store.
fn local_checks(checks: &[Check]) -> Option<Vec<LocalCheck<'_>>> {
    checks.iter().map(Check::local_check).collect()
}

fn reserve_in_memory(checks: &[Check], local: &[LocalCheck<'_>]) -> Vec<CombinedReservation> {
    let taken = reserve_batch(local);
    let all_granted = taken.iter().all(|(decision, _)| decision.is_granted());
    let reserve = |(check, taken): (&Check, (Decision, CellCharge))| match check
        .local_backend()
        .filter(|_| all_granted)
    {
        Some(backend) => CombinedReservation::from_local(backend, check.cost, taken),
        None => CombinedReservation::denied(taken.0),
    };
    checks.iter().zip(taken).map(reserve).collect()
}

/// Decides several checks atomically: either all are charged, or none is. Checks of one store take one round trip.
///
/// The decisions have the order of the checks. Two checks of the same key of the same limiter count as one with both
/// costs. In memory all are decided on the clock of the first limiter. Slots are only checked, not acquired. In a cluster,
/// keys of several nodes are not decided atomically: a charge is refunded when another node denies.
///
/// ```
/// # #[cfg(feature = "tokio")] {
/// use tidegate_limiter::{Limiter, decide_all};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let per_user = Limiter::new("1/min")?;
/// let per_address = Limiter::new("100/min")?;
/// let checks = || vec![per_user.prepare("alice"), per_address.prepare("192.0.2.1")];
/// assert!(decide_all(checks()).await.iter().all(|decision| decision.is_allowed()));
/// assert!(!decide_all(checks()).await[0].is_allowed());
/// assert_eq!(per_address.key("192.0.2.1").peek(1).await.remaining(), 99); // a denial charges nothing
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// # }).unwrap();
/// # }
/// ```
#[cfg(feature = "tokio")]
pub async fn decide_all(checks: Vec<Check>) -> Vec<Decision> {
    if let Some(local) = local_checks(&checks) {
        return decide_batch(&local);
    }
    if let Some(remote) = single_store(&checks) {
        let reservations = reserve_in_store(&remote, checks, CheckPurpose::Spend).await;
        return reservations.into_iter().map(|reservation| reservation.decision).collect();
    }
    let mut decisions = Vec::with_capacity(checks.len());
    for (check, reservation) in checks.iter().zip(reserve_all(checks.clone()).await) {
        decisions.push(match reservation {
            Some(reservation) => reservation.keep(),
            // Not decided because of an earlier denial: only check it.
            None => check.peek().await,
        });
    }
    decisions
}

/// Decides several checks atomically and holds what they reserve: either all are granted, or nothing is taken.
///
/// The results have the order of the checks. Checks in memory are decided atomically, under the locks of all their keys;
/// so are the checks of one store, in one round trip. If the checks span several backends, memory decides first and then
/// store by store: a denial refunds the earlier charges, and the remaining checks are not decided and return `None`. Two
/// checks of the same key of the same limiter count as one with both costs.
///
/// A caller that drops the future while a store decides holds nothing: a later grant is refunded.
///
/// ```
/// use tidegate_limiter::{Limiter, reserve_all};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let per_minute = Limiter::new("10/min")?;
/// let max_in_flight = Limiter::new("1 at once")?;
/// let reserve = || reserve_all(vec![per_minute.prepare("alice"), max_in_flight.prepare("alice")]);
/// let reserved = reserve().await;
/// assert!(reserved.iter().flatten().all(|reservation| reservation.decision().is_granted()));
/// assert!(!reserve().await[1].as_ref().unwrap().decision().is_granted());
/// let alice = per_minute.key("alice");
/// assert_eq!(alice.peek(0).await.remaining(), 9); // a denial takes nothing
/// drop(reserved);
/// assert_eq!(alice.peek(0).await.remaining(), 10);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// # }).unwrap();
/// ```
#[cfg(feature = "tokio")]
pub async fn reserve_all(checks: Vec<Check>) -> Vec<Option<CombinedReservation>> {
    let mut reservations: Vec<Option<CombinedReservation>> = checks.iter().map(|_| None).collect();
    let in_memory: Vec<usize> = indices_where(&checks, Check::is_in_memory);
    if !in_memory.is_empty() {
        let part: Vec<Check> = in_memory.iter().map(|index| checks[*index].clone()).collect();
        let reserved = local_checks(&part).map(|local| reserve_in_memory(&part, &local)).unwrap_or_default();
        assign(&mut reservations, &in_memory, reserved);
        if is_denied(&reservations, &in_memory) {
            return reservations;
        }
    }
    while let Some(remote) =
        checks.iter().zip(&reservations).find_map(|(check, reservation)| match reservation {
            None => check.remote(),
            Some(_) => None,
        })
    {
        let indices = indices_where(&checks, |check| check.uses_store(remote));
        let part: Vec<Check> = indices.iter().map(|index| checks[*index].clone()).collect();
        assign(&mut reservations, &indices, reserve_in_store(remote, part, CheckPurpose::Hold).await);
        if is_denied(&reservations, &indices) {
            release_except(&mut reservations, &indices);
            return reservations;
        }
    }
    reservations
}

/// The purpose of a decision.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckPurpose {
    /// The charge is final; slots are only checked.
    Spend,
    /// The charge can be refunded.
    Hold,
}

#[cfg(feature = "tokio")]
impl CheckPurpose {
    fn permit_mode(self) -> PermitMode {
        match self {
            Self::Spend => PermitMode::Peek,
            Self::Hold => PermitMode::Acquire,
        }
    }
}

#[cfg(feature = "tokio")]
impl Check {
    fn remote(&self) -> Option<&Arc<RemoteLimiter>> {
        match &self.key {
            CheckKey::Memory { .. } => None,
            CheckKey::Store { remote, .. } => Some(remote),
        }
    }

    /// Whether the same store decides it.
    fn uses_store(&self, remote: &RemoteLimiter) -> bool {
        self.remote().is_some_and(|own| Arc::ptr_eq(own.store(), remote.store()))
    }

    fn store_key(&self) -> Option<(&Arc<RemoteLimiter>, &str)> {
        match &self.key {
            CheckKey::Memory { .. } => None,
            CheckKey::Store { remote, key } => Some((remote, key)),
        }
    }

    fn demand(&self) -> Demand {
        Demand::with_max_wait(self.cost, self.max_wait)
    }

    async fn peek(&self) -> Decision {
        match &self.key {
            CheckKey::Memory { memory, owner } => memory.bucket_of(*owner, self.tier).peek(self.cost),
            CheckKey::Store { remote, key } => remote.decide(key, self.tier, Demand::peek(self.cost)).await,
        }
    }
}

#[cfg(feature = "tokio")]
impl CombinedReservation {
    /// Splits a reservation into tokens and slots; `queue` holds the callers that wait for the slots in a store.
    pub(super) fn from_reservation(reservation: Reservation, queue: Option<StoreQueue>) -> Self {
        let decision = *reservation.decision();
        if !decision.is_granted() {
            return Self::denied(decision);
        }
        let (tokens, slots) = reservation.split();
        let slots = slots.map(|slots| match queue {
            Some(queue) => Permit::from_store(slots, queue),
            None => Permit::from_reservation(slots),
        });
        Self { decision, tokens, slots }
    }
}

/// The store of all checks, if all use the same one.
#[cfg(feature = "tokio")]
fn single_store(checks: &[Check]) -> Option<Arc<RemoteLimiter>> {
    let remote = checks.first()?.remote()?;
    checks.iter().all(|check| check.uses_store(remote)).then(|| remote.clone())
}

#[cfg(feature = "tokio")]
fn indices_where(checks: &[Check], is_among: impl Fn(&Check) -> bool) -> Vec<usize> {
    checks.iter().enumerate().filter(|(_, check)| is_among(check)).map(|(index, _)| index).collect()
}

#[cfg(feature = "tokio")]
fn assign(
    reservations: &mut [Option<CombinedReservation>],
    indices: &[usize],
    reserved: Vec<CombinedReservation>,
) {
    indices.iter().zip(reserved).for_each(|(index, reservation)| reservations[*index] = Some(reservation));
}

#[cfg(feature = "tokio")]
fn is_denied(reservations: &[Option<CombinedReservation>], indices: &[usize]) -> bool {
    let denied = |reservation: &CombinedReservation| !reservation.decision.is_granted();
    indices.iter().any(|index| reservations[*index].as_ref().is_some_and(denied))
}

/// Refunds what the other backends granted before this part denied; the decisions stay readable.
#[cfg(feature = "tokio")]
fn release_except(reservations: &mut [Option<CombinedReservation>], part: &[usize]) {
    let elsewhere = reservations.iter_mut().enumerate().filter(|(index, _)| !part.contains(index));
    for reservation in elsewhere.filter_map(|(_, reservation)| reservation.as_mut()) {
        (reservation.tokens, reservation.slots) = (None, None);
    }
}

#[cfg(feature = "tokio")]
async fn reserve_in_store(
    remote: &RemoteLimiter,
    checks: Vec<Check>,
    purpose: CheckPurpose,
) -> Vec<CombinedReservation> {
    let count = checks.len();
    let local_counts = match count_locally(&checks, purpose) {
        Ok(local_counts) => local_counts,
        Err(denied) => return denied,
    };
    let (store_checks, groups) = merge_checks(&checks, purpose);
    let reply = remote.store().execute(StoreRequest::Decide(store_checks.clone()));
    let reservations = async move {
        match reply.await {
            Ok(StoreReply::Decided(store_decisions)) if store_decisions.len() == store_checks.len() => {
                let all_granted =
                    store_checks.iter().zip(&store_decisions).all(|(store_check, store_decision)| {
                        merge_decisions(store_decision, store_check.key_ref.tier).is_granted()
                    });
                let of_checks = checks.iter().zip(groups).zip(local_counts);
                let convert = |((check, group), local): ((&Check, usize), LocalCount)| {
                    let (store_check, store_decision) = (&store_checks[group], &store_decisions[group]);
                    match purpose {
                        CheckPurpose::Hold => hold_reservation(check, store_check, store_decision, local),
                        CheckPurpose::Spend => {
                            spend_decision(check, store_check, store_decision, local, all_granted)
                        }
                    }
                };
                of_checks.map(convert).collect()
            }
            Ok(_) => fall_back(
                &checks,
                local_counts,
                &StoreError::ErrorReply(UNEXPECTED_REPLY.to_owned()),
                purpose,
            ),
            Err(error) => fall_back(&checks, local_counts, &error, purpose),
        }
    };
    // The task is lost if its runtime ends or the store panics.
    let lost = || (0..count).map(|_| CombinedReservation::denied(unavailable_decision())).collect();
    match purpose {
        CheckPurpose::Hold => background::run_uncancelled(reservations).await.unwrap_or_else(lost),
        CheckPurpose::Spend => reservations.await,
    }
}

/// Counts each check in this process before the store decides; returns all results if one is denied.
#[cfg(feature = "tokio")]
fn count_locally(
    checks: &[Check],
    purpose: CheckPurpose,
) -> Result<Vec<LocalCount>, Vec<CombinedReservation>> {
    let mut local_counts = Vec::with_capacity(checks.len());
    let mut denied = Vec::new();
    for (index, check) in checks.iter().enumerate() {
        let Some((remote, key)) = check.store_key() else { continue };
        match remote.fallback.reserve_local(key, check.tier, check.demand(), purpose.permit_mode()) {
            Ok(local) => local_counts.push(local),
            Err(denial) => {
                denied.push((index, *denial.decision()));
                local_counts.push(LocalCount::Uncounted);
            }
        }
    }
    if denied.is_empty() {
        return Ok(local_counts);
    }
    let reservations = checks.iter().zip(&local_counts).enumerate().map(|(index, (check, local))| {
        if let Some(remote) = check.remote() {
            remote.record_degraded(());
        }
        let denial = denied.iter().find(|(denied, _)| *denied == index);
        let granted = match local {
            LocalCount::Counted(taken) => taken.decision().into_degraded(),
            LocalCount::Uncounted => Decision::unlimited().into_degraded(),
        };
        CombinedReservation::denied(denial.map_or(granted, |(_, denial)| *denial))
    });
    Err(reservations.collect())
}

/// Merges the checks of the same key. Returns the store checks, and the index of the store check for each check.
#[cfg(feature = "tokio")]
fn merge_checks(checks: &[Check], purpose: CheckPurpose) -> (Vec<StoreCheck>, Vec<usize>) {
    let mut store_checks: Vec<StoreCheck> = Vec::with_capacity(checks.len());
    let mut groups = Vec::with_capacity(checks.len());
    for check in checks {
        let Some((remote, key)) = check.store_key() else { continue };
        let receipt = purpose == CheckPurpose::Hold;
        let store_check = remote.store_check(key, check.tier, check.demand(), purpose.permit_mode());
        let new = StoreCheck { receipt, ..store_check };
        let is_same = |existing: &StoreCheck| {
            Arc::ptr_eq(&existing.key_ref.limit, &new.key_ref.limit)
                && existing.key_ref.key == new.key_ref.key
        };
        match store_checks.iter().position(is_same) {
            Some(group) => {
                let demand = &mut store_checks[group].demand;
                demand.cost = demand.cost.saturating_add(check.cost);
                demand.max_wait = demand.max_wait.min(check.max_wait);
                groups.push(group);
            }
            None => {
                groups.push(store_checks.len());
                store_checks.push(new);
            }
        }
    }
    (store_checks, groups)
}

/// The refundable result of a check.
#[cfg(feature = "tokio")]
fn hold_reservation(
    check: &Check,
    store_check: &StoreCheck,
    store_decision: &StoreDecision,
    local: LocalCount,
) -> CombinedReservation {
    let decision = merge_decisions(store_decision, store_check.key_ref.tier);
    let (Some(remote), true) = (check.remote(), decision.is_granted()) else {
        return CombinedReservation::denied(decision);
    };
    let mut charged = store_decision.charge();
    charged.receipts.iter_mut().for_each(|receipt| receipt.cost = receipt.cost.min(check.cost));
    if charged.receipts.iter().all(|receipt| receipt.cost == 0) {
        // This check is granted but another one is denied: nothing was charged.
        return CombinedReservation::denied(decision);
    }
    let key_ref = store_check.key_ref.clone();
    let local =
        remote.fallback.charge_local(local, &key_ref.key, key_ref.tier, check.demand(), PermitMode::Acquire);
    let taken = Reservation::from_store_charge(remote, key_ref, charged, (check.cost, local), decision);
    CombinedReservation::from_reservation(taken, Some(remote.queue_for(&store_check.key_ref.key)))
}

/// The final result of a check.
#[cfg(feature = "tokio")]
fn spend_decision(
    check: &Check,
    store_check: &StoreCheck,
    store_decision: &StoreDecision,
    local: LocalCount,
    all_granted: bool,
) -> CombinedReservation {
    if let Some((remote, key)) = check.store_key().filter(|_| all_granted) {
        remote.count_granted(local, key, check.tier, check.demand());
    }
    CombinedReservation::denied(merge_decisions(store_decision, store_check.key_ref.tier))
}

/// Each limiter decides by its failure mode; still, all are granted or none.
#[cfg(feature = "tokio")]
fn fall_back(
    checks: &[Check],
    local_counts: Vec<LocalCount>,
    error: &StoreError,
    purpose: CheckPurpose,
) -> Vec<CombinedReservation> {
    drop(local_counts);
    let reservations = checks.iter().filter_map(|check| {
        let (remote, key) = check.store_key()?;
        let taken = remote.fallback.take(error, key, check.tier, check.demand(), purpose.permit_mode());
        Some(CombinedReservation::from_reservation(remote.record_degraded(taken), None))
    });
    let mut reservations: Vec<CombinedReservation> = reservations.collect();
    let is_denied = reservations.iter().any(|reservation| !reservation.decision.is_granted());
    if is_denied || purpose == CheckPurpose::Spend {
        for reservation in &mut reservations {
            let (tokens, slots) = (reservation.tokens.take(), reservation.slots.take());
            drop(slots);
            if let Some(tokens) = tokens.filter(|_| !is_denied) {
                tokens.keep();
            }
        }
    }
    reservations
}
