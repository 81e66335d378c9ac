//! The memory store as a subject of the testkit, so that it runs the same traces as the core.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{collections::HashMap, time::Duration};
use tidegate_core::{
    AlgorithmKind, CarryOver, ChargeResult, Decision, Demand, Effect, Micros, Overdraft, Quota, Receipt,
};
use tidegate_limiter::{
    BlockingBucket, BuildError, Capacity, Clock, DirectLimiter, Limiter, ManualClock, Permit, Reservation,
};
use tidegate_testkit::Subject;

/// The kind of limiter that holds the only key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LimiterTarget {
    /// A key of a limiter.
    Key,
    /// A direct limiter, which starts in the same state as Guava's.
    Direct,
}

/// One key of the memory store. It is built at its first use.
pub(crate) struct MemorySubject {
    target: LimiterTarget,
    quota: Quota,
    manual_clock: ManualClock,
    clock: Clock,
    limiter: Option<BuiltLimiter>,
    charges: HashMap<u64, SubjectCharge>,
    last_charge_id: u64,
}

/// Leaked, because its results borrow it.
#[derive(Clone, Copy)]
enum BuiltLimiter {
    Limiter(&'static Limiter),
    Direct(&'static DirectLimiter),
}

/// A charge until it is refunded.
enum SubjectCharge {
    Tokens(Reservation),
    Permits(Vec<Permit>),
}

impl MemorySubject {
    pub(crate) fn new(target: LimiterTarget, quota: Quota) -> Self {
        let (clock, manual_clock) = Clock::manual();
        Self { target, quota, manual_clock, clock, limiter: None, charges: HashMap::new(), last_charge_id: 0 }
    }

    /// The bucket at a given time.
    pub(crate) fn bucket_at(&mut self, now: Micros) -> BlockingBucket<'static> {
        self.manual_clock.set(now);
        let built = *self.limiter.get_or_insert_with(|| match self.target {
            LimiterTarget::Key => BuiltLimiter::Limiter(leak(
                Limiter::builder().clock(self.clock.clone()).capacity(Capacity::Keys(4)).build(self.quota),
            )),
            LimiterTarget::Direct => BuiltLimiter::Direct(leak(
                DirectLimiter::builder().clock(self.clock.clone()).build(self.quota),
            )),
        });
        match built {
            BuiltLimiter::Limiter(limiter) => limiter.blocking().key("the only one"),
            BuiltLimiter::Direct(limiter) => limiter.blocking(),
        }
    }

    /// A check on the fast path.
    pub(crate) fn check(&mut self, now: Micros, cost: u64) -> Decision {
        let bucket = self.bucket_at(now);
        match self.limiter {
            Some(BuiltLimiter::Limiter(limiter)) => limiter.check_cost("the only one", cost),
            Some(BuiltLimiter::Direct(limiter)) => limiter.check_cost(cost),
            None => bucket.check(cost),
        }
    }

    /// Replaces the quota, if the store can.
    pub(crate) fn try_change(&mut self, now: Micros, quota: Quota, how: CarryOver) -> Result<(), BuildError> {
        self.bucket_at(now);
        let changed = match self.limiter {
            Some(BuiltLimiter::Limiter(limiter)) => limiter.change(quota, how),
            Some(BuiltLimiter::Direct(limiter)) => limiter.change(quota, how),
            None => Ok(()),
        };
        if changed.is_ok() {
            self.quota = quota;
        }
        changed
    }

    /// Acquires several permits, all or none.
    fn take_permits(&mut self, now: Micros, cost: u64) -> (Decision, Option<SubjectCharge>) {
        let bucket = self.bucket_at(now);
        let decision = bucket.peek(cost);
        if !decision.is_allowed() || cost == 0 {
            return (decision, None);
        }
        let permits: Vec<_> = (0..cost).map(|_| bucket.permit()).collect();
        (permits.last().map_or(decision, |permit| *permit.decision()), Some(SubjectCharge::Permits(permits)))
    }

    fn take(&mut self, now: Micros, demand: Demand) -> (Decision, Option<SubjectCharge>) {
        if matches!(self.quota.kind(), AlgorithmKind::Concurrency(_)) {
            return self.take_permits(now, demand.cost);
        }
        let bucket = self.bucket_at(now);
        if demand.overdraft != Overdraft::Deny && demand.cost > self.quota.limit() {
            assert_eq!(demand.max_wait, Micros::ZERO, "an overdraft cannot wait");
            return (bucket.check_with_overdraft(demand.cost), None);
        }
        let tokens = bucket.reserve(demand.cost, demand.max_wait.into());
        (*tokens.decision(), Some(SubjectCharge::Tokens(tokens)))
    }
}

impl Subject for MemorySubject {
    fn decide(&mut self, now: Micros, demand: Demand) -> ChargeResult {
        let (decision, charge) = match demand {
            Demand { effect: Effect::Peek, cost, .. } => (self.bucket_at(now).peek(cost), None),
            Demand { overdraft: Overdraft::Force, cost, .. } => {
                // A forced charge equals a commit over a reservation of zero.
                let bucket = self.bucket_at(now);
                if cost > self.quota.limit() {
                    return ChargeResult {
                        decision: bucket.check_with_overdraft(cost),
                        receipt: Receipt::default(),
                    };
                }
                let reservation = bucket.reserve(cost, Duration::MAX);
                let decision = *reservation.decision();
                reservation.cancel();
                bucket.reserve(0, Duration::ZERO).commit(cost);
                (decision, None)
            }
            _ => self.take(now, demand),
        };
        let mut receipt = Receipt::default();
        if let (Some(charge), true) = (charge, decision.is_granted()) {
            self.last_charge_id += 1;
            receipt = Receipt { cost: demand.cost, level_or_debt: self.last_charge_id, ..receipt };
            self.charges.insert(receipt.level_or_debt, charge);
        }
        ChargeResult { decision, receipt }
    }

    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64) {
        self.bucket_at(now);
        match self.charges.get_mut(&receipt.level_or_debt) {
            Some(SubjectCharge::Permits(permits)) => {
                permits.truncate(permits.len().saturating_sub(cost as usize));
            }
            Some(SubjectCharge::Tokens(_)) => {
                if let Some(SubjectCharge::Tokens(tokens)) = self.charges.remove(&receipt.level_or_debt) {
                    tokens.commit(receipt.cost.saturating_sub(cost));
                }
            }
            None => {}
        }
    }

    fn change(&mut self, now: Micros, quota: Quota, how: CarryOver) {
        let Err(error) = self.try_change(now, quota, how) else { return };
        let Some(BuiltLimiter::Limiter(old)) = self.limiter else { panic!("{error}") };
        let builder = Limiter::builder().clock(self.clock.clone()).capacity(Capacity::Keys(4));
        let new = leak(builder.predecessor(old).build(quota));
        new.take_over(old);
        (self.limiter, self.quota) = (Some(BuiltLimiter::Limiter(new)), quota);
    }

    fn create(&mut self, now: Micros) {
        assert_eq!(self.target, LimiterTarget::Direct, "only a direct limiter is created");
        self.bucket_at(now);
    }
}

fn leak<T>(built: Result<T, BuildError>) -> &'static T {
    match built {
        Ok(built) => Box::leak(Box::new(built)),
        Err(error) => panic!("{error}"),
    }
}

/// Advances the clock by whole milliseconds.
pub(crate) fn advance(clock: &ManualClock, ms: u64) {
    clock.advance(Duration::from_millis(ms));
}
