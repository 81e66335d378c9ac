//! A total never refills: at most its limit is admitted at any times, and only a refund makes room.

use proptest::prelude::*;
use tidegate_core::{Demand, Micros, Overdraft, Quota};
use tidegate_testkit::{CoreModel, Subject, strategy::runner};

fn times() -> impl Strategy<Value = Micros> {
    // In any order, so the clock also goes back.
    prop_oneof![Just(0), 0_u64..=10_000_000, 0_u64..=1 << 53].prop_map(Micros::new)
}

#[test]
fn total_admits_at_most_its_limit_at_any_times() {
    let overdrafts = prop_oneof![Just(Overdraft::Deny), Just(Overdraft::Grant)];
    let calls = prop::collection::vec((times(), 0_u64..=7, overdrafts), 1..60);
    let result = runner().run(&(1_u64..=40, calls), |(limit, calls)| {
        let mut key = CoreModel::new(Quota::total(limit).unwrap());
        let mut admitted = 0;
        for (now, cost, overdraft) in calls {
            let demand = Demand { overdraft, ..Demand::with_max_wait(cost, Micros::MAX) };
            let decision = key.decide(now, demand).decision;
            prop_assert_eq!(
                decision.is_allowed(),
                admitted + cost <= limit,
                "{} of {}",
                cost,
                limit - admitted
            );
            prop_assert_eq!(decision.retry_after(), None);
            admitted += if decision.is_allowed() { cost } else { 0 };
            prop_assert_eq!(decision.remaining(), limit - admitted);
        }
        Ok(())
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn refund_of_a_total_returns_what_was_charged() {
    let result =
        runner().run(&(1_u64..=40, 1_u64..=40, 0_u64..=50, times()), |(limit, cost, refund, later)| {
            let mut key = CoreModel::new(Quota::total(limit).unwrap());
            let charged = key.decide(Micros::ZERO, Demand::forced(cost)).receipt;
            prop_assert_eq!(charged.cost, cost);
            key.refund(later, charged, refund);
            let used = cost - refund.min(cost);
            let peeked = key.peek(later, Demand::peek(0)).decision;
            prop_assert_eq!(peeked.remaining(), limit.saturating_sub(used));
            // An unused key may be forgotten; a used one never.
            prop_assert_eq!(peeked.reset_after(), if used == 0 { Micros::ZERO } else { Micros::MAX });
            Ok(())
        });
    assert_eq!(result, Ok(()));
}
