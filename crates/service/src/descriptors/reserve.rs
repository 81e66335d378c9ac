//! Operations besides a decision: peek, reserve and reset.

use super::{
    DecisionError, DescriptorService, DomainRequest, DomainVerdict, LimitCode,
    active_config::{CountingMethod, LimitMatch},
    count::store_unavailable,
    counters::{CountPurpose, CountReservation, CountReservations, DescriptorKey},
};

/// The reserved hits of a request. Dropping it keeps all hits counted.
#[derive(Debug)]
pub struct ReservedHits {
    reservations: Option<CountReservations>,
}

impl ReservedHits {
    /// Charges each descriptor of the request with the actual hits instead.
    pub async fn commit(mut self, hits: u64) {
        for hold in self.reservations.take().unwrap_or_default() {
            hold.commit(hits).await;
        }
    }

    /// Refunds all hits.
    pub async fn cancel(mut self) {
        for hold in self.reservations.take().unwrap_or_default() {
            hold.cancel().await;
        }
    }
}

impl Drop for ReservedHits {
    fn drop(&mut self) {
        self.reservations.take().into_iter().flatten().for_each(CountReservation::keep);
    }
}

impl DescriptorService {
    /// Returns the state of the limits that apply, without counting.
    pub async fn peek(&self, mut request: DomainRequest) -> Result<DomainVerdict, DecisionError> {
        request.descriptors.iter_mut().for_each(|descriptor| descriptor.hits = Some(0));
        self.decide(request).await
    }

    /// Reserves the hits of all descriptors, or of none if the request is denied, in every counting mode.
    pub async fn reserve(
        &self,
        request: DomainRequest,
    ) -> Result<(DomainVerdict, Option<ReservedHits>), DecisionError> {
        let (verdict, reserved) = self.decide_for(&request, CountPurpose::Reserve).await?;
        let reserved_hits =
            (verdict.overall_code == LimitCode::Ok).then_some(ReservedHits { reservations: Some(reserved) });
        Ok((verdict, reserved_hits))
    }

    /// Resets the counters of these descriptors. Returns the number of counters.
    pub async fn reset(&self, request: &DomainRequest) -> Result<usize, DecisionError> {
        self.validate(request)?;
        let config = self.active_config().ok_or(DecisionError::NoConfiguration)?;
        let Some(domain) = config.set.domain(&request.domain) else { return Ok(0) };
        let mut count = 0;
        for subject in config.resolve(domain, request, (&self.settings, self.metrics())) {
            let LimitMatch::Limited(limited) = subject else { continue };
            let key = DescriptorKey { domain: &request.domain, entries: &limited.counted_entries };
            let reset = match &limited.method {
                CountingMethod::Count { unit, .. } => {
                    let reset = self.counters.reset(key, *unit).await;
                    // Last, since a concurrent request may have cached the key during the reset.
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
