//! Permits with a lease: those who hold one and renew it are never too many, and those who crashed are forgotten.

use proptest::prelude::*;
use tidegate_core::{Demand, Kind, Micros, Receipt};
use tidegate_testkit::{Plain, Subject, strategy::*};

/// What the holders of permits do.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Take(Cost),
    /// Which one of those that were taken, counted from the last; it may have expired long ago.
    GiveBack(usize),
    Renew(usize),
    /// Forgets to do either.
    Crash(usize),
}

fn deeds() -> impl Strategy<Value = Deed> {
    prop_oneof![
        4 => costs().prop_map(Deed::Take),
        2 => (0_usize..4).prop_map(Deed::GiveBack),
        3 => (0_usize..4).prop_map(Deed::Renew),
        1 => (0_usize..4).prop_map(Deed::Crash),
    ]
}

/// A permit that was granted.
struct Held {
    receipt: Receipt,
    /// When it was taken, or renewed for the last time.
    since: Micros,
    /// Whether its holder is still there to do something with it.
    alive: bool,
}

#[test]
fn whoever_renews_keeps_its_slot_and_whoever_crashes_loses_it() {
    let stories = (leases(), proptest::collection::vec((pauses(), deeds()), 1..60));
    let law = |(sample, story): (Sample, Vec<(Pause, Deed)>)| {
        let Kind::Concurrency(concurrency) = sample.quota.kind() else { return Ok(()) };
        let (lease, limit) = (concurrency.lease().unwrap(), sample.quota.limit());
        // Time is counted in eighths of the lease: the last of them may be up to one longer.
        let longest = lease.plus(Micros::new(lease.get() / 8));
        let (mut key, mut moment) = (Plain::new(sample.quota), Moment::start_of(&sample));
        let mut held: Vec<Held> = Vec::new();
        for (pause, deed) in story {
            moment.pass(pause);
            let now = moment.now;
            match deed {
                Deed::Take(cost) => {
                    let step = key.decide(now, Demand::now(cost.under(limit)));
                    moment.hear(&step.decision);
                    if step.decision.is_granted() {
                        held.push(Held { receipt: step.receipt, since: now, alive: true });
                    }
                }
                Deed::GiveBack(which) => {
                    if let Some(one) = held.len().checked_sub(which + 1).filter(|one| held[*one].alive) {
                        let Held { receipt, .. } = held.remove(one);
                        key.refund(now, receipt, receipt.cost);
                    }
                }
                Deed::Renew(which) => {
                    let one = held.len().checked_sub(which + 1).filter(|one| held[*one].alive);
                    if let Some(one) = one.map(|one| &mut held[one]).filter(|one| one.receipt.cost > 0) {
                        let renewed = key.entries.renew(now, one.receipt);
                        let age = now.since(one.since);
                        prop_assert!(renewed.is_some() || age >= lease, "lost after {}", age);
                        prop_assert!(renewed.is_none() || age < longest, "renewed after {}", age);
                        one.alive = renewed.is_some();
                        if let Some(receipt) = renewed {
                            (one.receipt, one.since) = (receipt, now);
                        }
                    }
                }
                Deed::Crash(which) => {
                    if let Some(one) = held.len().checked_sub(which + 1) {
                        held[one].alive = false;
                    }
                }
            }
            let younger_than = |age: Micros| {
                let young = held.iter().filter(|one| now.since(one.since) < age);
                young.map(|one| one.receipt.cost).sum::<u64>()
            };
            let look = key.would(now, Demand::probe(0)).decision;
            prop_assert!(younger_than(lease) + look.remaining() <= limit, "{:?}", look);
            prop_assert!(younger_than(longest) + look.remaining() >= limit, "{:?}", look);
        }
        let look = key.would(moment.now, Demand::probe(0)).decision;
        prop_assert!(look.reset_after() <= longest);
        let all = key.would(moment.now.plus(look.reset_after()), Demand::now(limit)).decision;
        prop_assert!(all.is_allowed(), "{:?}, then {:?}", look, all);
        Ok(())
    };
    runner().run(&stories, law).unwrap_or_else(|broken| panic!("{broken}"));
}
