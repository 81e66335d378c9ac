//! The reservations of a request while its limits are evaluated.

use super::{
    Gate,
    evaluate::LimitCheck,
    queue::{QueueGuard, measure_wait},
    verdict::{LimitDecision, LimitOutcome, RequestHold, Verdict},
};
use std::{slice, time::Duration};
use tidegate_core::Micros;
use tidegate_limiter::{BlockingLimiter, Check, CombinedReservation, reserve_all};

/// Decides checks that are all in memory; `None` if one of them is not: then nothing is decided.
pub(super) fn reserve_in_memory(checks: &[LimitCheck]) -> Option<Vec<Option<CombinedReservation>>> {
    let checks: Vec<Check> = checks.iter().map(|check| check.check.clone()).collect();
    checks.iter().all(Check::is_in_memory).then(|| BlockingLimiter::reserve_all(&checks))
}

/// The time until a rate in memory would admit this check. A store is not queried for it.
async fn retry_in_memory(check: &LimitCheck) -> Option<Micros> {
    let (bucket, waiter) = check.slot_wait.as_ref().filter(|_| check.check.is_in_memory())?;
    bucket.peek(waiter.cost).await.retry_after()
}

/// The decisions so far and their reservations. Dropping it releases them.
#[derive(Default)]
pub(super) struct RequestClaims {
    decisions: Vec<LimitDecision>,
    claims: Vec<(usize, CombinedReservation)>,
    queue_entries: Vec<QueueGuard>,
    wait_time: Micros,
}

impl RequestClaims {
    pub(super) fn add(&mut self, checks: &[LimitCheck], claims: Vec<Option<CombinedReservation>>) {
        for (check, claim) in checks.iter().zip(claims) {
            if let Some(claim) = claim {
                self.push_decision(check, LimitOutcome::Decided(*claim.decision()));
                self.claims.push((check.limit, claim));
            }
        }
    }

    fn push_decision(&mut self, check: &LimitCheck, outcome: LimitOutcome) {
        self.decisions.push(LimitDecision::new(check.limit, check.mode, outcome));
    }

    /// Checks limits in shadow mode, which deny nothing.
    pub(super) fn add_shadow(&mut self, shadow: &[LimitCheck]) {
        if self.is_denied() {
            return;
        }
        for check in shadow.iter().map(slice::from_ref) {
            self.add(check, reserve_in_memory(check).unwrap_or_default());
        }
    }

    /// Reserves everything, including checks that wait for a store or in a queue.
    pub(super) async fn reserve(&mut self, enforced: Vec<LimitCheck>, shadow: Vec<LimitCheck>) {
        let (queued, direct): (Vec<_>, Vec<_>) =
            enforced.into_iter().partition(|check| check.slot_wait.is_some());
        for check in queued {
            self.wait_in_queue(check).await;
        }
        if !self.is_denied() {
            let checks = direct.iter().map(|check| check.check.clone()).collect();
            self.add(&direct, reserve_all(checks).await);
            self.enter_queues(&direct);
            self.wait_ready().await;
        }
        if !self.is_denied() {
            for check in shadow {
                let claims = reserve_all(vec![check.check.clone()]).await;
                self.add(&[check], claims);
            }
        }
    }

    /// Enters the queue of each limit that delays the request.
    pub(super) fn enter_queues(&mut self, checks: &[LimitCheck]) {
        for check in checks {
            let claims = self.claims.iter().filter(|(limit, _)| *limit == check.limit);
            let wait = claims.map(|(_, claim)| claim.wait()).max().unwrap_or_default();
            let Some(queue) = check.queue.as_ref().filter(|_| !wait.is_zero()) else { continue };
            match queue.enter() {
                Ok(entry) => self.queue_entries.push(entry),
                Err(error) => {
                    let ours = self.decisions.iter_mut().filter(|one| one.limit == check.limit);
                    let retry_after = Some(Micros::from(wait));
                    ours.for_each(|one| one.outcome = LimitOutcome::WaitFailed { error, retry_after });
                }
            }
        }
    }

    async fn wait_in_queue(&mut self, check: LimitCheck) {
        if self.is_denied() {
            return;
        }
        let entry = match &check.queue {
            None => None,
            // With an empty queue, a request that need not wait takes no entry from those that must.
            Some(queue) if queue.is_empty() && self.reserve_now(&check).await => return,
            Some(queue) => match queue.enter() {
                Ok(entry) => Some(entry),
                Err(error) => {
                    let retry_after = retry_in_memory(&check).await;
                    return self.push_decision(&check, LimitOutcome::WaitFailed { error, retry_after });
                }
            },
        };
        let Some((bucket, waiter)) = check.slot_wait.clone() else { return };
        let outcome = match measure_wait(&mut self.wait_time, bucket.reserve_queued(waiter)).await {
            Ok(claim) => {
                let decision = *claim.decision();
                self.claims.push((check.limit, claim));
                LimitOutcome::Decided(decision)
            }
            Err(error) => LimitOutcome::WaitFailed { error, retry_after: retry_in_memory(&check).await },
        };
        drop(entry);
        self.push_decision(&check, outcome);
    }

    /// Whether it could be reserved without a wait.
    async fn reserve_now(&mut self, check: &LimitCheck) -> bool {
        let claims = reserve_all(vec![check.check.clone().max_wait(Duration::ZERO)]).await;
        let is_granted = claims.iter().flatten().any(|claim| claim.decision().is_allowed());
        if is_granted {
            self.add(slice::from_ref(check), claims);
        }
        is_granted
    }

    fn is_denied(&self) -> bool {
        self.decisions.iter().any(LimitDecision::is_denial)
    }

    /// Whether there is nothing to wait for.
    pub(super) fn is_ready(&self) -> bool {
        self.is_denied() || self.claims.iter().all(|(_, claim)| claim.wait().is_zero())
    }

    /// Waits for all reservations, each on the clock of its rule, and leaves the queues.
    pub(super) async fn wait_ready(&mut self) {
        let each: Vec<_> = match self.is_denied() {
            true => Vec::new(),
            false => self.claims.iter().map(|(_, claim)| claim.ready()).collect(),
        };
        for ready in each {
            measure_wait(&mut self.wait_time, ready).await;
        }
        self.queue_entries.clear();
    }

    /// Commits upfront charges, and keeps those that the response settles.
    pub(super) fn into_verdict(self, gate: &Gate) -> Verdict {
        let mut hold = RequestHold::default();
        if !self.is_denied() {
            hold.queue_entries = self.queue_entries;
            for (limit, claim) in self.claims {
                let (tokens, permits) = claim.into_parts();
                hold.permits.extend(permits);
                let Some(tokens) = tokens else { continue };
                if gate.limits()[limit].charge_policy().is_upfront() {
                    tokens.keep();
                } else {
                    hold.tokens.push((limit, tokens));
                }
            }
        }
        let mut decisions = self.decisions;
        decisions.sort_by_key(|one| one.limit);
        Verdict::from_parts(decisions, hold, self.wait_time)
    }
}
