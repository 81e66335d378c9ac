//! The memory store as a subject of the testkit, so that it hears the same stories as the core.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::{collections::HashMap, time::Duration};
use tidegate_core::{
    AlgorithmKind, CarryOver, ChargeResult, Decision, Demand, Effect, Micros, Overdraft, Quota, Receipt,
};
use tidegate_limiter::{
    BlockingBucket, BuildError, Capacity, Clock, ClockHand, Limiter, Permit, Reservation, Throttle,
};
use tidegate_testkit::Subject;

/// Where a story's only key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Home {
    /// A key of a limiter.
    Key,
    /// A throttle, which starts as Guava's does.
    Throttle,
}

/// One key of the memory store. It is built at the first moment of its story.
pub(crate) struct Memory {
    home: Home,
    quota: Quota,
    hand: ClockHand,
    clock: Clock,
    built: Option<Built>,
    charges: HashMap<u64, Charge>,
    charged: u64,
}

/// Leaked, because what it hands out borrows it.
#[derive(Clone, Copy)]
enum Built {
    Limiter(&'static Limiter),
    Throttle(&'static Throttle),
}

/// What is kept of a charge until it is given back.
enum Charge {
    Tokens(Reservation),
    Permits(Vec<Permit>),
}

impl Memory {
    pub(crate) fn new(home: Home, quota: Quota) -> Self {
        let (clock, hand) = Clock::manual();
        Self { home, quota, hand, clock, built: None, charges: HashMap::new(), charged: 0 }
    }

    /// The bucket at a moment.
    pub(crate) fn at(&mut self, now: Micros) -> BlockingBucket<'static> {
        self.hand.set(now);
        let built = *self.built.get_or_insert_with(|| match self.home {
            Home::Key => Built::Limiter(leak(
                Limiter::builder().clock(self.clock.clone()).capacity(Capacity::Keys(4)).build(self.quota),
            )),
            Home::Throttle => {
                Built::Throttle(leak(Throttle::builder().clock(self.clock.clone()).build(self.quota)))
            }
        });
        match built {
            Built::Limiter(limiter) => limiter.blocking().key("the only one"),
            Built::Throttle(throttle) => throttle.blocking(),
        }
    }

    /// The short way to a check, which most callers take.
    pub(crate) fn check(&mut self, now: Micros, cost: u64) -> Decision {
        let bucket = self.at(now);
        match self.built {
            Some(Built::Limiter(limiter)) => limiter.check_cost("the only one", cost),
            Some(Built::Throttle(throttle)) => throttle.check_cost(cost),
            None => bucket.check(cost),
        }
    }

    /// Replaces the quota, if the store can.
    pub(crate) fn try_change(&mut self, now: Micros, quota: Quota, how: CarryOver) -> Result<(), BuildError> {
        self.at(now);
        let changed = match self.built {
            Some(Built::Limiter(limiter)) => limiter.change(quota, how),
            Some(Built::Throttle(throttle)) => throttle.change(quota, how),
            None => Ok(()),
        };
        if changed.is_ok() {
            self.quota = quota;
        }
        changed
    }

    /// Several permits, all or none.
    fn take_permits(&mut self, now: Micros, cost: u64) -> (Decision, Option<Charge>) {
        let bucket = self.at(now);
        let look = bucket.peek(cost);
        if !look.is_allowed() || cost == 0 {
            return (look, None);
        }
        let permits: Vec<_> = (0..cost).map(|_| bucket.permit()).collect();
        (permits.last().map_or(look, |permit| *permit.decision()), Some(Charge::Permits(permits)))
    }

    fn take(&mut self, now: Micros, demand: Demand) -> (Decision, Option<Charge>) {
        if matches!(self.quota.kind(), AlgorithmKind::Concurrency(_)) {
            return self.take_permits(now, demand.cost);
        }
        let bucket = self.at(now);
        if demand.overdraft != Overdraft::Refuse && demand.cost > self.quota.limit() {
            assert_eq!(demand.max_wait, Micros::ZERO, "credit is given now or not at all");
            return (bucket.check_on_credit(demand.cost), None);
        }
        let tokens = bucket.reserve(demand.cost, demand.max_wait.into());
        (*tokens.decision(), Some(Charge::Tokens(tokens)))
    }
}

impl Subject for Memory {
    fn decide(&mut self, now: Micros, demand: Demand) -> ChargeResult {
        let (decision, charge) = match demand {
            Demand { effect: Effect::Probe, cost, .. } => (self.at(now).peek(cost), None),
            Demand { overdraft: Overdraft::Force, cost, .. } => {
                // Work that was done regardless is a commitment over a reservation of nothing.
                let bucket = self.at(now);
                if cost > self.quota.limit() {
                    return ChargeResult {
                        decision: bucket.check_on_credit(cost),
                        receipt: Receipt::default(),
                    };
                }
                let would = bucket.reserve(cost, Duration::MAX);
                let decision = *would.decision();
                would.cancel();
                bucket.reserve(0, Duration::ZERO).commit(cost);
                (decision, None)
            }
            _ => self.take(now, demand),
        };
        let mut receipt = Receipt::default();
        if let (Some(charge), true) = (charge, decision.is_granted()) {
            self.charged += 1;
            receipt = Receipt { cost: demand.cost, mark: self.charged, ..receipt };
            self.charges.insert(receipt.mark, charge);
        }
        ChargeResult { decision, receipt }
    }

    fn refund(&mut self, now: Micros, receipt: Receipt, cost: u64) {
        self.at(now);
        match self.charges.get_mut(&receipt.mark) {
            Some(Charge::Permits(permits)) => {
                permits.truncate(permits.len().saturating_sub(cost as usize));
            }
            Some(Charge::Tokens(_)) => {
                if let Some(Charge::Tokens(tokens)) = self.charges.remove(&receipt.mark) {
                    tokens.commit(receipt.cost.saturating_sub(cost));
                }
            }
            None => {}
        }
    }

    fn change(&mut self, now: Micros, quota: Quota, how: CarryOver) {
        let Err(error) = self.try_change(now, quota, how) else { return };
        let Some(Built::Limiter(old)) = self.built else { panic!("{error}") };
        let builder = Limiter::builder().clock(self.clock.clone()).capacity(Capacity::Keys(4));
        let new = leak(builder.replacing(old).build(quota));
        new.take_over(old);
        (self.built, self.quota) = (Some(Built::Limiter(new)), quota);
    }

    fn create(&mut self, now: Micros) {
        assert_eq!(self.home, Home::Throttle, "only a throttle is created");
        self.at(now);
    }
}

fn leak<T>(built: Result<T, BuildError>) -> &'static T {
    match built {
        Ok(built) => Box::leak(Box::new(built)),
        Err(error) => panic!("{error}"),
    }
}

/// Moves the hand by whole milliseconds.
pub(crate) fn advance(hand: &ClockHand, ms: u64) {
    hand.advance(Duration::from_millis(ms));
}
