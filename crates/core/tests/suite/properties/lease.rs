//! Permits with a lease: those who hold one and renew it are never too many, and those who crashed are forgotten.

use proptest::prelude::*;
use tidegate_core::{AlgorithmKind, Demand, Micros, Receipt};
use tidegate_testkit::{CoreModel, Subject, strategy::*};

/// What the holders of permits do.
#[derive(Clone, Copy, Debug)]
enum LeaseOp {
    Acquire(CallCost),
    /// Which one of those that were taken, counted from the last; it may have expired long ago.
    Release(usize),
    Renew(usize),
    /// Forgets to do either.
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
    /// When it was taken, or renewed for the last time.
    renewed_at: Micros,
    /// Whether its holder is still there to do something with it.
    alive: bool,
}

#[test]
fn renewed_permit_is_kept_and_crashed_one_expires() {
    let stories = (leases(), proptest::collection::vec((pauses(), lease_ops()), 1..60));
    let law = |(sample, story): (Sample, Vec<(CallPause, LeaseOp)>)| {
        let AlgorithmKind::Concurrency(concurrency) = sample.quota.kind() else { return Ok(()) };
        let (lease, limit) = (concurrency.lease().unwrap(), sample.quota.limit());
        // Time is counted in eighths of the lease: the last of them may be up to one longer.
        let longest = lease.plus(Micros::new(lease.get() / 8));
        let (mut key, mut moment) = (CoreModel::new(sample.quota), CallClock::new(&sample));
        let mut permits: Vec<TrackedPermit> = Vec::new();
        for (pause, deed) in story {
            moment.advance(pause);
            let now = moment.now;
            match deed {
                LeaseOp::Acquire(cost) => {
                    let step = key.decide(now, Demand::new(cost.resolve(limit)));
                    moment.record(&step.decision);
                    if step.decision.is_granted() {
                        permits.push(TrackedPermit { receipt: step.receipt, renewed_at: now, alive: true });
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
                        let age = now.since(one.renewed_at);
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
                let young = permits.iter().filter(|one| now.since(one.renewed_at) < age);
                young.map(|one| one.receipt.cost).sum::<u64>()
            };
            let look = key.peek(now, Demand::probe(0)).decision;
            prop_assert!(younger_than(lease) + look.remaining() <= limit, "{:?}", look);
            prop_assert!(younger_than(longest) + look.remaining() >= limit, "{:?}", look);
        }
        let look = key.peek(moment.now, Demand::probe(0)).decision;
        prop_assert!(look.reset_after() <= longest);
        let all = key.peek(moment.now.plus(look.reset_after()), Demand::new(limit)).decision;
        prop_assert!(all.is_allowed(), "{:?}, then {:?}", look, all);
        Ok(())
    };
    runner().run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}
