//! Asking rules about requests of a time that somebody else plays, as when a log is replayed.
//!
//! Nothing is waited for here: whoever plays the time knows when a wait is over, and keeps the place in the queue until
//! then. Nobody else may ask the same rules meanwhile, so that what was looked at is still true when it is taken.

use super::{
    Gate, RequestLimit,
    ask::{self, Found, Place},
    limit::holds_slots,
    queue::Waiting,
    rulings::{Judged, Judgement, Rulings},
};
use crate::{
    Mode,
    request::{Head, KeyValue},
};
use tidegate_limiter::{BlockingBucket, Limiter, Mark};

/// What a request holds: tokens and slots until it has been answered, and places in queues until it has waited.
#[must_use = "dropping it gives back the slots of the request"]
#[derive(Debug, Default)]
pub struct Stay {
    /// To be settled with the answer.
    pub rulings: Rulings,
    /// To be dropped when the wait is over.
    pub waiting: Vec<Waiting>,
}

/// For whom one limit counts a request, found ahead of asking it; see [`Gate::aim`].
#[derive(Clone, Copy, Debug)]
pub struct Aim {
    place: Place,
    mark: Mark,
    cost: u64,
    tier: usize,
}

impl Aim {
    /// What stands for whom the limit at this place counts it for; `None` if it is the aim of another.
    #[inline]
    pub fn mark_at(&self, place: usize) -> Option<Mark> {
        (self.place == place).then_some(self.mark)
    }
}

impl Gate {
    /// Finds out for whom the limits at these places count a request, and adds that to `aims`; nothing where a limit is more
    /// than that.
    pub fn aim(&self, head: &dyn Head, places: &[usize], aims: &mut Vec<Aim>) {
        let others = aims.len();
        for place in places {
            match self.aim_at(*place, head) {
                Some(aim) => aims.push(aim),
                None => return aims.truncate(others),
            }
        }
    }

    #[inline]
    fn aim_at(&self, place: Place, head: &dyn Head) -> Option<Aim> {
        let (limit, limiter) = self.plain(place)?;
        let Found::Key(key) = ask::find(limit, head) else { return None };
        let mark = limiter.mark(&key)?;
        Some(Aim { place, mark, cost: limit.cost_of(head), tier: limit.tier_of(head) })
    }

    /// Has fetched from memory what was aimed at, so that it is near when it is asked. To be called for several requests
    /// without anything between: then all of it comes at the same time.
    #[inline]
    pub fn fetch(&self, aims: &[Aim]) {
        for aim in aims {
            if let Some(bucket) = self.bucket(aim) {
                bucket.prefetch();
            }
        }
    }

    /// What stands for whom the limit at this place counts a request for, where it counts in memory.
    pub fn mark_at(&self, place: usize, head: &dyn Head) -> Option<Mark> {
        let limit = self.limits().get(place)?;
        let Found::Key(key) = ask::find(limit, head) else { return None };
        limit.rule().limiter()?.mark(&key)
    }

    /// What stands for all together in the limit at this place, where it counts in memory.
    pub fn mark_of_all(&self, place: usize) -> Option<Mark> {
        self.limits().get(place)?.rule().limiter()?.mark(&KeyValue::All)
    }

    /// A limit that decides by itself, with nothing to settle and nothing to hold.
    #[inline]
    fn plain(&self, place: Place) -> Option<(&RequestLimit, &Limiter)> {
        let limit = self.limits().get(place)?;
        let limiter = limit.rule().at_hand().filter(|_| limit.is_plain())?;
        Some((limit, limiter))
    }

    /// Asks the limits at these places about a request, at the time that their clock shows: all are charged, or none is.
    /// `aims` are what [`aim`](Self::aim) has found. `told` is emptied first, and gets what each of them says.
    ///
    /// Nothing is waited for, and nobody else may ask these rules meanwhile. Who would have to stand in line for a slot is
    /// refused: how long that takes depends on requests that are yet to come.
    pub fn foresee(&self, head: &dyn Head, places: &[usize], aims: &[Aim], told: &mut Vec<Judged>) -> Stay {
        told.clear();
        let is_aimed = aims.len() == places.len();
        match is_aimed.then(|| self.foresee_quickly(aims, told)).flatten() {
            Some(()) => Stay::default(),
            None => {
                told.clear();
                self.foresee_at_length(head, places, told)
            }
        }
    }

    /// Looks at all but the last, which is taken if no other is in the way; then takes from the others, too. `None` if there
    /// is more to it than when it was aimed at; nothing is taken then.
    fn foresee_quickly(&self, aims: &[Aim], told: &mut Vec<Judged>) -> Option<()> {
        let Some((last, others)) = aims.split_last() else { return Some(()) };
        let mut is_refused = false;
        for aim in others {
            let decision = self.bucket(aim)?.peek(aim.cost);
            is_refused |= !decision.is_granted();
            told.push(Judged::decided(aim.place, Mode::Enforce, decision));
        }
        let bucket = self.bucket(last)?;
        let decision = if is_refused { bucket.peek(last.cost) } else { bucket.check(last.cost) };
        is_refused |= !decision.is_granted();
        told.push(Judged::decided(last.place, Mode::Enforce, decision));
        if !is_refused {
            for (aim, told) in others.iter().zip(told) {
                told.judgement = Judgement::Decided(self.bucket(aim)?.check(aim.cost));
            }
        }
        Some(())
    }

    #[inline]
    fn bucket(&self, aim: &Aim) -> Option<BlockingBucket<'_>> {
        let bucket = self.plain(aim.place)?.1.blocking().marked(aim.mark)?;
        Some(match aim.tier {
            0 => bucket,
            tier => bucket.tier(tier).unwrap_or(bucket),
        })
    }

    fn foresee_at_length(&self, head: &dyn Head, places: &[Place], told: &mut Vec<Judged>) -> Stay {
        let mut waiting = Vec::new();
        let rulings = ask::ask_without_waiting(self, head, places.iter().copied(), &mut waiting);
        told.extend(rulings.iter().copied());
        Stay { rulings, waiting }
    }

    /// Whether one of its rules counts requests in flight, so that it matters how long they take.
    pub fn counts_in_flight(&self) -> bool {
        self.limits().iter().any(|limit| limit.rule().quotas().iter().any(holds_slots))
    }
}
