//! A request about keys of several nodes.
//!
//! All or none is a promise of a single node. Here each node is asked in turn, and what was charged is given back when
//! a later one denies or fails: for that moment others may be denied. What a node that fails has charged without an
//! answer stays charged.

use super::Cluster;
use crate::node::{CallOrigin, NodeError, NodeResult};
use std::{collections::VecDeque, sync::Arc};
use tidegate_core::{Demand, Effect, Receipt};
use tidegate_limiter::{
    StoreError,
    store::{StoreCharge, StoreCheck, StoreDecision, StoreReply, StoreRequest},
};
use tokio::sync::oneshot;

/// Questions for one node, by their places in the request.
type NodeBatch = Vec<(usize, StoreCheck)>;

/// What became of all parts.
#[derive(Default)]
struct SplitOutcome {
    answers: Vec<(usize, StoreDecision)>,
    /// What was charged, and can be given back.
    charges: Vec<(StoreCheck, StoreCharge)>,
    is_denied: bool,
}

impl Cluster {
    /// One part for each node. It is done in a task of its own, so that nothing stays charged when the caller gives up.
    pub(super) async fn submit_split(self: &Arc<Self>, asks: Vec<StoreCheck>) -> NodeResult {
        let (sender, answer) = oneshot::channel();
        let cluster = self.clone();
        drop(tokio::spawn(async move {
            let mut outcome = SplitOutcome::default();
            let problem = cluster.decide_split(asks, &mut outcome).await.err();
            if problem.is_some() || outcome.is_denied || sender.is_closed() {
                cluster.refund_all(&outcome.charges).await;
            }
            let _ = sender.send(problem.map_or_else(|| Ok(outcome.into_reply()), Err));
        }));
        answer
            .await
            .unwrap_or_else(|_| Err(StoreError::Unavailable("the call was given up".to_owned()).into()))
    }

    async fn decide_split(
        self: &Arc<Self>,
        asks: Vec<StoreCheck>,
        outcome: &mut SplitOutcome,
    ) -> Result<(), NodeError> {
        let all = asks.into_iter().enumerate().collect();
        let mut parts = VecDeque::from(self.group_by_node(all));
        while let Some(part) = parts.pop_front() {
            let questions: Vec<_> = part.iter().map(|(_, ask)| outcome.check_for(ask)).collect();
            match self.submit_batch(questions).await {
                Ok(StoreReply::Decided(node_answers)) if node_answers.len() == part.len() => {
                    outcome.add(part, node_answers);
                }
                Ok(_) => {
                    return Err(StoreError::Rejected("an answer to another question".to_owned()).into());
                }
                // Its keys are not on one node any more, and nothing was done.
                Err(NodeError::NotLocal) => {
                    self.group_by_key(part).into_iter().for_each(|key| parts.push_front(key));
                }
                Err(problem) => return Err(problem),
            }
        }
        Ok(())
    }

    async fn submit_batch(self: &Arc<Self>, questions: Vec<StoreCheck>) -> NodeResult {
        let mut keys = questions.iter().map(|ask| self.key_names.key(&ask.key_ref));
        let first = keys.next().unwrap_or_default();
        if keys.all(|key| key == first) {
            return self.submit_single_key(StoreRequest::Decide(questions), CallOrigin::SameRuntime).await;
        }
        drop(keys);
        self.submit_to_node(&first, StoreRequest::Decide(questions), CallOrigin::SameRuntime).await
    }

    async fn refund_all(self: &Arc<Self>, charges: &[(StoreCheck, StoreCharge)]) {
        for (ask, charge) in charges {
            let (place, charge, cost) = (ask.key_ref.clone(), charge.clone(), ask.demand.cost);
            let _ = self
                .submit_single_key(
                    StoreRequest::Refund { key_ref: place, charge, cost },
                    CallOrigin::SameRuntime,
                )
                .await;
        }
    }

    fn group_by_node(&self, part: NodeBatch) -> Vec<NodeBatch> {
        let map = self.slot_map();
        group_by(part, |ask| map.node_for_key(&self.key_names.key(&ask.key_ref)).map(Arc::as_ptr))
    }

    fn group_by_key(&self, part: NodeBatch) -> Vec<NodeBatch> {
        group_by(part, |ask| self.key_names.key(&ask.key_ref))
    }
}

impl SplitOutcome {
    /// After a denial the rest is only looked at.
    fn check_for(&self, ask: &StoreCheck) -> StoreCheck {
        let effect = if self.is_denied { Effect::Probe } else { ask.demand.effect };
        StoreCheck { demand: Demand { effect, ..ask.demand }, receipt: true, ..ask.clone() }
    }

    fn add(&mut self, part: NodeBatch, node_answers: Vec<StoreDecision>) {
        let is_denied = !node_answers.iter().all(is_granted);
        for ((index, ask), answer) in part.into_iter().zip(node_answers) {
            if !is_denied && !self.is_denied && ask.demand.effect == Effect::Charge && ask.demand.cost > 0 {
                self.charges.push((ask, answer.charge()));
            }
            self.answers.push((index, answer));
        }
        self.is_denied |= is_denied;
    }

    /// An answer to each question, in their order.
    fn into_reply(mut self) -> StoreReply {
        self.answers.sort_by_key(|(index, _)| *index);
        if self.is_denied {
            // What was given back cannot be given back again.
            let steps = self.answers.iter_mut().flat_map(|(_, answer)| &mut answer.steps);
            steps.for_each(|step| step.receipt = Receipt::default());
        }
        StoreReply::Decided(self.answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

fn group_by<T: PartialEq>(part: NodeBatch, by: impl Fn(&StoreCheck) -> T) -> Vec<NodeBatch> {
    let mut parts: Vec<(T, NodeBatch)> = Vec::new();
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
