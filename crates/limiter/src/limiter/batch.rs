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
    store::{SlotMode, StoreCheck, StoreDecision, StoreError, StoreReply, StoreRequest},
};
use crate::{
    key::LimitKey,
    memory::{CellCharge, decide_batch, reserve_batch},
};
use std::{fmt, sync::Arc, time::Duration};
#[cfg(feature = "tokio")]
use tidegate_core::Demand;
use tidegate_core::{Decision, Micros};

/// One check of one key of a limiter, to be decided together with others; see [`Limiter::prepare`]. It borrows nothing.
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

impl Limiter {
    /// A check of one token, or one slot, of `key`, to be decided together with others by [`decide_all`] or [`reserve_all`].
    pub fn prepare<K: LimitKey + ?Sized>(&self, key: &K) -> Check {
        let key = match &self.backend {
            LimiterBackend::Memory(memory) => {
                CheckKey::Memory { memory: memory.clone(), owner: memory.fingerprint(key) }
            }
            #[cfg(feature = "tokio")]
            LimiterBackend::Store(remote) => CheckKey::Store { remote: remote.clone(), key: key.to_string() },
        };
        Check { key, cost: 1, tier: 0, max_wait: Micros::ZERO }
    }
}

impl Check {
    /// The same with another cost. That many slots are held too, where the limiter counts them.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same under another of the limiter's tiers; under the first if there is no such tier.
    #[must_use]
    pub fn tier(self, tier: usize) -> Self {
        let tiers = match &self.key {
            CheckKey::Memory { memory, .. } => memory.tiers(),
            #[cfg(feature = "tokio")]
            CheckKey::Store { remote, .. } => remote.tiers(),
        };
        Self { tier: if tier < tiers { tier } else { 0 }, ..self }
    }

    /// The same for a caller that accepts to wait for tokens, up to `max_wait`.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait: max_wait.into(), ..self }
    }

    /// Whether it is decided without asking a store.
    pub fn is_in_memory(&self) -> bool {
        self.local_check().is_some()
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

/// What one of several checks was given: tokens that can still be settled, and slots until they are dropped.
///
/// Dropping it gives everything back that time has not given back already, from a store in the background.
#[derive(Debug)]
#[must_use = "dropping a claim gives back what it holds"]
pub struct CombinedReservation {
    decision: Decision,
    tokens: Option<Reservation>,
    slots: Option<Permit>,
}

impl CombinedReservation {
    /// The answer: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How long to wait before going; zero when it is time, or when nothing was granted.
    pub fn wait(&self) -> Duration {
        self.tokens.as_ref().map(Reservation::wait).unwrap_or_default()
    }

    /// Waits until it is time to go; see [`Reservation::ready`].
    #[cfg(feature = "tokio")]
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let ready = self.tokens.as_ref().map(Reservation::ready);
        async move {
            if let Some(ready) = ready {
                ready.await;
            }
        }
    }

    /// Its tokens, and its slots: to be settled and given back apart. `None` where the limiter counts no such thing, or
    /// where nothing was granted.
    pub fn into_parts(self) -> (Option<Reservation>, Option<Permit>) {
        (self.tokens, self.slots)
    }

    /// Spends the tokens, and gives the slots back.
    pub fn keep(self) -> Decision {
        if let Some(tokens) = self.tokens {
            tokens.keep();
        }
        self.decision
    }

    pub(super) fn denied(decision: Decision) -> Self {
        Self { decision, tokens: None, slots: None }
    }

    /// What was taken in memory.
    fn from_local(place: LocalBackend, cost: u64, taken: (Decision, CellCharge)) -> Self {
        let (decision, reservation) = (taken.0, Reservation::from_charge(place, cost, taken));
        let (tokens, slots) = reservation.split();
        Self { decision, tokens, slots: slots.map(Permit::from_reservation) }
    }
}

/// In threads that can wait.
impl BlockingLimiter<'_> {
    /// Decides several checks at once; see [`decide_all`].
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

    /// Decides several checks at once, and holds what they are given; see `reserve_all`. It does not wait for what was granted after
    /// a delay.
    pub fn reserve_all(checks: &[Check]) -> Vec<Option<CombinedReservation>> {
        match local_checks(checks) {
            Some(local) => reserve_in_memory(checks, &local).into_iter().map(Some).collect(),
            #[cfg(feature = "tokio")]
            None => {
                let claims = background::block_on(Duration::ZERO, reserve_all(checks.to_vec()));
                claims.unwrap_or_else(|| {
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

/// All of them, if all are in memory.
fn local_checks(checks: &[Check]) -> Option<Vec<LocalCheck<'_>>> {
    checks.iter().map(Check::local_check).collect()
}

fn reserve_in_memory(checks: &[Check], local: &[LocalCheck<'_>]) -> Vec<CombinedReservation> {
    let taken = reserve_batch(local);
    let all_granted = taken.iter().all(|(decision, _)| decision.is_granted());
    let claim = |(check, taken): (&Check, (Decision, CellCharge))| match check
        .local_backend()
        .filter(|_| all_granted)
    {
        Some(place) => CombinedReservation::from_local(place, check.cost, taken),
        None => CombinedReservation::denied(taken.0),
    };
    checks.iter().zip(taken).map(claim).collect()
}

/// Decides several checks at once: either all are charged, or none is. Those of one store take one round trip.
///
/// The decisions come in the order of the checks; those that denied say so. Two checks of the same key of the same limiter count as
/// one with both costs. In memory all are decided on the clock of the first limiter. Slots are only looked at. In a cluster, keys of several
/// nodes are not decided as a whole: what was charged is given back when another part denies.
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
/// assert_eq!(per_address.key("192.0.2.1").peek(1).await.remaining(), 99); // the denied one charged nothing
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
        let claims = reserve_in_store(&remote, checks, CheckPurpose::Spend).await;
        return claims.into_iter().map(|claim| claim.decision).collect();
    }
    let mut decisions = Vec::with_capacity(checks.len());
    for (check, claim) in checks.iter().zip(reserve_all(checks.clone()).await) {
        decisions.push(match claim {
            Some(claim) => claim.keep(),
            // Behind a denial: it is only looked at.
            None => check.peek().await,
        });
    }
    decisions
}

/// Decides several checks at once, and holds what they are given: either all are granted, or nothing is taken.
///
/// The claims come in the order of the checks. Those that are counted in memory are decided as a whole, under the locks
/// of all of them; so are those of one store, in one round trip. Where the checks span several of these, memory is asked
/// first and then store by store: a denial gives back what was taken before, and those that come after it are not asked any
/// more, which is `None`. Two checks of the same key of the same limiter count as one with both costs.
///
/// A caller that drops the future while a store decides holds nothing: what the store grants later is given back.
///
/// ```
/// use tidegate_limiter::{Limiter, reserve_all};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let per_minute = Limiter::new("10/min")?;
/// let max_in_flight = Limiter::new("1 at once")?;
/// let ask = || reserve_all(vec![per_minute.prepare("alice"), max_in_flight.prepare("alice")]);
/// let held = ask().await;
/// assert!(held.iter().flatten().all(|claim| claim.decision().is_granted()));
/// assert!(!ask().await[1].as_ref().unwrap().decision().is_granted());
/// let alice = per_minute.key("alice");
/// assert_eq!(alice.peek(0).await.remaining(), 9); // the denied one took nothing
/// drop(held);
/// assert_eq!(alice.peek(0).await.remaining(), 10);
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// # }).unwrap();
/// ```
#[cfg(feature = "tokio")]
pub async fn reserve_all(checks: Vec<Check>) -> Vec<Option<CombinedReservation>> {
    let mut claims: Vec<Option<CombinedReservation>> = checks.iter().map(|_| None).collect();
    let here: Vec<usize> = indices_where(&checks, Check::is_in_memory);
    if !here.is_empty() {
        let part: Vec<Check> = here.iter().map(|index| checks[*index].clone()).collect();
        let answers = local_checks(&part).map(|local| reserve_in_memory(&part, &local)).unwrap_or_default();
        assign(&mut claims, &here, answers);
        if is_denied(&claims, &here) {
            return claims;
        }
    }
    while let Some(remote) = checks.iter().zip(&claims).find_map(|(check, claim)| match claim {
        None => check.remote(),
        Some(_) => None,
    }) {
        let there = indices_where(&checks, |check| check.uses_store(remote));
        let part: Vec<Check> = there.iter().map(|index| checks[*index].clone()).collect();
        assign(&mut claims, &there, reserve_in_store(remote, part, CheckPurpose::Hold).await);
        if is_denied(&claims, &there) {
            release_except(&mut claims, &there);
            return claims;
        }
    }
    claims
}

/// What a decision is for.
#[cfg(feature = "tokio")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckPurpose {
    /// It is charged for good; slots are looked at.
    Spend,
    /// It can be given back.
    Hold,
}

#[cfg(feature = "tokio")]
impl CheckPurpose {
    fn slot_mode(self) -> SlotMode {
        match self {
            Self::Spend => SlotMode::Peek,
            Self::Hold => SlotMode::Acquire,
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

    /// Whether it is decided by the same store.
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
            CheckKey::Store { remote, key } => remote.decide(key, self.tier, Demand::probe(self.cost)).await,
        }
    }
}

#[cfg(feature = "tokio")]
impl CombinedReservation {
    /// What was taken, with the queue of those who wait for its slots where that is of a store.
    pub(super) fn from_reservation(reservation: Reservation, queue: Option<StoreQueue>) -> Self {
        let decision = *reservation.decision();
        if !decision.is_granted() {
            return Self::denied(decision);
        }
        let (tokens, slots) = reservation.split();
        let slots = slots.map(|slots| match queue {
            Some(line) => Permit::from_store(slots, line),
            None => Permit::from_reservation(slots),
        });
        Self { decision, tokens, slots }
    }
}

/// The store of all of them, if it is one.
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
fn assign(claims: &mut [Option<CombinedReservation>], places: &[usize], answers: Vec<CombinedReservation>) {
    places.iter().zip(answers).for_each(|(index, claim)| claims[*index] = Some(claim));
}

#[cfg(feature = "tokio")]
fn is_denied(claims: &[Option<CombinedReservation>], places: &[usize]) -> bool {
    let denied = |claim: &CombinedReservation| !claim.decision.is_granted();
    places.iter().any(|index| claims[*index].as_ref().is_some_and(denied))
}

/// Gives back what was taken elsewhere before this part denied; its answers stay to be read.
#[cfg(feature = "tokio")]
fn release_except(claims: &mut [Option<CombinedReservation>], part: &[usize]) {
    let elsewhere = claims.iter_mut().enumerate().filter(|(index, _)| !part.contains(index));
    for claim in elsewhere.filter_map(|(_, claim)| claim.as_mut()) {
        (claim.tokens, claim.slots) = (None, None);
    }
}

#[cfg(feature = "tokio")]
async fn reserve_in_store(
    remote: &RemoteLimiter,
    checks: Vec<Check>,
    purpose: CheckPurpose,
) -> Vec<CombinedReservation> {
    let count = checks.len();
    let owns = match count_locally(&checks, purpose) {
        Ok(owns) => owns,
        Err(denied) => return denied,
    };
    let (inquiries, groups) = merge_checks(&checks, purpose);
    let reply = remote.store().execute(StoreRequest::Decide(inquiries.clone()));
    let claims = async move {
        match reply.await {
            Ok(StoreReply::Decided(answers)) if answers.len() == inquiries.len() => {
                let all_granted = inquiries
                    .iter()
                    .zip(&answers)
                    .all(|(inquiry, answer)| merge_decisions(answer, inquiry.key_ref.tier).is_granted());
                let of_checks = checks.iter().zip(groups).zip(owns);
                let claim = |((check, group), own): ((&Check, usize), LocalCount)| {
                    let (inquiry, answer) = (&inquiries[group], &answers[group]);
                    match purpose {
                        CheckPurpose::Hold => hold_reservation(check, inquiry, answer, own),
                        CheckPurpose::Spend => spend_decision(check, inquiry, answer, own, all_granted),
                    }
                };
                of_checks.map(claim).collect()
            }
            Ok(_) => fall_back(&checks, owns, &StoreError::Rejected(UNEXPECTED_REPLY.to_owned()), purpose),
            Err(error) => fall_back(&checks, owns, &error, purpose),
        }
    };
    // A task that is never done belongs to a runtime that ends, or to a store that panics.
    let lost = || (0..count).map(|_| CombinedReservation::denied(unavailable_decision())).collect();
    match purpose {
        CheckPurpose::Hold => background::run_uncancelled(claims).await.unwrap_or_else(lost),
        CheckPurpose::Spend => claims.await,
    }
}

/// What this process has counted of each check before the store is asked; all answers, if it denies one.
#[cfg(feature = "tokio")]
fn count_locally(
    checks: &[Check],
    purpose: CheckPurpose,
) -> Result<Vec<LocalCount>, Vec<CombinedReservation>> {
    let mut owns = Vec::with_capacity(checks.len());
    let mut denied = Vec::new();
    for (place, check) in checks.iter().enumerate() {
        let Some((remote, key)) = check.store_key() else { continue };
        match remote.fallback.reserve_local(key, check.tier, check.demand(), purpose.slot_mode()) {
            Ok(own) => owns.push(own),
            Err(denial) => {
                denied.push((place, *denial.decision()));
                owns.push(LocalCount::Uncounted);
            }
        }
    }
    if denied.is_empty() {
        return Ok(owns);
    }
    let claims = checks.iter().zip(&owns).enumerate().map(|(place, (check, own))| {
        if let Some(remote) = check.remote() {
            remote.record_degraded(());
        }
        let denial = denied.iter().find(|(denied, _)| *denied == place);
        let granted = match own {
            LocalCount::Counted(taken) => taken.decision().into_degraded(),
            LocalCount::Uncounted => Decision::unlimited().into_degraded(),
        };
        CombinedReservation::denied(denial.map_or(granted, |(_, denial)| *denial))
    });
    Err(claims.collect())
}

/// One question for each key, and which of them each check has become a part of.
#[cfg(feature = "tokio")]
fn merge_checks(checks: &[Check], purpose: CheckPurpose) -> (Vec<StoreCheck>, Vec<usize>) {
    let mut inquiries: Vec<StoreCheck> = Vec::with_capacity(checks.len());
    let mut groups = Vec::with_capacity(checks.len());
    for check in checks {
        let Some((remote, key)) = check.store_key() else { continue };
        let receipt = purpose == CheckPurpose::Hold;
        let inquiry = remote.store_check(key, check.tier, check.demand(), purpose.slot_mode());
        let new = StoreCheck { receipt, ..inquiry };
        let is_same = |known: &StoreCheck| {
            Arc::ptr_eq(&known.key_ref.limit, &new.key_ref.limit) && known.key_ref.key == new.key_ref.key
        };
        match inquiries.iter().position(is_same) {
            Some(group) => {
                let demand = &mut inquiries[group].demand;
                demand.cost = demand.cost.saturating_add(check.cost);
                demand.max_wait = demand.max_wait.min(check.max_wait);
                groups.push(group);
            }
            None => {
                groups.push(inquiries.len());
                inquiries.push(new);
            }
        }
    }
    (inquiries, groups)
}

/// What a check was given that can be given back.
#[cfg(feature = "tokio")]
fn hold_reservation(
    check: &Check,
    inquiry: &StoreCheck,
    answer: &StoreDecision,
    own: LocalCount,
) -> CombinedReservation {
    let decision = merge_decisions(answer, inquiry.key_ref.tier);
    let (Some(remote), true) = (check.remote(), decision.is_granted()) else {
        return CombinedReservation::denied(decision);
    };
    let mut charged = answer.charge();
    charged.receipts.iter_mut().for_each(|receipt| receipt.cost = receipt.cost.min(check.cost));
    if charged.receipts.iter().all(|receipt| receipt.cost == 0) {
        // It grants, but another of the checks does not: nothing was charged.
        return CombinedReservation::denied(decision);
    }
    let place = inquiry.key_ref.clone();
    let own = remote.fallback.charge_local(own, &place.key, place.tier, check.demand(), SlotMode::Acquire);
    let taken = Reservation::from_store_charge(remote, place, charged, (check.cost, own), decision);
    CombinedReservation::from_reservation(taken, Some(remote.queue_for(&inquiry.key_ref.key)))
}

/// What a check was given for good.
#[cfg(feature = "tokio")]
fn spend_decision(
    check: &Check,
    inquiry: &StoreCheck,
    answer: &StoreDecision,
    own: LocalCount,
    all_granted: bool,
) -> CombinedReservation {
    if let Some((remote, key)) = check.store_key().filter(|_| all_granted) {
        remote.count_granted(own, key, check.tier, check.demand());
    }
    CombinedReservation::denied(merge_decisions(answer, inquiry.key_ref.tier))
}

/// Each limiter decides by its outage mode; still, all of them or none.
#[cfg(feature = "tokio")]
fn fall_back(
    checks: &[Check],
    owns: Vec<LocalCount>,
    error: &StoreError,
    purpose: CheckPurpose,
) -> Vec<CombinedReservation> {
    drop(owns);
    let claims = checks.iter().filter_map(|check| {
        let (remote, key) = check.store_key()?;
        let taken = remote.fallback.take(error, key, check.tier, check.demand(), purpose.slot_mode());
        Some(CombinedReservation::from_reservation(remote.record_degraded(taken), None))
    });
    let mut claims: Vec<CombinedReservation> = claims.collect();
    let is_denied = claims.iter().any(|claim| !claim.decision.is_granted());
    if is_denied || purpose == CheckPurpose::Spend {
        for claim in &mut claims {
            let (tokens, slots) = (claim.tokens.take(), claim.slots.take());
            drop(slots);
            if let Some(tokens) = tokens.filter(|_| !is_denied) {
                tokens.keep();
            }
        }
    }
    claims
}
