//! Prefetched tokens: debited from a shared store before their use, and spent in this process.
//!
//! ```text
//!   store   ──debit n──▶  slot │ tokens, expiry │   spent one by one, without a round trip
//! ```
//!
//! **Why it never admits too much.** A token is spent here only if the store has debited it before, and at most once: the
//! reply of the store is written to a slot once, and spending removes it by compare-and-swap. It is spent within its time
//! to live, measured on the monotonic clock of this process from before the debit was requested. So everything admitted in
//! a window `t` was debited in that window or at most one `ttl` before it, and the store debits no more than its quota
//! allows in `t + ttl`. A crash, a lost reply or a duplicate debit only loses tokens.
//!
//! **What it costs.** A process that crashes loses its unspent tokens: at most two slots per key. A limiter that is dropped
//! refunds its tokens.

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

/// Settings for prefetching tokens from a shared store.
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
    /// Sets the time to live of prefetched tokens; by default 200 ms. It widens the bound by the same time.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Micros::from(ttl).max(Micros::from_millis(2)), ..self }
    }

    /// Sets the smallest batch; with fewer tokens available, the store decides each check. By default 8.
    #[must_use]
    pub fn min_tokens(self, tokens: u64) -> Self {
        Self { min_tokens: tokens.max(1), ..self }
    }

    /// Sets the largest batch; it never exceeds an eighth of the quota's burst.
    #[must_use]
    pub fn max_tokens(self, tokens: u64) -> Self {
        Self { max_tokens: tokens.max(1), ..self }
    }

    pub(super) fn time_to_live(&self) -> Micros {
        self.ttl
    }
}

/// The maximum number of keys with prefetched tokens.
const MAX_KEYS: usize = 1_024;
/// The number of individual requests after which tokens of a key are prefetched.
const PROMOTION_THRESHOLD: u64 = 16;
/// The number of slots in which candidate keys are counted.
const CANDIDATE_SLOTS: usize = 1_024;
/// The coarse clock is used only if the time to live is at least this multiple of its resolution.
const MIN_COARSE_TICKS: u64 = 8;
/// A batch is at most this fraction of the quota's burst.
const LIMIT_DIVISOR: u64 = 8;
/// A batch is at most this fraction of the tokens that remained in the store.
const REMAINING_DIVISOR: u64 = 4;
/// How long prefetching pauses for a key with too few remaining tokens.
const BYPASS_PERIOD: Micros = Micros::from_millis(5);

/// All prefetched tokens of a limiter.
#[derive(Debug)]
pub(super) struct PrefetchCache {
    settings: TokenPrefetch,
    limit: u64,
    clock: Clock,
    /// The time to live on that clock.
    lifetime: Micros,
    hasher: foldhash::quality::RandomState,
    keys: ArcSwap<HashMap<u64, Arc<PrefetchedTokens>>>,
    /// Some bits of the hash of a key, and the number of its requests.
    candidates: Box<[AtomicU64]>,
    promotion_lock: Mutex<()>,
}

impl PrefetchCache {
    pub(super) fn new(settings: TokenPrefetch, limit: u64) -> Self {
        // The coarse clock is faster to read, but shows the time late: shorten the lifetime by its resolution.
        let coarse = Clock::coarse();
        let resolution = coarse.resolution();
        let (clock, lifetime) = match settings.ttl.get() / resolution.get() {
            0..MIN_COARSE_TICKS => (Clock::system(), settings.ttl),
            _ => (coarse, settings.ttl.saturating_sub(resolution)),
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

    /// The most tokens of one key that can expire unspent in this process.
    pub(super) fn max_stranded_tokens(&self) -> u64 {
        self.max_tokens().saturating_mul(2)
    }

    pub(super) fn settings(&self) -> &TokenPrefetch {
        &self.settings
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// The time to live by [`PrefetchCache::now`], starting before the request.
    pub(super) fn lifetime(&self) -> Micros {
        self.lifetime
    }

    /// The hash of a key, and its prefetched tokens if it has any.
    pub(super) fn find(&self, key: &str) -> (u64, Option<Arc<PrefetchedTokens>>) {
        let owner = self.hash_key(key);
        (owner, self.keys.load().get(&owner).cloned())
    }

    /// Spends prefetched tokens without a round trip; `None` if there are not enough.
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

    /// Counts a request of a key without prefetched tokens, and enables prefetching for it when it is busy enough.
    pub(super) fn record_request(&self, owner: u64, key: &str) {
        let word = &self.candidates[owner as usize % CANDIDATE_SLOTS];
        let (tag, current) = (owner & !0xff, word.load(Ordering::Relaxed));
        let count = if current & !0xff == tag { (current & 0xff) + 1 } else { 1 };
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

    /// Drops the prefetched tokens of a key.
    pub(super) fn remove(&self, key: &str) {
        let _guard = self.promotion_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = HashMap::clone(&self.keys.load());
        if let Some(balance) = keys.remove(&self.hash_key(key)) {
            balance.clear();
            self.keys.store(Arc::new(keys));
        }
    }

    /// Removes all unspent tokens and returns them by key, with their charges.
    pub(super) fn drain(&self) -> Vec<(String, StoreCharge, u64)> {
        let now = self.clock.now();
        let keys = self.keys.load();
        let drained = keys.values().flat_map(|balance| {
            balance.drain(now).into_iter().map(|(charge, tokens)| (balance.key.clone(), charge, tokens))
        });
        drained.collect()
    }

    /// The size of the next batch; `None` if it would be too small.
    pub(super) fn refill_amount(&self, balance: &PrefetchedTokens, now: Micros) -> Option<u64> {
        let remaining = balance.remaining.load(Ordering::Relaxed);
        let amount = balance
            .next_batch_size(now, &self.settings, self.max_tokens())
            .min(remaining / REMAINING_DIVISOR);
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

/// What to do after tokens were spent.
pub(super) enum RefillNeed {
    Nothing,
    /// Prefetch more, before the last token is spent.
    Refill(Arc<PrefetchedTokens>),
}

/// The prefetched tokens of one key: two slots, one of which is spent while the other is filled.
///
/// A slot is one word, so that its tokens and their expiry are read and changed atomically.
#[derive(Debug)]
pub(super) struct PrefetchedTokens {
    key: String,
    slots: [AtomicU64; 2],
    charges: Mutex<[StoreCharge; 2]>,
    is_refilling: AtomicBool,
    /// The size of the last batch.
    batch_size: AtomicU64,
    last_refill: AtomicU64,
    /// The tokens that remained in the store at its last reply.
    remaining: AtomicU64,
    denied_until: AtomicU64,
}

/// The upper bits of a slot hold the tokens, the lower bits their expiry in units of 1024 µs (wraps after 34 years).
const TOKEN_BITS: u32 = 24;
const MAX_TOKENS: u64 = (1 << TOKEN_BITS) - 1;
const EXPIRY_BITS: u32 = 64 - TOKEN_BITS;
const EXPIRY_MASK: u64 = (1 << EXPIRY_BITS) - 1;

/// Rounds down: tokens expire early rather than late.
fn expiry_tick(time: Micros) -> u64 {
    (time.get() >> 10) & EXPIRY_MASK
}

impl PrefetchedTokens {
    /// Creates empty slots; the first batch has this size.
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

    /// Spends `cost` from one slot; returns the tokens left in it, or `None` if there are not enough.
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

    /// Writes tokens to an empty slot and returns its index; the store debited them after `requested_at`. `None` if neither
    /// slot is empty; the tokens are then lost.
    pub(super) fn insert(
        &self,
        now: Micros,
        requested_at: Micros,
        ttl: Micros,
        tokens: u64,
    ) -> Option<usize> {
        let (now, expiry) = (expiry_tick(now), expiry_tick(requested_at.saturating_add(ttl)));
        let word = tokens.min(MAX_TOKENS) << EXPIRY_BITS | expiry;
        self.slots.iter().position(|slot| {
            let current = slot.load(Ordering::Acquire);
            let is_empty = current >> EXPIRY_BITS == 0 || current & EXPIRY_MASK <= now;
            // An empty slot is never spent from, and only one task fills it.
            is_empty && slot.compare_exchange(current, word, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// Stores the charge of the tokens in a slot.
    pub(super) fn set_charge(&self, slot: usize, charge: StoreCharge) {
        self.charges.lock().unwrap_or_else(PoisonError::into_inner)[slot] = charge;
    }

    /// Removes all tokens that have not expired, with their charges.
    fn drain(&self, now: Micros) -> Vec<(StoreCharge, u64)> {
        let charges = self.charges.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.slots.iter().zip(charges.iter()).filter_map(|(slot, charge)| {
            let word = slot.swap(0, Ordering::AcqRel);
            let tokens = word >> EXPIRY_BITS;
            (tokens > 0 && word & EXPIRY_MASK > expiry_tick(now)).then(|| (charge.clone(), tokens))
        });
        left.collect()
    }

    /// Whether to prefetch now, and starts the refill if so; the caller must call [`PrefetchedTokens::finish_refill`].
    fn should_refill(&self, now: Micros, left: u64) -> bool {
        let is_low = left <= self.batch_size.load(Ordering::Relaxed) / 2;
        is_low && self.has_room(now) && self.start_refill()
    }

    /// Whether a slot is empty or expired.
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

    /// Stores the remaining tokens and the denial of the latest reply.
    pub(super) fn update_remaining(&self, now: Micros, decision: &Decision) {
        self.remaining.store(decision.remaining(), Ordering::Relaxed);
        let denied = decision.retry_after().map_or(Micros::ZERO, |wait| now.saturating_add(wait));
        self.denied_until.store(denied.get(), Ordering::Relaxed);
    }

    /// Whether prefetching pauses because too few tokens remain; it is retried after `BYPASS_PERIOD`.
    pub(super) fn should_bypass(&self, now: Micros) -> bool {
        let is_paused =
            now.saturating_sub(Micros::new(self.last_refill.load(Ordering::Relaxed))) < BYPASS_PERIOD;
        if !is_paused {
            self.last_refill.store(now.get(), Ordering::Relaxed);
        }
        is_paused
    }

    /// Clears the known remaining count, which may have grown: the next batch refreshes it.
    pub(super) fn clear_remaining(&self) {
        self.remaining.store(u64::MAX, Ordering::Relaxed);
    }

    fn remaining(&self) -> u64 {
        match self.remaining.load(Ordering::Relaxed) {
            u64::MAX => 0,
            remaining => remaining,
        }
    }

    /// How long the latest denial of the store still applies.
    fn retry_after(&self, now: Micros) -> Option<Micros> {
        let wait = Micros::new(self.denied_until.load(Ordering::Relaxed)).saturating_sub(now);
        (wait > Micros::ZERO).then_some(wait)
    }

    /// The size of the next batch: twice the last if that was spent in less than half its time to live, half of it if it
    /// expired.
    fn next_batch_size(&self, now: Micros, settings: &TokenPrefetch, max_tokens: u64) -> u64 {
        let last = Micros::new(self.last_refill.swap(now.get(), Ordering::Relaxed));
        let size = self.batch_size.load(Ordering::Relaxed);
        let age = now.saturating_sub(last);
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
