//! What one request has taken while it is asked about.

use super::{
    Gate,
    ask::{InLine, Place, Question},
    queue::{Waiting, add_wait},
    rulings::{Held, Judged, Judgement, Rulings},
};
use std::time::Duration;
use tidegate_core::Micros;
use tidegate_limiter::{Blocking, Check, Claim, Refused, reserve_all};

/// Decides checks that are all in memory; `None` if one of them is not: nothing is decided then.
pub(super) fn reserve_in_memory(checks: &[Check]) -> Option<Vec<Option<Claim>>> {
    checks.iter().all(Check::is_in_memory).then(|| Blocking::reserve_all(checks))
}

/// What was said and taken so far. Dropping it gives everything back.
#[derive(Default)]
pub(super) struct Taken {
    rulings: Vec<Judged>,
    claims: Vec<(Place, Claim)>,
    waiting: Vec<Waiting>,
    /// How long the request waited for its turn.
    waited: Micros,
}

impl Taken {
    pub(super) fn put(&mut self, questions: &[Question], claims: Vec<Option<Claim>>) {
        for (question, claim) in questions.iter().zip(claims) {
            if let Some(claim) = claim {
                self.rulings.push(Judged::decided(question.place, question.mode, *claim.decision()));
                self.claims.push((question.place, claim));
            }
        }
    }

    /// Asks those who refuse nothing.
    pub(super) fn look_on(&mut self, shadowed: &[Question]) {
        if self.is_refused() {
            return;
        }
        for question in shadowed {
            let claims = reserve_in_memory(std::slice::from_ref(&question.check));
            self.put(std::slice::from_ref(question), claims.unwrap_or_default());
        }
    }

    /// Takes a place in the queue for each of those that have to be waited for.
    pub(super) fn queue(&mut self, questions: &[Question]) {
        for question in questions {
            let is_late =
                |(place, claim): &(Place, Claim)| *place == question.place && !claim.wait().is_zero();
            let Some(queue) = question.queue.as_ref().filter(|_| self.claims.iter().any(is_late)) else {
                continue;
            };
            match queue.enter() {
                Ok(waiting) => self.waiting.push(waiting),
                Err(full) => {
                    let ours = self.rulings.iter_mut().filter(|one| one.place == question.place);
                    ours.for_each(|one| one.judgement = full.into());
                }
            }
        }
    }

    /// The places that it has taken, for whoever says when the wait is over.
    pub(super) fn take_waiting(&mut self) -> Vec<Waiting> {
        std::mem::take(&mut self.waiting)
    }

    pub(super) async fn stand_in_line(&mut self, question: Question) {
        if self.is_refused() {
            return;
        }
        let waiting = match &question.queue {
            None => None,
            // Where nobody waits, one who need not wait takes no place from those who must.
            Some(queue) if queue.is_empty() && self.take_at_once(&question).await => return,
            Some(queue) => match queue.enter() {
                Ok(waiting) => Some(waiting),
                Err(full) => {
                    let (place, mode) = (question.place, question.mode);
                    return self.rulings.push(Judged { place, mode, judgement: full.into() });
                }
            },
        };
        let Some(InLine { bucket, waiter }) = question.line else { return };
        let claim = add_wait(&mut self.waited, bucket.claim_in_line(waiter)).await;
        let judgement = match claim {
            Ok(claim) => {
                let decision = *claim.decision();
                self.claims.push((question.place, claim));
                Judgement::Decided(decision)
            }
            Err(refused) => Judgement::Refused(refused),
        };
        drop(waiting);
        self.rulings.push(Judged { place: question.place, mode: question.mode, judgement });
    }

    /// Whether it could be had without a wait.
    async fn take_at_once(&mut self, question: &Question) -> bool {
        let claims = reserve_all(vec![question.check.clone().within(Duration::ZERO)]).await;
        let is_granted = claims.iter().flatten().any(|claim| claim.decision().is_allowed());
        if is_granted {
            self.put(std::slice::from_ref(question), claims);
        }
        is_granted
    }

    pub(super) fn is_refused(&self) -> bool {
        self.rulings.iter().any(Judged::refuses)
    }

    /// Whether there is nothing to wait for.
    pub(super) fn is_ready(&self) -> bool {
        self.is_refused() || self.claims.iter().all(|(_, claim)| claim.wait().is_zero())
    }

    /// Waits for all of them, each by the clock of its rule: as long as for the longest.
    pub(super) async fn ready(&mut self) {
        let each: Vec<_> = match self.is_refused() {
            true => Vec::new(),
            false => self.claims.iter().map(|(_, claim)| claim.ready()).collect(),
        };
        for ready in each {
            add_wait(&mut self.waited, ready).await;
        }
    }

    /// Pays what is paid ahead, and keeps what is settled with the answer.
    pub(super) fn settle(self, gate: &Gate) -> Rulings {
        let is_refused = self.is_refused();
        let mut held = Held::default();
        if !is_refused {
            for (place, claim) in self.claims {
                let (tokens, slots) = claim.into_parts();
                held.slots.extend(slots);
                let Some(tokens) = tokens else { continue };
                if gate.limits()[place].payment().is_ahead() {
                    tokens.keep();
                } else {
                    held.tokens.push((place, tokens));
                }
            }
        }
        let mut rulings = self.rulings;
        rulings.sort_by_key(|one| one.place);
        Rulings::of(rulings, held).after(self.waited)
    }
}

impl From<Refused> for Judgement {
    fn from(refused: Refused) -> Self {
        Self::Refused(refused)
    }
}
