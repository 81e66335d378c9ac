//! Permits with a lease: renewed permits never exceed the limit, and those of crashed holders expire.

use proptest::prelude::*;
use tidegate_core::{AlgorithmKind, Demand, Micros, Receipt};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// An operation on permits.
#[derive(Clone, Copy, Debug)]
enum LeaseOp {
    Acquire(CallCost),
    /// The index among the acquired permits, from the last; it may have expired.
    Release(usize),
    Renew(usize),
    /// Neither releases nor renews it.
    Crash(usize),
}

fn lease_ops() -> impl Strategy<Value = LeaseOp> {
    prop_oneof![
        4 => costs().prop_map(LeaseOp::Acquire),
        2 => (0_usize..4).prop_map(LeaseOp::Release),
        3 => (0_usize..4).prop_map(LeaseOp::Renew),
        1 => (0_usize..4).prop_map(LeaseOp::Crash),
    ]
}

/// A permit that was granted.
struct TrackedPermit {
    receipt: Receipt,
    /// The time of acquisition or of the last renewal.
    renewed_at: Micros,
    /// Whether the holder has not crashed.
    alive: bool,
}

#[test]
fn renewed_permit_stays_and_crashed_one_expires() {
    let inputs = (leases(), proptest::collection::vec((pauses(), lease_ops()), 1..60));
    let property = |(sample, calls): (Sample, Vec<(CallPause, LeaseOp)>)| {
        let AlgorithmKind::Concurrency(concurrency) = sample.quota.kind() else { return Ok(()) };
        let (lease, limit) = (concurrency.lease().unwrap(), sample.quota.limit());
        // Leases are counted in eighths, so a permit may expire up to an eighth late.
        let longest = lease.saturating_add(Micros::new(lease.get() / 8));
        let (mut key, mut clock) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut permits: Vec<TrackedPermit> = Vec::new();
        for (pause, op) in calls {
            clock.advance(pause);
            let now = clock.now;
            match op {
                LeaseOp::Acquire(cost) => {
                    let result = key.decide(now, Demand::new(cost.resolve(limit)));
                    clock.record(&result.decision);
                    if result.decision.is_granted() {
                        permits.push(TrackedPermit { receipt: result.receipt, renewed_at: now, alive: true });
                    }
                }
                LeaseOp::Release(which) => {
                    if let Some(one) = permits.len().checked_sub(which + 1).filter(|one| permits[*one].alive)
                    {
                        let TrackedPermit { receipt, .. } = permits.remove(one);
                        key.refund(now, receipt, receipt.cost);
                    }
                }
                LeaseOp::Renew(which) => {
                    let one = permits.len().checked_sub(which + 1).filter(|one| permits[*one].alive);
                    if let Some(one) = one.map(|one| &mut permits[one]).filter(|one| one.receipt.cost > 0) {
                        let renewed = key.entries.renew(now, one.receipt);
                        let age = now.saturating_sub(one.renewed_at);
                        prop_assert!(renewed.is_some() || age >= lease, "lost after {}", age);
                        prop_assert!(renewed.is_none() || age < longest, "renewed after {}", age);
                        one.alive = renewed.is_some();
                        if let Some(receipt) = renewed {
                            (one.receipt, one.renewed_at) = (receipt, now);
                        }
                    }
                }
                LeaseOp::Crash(which) => {
                    if let Some(one) = permits.len().checked_sub(which + 1) {
                        permits[one].alive = false;
                    }
                }
            }
            let younger_than = |age: Micros| {
                let young = permits.iter().filter(|one| now.saturating_sub(one.renewed_at) < age);
                young.map(|one| one.receipt.cost).sum::<u64>()
            };
            let peeked = key.peek(now, Demand::peek(0)).decision;
            prop_assert!(younger_than(lease) + peeked.remaining() <= limit, "{:?}", peeked);
            prop_assert!(younger_than(longest) + peeked.remaining() >= limit, "{:?}", peeked);
        }
        let peeked = key.peek(clock.now, Demand::peek(0)).decision;
        prop_assert!(peeked.reset_after() <= longest);
        let all = key.peek(clock.now.saturating_add(peeked.reset_after()), Demand::new(limit)).decision;
        prop_assert!(all.is_allowed(), "{:?}, then {:?}", peeked, all);
        Ok(())
    };
    runner().run(&inputs, property).unwrap_or_else(|broken| panic!("{broken}"));
}
