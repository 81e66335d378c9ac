//! One decision over keys of several limiters, wherever they are counted.

use super::{FIRST, Home, Remote, SharedLimiter, fold, outage::Own, remote::NO_ANSWER};
use crate::{
    limiter::decide_all,
    store::{Inquiry, Reply, Request, Slots, StoreError},
};
use std::sync::{Arc, atomic::Ordering};
use tidegate_core::{Decision, Demand};

/// One question to one limiter, to be decided together with others by [`decide_all_shared`].
#[derive(Clone, Copy, Debug)]
pub struct SharedAsk<'a> {
    limiter: &'a SharedLimiter,
    key: &'a str,
    cost: u64,
}

impl SharedAsk<'_> {
    /// The same question with another cost.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }
}

impl SharedLimiter {
    /// A question for one token, to be decided together with others.
    pub fn ask<'a>(&'a self, key: &'a str) -> SharedAsk<'a> {
        SharedAsk { limiter: self, key, cost: 1 }
    }

    pub(super) fn remote(&self) -> Option<&Remote> {
        match &self.home {
            Home::Memory(_) => None,
            Home::Store(remote) => Some(remote),
        }
    }
}

/// Decides several questions at once: either all are charged, or none is. It takes one round trip.
///
/// The answers come in the order of the questions; those that denied say so. All limiters count in memory, or all in
/// the same store; `None` if they do not: nothing is decided then. In a cluster, keys of several nodes are not decided
/// as a whole: what was charged is given back when another part denies.
///
/// ```
/// use tidegate_engine::{SharedLimiter, decide_all_shared};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
/// let per_user = SharedLimiter::builder("user").build("1/min")?;
/// let per_address = SharedLimiter::builder("address").build("100/min")?;
/// let asks = [per_user.ask("alice"), per_address.ask("192.0.2.1")];
/// assert!(decide_all_shared(&asks).await.unwrap().iter().all(|decision| decision.is_allowed()));
/// assert!(!decide_all_shared(&asks).await.unwrap()[0].is_allowed());
/// assert_eq!(per_address.peek("192.0.2.1", 1).await.remaining(), 99); // the denied one charged nothing
/// # Ok::<(), tidegate_engine::BuildError>(())
/// # }).unwrap();
/// ```
pub async fn decide_all_shared(asks: &[SharedAsk<'_>]) -> Option<Vec<Decision>> {
    let Some(first) = asks.first() else { return Some(Vec::new()) };
    let Some(remote) = first.limiter.remote() else { return in_memory(asks) };
    let is_same = |ask: &SharedAsk<'_>| {
        ask.limiter.remote().is_some_and(|other| Arc::ptr_eq(&other.store, &remote.store))
    };
    if !asks.iter().all(is_same) {
        return None;
    }
    let mut owns = Vec::with_capacity(asks.len());
    for ask in asks {
        let demand = Demand::now(ask.cost);
        let remote = ask.limiter.remote()?;
        match remote.fallback.before(ask.key, FIRST, demand, Slots::Look) {
            Ok(own) => owns.push(own),
            Err(denied) => return Some(denied_here(asks, &owns, *denied.decision())),
        }
    }
    let questions = asks.iter().filter_map(|ask| {
        let demand = Demand::now(ask.cost);
        ask.limiter.remote().map(|remote| remote.inquiry(ask.key, FIRST, demand, Slots::Look))
    });
    let questions = join(questions.collect());
    let places: Vec<_> = questions.iter().map(|(_, indices)| indices.clone()).collect();
    let request = Request::Decide(questions.into_iter().map(|(question, _)| question).collect());
    let mut decisions = vec![Decision::unlimited(); asks.len()];
    match remote.store.perform(request).await {
        Ok(Reply::Decided(answers)) => {
            for (answer, indices) in answers.iter().zip(places) {
                indices.into_iter().for_each(|index| decisions[index] = fold(answer, FIRST));
            }
            if decisions.iter().all(Decision::is_granted) {
                for (own, ask) in owns.into_iter().zip(asks) {
                    let Some(remote) = ask.limiter.remote() else { continue };
                    remote.keep_own(own, ask.key, FIRST, Demand::now(ask.cost));
                }
            }
        }
        other => {
            drop(owns);
            let error = other.err().unwrap_or_else(|| StoreError::Refused(NO_ANSWER.to_owned()));
            for (decision, ask) in decisions.iter_mut().zip(asks) {
                ask.limiter.degraded.fetch_add(1, Ordering::Relaxed);
                if let Some(remote) = ask.limiter.remote() {
                    *decision = remote.fallback.decide(&error, ask.key, FIRST, Demand::now(ask.cost));
                }
            }
        }
    }
    Some(decisions)
}

/// All answers where this process denies one question: those before it are granted, those behind it are not asked.
fn denied_here(asks: &[SharedAsk<'_>], owns: &[Own], denied: Decision) -> Vec<Decision> {
    let place = owns.len();
    for ask in asks {
        ask.limiter.degraded.fetch_add(1, Ordering::Relaxed);
    }
    let granted = owns.iter().map(|own| match own {
        Own::Counted(taken) => taken.decision().degraded(),
        Own::Uncounted => Decision::unlimited().degraded(),
    });
    let mut decisions: Vec<_> = granted.collect();
    decisions.push(denied);
    let behind = asks.iter().skip(place + 1).filter_map(|ask| {
        let remote = ask.limiter.remote()?;
        let denied = remote.fallback.before(ask.key, FIRST, Demand::probe(ask.cost), Slots::Look).err();
        Some(denied.map_or_else(|| Decision::unlimited().degraded(), |denied| *denied.decision()))
    });
    decisions.extend(behind);
    decisions
}

fn in_memory(asks: &[SharedAsk<'_>]) -> Option<Vec<Decision>> {
    let plain = asks.iter().map(|ask| match &ask.limiter.home {
        Home::Memory(limiter) => Some(limiter.ask(ask.key).cost(ask.cost)),
        Home::Store(_) => None,
    });
    plain.collect::<Option<Vec<_>>>().map(|asks| decide_all(&asks))
}

/// Questions about the same key of the same limiter count as one with both costs; each with the places of its asks.
fn join(questions: Vec<Inquiry>) -> Vec<(Inquiry, Vec<usize>)> {
    let mut joined: Vec<(Inquiry, Vec<usize>)> = Vec::with_capacity(questions.len());
    for (index, question) in questions.into_iter().enumerate() {
        let is_same = |known: &Inquiry| {
            Arc::ptr_eq(&known.place.limit, &question.place.limit) && known.place.key == question.place.key
        };
        match joined.iter_mut().find(|(known, _)| is_same(known)) {
            Some((known, indices)) => {
                known.demand.cost = known.demand.cost.saturating_add(question.demand.cost);
                indices.push(index);
            }
            None => joined.push((question, vec![index])),
        }
    }
    joined
}
