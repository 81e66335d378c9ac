//! One quota with the state of one key, in virtual time.

use std::collections::BTreeMap;
use tidegate_core::{
    AlgorithmKind, Decision, Demand, Effect, Micros, Quota, Receipt, algorithm::Concurrency,
};

/// A request of a simulated load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedRequest {
    /// The time of the request.
    pub at: Micros,
    /// The cost.
    pub cost: u64,
}

/// A quota and the state of one key. Calls under a concurrency limit are released after a fixed time. Leases are
/// ignored: an active call renews its lease until it ends.
#[derive(Clone, Debug)]
pub struct SimulatedQuota {
    quota: Quota,
    state: Vec<u64>,
    call_time: Micros,
    /// The calls in flight, by the time of the release and their order.
    in_flight: BTreeMap<(Micros, u64), Receipt>,
    calls: u64,
}

impl SimulatedQuota {
    /// An unused quota. `call_time` is the time that a call is in flight.
    pub fn new(quota: Quota, call_time: Micros) -> Self {
        let quota = without_lease(quota);
        let (state, in_flight) = (vec![0; quota.state_len()], BTreeMap::new());
        Self { quota, state, call_time, in_flight, calls: 0 }
    }

    /// Decides a request. `now` must not be before the time of an earlier call.
    pub fn decide(&mut self, now: Micros, demand: Demand) -> Decision {
        while let Some(first) = self.in_flight.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), receipt) = first.remove_entry();
            self.quota.refund(self.state.as_mut_slice(), at, receipt, receipt.cost);
        }
        if demand.effect == Effect::Charge && demand.cost > 0 {
            self.quota.begin(&self.quota, self.state.as_mut_slice(), now);
        }
        let result = self.quota.decide(self.state.as_mut_slice(), now, demand);
        if result.receipt.cost > 0 && self.quota.is_concurrency() {
            self.calls += 1;
            self.in_flight.insert((now.saturating_add(self.call_time), self.calls), result.receipt);
        }
        result.decision
    }
}

fn without_lease(quota: Quota) -> Quota {
    match quota.kind() {
        AlgorithmKind::Concurrency(_) => {
            Concurrency::new(quota.limit()).map_or(quota, |it| AlgorithmKind::Concurrency(it).into())
        }
        _ => quota,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A call counts until it ends, regardless of its lease.
    #[test]
    fn calls_are_in_flight_until_they_end() {
        for quota in ["1 at once", "1 at once lease 1s"] {
            let mut quota = SimulatedQuota::new(quota.parse().unwrap(), Micros::from_secs(5));
            let outcomes: Vec<_> = [0, 1, 4, 5, 9]
                .map(|second| {
                    quota
                        .decide(Micros::from_secs(second), Demand::with_max_wait(1, Micros::ZERO))
                        .is_granted()
                })
                .into();
            assert_eq!(outcomes, [true, false, false, true, false]);
        }
        // A long call with a short lease.
        let year = Micros::from_secs(31_536_000);
        let mut quota = SimulatedQuota::new("1 at once lease 1ms".parse().unwrap(), year);
        assert!(quota.decide(Micros::ZERO, Demand::new(1)).is_granted());
        assert!(!quota.decide(year.saturating_sub(Micros::new(1)), Demand::new(1)).is_granted());
        assert!(quota.decide(year, Demand::new(1)).is_granted());
    }
}
