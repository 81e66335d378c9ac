//! One quota with the state of one key, in virtual time.

use std::collections::BTreeMap;
use tidegate_core::{Decision, Demand, Kind, Micros, Quota, Receipt};

/// A request of a simulated load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// When it asks.
    pub at: Micros,
    /// What it costs.
    pub cost: u64,
}

/// A quota and the state of one key. Calls under a concurrency limit are released after a fixed time, and their leases are
/// renewed until then.
#[derive(Clone, Debug)]
pub struct SimulatedQuota {
    quota: Quota,
    state: Vec<u64>,
    call_time: Micros,
    /// The calls in flight, by the time of the next renewal or the release, and by their order.
    in_flight: BTreeMap<(Micros, u64), Call>,
    calls: u64,
}

#[derive(Clone, Copy, Debug)]
struct Call {
    end: Micros,
    receipt: Receipt,
}

/// Renewals in the time of a lease, as shared limiters renew them.
const RENEWALS: u64 = 3;

impl SimulatedQuota {
    /// A quota that has admitted nothing. `call_time` is the time that a call is in flight.
    pub fn new(quota: Quota, call_time: Micros) -> Self {
        let (state, in_flight) = (vec![0; quota.width()], BTreeMap::new());
        Self { quota, state, call_time, in_flight, calls: 0 }
    }

    /// Decides about one request. `now` must not be before the time of an earlier call.
    pub fn decide(&mut self, now: Micros, demand: Demand) -> Decision {
        while let Some(first) = self.in_flight.first_entry().filter(|first| first.key().0 <= now) {
            let ((at, _), Call { end, receipt }) = first.remove_entry();
            if at >= end {
                self.quota.refund(self.state.as_mut_slice(), at, receipt, receipt.cost);
            } else if let Some(receipt) = self.quota.renew(self.state.as_mut_slice(), at, receipt) {
                self.schedule(at, Call { end, receipt });
            }
        }
        let step = self.quota.decide(self.state.as_mut_slice(), now, demand);
        if step.receipt.cost > 0 {
            self.schedule(now, Call { end: now.plus(self.call_time), receipt: step.receipt });
        }
        step.decision
    }

    /// Schedules the release of a call, or the renewal of its lease if that comes first.
    fn schedule(&mut self, now: Micros, call: Call) {
        let Kind::Concurrency(limit) = self.quota.kind() else { return };
        let renewal = limit.lease().map(|lease| now.plus(Micros::new((lease.get() / RENEWALS).max(1))));
        let next = renewal.map_or(call.end, |renewal| renewal.min(call.end));
        self.calls += 1;
        self.in_flight.insert((next, self.calls), call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A lease that is shorter than a call is renewed, so that the call counts until it ends.
    #[test]
    fn calls_are_in_flight_until_they_end() {
        for quota in ["1 at once", "1 at once lease 1s"] {
            let mut quota = SimulatedQuota::new(quota.parse().unwrap(), Micros::from_secs(5));
            let outcomes: Vec<_> = [0, 1, 4, 5, 9]
                .map(|second| {
                    quota.decide(Micros::from_secs(second), Demand::within(1, Micros::ZERO)).is_granted()
                })
                .into();
            assert_eq!(outcomes, [true, false, false, true, false]);
        }
    }
}
