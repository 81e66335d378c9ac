//! Leases: tokens that are debited from a shared store ahead of use, and spent in this process.
//!
//! ```text
//!   store   ──debit n──▶  slot │ tokens, when they die │   spent one by one, without asking anyone
//! ```
//!
//! **Why it never admits too much.** A token is spent here only if the store has debited it before, and at most once:
//! the store's answer is put into a slot once, and spending takes it out by compare-and-swap. It is spent within its
//! time to live, counted on this process's monotonic clock from before the debit was asked for. So whatever is admitted
//! in a stretch of time `t` was debited in that stretch or at most one `ttl` before it, and the store debits no more
//! than its quota allows in `t + ttl`. A crash, a lost answer or a debit done twice only loses tokens.
//!
//! **What it costs.** Tokens that die unspent when a process does: at most two slots of each key. A limiter that is
//! dropped gives back what it holds.

use crate::{clock::Clock, store::StoreCharge};
use arc_swap::ArcSwap;
use foldhash::HashMap;
use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Decision, Micros};

/// How tokens of a shared store are taken ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenPrefetch {
    ttl: Micros,
    min_tokens: u64,
    max_tokens: u64,
}

impl Default for TokenPrefetch {
    fn default() -> Self {
        Self { ttl: Micros::from_millis(200), min_tokens: 8, max_tokens: u64::MAX }
    }
}

impl TokenPrefetch {
    /// How long tokens may lie here before they die; 200 ms unless told otherwise. It is how far the bound moves.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Micros::from(ttl).max(Micros::from_millis(2)), ..self }
    }

    /// The fewest that are taken ahead; where there is less, each decision is asked for. 8 unless told otherwise.
    #[must_use]
    pub fn min_tokens(self, tokens: u64) -> Self {
        Self { min_tokens: tokens.max(1), ..self }
    }

    /// The most that are taken ahead at a time; an eighth of what the quota grants at once is never exceeded.
    #[must_use]
    pub fn max_tokens(self, tokens: u64) -> Self {
        Self { max_tokens: tokens.max(1), ..self }
    }

    pub(super) fn time_to_live(&self) -> Micros {
        self.ttl
    }
}

/// Keys that tokens are taken ahead for.
const MAX_KEYS: usize = 1_024;
/// How often a key is asked for, one by one, before tokens are taken ahead for it.
const PROMOTION_THRESHOLD: u64 = 16;
/// Places in which keys are counted that may become worth it.
const CANDIDATE_SLOTS: usize = 1_024;
/// So many times its resolution tokens must live to be timed by a coarse clock.
const MIN_COARSE_TICKS: u64 = 8;
/// A lease is at most this part of what the quota grants at once.
const LIMIT_DIVISOR: u64 = 8;
/// A lease is at most this part of what the store had left.
const REMAINING_DIVISOR: u64 = 4;
/// How long a key that has too little left goes without a lease.
const BYPASS_PERIOD: Micros = Micros::from_millis(5);

/// All leases of a limiter.
#[derive(Debug)]
pub(super) struct PrefetchCache {
    settings: TokenPrefetch,
    limit: u64,
    clock: Clock,
    /// How long tokens live by that clock.
    lifetime: Micros,
    hasher: foldhash::quality::RandomState,
    keys: ArcSwap<HashMap<u64, Arc<PrefetchedTokens>>>,
    /// A few bits of a key, and how often it was asked for.
    candidates: Box<[AtomicU64]>,
    promotion_lock: Mutex<()>,
}

impl PrefetchCache {
    pub(super) fn new(settings: TokenPrefetch, limit: u64) -> Self {
        // A clock that shows a moment late is read in a fraction of the time. Tokens die that much earlier by it.
        let coarse = Clock::coarse();
        let late = coarse.resolution();
        let (clock, lifetime) = match settings.ttl.get() / late.get() {
            0..MIN_COARSE_TICKS => (Clock::system(), settings.ttl),
            _ => (coarse, settings.ttl.since(late)),
        };
        Self {
            settings,
            limit,
            clock,
            lifetime,
            hasher: foldhash::quality::RandomState::default(),
            keys: ArcSwap::default(),
            candidates: (0..CANDIDATE_SLOTS).map(|_| AtomicU64::new(0)).collect(),
            promotion_lock: Mutex::new(()),
        }
    }

    /// The most tokens of one key that can die unspent in this process.
    pub(super) fn max_stranded_tokens(&self) -> u64 {
        self.max_tokens().saturating_mul(2)
    }

    pub(super) fn settings(&self) -> &TokenPrefetch {
        &self.settings
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// How long tokens live by [`PrefetchCache::now`], from before they were asked for.
    pub(super) fn lifetime(&self) -> Micros {
        self.lifetime
    }

    /// The balance of a key that has one.
    pub(super) fn find(&self, key: &str) -> (u64, Option<Arc<PrefetchedTokens>>) {
        let owner = self.hash_key(key);
        (owner, self.keys.load().get(&owner).cloned())
    }

    /// Spends what is there without asking anyone; `None` when that is not enough.
    #[inline]
    pub(super) fn spend(&self, key: &str, cost: u64) -> Option<(Decision, RefillNeed)> {
        let keys = self.keys.load();
        let balance = keys.get(&self.hash_key(key))?;
        let now = self.clock.now();
        if let Some(left) = balance.spend(now, cost) {
            let need = match balance.should_refill(now, left) {
                true => RefillNeed::Refill(balance.clone()),
                false => RefillNeed::Nothing,
            };
            return Some((Decision::prefetched(self.limit, left.saturating_add(balance.remaining())), need));
        }
        let retry = balance.retry_after(now)?;
        Some((Decision::deny(self.limit, retry), RefillNeed::Nothing))
    }

    /// Counts a key that was asked for one by one, and gives it a balance when that is worth it.
    pub(super) fn record_request(&self, owner: u64, key: &str) {
        let word = &self.candidates[owner as usize % CANDIDATE_SLOTS];
        let (tag, seen) = (owner & !0xff, word.load(Ordering::Relaxed));
        let count = if seen & !0xff == tag { (seen & 0xff) + 1 } else { 1 };
        if count < PROMOTION_THRESHOLD {
            return word.store(tag | count, Ordering::Relaxed);
        }
        word.store(0, Ordering::Relaxed);
        let _guard = self.promotion_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = HashMap::clone(&self.keys.load());
        if keys.len() >= MAX_KEYS {
            let now = self.clock.now();
            keys.retain(|_, balance| !balance.is_idle(now));
        }
        if keys.len() < MAX_KEYS {
            keys.entry(owner)
                .or_insert_with(|| Arc::new(PrefetchedTokens::new(key, self.settings.min_tokens)));
            self.keys.store(Arc::new(keys));
        }
    }

    /// Forgets what is held for a key.
    pub(super) fn remove(&self, key: &str) {
        let _guard = self.promotion_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = HashMap::clone(&self.keys.load());
        if let Some(balance) = keys.remove(&self.hash_key(key)) {
            balance.clear();
            self.keys.store(Arc::new(keys));
        }
    }

    /// Takes back everything that is held, by key, with the proof of it.
    pub(super) fn drain(&self) -> Vec<(String, StoreCharge, u64)> {
        let now = self.clock.now();
        let keys = self.keys.load();
        let held = keys.values().flat_map(|balance| {
            balance.drain(now).into_iter().map(|(charged, tokens)| (balance.key.clone(), charged, tokens))
        });
        held.collect()
    }

    /// How much to take now; `None` when there is too little to be worth it.
    pub(super) fn refill_amount(&self, balance: &PrefetchedTokens, now: Micros) -> Option<u64> {
        let rest = balance.remaining.load(Ordering::Relaxed);
        let amount =
            balance.next_batch_size(now, &self.settings, self.max_tokens()).min(rest / REMAINING_DIVISOR);
        (amount >= self.settings.min_tokens).then_some(amount)
    }

    fn max_tokens(&self) -> u64 {
        self.settings.max_tokens.min(self.limit / LIMIT_DIVISOR).clamp(1, MAX_TOKENS)
    }

    fn hash_key(&self, key: &str) -> u64 {
        use std::hash::BuildHasher as _;
        self.hasher.hash_one(key)
    }
}

/// What is to be done after a token was spent.
pub(super) enum RefillNeed {
    Nothing,
    /// It is time to take more, before the last is spent.
    Refill(Arc<PrefetchedTokens>),
}

/// What is held for one key: two slots, one of which is spent while the other is filled.
///
/// A slot is one word, so that its tokens and the moment of their death are read and changed together.
#[derive(Debug)]
pub(super) struct PrefetchedTokens {
    key: String,
    slots: [AtomicU64; 2],
    charges: Mutex<[StoreCharge; 2]>,
    is_refilling: AtomicBool,
    /// How many to take next.
    batch_size: AtomicU64,
    last_refill: AtomicU64,
    /// What the store had left when it was last asked.
    remaining: AtomicU64,
    denied_until: AtomicU64,
}

/// Tokens in the upper bits of a slot, the moment of their death in the others, in 1024ths of a second or so: 34 years.
const TOKEN_BITS: u32 = 24;
const MAX_TOKENS: u64 = (1 << TOKEN_BITS) - 1;
const EXPIRY_BITS: u32 = 64 - TOKEN_BITS;
const EXPIRY_MASK: u64 = (1 << EXPIRY_BITS) - 1;

/// Rounded down: tokens die early rather than late.
fn expiry_tick(moment: Micros) -> u64 {
    (moment.get() >> 10) & EXPIRY_MASK
}

impl PrefetchedTokens {
    /// Nothing is held; the first lease will be of this size.
    pub(super) fn new(key: &str, size: u64) -> Self {
        Self {
            key: key.to_owned(),
            slots: [AtomicU64::new(0), AtomicU64::new(0)],
            charges: Mutex::default(),
            is_refilling: AtomicBool::new(false),
            batch_size: AtomicU64::new(size),
            last_refill: AtomicU64::new(0),
            remaining: AtomicU64::new(u64::MAX),
            denied_until: AtomicU64::new(0),
        }
    }

    /// Spends `cost` out of one slot; what is left in it, or `None` if there is not enough.
    #[inline]
    pub(super) fn spend(&self, now: Micros, cost: u64) -> Option<u64> {
        let now = expiry_tick(now);
        for slot in &self.slots {
            let mut word = slot.load(Ordering::Acquire);
            while word & EXPIRY_MASK > now && word >> EXPIRY_BITS >= cost {
                let next = word - (cost << EXPIRY_BITS);
                match slot.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Some(next >> EXPIRY_BITS),
                    Err(other) => word = other,
                }
            }
        }
        None
    }

    /// Puts tokens into a slot that holds none, and says which: those that the store debited after it was asked at
    /// `asked`. `None` when both slots still hold some; the tokens are then lost.
    pub(super) fn insert(
        &self,
        now: Micros,
        requested_at: Micros,
        ttl: Micros,
        tokens: u64,
    ) -> Option<usize> {
        let (now, death) = (expiry_tick(now), expiry_tick(requested_at.plus(ttl)));
        let word = tokens.min(MAX_TOKENS) << EXPIRY_BITS | death;
        self.slots.iter().position(|slot| {
            let seen = slot.load(Ordering::Acquire);
            let is_empty = seen >> EXPIRY_BITS == 0 || seen & EXPIRY_MASK <= now;
            // Nobody spends from an empty slot, and only one fills it.
            is_empty && slot.compare_exchange(seen, word, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// Keeps the proof of what is in a slot.
    pub(super) fn set_charge(&self, slot: usize, charged: StoreCharge) {
        self.charges.lock().unwrap_or_else(PoisonError::into_inner)[slot] = charged;
    }

    /// Takes out everything that is alive, with the proof of it.
    fn drain(&self, now: Micros) -> Vec<(StoreCharge, u64)> {
        let proofs = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.slots.iter().zip(proofs.iter()).filter_map(|(slot, charged)| {
            let word = slot.swap(0, Ordering::AcqRel);
            let tokens = word >> EXPIRY_BITS;
            (tokens > 0 && word & EXPIRY_MASK > expiry_tick(now)).then(|| (charged.clone(), tokens))
        });
        left.collect()
    }

    /// Whether it is time to take more, and nobody does yet: to be followed by [`PrefetchedTokens::finish_refill`].
    fn should_refill(&self, now: Micros, left: u64) -> bool {
        let is_low = left <= self.batch_size.load(Ordering::Relaxed) / 2;
        is_low && self.has_room(now) && self.start_refill()
    }

    /// Whether a slot is empty or dead.
    fn has_room(&self, now: Micros) -> bool {
        let now = expiry_tick(now);
        let is_empty = |word: u64| word >> EXPIRY_BITS == 0 || word & EXPIRY_MASK <= now;
        self.slots.iter().any(|slot| is_empty(slot.load(Ordering::Relaxed)))
    }

    pub(super) fn start_refill(&self) -> bool {
        !self.is_refilling.load(Ordering::Relaxed) && !self.is_refilling.swap(true, Ordering::AcqRel)
    }

    pub(super) fn finish_refill(&self) {
        self.is_refilling.store(false, Ordering::Release);
    }

    /// What the store has left, as far as it is known.
    pub(super) fn update_remaining(&self, now: Micros, decision: &Decision) {
        self.remaining.store(decision.remaining(), Ordering::Relaxed);
        let denied = decision.retry_after().map_or(Micros::ZERO, |wait| now.plus(wait));
        self.denied_until.store(denied.get(), Ordering::Relaxed);
    }

    /// A key that has too little left goes without leases for a while, then tries again.
    pub(super) fn should_bypass(&self, now: Micros) -> bool {
        let straight = now.since(Micros::new(self.last_refill.load(Ordering::Relaxed))) < BYPASS_PERIOD;
        if !straight {
            self.last_refill.store(now.get(), Ordering::Relaxed);
        }
        straight
    }

    /// What was left may have grown since: the next lease finds out.
    pub(super) fn clear_remaining(&self) {
        self.remaining.store(u64::MAX, Ordering::Relaxed);
    }

    fn remaining(&self) -> u64 {
        match self.remaining.load(Ordering::Relaxed) {
            u64::MAX => 0,
            rest => rest,
        }
    }

    /// How long a denial still holds that the store has told.
    fn retry_after(&self, now: Micros) -> Option<Micros> {
        let wait = Micros::new(self.denied_until.load(Ordering::Relaxed)).since(now);
        (wait > Micros::ZERO).then_some(wait)
    }

    /// The size of the next lease: twice the last if that was spent in less than half its time, half of it if much of
    /// it died.
    fn next_batch_size(&self, now: Micros, settings: &TokenPrefetch, max_tokens: u64) -> u64 {
        let last = Micros::new(self.last_refill.swap(now.get(), Ordering::Relaxed));
        let size = self.batch_size.load(Ordering::Relaxed);
        let age = now.since(last);
        let next = if age < Micros::new(settings.ttl.get() / 2) {
            size.saturating_mul(2)
        } else if age > settings.ttl {
            size / 2
        } else {
            size
        };
        let next = next.clamp(settings.min_tokens, max_tokens.max(settings.min_tokens));
        self.batch_size.store(next, Ordering::Relaxed);
        next
    }

    fn is_idle(&self, now: Micros) -> bool {
        let now = expiry_tick(now);
        self.slots.iter().all(|slot| slot.load(Ordering::Relaxed) & EXPIRY_MASK <= now)
    }

    fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.store(0, Ordering::Release));
        self.denied_until.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod model;
