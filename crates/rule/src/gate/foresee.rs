//! Asking rules about requests of a time that somebody else plays, as when a log is replayed.
//!
//! Nothing is waited for here: whoever plays the time knows when a wait is over, and keeps the place in the queue until
//! then. Nobody else may ask the same rules meanwhile, so that what was looked at is still true when it is taken.

use super::{
    Gate, RequestLimit,
    ask::{self, Found, Place},
    limit::holds_slots,
    queue::Waiting,
    rulings::{Judgement, Rulings},
};
use crate::{
    Mode,
    key::Shown,
    request::{Head, KeyValue},
};
use std::{sync::Arc, time::Duration};
use tidegate_core::{Decision, Outcome};
use tidegate_engine::{Limiter, Refused};

/// What one rule would say to a request.
#[derive(Clone, Copy, Debug)]
pub struct Foretold {
    /// Where the rule is in its gate.
    pub place: usize,
    /// Whether it would be enforced.
    pub mode: Mode,
    /// What it would say.
    pub said: Foreseen,
}

/// What a rule would say.
#[derive(Clone, Copy, Debug)]
pub enum Foreseen {
    /// This. A delay is granted and charged: it is over when the time that is played says so.
    Decided(Decision),
    /// There is no room to wait in.
    Refused(Refused),
    /// What names its bucket is not there, and the rule wants it to be.
    NoKey,
}

/// What a request holds: tokens and slots until it has been answered, and places in queues until it has waited.
#[must_use = "dropping it gives back the slots of the request"]
#[derive(Debug, Default)]
pub struct Stay {
    /// To be settled with the answer.
    pub rulings: Rulings,
    /// To be dropped when the wait is over.
    pub waiting: Vec<Waiting>,
}

impl Foretold {
    /// Whether the request would not be let through because of it.
    #[inline]
    pub fn refuses(&self) -> bool {
        self.mode == Mode::Enforce && self.is_denied()
    }

    /// Whether it would be denied, were the rule enforced.
    #[inline]
    pub fn is_denied(&self) -> bool {
        match &self.said {
            Foreseen::Decided(decision) => !decision.is_granted(),
            Foreseen::Refused(_) | Foreseen::NoKey => true,
        }
    }

    /// How long the request would wait for it.
    pub fn delay(&self) -> Duration {
        match &self.said {
            Foreseen::Decided(decision) => match decision.outcome() {
                Outcome::Delay(wait) => wait.to_duration(),
                _ => Duration::ZERO,
            },
            Foreseen::Refused(_) | Foreseen::NoKey => Duration::ZERO,
        }
    }
}

impl Gate {
    /// Asks the limits at these places about a request, at the time that their clock shows: all are charged, or none is.
    /// `told` is emptied first, and gets what each of them says.
    ///
    /// Nothing is waited for, and nobody else may ask these rules meanwhile. Who would have to stand in line for a slot is
    /// refused: how long that takes depends on requests that are yet to come.
    pub fn foresee(&self, head: &dyn Head, places: &[usize], told: &mut Vec<Foretold>) -> Stay {
        told.clear();
        match self.foresee_quickly(head, places, told) {
            Some(()) => Stay::default(),
            None => {
                told.clear();
                self.foresee_at_length(head, places, told)
            }
        }
    }

    /// Where there is nothing to settle and nothing to hold: looks at all, then takes from all or from none. `None` if there
    /// is more to it; nothing is taken then.
    fn foresee_quickly(&self, head: &dyn Head, places: &[Place], told: &mut Vec<Foretold>) -> Option<()> {
        if let [place] = *places
            && let Some(decision) =
                self.limits().get(place).and_then(|limit| ask::decide_at_hand(limit, head))
        {
            told.push(Foretold { place, mode: Mode::Enforce, said: Foreseen::Decided(decision) });
            return Some(());
        }
        for place in places {
            let limit = self.limits().get(*place)?;
            let limiter = limit.rule().at_hand().filter(|_| limit.is_plain())?;
            let Found::Key(key) = ask::find(limit, head) else { return None };
            let decision = peek(limiter, limit, head, &key);
            told.push(Foretold { place: *place, mode: Mode::Enforce, said: Foreseen::Decided(decision) });
        }
        if told.iter().any(Foretold::refuses) {
            return Some(());
        }
        for told in told {
            let limit = self.limits().get(told.place)?;
            told.said = Foreseen::Decided(ask::decide_at_hand(limit, head)?);
        }
        Some(())
    }

    fn foresee_at_length(&self, head: &dyn Head, places: &[Place], told: &mut Vec<Foretold>) -> Stay {
        let mut waiting = Vec::new();
        let rulings = ask::ask_without_waiting(self, head, places.iter().copied(), &mut waiting);
        told.extend(rulings.iter().map(|one| Foretold {
            place: one.place,
            mode: one.mode,
            said: match one.judgement {
                Judgement::Decided(decision) => Foreseen::Decided(decision),
                Judgement::Refused(refused) => Foreseen::Refused(refused),
                Judgement::NoKey => Foreseen::NoKey,
            },
        }));
        Stay { rulings, waiting }
    }

    /// Whether one of its rules counts requests in flight, so that it matters how long they take.
    pub fn counts_in_flight(&self) -> bool {
        self.limits().iter().any(|limit| limit.rule().quotas().iter().any(holds_slots))
    }
}

#[inline]
fn peek(limiter: &Arc<Limiter>, limit: &RequestLimit, head: &dyn Head, key: &KeyValue<'_>) -> Decision {
    let bucket = limiter.key(&Shown(key));
    let bucket = match limit.tier_of(head) {
        0 => bucket,
        tier => bucket.tier(tier).unwrap_or(bucket),
    };
    bucket.peek(limit.cost_of(head))
}
