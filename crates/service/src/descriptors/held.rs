//! What can be asked besides a decision: to look, to take and settle later, and to forget.

use super::{
    DescriptorFault, DescriptorService, DomainAsk, DomainVerdict, OverLimit,
    count::away,
    counters::{CountedKey, Hold, Purpose, Reserved},
    force::{How, Subject},
};

/// What was taken for a request, and is to be settled. Who drops it leaves all of it counted.
#[derive(Debug)]
pub struct HeldHits {
    reserved: Option<Reserved>,
}

impl HeldHits {
    /// Has each descriptor of the request cost this instead of what was taken.
    pub async fn commit(mut self, hits: u64) {
        for hold in self.reserved.take().unwrap_or_default() {
            hold.commit(hits).await;
        }
    }

    /// Gives all of it back.
    pub async fn cancel(mut self) {
        for hold in self.reserved.take().unwrap_or_default() {
            hold.give_back().await;
        }
    }
}

impl Drop for HeldHits {
    fn drop(&mut self) {
        self.reserved.take().into_iter().flatten().for_each(Hold::keep);
    }
}

impl DescriptorService {
    /// What is left of the limits that apply. Counts nothing.
    pub async fn peek(&self, mut ask: DomainAsk) -> Result<DomainVerdict, DescriptorFault> {
        ask.descriptors.iter_mut().for_each(|asked| asked.hits = Some(0));
        self.decide(ask).await
    }

    /// Takes what is asked for, all of it or nothing, however else it is counted. It is held unless it was refused.
    pub async fn reserve(
        &self,
        ask: DomainAsk,
    ) -> Result<(DomainVerdict, Option<HeldHits>), DescriptorFault> {
        let (verdict, reserved) = self.answer(&ask, Purpose::Hold).await?;
        let held = (verdict.overall == OverLimit::No).then_some(HeldHits { reserved: Some(reserved) });
        Ok((verdict, held))
    }

    /// Forgets what was counted of these descriptors under the limits that apply to them, and says of how many.
    pub async fn reset(&self, ask: &DomainAsk) -> Result<usize, DescriptorFault> {
        self.examine(ask)?;
        let force = self.force().ok_or(DescriptorFault::NoConfiguration)?;
        let Some(domain) = force.set.domain(&ask.domain) else { return Ok(0) };
        let mut count = 0;
        for subject in force.resolve(domain, ask, (&self.settings, self.metrics())) {
            let Subject::Limited(limited) = subject else { continue };
            let key = CountedKey { domain: &ask.domain, entries: &limited.counted };
            let reset = match &limited.how {
                How::Compare { unit, .. } => {
                    let reset = self.units.reset(key, *unit).await;
                    // After it: what is counted before it is over may be remembered meanwhile.
                    self.over.iter().for_each(|over| over.forget(key, *unit));
                    reset
                }
                How::Charge(limiter) => limiter.reset(key).await,
                How::Ban { .. } | How::Unlimited => continue,
            };
            reset.map_err(|_| away())?;
            count += 1;
        }
        Ok(count)
    }
}
