//! What can be asked besides a decision: to look, to take and settle later, and to forget.

use super::{
    DecisionError, DescriptorService, DomainRequest, DomainVerdict, OverLimit,
    active_config::{CountingMethod, LimitMatch},
    count::store_unavailable,
    counters::{CountPurpose, CountReservation, CountReservations, DescriptorKey},
};

/// What was taken for a request, and is to be settled. Who drops it leaves all of it counted.
#[derive(Debug)]
pub struct ReservedHits {
    holds: Option<CountReservations>,
}

impl ReservedHits {
    /// Has each descriptor of the request cost this instead of what was taken.
    pub async fn commit(mut self, hits: u64) {
        for hold in self.holds.take().unwrap_or_default() {
            hold.commit(hits).await;
        }
    }

    /// Gives all of it back.
    pub async fn cancel(mut self) {
        for hold in self.holds.take().unwrap_or_default() {
            hold.cancel().await;
        }
    }
}

impl Drop for ReservedHits {
    fn drop(&mut self) {
        self.holds.take().into_iter().flatten().for_each(CountReservation::keep);
    }
}

impl DescriptorService {
    /// What is left of the limits that apply. Counts nothing.
    pub async fn peek(&self, mut request: DomainRequest) -> Result<DomainVerdict, DecisionError> {
        request.descriptors.iter_mut().for_each(|asked| asked.hits = Some(0));
        self.decide(request).await
    }

    /// Takes what is asked for, all of it or nothing, however else it is counted. It is held unless it was refused.
    pub async fn reserve(
        &self,
        request: DomainRequest,
    ) -> Result<(DomainVerdict, Option<ReservedHits>), DecisionError> {
        let (verdict, reserved) = self.decide_for(&request, CountPurpose::Reserve).await?;
        let reserved_hits =
            (verdict.overall == OverLimit::No).then_some(ReservedHits { holds: Some(reserved) });
        Ok((verdict, reserved_hits))
    }

    /// Forgets what was counted of these descriptors under the limits that apply to them, and says of how many.
    pub async fn reset(&self, request: &DomainRequest) -> Result<usize, DecisionError> {
        self.validate(request)?;
        let force = self.active_config().ok_or(DecisionError::NoConfiguration)?;
        let Some(domain) = force.set.domain(&request.domain) else { return Ok(0) };
        let mut count = 0;
        for subject in force.resolve(domain, request, (&self.settings, self.metrics())) {
            let LimitMatch::Limited(limited) = subject else { continue };
            let key = DescriptorKey { domain: &request.domain, entries: &limited.counted_entries };
            let reset = match &limited.method {
                CountingMethod::Count { unit, .. } => {
                    let reset = self.counters.reset(key, *unit).await;
                    // After it: what is counted before it is over may be remembered meanwhile.
                    self.over_limit_keys.iter().for_each(|over| over.remove(key, *unit));
                    reset
                }
                CountingMethod::Limiter(limiter) => limiter.reset(key).await,
                CountingMethod::Ban { .. } | CountingMethod::Unlimited => continue,
            };
            reset.map_err(|_| store_unavailable())?;
            count += 1;
        }
        Ok(count)
    }
}
