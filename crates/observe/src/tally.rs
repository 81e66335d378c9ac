//! How often, and how long: counted by each thread for itself, and summed when somebody looks.
//!
//! ```text
//!   worker ──adds──▶ Shard ─┐
//!   worker ──adds──▶ Shard ─┼──sum──▶ Totals
//!   gone   ─────────────────┘
//! ```
//!
//! A shard has one writer, so that an addition is a load and a store: no thread waits for a line of another's cache. There
//! are as many counts as a policy has rules, whatever requests carry.

use super::shard::{Outcome, RuleCounts, Sampled, Shard, Totals, lock};
use crate::AnsweredBy;
use std::{
    cell::RefCell,
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::{Clock, TopKeys};
use tidegate_policy::compile::{DenyReason, PolicyAdmission, PolicyRefusal, PolicyResult, RuleResult};

/// The counts of one policy.
pub struct Tally {
    id: u64,
    names: Vec<Arc<str>>,
    places: HashMap<Arc<str>, usize>,
    clock: Clock,
    parts: Mutex<Parts>,
}

struct Parts {
    shards: Vec<Arc<Shard>>,
    /// What threads counted that are gone.
    gone: Totals,
    /// By the place of what they are of.
    top: [Vec<TopKeys>; TopBy::ALL.len()],
}

/// Which keys are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopBy {
    /// By denied requests.
    Denied,
    /// By all requests.
    Asked,
    /// Let through by a rule in shadow mode that would have denied them.
    ShadowDenied,
}

impl TopBy {
    /// All, in their order.
    pub const ALL: [Self; 3] = [Self::Denied, Self::Asked, Self::ShadowDenied];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Denied => "denied",
            Self::Asked => "asked",
            Self::ShadowDenied => "shadow-denied",
        }
    }
}

/// One of so many decisions in memory is timed.
const TIMED: u64 = 64;
/// One of so many requests is counted in the sketch of keys that ask.
pub const SAMPLED: u64 = 16;
/// The keys that a sketch tracks.
const TOP_KEYS: usize = 128;

thread_local! {
    static HERE: RefCell<Option<Arc<Shard>>> = const { RefCell::new(None) };
}

impl Tally {
    /// For rules of these names. Keys that were seen most under the policy before are known still.
    pub(crate) fn new<'a>(
        names: impl Iterator<Item = &'a str>,
        clock: Clock,
        before: Option<&Self>,
    ) -> Arc<Self> {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let names: Vec<Arc<str>> = names.map(Into::into).collect();
        let top = |by| -> Vec<TopKeys> {
            let old = |name: &Arc<str>| before.and_then(|before| before.top(before.place_of(name)?, by));
            names.iter().map(|name| old(name).unwrap_or_else(|| TopKeys::new(TOP_KEYS))).collect()
        };
        let parts = Parts {
            shards: Vec::new(),
            gone: Totals { rules: vec![RuleCounts::default(); names.len()], ..Totals::default() },
            top: TopBy::ALL.map(top),
        };
        Arc::new(Self {
            id: LAST.fetch_add(1, Relaxed) + 1,
            places: names.iter().enumerate().map(|(place, name)| (name.clone(), place)).collect(),
            names,
            clock,
            parts: Mutex::new(parts),
        })
    }

    /// The names of the rules, in the order of the policy.
    pub fn names(&self) -> &[Arc<str>] {
        &self.names
    }

    /// The place of a rule in the policy.
    pub fn place_of(&self, name: &str) -> Option<usize> {
        self.places.get(name).copied()
    }

    /// The time by the clock of these counts.
    pub fn now(&self) -> Micros {
        self.clock.now()
    }

    /// A decision begins; whether it is one that is timed.
    #[inline]
    pub fn begin(&self) -> Sampled {
        match self.here(|shard| shard.asks.add(1).is_multiple_of(TIMED)) {
            Some(true) => Sampled::Yes,
            _ => Sampled::No,
        }
    }

    /// A decision in memory has ended that began then: one of many that are alike, and stands for all of them.
    pub fn end(&self, begun: Micros) {
        let took = self.clock.now().since(begun);
        self.here(|shard| shard.times.record(took, TIMED));
    }

    /// A decision has ended that began then and was not made at once: for a store, or since the request had to wait. The
    /// wait is no part of the decision.
    pub fn end_later(&self, begun: Micros, waited: Micros) {
        let took = self.clock.now().since(begun).since(waited);
        self.here(|shard| {
            shard.times.record(took, 1);
            if waited > Micros::ZERO {
                shard.waits.record(waited, 1);
            }
        });
    }

    /// A request that these rules let through has been answered; it came in then.
    pub fn completed(&self, places: &[usize], came: Micros) {
        if places.is_empty() {
            return;
        }
        let took = self.clock.now().since(came);
        self.here(|shard| {
            for rule in places.iter().filter_map(|place| shard.rules.get(*place)) {
                rule.times.record(took, 1);
            }
        });
    }

    /// A request is answered with this status.
    #[inline]
    pub fn answered(&self, status: u16, by: AnsweredBy) {
        let class = usize::from((status / 100).clamp(1, 5)) - 1;
        self.here(|shard| shard.responses[by as usize][class].add(1));
    }

    /// A policy has said what becomes of a request.
    #[inline]
    pub(crate) fn passed(&self, passage: &PolicyResult) {
        match passage {
            PolicyResult::Admitted(admission) => self.admitted(admission),
            PolicyResult::Refused(refusal) => self.refused(refusal),
        }
    }

    #[inline]
    fn admitted(&self, admission: &PolicyAdmission) {
        self.here(|shard| {
            shard.requests[0].add(1);
            let mut marks = [0, 0];
            for decision in admission.decisions() {
                let outcome = match decision.result {
                    RuleResult::Admitted => Outcome::Admitted,
                    RuleResult::Delayed(_) => {
                        marks[0] = 1;
                        Outcome::Delayed
                    }
                    RuleResult::Denied(_) => {
                        marks[1] = 1;
                        Outcome::ShadowDenied
                    }
                };
                shard.say(decision.rule, outcome, decision.decision);
            }
            if marks != [0, 0] {
                shard.marked.iter().zip(marks).for_each(|(count, mark)| _ = count.add(mark));
            }
        });
    }

    #[cold]
    fn refused(&self, refusal: &PolicyRefusal) {
        let outcome = match refusal.reason {
            DenyReason::Limited => Outcome::Limited,
            DenyReason::NoKey => Outcome::NoKey,
            DenyReason::Denied => Outcome::Listed,
            DenyReason::Banned => Outcome::Banned,
            DenyReason::Guarded => Outcome::Guarded,
        };
        let decision = refusal.decision.as_ref().map(|(decision, _)| decision);
        self.here(|shard| {
            shard.requests[1].add(1);
            shard.say(refusal.index, outcome, decision);
        });
    }

    /// A request was turned away before any rule was asked.
    pub(crate) fn turned_away(&self) {
        self.here(|shard| shard.requests[1].add(1));
    }

    /// A program asked the rule at this place of the policy.
    pub fn asked(&self, place: usize, outcome: Outcome, decision: Option<&Decision>) {
        self.here(|shard| shard.say(place, outcome, decision));
    }

    /// Whether this request is one of those whose keys are counted.
    pub(crate) fn is_sampled(&self) -> Sampled {
        match self.here(|shard| shard.asks.get().is_multiple_of(SAMPLED)) {
            Some(true) => Sampled::Yes,
            _ => Sampled::No,
        }
    }

    /// A key was denied, or would have been, or asked for by one who stands for so many.
    pub(crate) fn saw(&self, place: usize, by: TopBy, hash: u64, weight: u64, name: impl FnOnce() -> String) {
        self.here(|shard| {
            let mut top = lock(&shard.top);
            let sketches = &mut top.sketches[by as usize];
            if sketches.len() < shard.rules.len() {
                sketches.resize_with(shard.rules.len(), || TopKeys::new(TOP_KEYS));
            }
            if let Some(sketch) = sketches.get_mut(place) {
                sketch.add(hash, weight, name);
            }
        });
    }

    /// Whether this thread may keep one more denial in this second.
    pub(crate) fn may_keep(&self, now: Micros) -> Sampled {
        let second = now.get() / 1_000_000;
        self.here(|shard| lock(&shard.top).may_keep(second)).unwrap_or(Sampled::No)
    }

    /// The keys of a rule that were seen most, by all threads together; `None` if there is no such rule.
    pub fn top(&self, place: usize, by: TopBy) -> Option<TopKeys> {
        let mut parts = self.parts();
        parts.fold();
        let mut sum = parts.top[by as usize].get(place)?.clone();
        for shard in &parts.shards {
            let top = lock(&shard.top);
            if let Some(sketch) = top.sketches[by as usize].get(place) {
                sum.merge(sketch);
            }
        }
        Some(sum)
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut parts = self.parts();
        parts.fold();
        let mut sum = parts.gone.clone();
        parts.shards.iter().for_each(|shard| sum.add(&shard.totals()));
        sum
    }

    /// Does something with the counts of this thread.
    #[inline]
    fn here<R>(&self, work: impl FnOnce(&Shard) -> R) -> Option<R> {
        // While a thread ends there is nothing left to count in.
        HERE.try_with(|here| {
            if let Some(shard) = here.borrow().as_deref().filter(|shard| shard.tally == self.id) {
                return work(shard);
            }
            work(&self.join(here))
        })
        .ok()
    }

    #[cold]
    fn join(&self, here: &RefCell<Option<Arc<Shard>>>) -> Arc<Shard> {
        let shard = Arc::new(Shard::new(self.id, self.names.len()));
        let before = here.replace(Some(shard.clone()));
        drop(before);
        let mut parts = self.parts();
        parts.fold();
        parts.shards.push(shard.clone());
        shard
    }

    fn parts(&self) -> MutexGuard<'_, Parts> {
        lock(&self.parts)
    }
}

impl Parts {
    /// Adds up what threads counted that are gone, or count elsewhere now.
    fn fold(&mut self) {
        let mut place = 0;
        while let Some(shard) = self.shards.get_mut(place) {
            // Whoever had it has written for the last time.
            if Arc::get_mut(shard).is_none() {
                place += 1;
                continue;
            }
            let shard = self.shards.swap_remove(place);
            self.gone.add(&shard.totals());
            let top = lock(&shard.top);
            for (sums, parts) in self.top.iter_mut().zip(&top.sketches) {
                sums.iter_mut().zip(parts).for_each(|(sum, part)| sum.merge(part));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    fn tally(names: &[&str], before: Option<&Tally>) -> Arc<Tally> {
        Tally::new(names.iter().copied(), Clock::manual().0, before)
    }

    #[test]
    fn threads_count_for_themselves_and_nothing_is_lost_when_they_go() {
        let tally = tally(&["a", "b"], None);
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let tally = tally.clone();
                thread::spawn(move || {
                    for _ in 0..1_000 {
                        tally.asked(1, Outcome::Limited, None);
                    }
                    tally.asked(9, Outcome::Limited, None);
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        tally.asked(0, Outcome::Admitted, None);
        let totals = tally.totals();
        assert_eq!(totals.rules[1].outcomes[Outcome::Limited as usize], 4_000);
        assert_eq!(totals.rules[0].outcomes[Outcome::Admitted as usize], 1);
        assert_eq!(tally.parts().shards.len(), 1, "those of threads that are gone are added up");
        assert_eq!(totals, tally.totals());
    }

    #[test]
    fn a_thread_that_counts_for_two_policies_loses_nothing() {
        let (first, second) = (tally(&["a"], None), tally(&["a"], None));
        for _ in 0..10 {
            first.asked(0, Outcome::Admitted, None);
            second.asked(0, Outcome::Admitted, None);
        }
        assert_eq!((first.totals().rules[0].outcomes[0], second.totals().rules[0].outcomes[0]), (10, 10));
        assert!(first.parts().shards.is_empty() && second.parts().shards.len() == 1);
    }

    #[test]
    fn keys_that_were_seen_most_outlive_a_policy() {
        let first = tally(&["a", "b"], None);
        first.saw(1, TopBy::Denied, 7, 3, || "seven".to_owned());
        let second = tally(&["b"], Some(&first));
        second.saw(0, TopBy::Denied, 7, 1, || "seven".to_owned());
        let top = second.top(0, TopBy::Denied).unwrap().top();
        assert_eq!((top.len(), top[0].count, top[0].name.as_str()), (1, 4, "seven"));
        assert!(second.top(1, TopBy::Denied).is_none());
    }

    #[test]
    fn only_so_many_denials_are_kept_in_a_second() {
        let tally = tally(&[], None);
        let kept =
            |second| (0..1_000).filter(|_| tally.may_keep(Micros::from_secs(second)) == Sampled::Yes).count();
        assert_eq!((kept(1), kept(1), kept(2)), (256, 0, 256));
    }
}
