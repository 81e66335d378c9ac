//! A request about keys of several nodes.
//!
//! All or none is a promise of a single node. Here each node is asked in turn, and what was charged is given back when
//! a later one denies or fails: for that moment others may be denied. What a node that fails has charged without an
//! answer stays charged.

use super::Cluster;
use crate::node::{Answered, Caller, Problem};
use std::{collections::VecDeque, sync::Arc};
use tidegate_core::{Demand, Effect, Receipt};
use tidegate_limiter::{
    StoreError,
    store::{StoreCharge, StoreCheck, StoreDecision, StoreReply, StoreRequest},
};
use tokio::sync::oneshot;

/// Questions for one node, by their places in the request.
type Part = Vec<(usize, StoreCheck)>;

/// What became of all parts.
#[derive(Default)]
struct Outcome {
    answers: Vec<(usize, StoreDecision)>,
    /// What was charged, and can be given back.
    charges: Vec<(StoreCheck, StoreCharge)>,
    is_denied: bool,
}

impl Cluster {
    /// One part for each node. It is done in a task of its own, so that nothing stays charged when the caller gives up.
    pub(super) async fn submit_parts(self: &Arc<Self>, asks: Vec<StoreCheck>) -> Answered {
        let (sender, answer) = oneshot::channel();
        let cluster = self.clone();
        drop(tokio::spawn(async move {
            let mut outcome = Outcome::default();
            let problem = cluster.decide_parts(asks, &mut outcome).await.err();
            if problem.is_some() || outcome.is_denied || sender.is_closed() {
                cluster.give_back(&outcome.charges).await;
            }
            let _ = sender.send(problem.map_or_else(|| Ok(outcome.reply()), Err));
        }));
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the call was given up".to_owned()).into()))
    }

    async fn decide_parts(
        self: &Arc<Self>,
        asks: Vec<StoreCheck>,
        outcome: &mut Outcome,
    ) -> Result<(), Problem> {
        let all = asks.into_iter().enumerate().collect();
        let mut parts = VecDeque::from(self.split_by_node(all));
        while let Some(part) = parts.pop_front() {
            let questions: Vec<_> = part.iter().map(|(_, ask)| outcome.question(ask)).collect();
            match self.submit_part(questions).await {
                Ok(StoreReply::Decided(told)) if told.len() == part.len() => outcome.add(part, told),
                Ok(_) => {
                    return Err(StoreError::Rejected("an answer to another question".to_owned()).into());
                }
                // Its keys are not on one node any more, and nothing was done.
                Err(Problem::Elsewhere) => {
                    self.split_by_key(part).into_iter().for_each(|key| parts.push_front(key));
                }
                Err(problem) => return Err(problem),
            }
        }
        Ok(())
    }

    async fn submit_part(self: &Arc<Self>, questions: Vec<StoreCheck>) -> Answered {
        let mut keys = questions.iter().map(|ask| self.names.key(&ask.key_ref));
        let first = keys.next().unwrap_or_default();
        if keys.all(|key| key == first) {
            return self.submit_to_one(StoreRequest::Decide(questions), Caller::AtHome).await;
        }
        drop(keys);
        self.submit_together(&first, StoreRequest::Decide(questions), Caller::AtHome).await
    }

    async fn give_back(self: &Arc<Self>, charges: &[(StoreCheck, StoreCharge)]) {
        for (ask, charge) in charges {
            let (place, charge, cost) = (ask.key_ref.clone(), charge.clone(), ask.demand.cost);
            let _ = self
                .submit_to_one(StoreRequest::Refund { key_ref: place, charge, cost }, Caller::AtHome)
                .await;
        }
    }

    fn split_by_node(&self, part: Part) -> Vec<Part> {
        let map = self.map();
        split(part, |ask| map.node_of(&self.names.key(&ask.key_ref)).map(Arc::as_ptr))
    }

    fn split_by_key(&self, part: Part) -> Vec<Part> {
        split(part, |ask| self.names.key(&ask.key_ref))
    }
}

impl Outcome {
    /// After a denial the rest is only looked at.
    fn question(&self, ask: &StoreCheck) -> StoreCheck {
        let effect = if self.is_denied { Effect::Probe } else { ask.demand.effect };
        StoreCheck { demand: Demand { effect, ..ask.demand }, receipt: true, ..ask.clone() }
    }

    fn add(&mut self, part: Part, told: Vec<StoreDecision>) {
        let is_denied = !told.iter().all(is_granted);
        for ((index, ask), answer) in part.into_iter().zip(told) {
            if !is_denied && !self.is_denied && ask.demand.effect == Effect::Charge && ask.demand.cost > 0 {
                self.charges.push((ask, answer.charge()));
            }
            self.answers.push((index, answer));
        }
        self.is_denied |= is_denied;
    }

    /// An answer to each question, in their order.
    fn reply(mut self) -> StoreReply {
        self.answers.sort_by_key(|(index, _)| *index);
        if self.is_denied {
            // What was given back cannot be given back again.
            let steps = self.answers.iter_mut().flat_map(|(_, answer)| &mut answer.steps);
            steps.for_each(|step| step.receipt = Receipt::default());
        }
        StoreReply::Decided(self.answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

fn split<T: PartialEq>(part: Part, by: impl Fn(&StoreCheck) -> T) -> Vec<Part> {
    let mut parts: Vec<(T, Part)> = Vec::new();
    for (index, ask) in part {
        let of = by(&ask);
        match parts.iter_mut().find(|(known, _)| *known == of) {
            Some((_, part)) => part.push((index, ask)),
            None => parts.push((of, vec![(index, ask)])),
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

fn is_granted(answer: &StoreDecision) -> bool {
    answer.steps.iter().all(|step| step.decision.is_granted())
}
