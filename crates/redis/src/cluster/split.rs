//! Requests about keys of several nodes.
//!
//! Only a single node charges all keys or none. Across nodes, each node is called in order, and the charges are refunded
//! when a later node denies or fails; until then other requests may be denied. A charge of a node that fails without a
//! reply is not refunded.

use super::Cluster;
use crate::node::{CallOrigin, NodeError, NodeResult};
use std::{collections::VecDeque, sync::Arc};
use tidegate_core::{Demand, Effect, Receipt};
use tidegate_limiter::{
    StoreError,
    store::{StoreCharge, StoreCheck, StoreDecision, StoreReply, StoreRequest},
};
use tokio::sync::oneshot;

/// The checks for one node, with their indexes in the request.
type NodeBatch = Vec<(usize, StoreCheck)>;

/// The combined result of all nodes.
#[derive(Default)]
struct SplitOutcome {
    answers: Vec<(usize, StoreDecision)>,
    /// Charges to refund if a later node denies or fails.
    charges: Vec<(StoreCheck, StoreCharge)>,
    is_denied: bool,
}

impl Cluster {
    /// Calls the nodes in order, in a separate task, so that the charges are refunded if the caller gives up.
    pub(super) async fn submit_split(self: &Arc<Self>, checks: Vec<StoreCheck>) -> NodeResult {
        let (sender, answer) = oneshot::channel();
        let cluster = self.clone();
        drop(tokio::spawn(async move {
            let mut outcome = SplitOutcome::default();
            let problem = cluster.decide_split(checks, &mut outcome).await.err();
            if problem.is_some() || outcome.is_denied || sender.is_closed() {
                cluster.refund_all(&outcome.charges).await;
            }
            let _ = sender.send(problem.map_or_else(|| Ok(outcome.into_reply()), Err));
        }));
        answer.await.unwrap_or_else(|_| Err(StoreError::Unavailable("call cancelled".to_owned()).into()))
    }

    async fn decide_split(
        self: &Arc<Self>,
        checks: Vec<StoreCheck>,
        outcome: &mut SplitOutcome,
    ) -> Result<(), NodeError> {
        let all = checks.into_iter().enumerate().collect();
        let mut parts = VecDeque::from(self.group_by_node(all));
        while let Some(part) = parts.pop_front() {
            let batch: Vec<_> = part.iter().map(|(_, check)| outcome.check_for(check)).collect();
            match self.submit_batch(batch).await {
                Ok(StoreReply::Decided(node_answers)) if node_answers.len() == part.len() => {
                    outcome.add(part, node_answers);
                }
                Ok(_) => {
                    return Err(StoreError::ErrorReply("reply does not match the request".to_owned()).into());
                }
                // The keys are no longer on one node, and nothing was charged.
                Err(NodeError::NotLocal) => {
                    self.group_by_key(part).into_iter().for_each(|key| parts.push_front(key));
                }
                Err(problem) => return Err(problem),
            }
        }
        Ok(())
    }

    async fn submit_batch(self: &Arc<Self>, batch: Vec<StoreCheck>) -> NodeResult {
        let mut keys = batch.iter().map(|check| self.key_names.key(&check.key_ref));
        let first = keys.next().unwrap_or_default();
        if keys.all(|key| key == first) {
            return self.submit_single_key(StoreRequest::Decide(batch), CallOrigin::SameRuntime).await;
        }
        drop(keys);
        self.submit_to_node(&first, StoreRequest::Decide(batch), CallOrigin::SameRuntime).await
    }

    async fn refund_all(self: &Arc<Self>, charges: &[(StoreCheck, StoreCharge)]) {
        for (check, charge) in charges {
            let (key_ref, charge, cost) = (check.key_ref.clone(), charge.clone(), check.demand.cost);
            let _ = self
                .submit_single_key(StoreRequest::Refund { key_ref, charge, cost }, CallOrigin::SameRuntime)
                .await;
        }
    }

    fn group_by_node(&self, part: NodeBatch) -> Vec<NodeBatch> {
        let map = self.slot_map();
        group_by(part, |check| map.node_for_key(&self.key_names.key(&check.key_ref)).map(Arc::as_ptr))
    }

    fn group_by_key(&self, part: NodeBatch) -> Vec<NodeBatch> {
        group_by(part, |check| self.key_names.key(&check.key_ref))
    }
}

impl SplitOutcome {
    /// The check to send; after a denial the remaining ones are probes.
    fn check_for(&self, check: &StoreCheck) -> StoreCheck {
        let effect = if self.is_denied { Effect::Peek } else { check.demand.effect };
        StoreCheck { demand: Demand { effect, ..check.demand }, receipt: true, ..check.clone() }
    }

    fn add(&mut self, part: NodeBatch, node_answers: Vec<StoreDecision>) {
        let is_denied = !node_answers.iter().all(is_granted);
        for ((index, check), answer) in part.into_iter().zip(node_answers) {
            if !is_denied && !self.is_denied && check.demand.effect == Effect::Charge && check.demand.cost > 0
            {
                self.charges.push((check, answer.charge()));
            }
            self.answers.push((index, answer));
        }
        self.is_denied |= is_denied;
    }

    /// The decisions in the order of the checks.
    fn into_reply(mut self) -> StoreReply {
        self.answers.sort_by_key(|(index, _)| *index);
        if self.is_denied {
            // The charges are already refunded; empty receipts prevent a second refund.
            let results = self.answers.iter_mut().flat_map(|(_, answer)| &mut answer.results);
            results.for_each(|result| result.receipt = Receipt::default());
        }
        StoreReply::Decided(self.answers.into_iter().map(|(_, answer)| answer).collect())
    }
}

fn group_by<T: PartialEq>(part: NodeBatch, by: impl Fn(&StoreCheck) -> T) -> Vec<NodeBatch> {
    let mut parts: Vec<(T, NodeBatch)> = Vec::new();
    for (index, check) in part {
        let of = by(&check);
        match parts.iter_mut().find(|(known, _)| *known == of) {
            Some((_, part)) => part.push((index, check)),
            None => parts.push((of, vec![(index, check)])),
        }
    }
    parts.into_iter().map(|(_, part)| part).collect()
}

fn is_granted(answer: &StoreDecision) -> bool {
    answer.results.iter().all(|result| result.decision.is_granted())
}
