//! One decision over keys of several limiters that can be given back, question by question.

use super::{
    Home, Remote, SharedLimiter, SharedPermit, SharedReservation, fold, outage::Own, remote::NO_ANSWER,
};
use crate::{
    limiter::Limiter,
    memory::reserve_together,
    store::{Answer, Inquiry, Reply, Request, Slots, StoreError},
};
use std::{
    fmt,
    hash::Hash,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use tidegate_core::{Decision, Demand, Micros};
use tokio::runtime::Handle;

/// One question to one limiter that borrows nothing, to be decided together with others by [`reserve_all`].
#[derive(Clone, Debug)]
pub struct OwnedAsk {
    limiter: Arc<SharedLimiter>,
    key: AskKey,
    cost: u64,
    tier: usize,
    patience: Micros,
}

/// A key, in the form that the limiter's home needs.
#[derive(Clone, Debug)]
enum AskKey {
    Memory { limiter: Arc<Limiter>, owner: u64 },
    Store(String),
}

impl OwnedAsk {
    /// A question for one token, or one slot. In memory the key is hashed as what it is, in a store it is written out.
    pub fn new<K: Hash + fmt::Display + ?Sized>(limiter: &Arc<SharedLimiter>, key: &K) -> Self {
        let key = match &limiter.home {
            Home::Memory(memory) => {
                AskKey::Memory { limiter: memory.clone(), owner: memory.fingerprint(key) }
            }
            Home::Store(_) => AskKey::Store(key.to_string()),
        };
        Self { limiter: limiter.clone(), key, cost: 1, tier: 0, patience: Micros::ZERO }
    }

    /// The same question with another cost. So many slots are held too, where the limiter counts them.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same question under another of the limiter's tiers; under the first if there is no such tier.
    #[must_use]
    pub fn tier(self, tier: usize) -> Self {
        Self { tier: if tier < self.limiter.tiers() { tier } else { 0 }, ..self }
    }

    /// The same question of somebody who accepts to wait for tokens, up to `patience`.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience: patience.into(), ..self }
    }

    /// Whether it is decided without asking a store.
    pub fn is_in_memory(&self) -> bool {
        matches!(self.key, AskKey::Memory { .. })
    }

    fn demand(&self) -> Demand {
        Demand::within(self.cost, self.patience)
    }
}

/// What one of several questions was given: tokens that can still be settled, and slots until they are dropped.
///
/// Dropping it gives everything back that time has not given back already, from a store in the background.
#[derive(Debug)]
#[must_use = "dropping a claim gives back what it holds"]
pub struct Claim {
    decision: Decision,
    tokens: Option<SharedReservation<'static>>,
    slots: Option<SharedPermit<'static>>,
}

impl Claim {
    /// The answer: allowed now, granted after a delay, or denied.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How long to wait before going; zero when it is time, or when nothing was granted.
    pub fn wait(&self) -> Duration {
        self.tokens.as_ref().map(SharedReservation::wait).unwrap_or_default()
    }

    /// Waits until it is time to go; see [`SharedReservation::ready`].
    pub fn ready(&self) -> impl Future<Output = ()> + Send + use<> {
        let ready = self.tokens.as_ref().map(SharedReservation::ready);
        async move {
            if let Some(ready) = ready {
                ready.await;
            }
        }
    }

    /// Its tokens, and its slots: to be settled and given back apart. `None` where the limiter counts no such thing, or
    /// where nothing was granted.
    pub fn into_parts(self) -> (Option<SharedReservation<'static>>, Option<SharedPermit<'static>>) {
        (self.tokens, self.slots)
    }

    pub(super) fn denied(decision: Decision) -> Self {
        Self { decision, tokens: None, slots: None }
    }

    pub(super) fn of(reservation: SharedReservation<'static>, remote: Option<(&Remote, &str)>) -> Self {
        let decision = *reservation.decision();
        if !decision.is_granted() {
            return Self::denied(decision);
        }
        let (tokens, slots) = reservation.divide();
        let permit = |slots| SharedPermit::new(slots, remote.map(|(remote, key)| remote.line(key)));
        Self { decision, tokens, slots: slots.map(permit) }
    }
}

/// Decides several questions at once, and holds what they are given: either all are granted, or nothing is taken.
///
/// The claims come in the order of the questions. Those that are counted in memory are decided as a whole, under the locks
/// of all of them; so are those of one store, in one round trip. Where the questions span several of these, memory is asked
/// first and then store by store: a denial gives back what was taken before, and those that come after it are not asked any
/// more, which is `None`. Two questions for the same key of the same limiter count as one with both costs.
///
/// Whoever gives up while a store is asked holds nothing: what the store gives after all goes back to it.
///
/// ```
/// use std::sync::Arc;
/// use tidegate_engine::{OwnedAsk, SharedLimiter, reserve_all};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let per_minute = Arc::new(SharedLimiter::builder("user").build("10/min")?);
/// let at_once = Arc::new(SharedLimiter::builder("downloads").build("1 at once")?);
/// let ask = || reserve_all(vec![OwnedAsk::new(&per_minute, "alice"), OwnedAsk::new(&at_once, "alice")]);
/// let held = ask().await;
/// assert!(held.iter().flatten().all(|claim| claim.decision().is_granted()));
/// assert!(!ask().await[1].as_ref().unwrap().decision().is_granted());
/// assert_eq!(per_minute.peek("alice", 0).await.remaining(), 9); // the denied one took nothing
/// drop(held);
/// assert_eq!(per_minute.peek("alice", 0).await.remaining(), 10);
/// # Ok::<(), tidegate_engine::BuildError>(())
/// # }).unwrap();
/// ```
pub async fn reserve_all(asks: Vec<OwnedAsk>) -> Vec<Option<Claim>> {
    let mut claims: Vec<Option<Claim>> = asks.iter().map(|_| None).collect();
    let here: Vec<usize> = places(&asks, OwnedAsk::is_in_memory);
    if !here.is_empty() {
        put(&mut claims, &here, in_memory(here.iter().map(|index| &asks[*index])));
        if is_denied(&claims, &here) {
            return claims;
        }
    }
    while let Some(remote) = asks.iter().zip(&claims).find_map(|(ask, claim)| match claim {
        None => ask.limiter.remote(),
        Some(_) => None,
    }) {
        let there = places(&asks, |ask| {
            ask.limiter.remote().is_some_and(|other| Arc::ptr_eq(&other.store, &remote.store))
        });
        let part: Vec<OwnedAsk> = there.iter().map(|index| asks[*index].clone()).collect();
        put(&mut claims, &there, in_store(remote, part).await);
        if is_denied(&claims, &there) {
            give_back_but(&mut claims, &there);
            return claims;
        }
    }
    claims
}

/// The same without waiting for anything; `None` if not all are counted in memory: nothing is decided then.
pub fn reserve_all_in_memory(asks: &[OwnedAsk]) -> Option<Vec<Claim>> {
    asks.iter().all(OwnedAsk::is_in_memory).then(|| in_memory(asks.iter()))
}

fn places(asks: &[OwnedAsk], is_among: impl Fn(&OwnedAsk) -> bool) -> Vec<usize> {
    asks.iter().enumerate().filter(|(_, ask)| is_among(ask)).map(|(index, _)| index).collect()
}

fn put(claims: &mut [Option<Claim>], places: &[usize], answers: Vec<Claim>) {
    places.iter().zip(answers).for_each(|(index, claim)| claims[*index] = Some(claim));
}

fn is_denied(claims: &[Option<Claim>], places: &[usize]) -> bool {
    let denied = |claim: &Claim| !claim.decision.is_granted();
    places.iter().any(|index| claims[*index].as_ref().is_some_and(denied))
}

/// Gives back what was taken elsewhere before this part denied; its answers stay to be read.
fn give_back_but(claims: &mut [Option<Claim>], part: &[usize]) {
    let elsewhere = claims.iter_mut().enumerate().filter(|(index, _)| !part.contains(index));
    for claim in elsewhere.filter_map(|(_, claim)| claim.as_mut()) {
        (claim.tokens, claim.slots) = (None, None);
    }
}

fn in_memory<'a>(asks: impl Iterator<Item = &'a OwnedAsk>) -> Vec<Claim> {
    let asks: Vec<_> = asks
        .filter_map(|ask| match &ask.key {
            AskKey::Memory { limiter, owner } => Some((ask, limiter, *owner)),
            AskKey::Store(_) => None,
        })
        .collect();
    let questions: Vec<_> = asks
        .iter()
        .map(|(ask, limiter, owner)| {
            let (cost, tier, patience) = (ask.cost, ask.tier, ask.patience);
            crate::Ask { cost, tier, patience, ..limiter.ask_of(*owner) }
        })
        .collect();
    let taken = reserve_together(&questions);
    let all_granted = taken.iter().all(|(decision, _)| decision.is_granted());
    let claims = asks.into_iter().zip(taken).map(|((ask, limiter, owner), (decision, charge))| {
        if !all_granted {
            return Claim::denied(decision);
        }
        let cost = ask.cost;
        Claim::of(SharedReservation::of_local(limiter.clone(), owner, (decision, charge), cost), None)
    });
    claims.collect()
}

async fn in_store(remote: &Remote, asks: Vec<OwnedAsk>) -> Vec<Claim> {
    let count = asks.len();
    let owns = match owns(&asks) {
        Ok(owns) => owns,
        Err(denied) => return denied,
    };
    let (inquiries, groups) = inquiries(&asks);
    let reply = remote.store.perform(Request::Decide(inquiries.clone()));
    let claims = async move {
        match reply.await {
            Ok(Reply::Decided(answers)) if answers.len() == inquiries.len() => {
                let of_asks = asks.iter().zip(groups).zip(owns);
                let claim = |((ask, group), own)| granted(ask, &inquiries[group], &answers[group], own);
                of_asks.map(claim).collect()
            }
            Ok(_) => without_store(&asks, owns, &StoreError::Refused(NO_ANSWER.to_owned())),
            Err(error) => without_store(&asks, owns, &error),
        }
    };
    // A task that is never done belongs to a runtime that ends, or to a store that panics.
    let lost = || (0..count).map(|_| Claim::denied(Decision::closed(0, Micros::from_secs(1)))).collect();
    to_its_end(claims).await.unwrap_or_else(lost)
}

/// Goes on when its caller is gone: a store has decided by then, and what it has given must be there to be given back.
pub(super) async fn to_its_end<F>(future: F) -> Option<F::Output>
where
    F: Future<Output: Send> + Send + 'static,
{
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn(future).await.ok(),
        Err(_) => Some(future.await),
    }
}

/// What this process has counted of each question before the store is asked; all answers, if it denies one.
fn owns(asks: &[OwnedAsk]) -> Result<Vec<Own>, Vec<Claim>> {
    let mut owns = Vec::with_capacity(asks.len());
    let mut denied = Vec::new();
    for (place, ask) in asks.iter().enumerate() {
        let (Some(remote), AskKey::Store(key)) = (ask.limiter.remote(), &ask.key) else { continue };
        match remote.fallback.before(key, ask.tier, ask.demand(), Slots::Take) {
            Ok(own) => owns.push(own),
            Err(denial) => {
                denied.push((place, *denial.decision()));
                owns.push(Own::Uncounted);
            }
        }
    }
    if denied.is_empty() {
        return Ok(owns);
    }
    let claims = asks.iter().zip(&owns).enumerate().map(|(place, (ask, own))| {
        ask.limiter.degraded.fetch_add(1, Ordering::Relaxed);
        let denial = denied.iter().find(|(denied, _)| *denied == place);
        let granted = match own {
            Own::Counted(taken) => taken.decision().degraded(),
            Own::Uncounted => Decision::unlimited().degraded(),
        };
        Claim::denied(denial.map_or(granted, |(_, denial)| *denial))
    });
    Err(claims.collect())
}

/// One question for each key, and which of them each ask has become a part of.
fn inquiries(asks: &[OwnedAsk]) -> (Vec<Inquiry>, Vec<usize>) {
    let mut inquiries: Vec<Inquiry> = Vec::with_capacity(asks.len());
    let mut groups = Vec::with_capacity(asks.len());
    for ask in asks {
        let (Some(remote), AskKey::Store(key)) = (ask.limiter.remote(), &ask.key) else { continue };
        let new = Inquiry { receipt: true, ..remote.inquiry(key, ask.tier, ask.demand(), Slots::Take) };
        let is_same = |known: &Inquiry| {
            Arc::ptr_eq(&known.place.limit, &new.place.limit) && known.place.key == new.place.key
        };
        match inquiries.iter().position(is_same) {
            Some(group) => {
                let demand = &mut inquiries[group].demand;
                demand.cost = demand.cost.saturating_add(ask.cost);
                demand.patience = demand.patience.min(ask.patience);
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

fn granted(ask: &OwnedAsk, inquiry: &Inquiry, answer: &Answer, own: Own) -> Claim {
    let decision = fold(answer, inquiry.place.tier);
    let (Some(remote), true) = (ask.limiter.remote(), decision.is_granted()) else {
        return Claim::denied(decision);
    };
    let mut charged = answer.charged();
    charged.receipts.iter_mut().for_each(|receipt| receipt.cost = receipt.cost.min(ask.cost));
    if charged.receipts.iter().all(|receipt| receipt.cost == 0) {
        // It grants, but another of the questions does not: nothing was charged.
        return Claim::denied(decision);
    }
    let place = inquiry.place.clone();
    let own = remote.fallback.after(own, &place.key, place.tier, ask.demand(), Slots::Take);
    let deposit = SharedReservation::of_deposit(remote, place, charged, (ask.cost, own), decision);
    Claim::of(deposit, Some((remote, &inquiry.place.key)))
}

/// Each limiter decides as it was told to for an outage; still, all of them or none.
fn without_store(asks: &[OwnedAsk], owns: Vec<Own>, error: &StoreError) -> Vec<Claim> {
    drop(owns);
    let claims = asks.iter().map(|ask| {
        ask.limiter.degraded.fetch_add(1, Ordering::Relaxed);
        let (Some(remote), AskKey::Store(key)) = (ask.limiter.remote(), &ask.key) else {
            return Claim::denied(Decision::unlimited());
        };
        Claim::of(remote.fallback.take(error, key, ask.tier, ask.demand(), Slots::Take), None)
    });
    let mut claims: Vec<Claim> = claims.collect();
    if claims.iter().any(|claim| !claim.decision.is_granted()) {
        claims.iter_mut().for_each(|claim| (claim.tokens, claim.slots) = (None, None));
    }
    claims
}
