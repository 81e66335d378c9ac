//! One key in both places, and what is done to it.

use super::{Compared, dice::Dice, show};
use std::{collections::VecDeque, sync::Arc};
use tidegate_core::{AlgorithmKind, CarryOver, Demand, Micros, Quota, Rate, Receipt, StateEntries};
use tidegate_limiter::store::{
    KeyRef, QuotaSelection, SlotMode, StoreCharge, StoreCheck, StoreLimit, StoreRequest,
};

/// One key in both places.
pub(super) struct Pair {
    pub(super) limit: Arc<StoreLimit>,
    /// Limits that the key was counted by before. As in a fleet whose quotas are being changed, any of them may count it again.
    pub(super) others: Vec<Arc<StoreLimit>>,
    pub(super) key: String,
    /// Of all quotas that it ever had.
    pub(super) tags: Vec<u16>,
    pub(super) entries: StateEntries,
    pub(super) outstanding: Vec<Taken>,
    /// What was taken before a reset, and cannot be given back.
    pub(super) settled: Vec<Taken>,
    pub(super) last_wait: Micros,
    pub(super) last_reset: Micros,
    pub(super) story: VecDeque<String>,
}

/// A charge as both sides know it.
#[derive(Clone)]
pub(super) struct Taken {
    pub(super) place: KeyRef,
    pub(super) charged: StoreCharge,
    pub(super) receipts: Vec<Receipt>,
}

impl Taken {
    /// Whether it is a slot and nothing else.
    fn is_slot(&self) -> bool {
        matches!(self.place.limit.quotas(), [quota] if is_concurrency(quota))
    }
}

/// What one step does.
pub(super) enum Deed {
    Check(u64),
    Decide(Demand),
    TakeUpTo(u64),
    Refund(Taken, u64),
    RefundSettled(Taken),
    Reset,
    Renew(Taken),
}

impl Pair {
    pub(super) fn new(dice: &mut Dice, round: u64, index: usize) -> Self {
        let count = if dice.one_in(5) { 1 + dice.below(3) as usize } else { 1 };
        // Often several levels together, which go the shorter way.
        let kind = dice.one_in(2).then_some(0);
        let quotas: Vec<_> = (0..count).map(|_| dice.quota(kind.filter(|_| count > 1))).collect();
        // A rule of its own: two quotas in a few tens of thousands have the same tag.
        let name = format!("verify-{round}-{index}");
        let limit = StoreLimit::new(&name, quotas, QuotaSelection::All, CarryOver::Keep);
        let tags = limit.tags().to_vec();
        let story = VecDeque::from([format!("start with {}", show(limit.quotas()))]);
        Self {
            limit: Arc::new(limit),
            others: Vec::new(),
            tags,
            key: format!("{:x}-{round}-{index}", dice.next()),
            entries: StateEntries::new(),
            outstanding: Vec::new(),
            settled: Vec::new(),
            last_wait: Micros::ZERO,
            last_reset: Micros::ZERO,
            story,
        }
    }

    pub(super) fn place(&self) -> KeyRef {
        KeyRef { limit: self.limit.clone(), key: self.key.clone(), tier: 0 }
    }

    /// A time until the next step that is worth a look.
    pub(super) fn pause(&self, dice: &mut Dice, now: Micros) -> Micros {
        let quota = &self.limit.quotas()[0];
        let period = quota.rate().map_or(Micros::from_secs(1), Rate::period);
        match dice.below(10) {
            0..=2 => Micros::ZERO,
            3 => Micros::new(1),
            4 => Micros::new(period.get() * dice.below(13) / 12),
            5 => self.last_wait,
            6 => self.last_wait.since(Micros::new(1)),
            7 => Micros::new(period.get() - now.get() % period.get().max(1)),
            8 => self.last_reset,
            _ => Micros::new(dice.below(period.get().max(1)) / 10),
        }
    }

    pub(super) fn is_plain(&self) -> bool {
        let is_level = |quota: &Quota| {
            matches!(quota.kind(), AlgorithmKind::TokenBucket(_) | AlgorithmKind::LeakyBucket(_))
        };
        self.limit.quotas().iter().all(is_level)
    }

    pub(super) fn choose(&mut self, dice: &mut Dice, plainly: bool, done: &mut Compared) -> Deed {
        if dice.one_in(24) && !plainly {
            self.change(dice);
            done.changes += 1;
        } else if dice.one_in(3) && !self.others.is_empty() && !plainly {
            self.take_turns(dice);
            done.turns += 1;
        }
        let limit = self.limit.quotas().iter().map(Quota::limit).min().unwrap_or(1);
        let cost = match dice.below(8) {
            0..=3 => 1,
            4 => 1 + dice.below(3),
            5 => 1 + dice.below(limit),
            6 => limit,
            _ => limit.saturating_add(1 + dice.below(3)),
        };
        let patience = match dice.below(3) {
            0 => Micros::new(dice.below(2_000_000)),
            1 => self.last_wait,
            _ => Micros::MAX,
        };
        if plainly {
            return Deed::Check(cost);
        }
        match dice.below(20) {
            9 | 10 => Deed::Decide(Demand::with_max_wait(cost, patience)),
            11 => Deed::Decide(Demand::with_max_wait(cost, patience).with_overdraft()),
            // What was settled may be any cost.
            12 => Deed::Decide(Demand::forced(match dice.below(6) {
                0 => limit.saturating_mul(2_000),
                1 => 1 << 40,
                _ => cost,
            })),
            13 => Deed::Decide(Demand::probe(dice.below(cost + 1))),
            14 => Deed::TakeUpTo(cost),
            15 if !self.settled.is_empty() => {
                Deed::RefundSettled(self.settled.swap_remove(dice.below(self.settled.len() as u64) as usize))
            }
            15..=17 if !self.outstanding.is_empty() => {
                let which = dice.below(self.outstanding.len() as u64) as usize;
                let taken = self.outstanding.swap_remove(which);
                let most = taken.receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(1);
                Deed::Refund(taken, if dice.one_in(3) { most } else { 1 + dice.below(most) })
            }
            18 if self.outstanding.iter().any(Taken::is_slot) => {
                let which = self.outstanding.iter().position(Taken::is_slot).unwrap_or_default();
                Deed::Renew(self.outstanding.swap_remove(which))
            }
            19 if dice.one_in(3) => Deed::Reset,
            _ => Deed::Decide(Demand::new(cost)),
        }
    }

    /// Goes on under other quotas, mostly of the same algorithms.
    fn change(&mut self, dice: &mut Dice) {
        let how = if dice.one_in(6) { CarryOver::Reset } else { CarryOver::Keep };
        let kind = |quota: &Quota| quota.kind().index() as u64;
        let quotas: Vec<_> = self
            .limit
            .quotas()
            .iter()
            .map(|old| {
                let same = (!dice.one_in(6)).then(|| kind(old));
                // Tags are short: two quotas in a few tens of thousands have the same one.
                loop {
                    let quota = dice.quota(same);
                    if !self.tags.contains(&quota.tag()) {
                        return quota;
                    }
                }
            })
            .collect();
        self.tags.extend(quotas.iter().map(Quota::tag));
        self.note(format!("change to {}, {how:?}", show(&quotas)));
        let limit = Arc::new(StoreLimit::new(self.limit.name(), quotas, QuotaSelection::All, how));
        self.others.push(std::mem::replace(&mut self.limit, limit));
        self.others.truncate(3);
        self.keep_slots_only();
    }

    /// Only permits are given back after another quota has counted: what became of tokens then depends on it.
    fn keep_slots_only(&mut self) {
        self.outstanding.retain(Taken::is_slot);
        self.settled.retain(Taken::is_slot);
    }

    /// Goes on under one of the limits before.
    fn take_turns(&mut self, dice: &mut Dice) {
        let other = dice.below(self.others.len() as u64) as usize;
        std::mem::swap(&mut self.limit, &mut self.others[other]);
        self.keep_slots_only();
        self.note(format!("under {}, {:?}", show(self.limit.quotas()), self.limit.carry_over()));
    }

    /// What is outstanding cannot be given back any more.
    pub(super) fn settle(&mut self) {
        self.settled.append(&mut self.outstanding);
        self.settled.truncate(4);
    }

    pub(super) fn note(&mut self, line: String) {
        self.story.push_back(line);
        if self.story.len() > 60 {
            self.story.pop_front();
        }
    }

    pub(super) fn request(&self, deed: &Deed) -> StoreRequest {
        let place = self.place();
        let slots = SlotMode::Acquire;
        match deed {
            Deed::Check(cost) => {
                let (demand, slots) = (Demand::new(*cost), SlotMode::Peek);
                StoreRequest::Decide(vec![StoreCheck {
                    key_ref: place,
                    demand,
                    slot_mode: slots,
                    receipt: false,
                }])
            }
            Deed::Decide(demand) => StoreRequest::Decide(vec![StoreCheck {
                key_ref: place,
                demand: *demand,
                slot_mode: slots,
                receipt: true,
            }]),
            Deed::TakeUpTo(most) => StoreRequest::TakeUpTo(StoreCheck {
                key_ref: place,
                demand: Demand::new(*most),
                slot_mode: slots,
                receipt: true,
            }),
            Deed::Refund(taken, cost) => StoreRequest::Refund {
                key_ref: taken.place.clone(),
                charge: taken.charged.clone(),
                cost: *cost,
            },
            Deed::RefundSettled(taken) => {
                let cost = taken.receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(1);
                StoreRequest::Refund { key_ref: taken.place.clone(), charge: taken.charged.clone(), cost }
            }
            Deed::Reset => StoreRequest::Reset(place),
            Deed::Renew(taken) => {
                StoreRequest::Renew { key_ref: taken.place.clone(), receipt: taken.receipts[0] }
            }
        }
    }
}

pub(super) fn is_concurrency(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Concurrency(_))
}
