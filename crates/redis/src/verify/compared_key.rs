//! A key that exists in Redis and in memory, and the random operations on it.

use super::{VerifyReport, format_quotas, rng::Rng};
use std::{collections::VecDeque, sync::Arc};
use tidegate_core::{AlgorithmKind, CarryOver, Demand, Micros, Quota, Rate, Receipt, StateEntries};
use tidegate_limiter::store::{
    KeyRef, PermitMode, QuotaSelection, StoreCharge, StoreCheck, StoreLimit, StoreRequest,
};

/// A key that exists in Redis and in memory.
pub(super) struct ComparedKey {
    pub(super) limit: Arc<StoreLimit>,
    /// Earlier limits of the key. Any of them may be used again, as in a fleet during a rollout of new quotas.
    pub(super) previous_limits: Vec<Arc<StoreLimit>>,
    pub(super) key: String,
    /// The tags of all quotas that the key ever had.
    pub(super) tags: Vec<u16>,
    pub(super) entries: StateEntries,
    pub(super) open_charges: Vec<ComparedCharge>,
    /// Charges from before a reset; their refund has no effect.
    pub(super) settled_charges: Vec<ComparedCharge>,
    pub(super) last_wait: Micros,
    pub(super) last_reset: Micros,
    pub(super) history: VecDeque<String>,
}

/// A charge with its receipts in Redis and in memory.
#[derive(Clone)]
pub(super) struct ComparedCharge {
    pub(super) key_ref: KeyRef,
    pub(super) redis_charge: StoreCharge,
    pub(super) memory_receipts: Vec<Receipt>,
}

impl ComparedCharge {
    /// Whether the charge is a concurrency permit only.
    fn is_slot(&self) -> bool {
        matches!(self.key_ref.limit.quotas(), [quota] if quota.is_concurrency())
    }
}

/// The operation of one step.
pub(super) enum VerifyOp {
    Check(u64),
    Decide(Demand),
    TakeUpTo(u64),
    Refund(ComparedCharge, u64),
    RefundSettled(ComparedCharge),
    Reset,
    Renew(ComparedCharge),
}

impl ComparedKey {
    pub(super) fn new(rng: &mut Rng, round: u64, index: usize) -> Self {
        let count = if rng.one_in(5) { 1 + rng.next_below(3) as usize } else { 1 };
        // Several buckets together are frequent, because they use the fast path.
        let kind = rng.one_in(2).then_some(0);
        let quotas: Vec<_> = (0..count).map(|_| rng.pick_quota(kind.filter(|_| count > 1))).collect();
        // Each key has its own rule: tags have 16 bits, so quotas of one rule could collide.
        let name = format!("verify-{round}-{index}");
        let limit = StoreLimit::new(&name, quotas, QuotaSelection::All, CarryOver::Keep);
        let tags = limit.tags().to_vec();
        let history = VecDeque::from([format!("start with {}", format_quotas(limit.quotas()))]);
        Self {
            limit: Arc::new(limit),
            previous_limits: Vec::new(),
            tags,
            key: format!("{:x}-{round}-{index}", rng.next_u64()),
            entries: StateEntries::new(),
            open_charges: Vec::new(),
            settled_charges: Vec::new(),
            last_wait: Micros::ZERO,
            last_reset: Micros::ZERO,
            history,
        }
    }

    pub(super) fn key_ref(&self) -> KeyRef {
        KeyRef { limit: self.limit.clone(), key: self.key.clone(), tier: 0 }
    }

    /// A pause before the next step, often at an edge of the algorithm.
    pub(super) fn pick_pause(&self, rng: &mut Rng, now: Micros) -> Micros {
        let quota = &self.limit.quotas()[0];
        let period = quota.rate().map_or(Micros::from_secs(1), Rate::period);
        match rng.next_below(10) {
            0..=2 => Micros::ZERO,
            3 => Micros::new(1),
            4 => Micros::new(period.get() * rng.next_below(13) / 12),
            5 => self.last_wait,
            6 => self.last_wait.saturating_sub(Micros::new(1)),
            7 => Micros::new(period.get() - now.get() % period.get().max(1)),
            8 => self.last_reset,
            _ => Micros::new(rng.next_below(period.get().max(1)) / 10),
        }
    }

    pub(super) fn is_fast_path(&self) -> bool {
        let is_level = |quota: &Quota| {
            matches!(quota.kind(), AlgorithmKind::TokenBucket(_) | AlgorithmKind::LeakyBucket(_))
        };
        self.limit.quotas().iter().all(is_level)
    }

    pub(super) fn pick_op(&mut self, rng: &mut Rng, fast_path: bool, done: &mut VerifyReport) -> VerifyOp {
        if rng.one_in(24) && !fast_path {
            self.change_quotas(rng);
            done.quota_changes += 1;
        } else if rng.one_in(3) && !self.previous_limits.is_empty() && !fast_path {
            self.switch_limit(rng);
            done.limit_switches += 1;
        }
        let limit = self.limit.quotas().iter().map(Quota::limit).min().unwrap_or(1);
        let cost = match rng.next_below(8) {
            0..=3 => 1,
            4 => 1 + rng.next_below(3),
            5 => 1 + rng.next_below(limit),
            6 => limit,
            _ => limit.saturating_add(1 + rng.next_below(3)),
        };
        let max_wait = match rng.next_below(3) {
            0 => Micros::new(rng.next_below(2_000_000)),
            1 => self.last_wait,
            _ => Micros::MAX,
        };
        if fast_path {
            return VerifyOp::Check(cost);
        }
        match rng.next_below(20) {
            9 | 10 => VerifyOp::Decide(Demand::with_max_wait(cost, max_wait)),
            11 => VerifyOp::Decide(Demand::with_max_wait(cost, max_wait).with_overdraft()),
            // A forced charge may have any cost.
            12 => VerifyOp::Decide(Demand::forced(match rng.next_below(6) {
                0 => limit.saturating_mul(2_000),
                1 => 1 << 40,
                _ => cost,
            })),
            13 => VerifyOp::Decide(Demand::peek(rng.next_below(cost + 1))),
            14 => VerifyOp::TakeUpTo(cost),
            15 if !self.settled_charges.is_empty() => VerifyOp::RefundSettled(
                self.settled_charges.swap_remove(rng.next_below(self.settled_charges.len() as u64) as usize),
            ),
            15..=17 if !self.open_charges.is_empty() => {
                let which = rng.next_below(self.open_charges.len() as u64) as usize;
                let charge = self.open_charges.swap_remove(which);
                let most = charge.memory_receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(1);
                VerifyOp::Refund(charge, if rng.one_in(3) { most } else { 1 + rng.next_below(most) })
            }
            18 if self.open_charges.iter().any(ComparedCharge::is_slot) => {
                let which = self.open_charges.iter().position(ComparedCharge::is_slot).unwrap_or_default();
                VerifyOp::Renew(self.open_charges.swap_remove(which))
            }
            19 if rng.one_in(3) => VerifyOp::Reset,
            _ => VerifyOp::Decide(Demand::new(cost)),
        }
    }

    /// Replaces the quotas, mostly by others of the same algorithms.
    fn change_quotas(&mut self, rng: &mut Rng) {
        let how = if rng.one_in(6) { CarryOver::Reset } else { CarryOver::Keep };
        let kind = |quota: &Quota| quota.kind().index() as u64;
        let quotas: Vec<_> = self
            .limit
            .quotas()
            .iter()
            .map(|old| {
                let same = (!rng.one_in(6)).then(|| kind(old));
                // Tags have 16 bits; a collision would make two quotas share a state.
                loop {
                    let quota = rng.pick_quota(same);
                    if !self.tags.contains(&quota.tag()) {
                        return quota;
                    }
                }
            })
            .collect();
        self.tags.extend(quotas.iter().map(Quota::tag));
        self.record_step(format!("change to {}, {how:?}", format_quotas(&quotas)));
        let limit = Arc::new(StoreLimit::new(self.limit.name(), quotas, QuotaSelection::All, how));
        self.previous_limits.push(std::mem::replace(&mut self.limit, limit));
        self.previous_limits.truncate(3);
        self.retain_slots();
    }

    /// Drops all charges except permits: after a change of quotas the effect of refunding tokens is not defined.
    fn retain_slots(&mut self) {
        self.open_charges.retain(ComparedCharge::is_slot);
        self.settled_charges.retain(ComparedCharge::is_slot);
    }

    /// Switches to one of the earlier limits.
    fn switch_limit(&mut self, rng: &mut Rng) {
        let other = rng.next_below(self.previous_limits.len() as u64) as usize;
        std::mem::swap(&mut self.limit, &mut self.previous_limits[other]);
        self.retain_slots();
        self.record_step(format!(
            "under {}, {:?}",
            format_quotas(self.limit.quotas()),
            self.limit.carry_over()
        ));
    }

    /// Marks the open charges as settled.
    pub(super) fn settle_charges(&mut self) {
        self.settled_charges.append(&mut self.open_charges);
        self.settled_charges.truncate(4);
    }

    pub(super) fn record_step(&mut self, line: String) {
        self.history.push_back(line);
        if self.history.len() > 60 {
            self.history.pop_front();
        }
    }

    pub(super) fn request_for(&self, op: &VerifyOp) -> StoreRequest {
        let key_ref = self.key_ref();
        let slots = PermitMode::Acquire;
        match op {
            VerifyOp::Check(cost) => {
                let (demand, slots) = (Demand::new(*cost), PermitMode::Peek);
                StoreRequest::Decide(vec![StoreCheck { key_ref, demand, permit_mode: slots, receipt: false }])
            }
            VerifyOp::Decide(demand) => StoreRequest::Decide(vec![StoreCheck {
                key_ref,
                demand: *demand,
                permit_mode: slots,
                receipt: true,
            }]),
            VerifyOp::TakeUpTo(most) => StoreRequest::TakeUpTo(StoreCheck {
                key_ref,
                demand: Demand::new(*most),
                permit_mode: slots,
                receipt: true,
            }),
            VerifyOp::Refund(charge, cost) => StoreRequest::Refund {
                key_ref: charge.key_ref.clone(),
                charge: charge.redis_charge.clone(),
                cost: *cost,
            },
            VerifyOp::RefundSettled(charge) => {
                let cost = charge.memory_receipts.iter().map(|receipt| receipt.cost).max().unwrap_or(1);
                StoreRequest::Refund {
                    key_ref: charge.key_ref.clone(),
                    charge: charge.redis_charge.clone(),
                    cost,
                }
            }
            VerifyOp::Reset => StoreRequest::Reset(key_ref),
            VerifyOp::Renew(charge) => {
                StoreRequest::Renew { key_ref: charge.key_ref.clone(), receipt: charge.memory_receipts[0] }
            }
        }
    }
}
