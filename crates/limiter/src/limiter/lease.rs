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

use crate::{clock::Clock, store::Charged};
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
pub struct Ahead {
    ttl: Micros,
    floor: u64,
    most: u64,
}

impl Default for Ahead {
    fn default() -> Self {
        Self { ttl: Micros::from_millis(200), floor: 8, most: u64::MAX }
    }
}

impl Ahead {
    /// How long tokens may lie here before they die; 200 ms unless told otherwise. It is how far the bound moves.
    #[must_use]
    pub fn ttl(self, ttl: Duration) -> Self {
        Self { ttl: Micros::from(ttl).max(Micros::from_millis(2)), ..self }
    }

    /// The fewest that are taken ahead; where there is less, each decision is asked for. 8 unless told otherwise.
    #[must_use]
    pub fn floor(self, tokens: u64) -> Self {
        Self { floor: tokens.max(1), ..self }
    }

    /// The most that are taken ahead at a time; an eighth of what the quota grants at once is never exceeded.
    #[must_use]
    pub fn most(self, tokens: u64) -> Self {
        Self { most: tokens.max(1), ..self }
    }

    pub(super) fn time_to_live(&self) -> Micros {
        self.ttl
    }
}

/// Keys that tokens are taken ahead for.
const MOST_KEYS: usize = 1_024;
/// How often a key is asked for, one by one, before tokens are taken ahead for it.
const WORTH_IT: u64 = 16;
/// Places in which keys are counted that may become worth it.
const CANDIDATES: usize = 1_024;
/// So many times its resolution tokens must live to be timed by a coarse clock.
const WORTH_COARSE: u64 = 8;
/// A lease is at most this part of what the quota grants at once.
const PART_OF_LIMIT: u64 = 8;
/// A lease is at most this part of what the store had left.
const PART_OF_REST: u64 = 4;
/// How long a key that has too little left goes without a lease.
const STRAIGHT: Micros = Micros::from_millis(5);

/// All leases of a limiter.
#[derive(Debug)]
pub(super) struct Leases {
    settings: Ahead,
    limit: u64,
    clock: Clock,
    /// How long tokens live by that clock.
    lifetime: Micros,
    hasher: foldhash::quality::RandomState,
    keys: ArcSwap<HashMap<u64, Arc<Balance>>>,
    /// A few bits of a key, and how often it was asked for.
    candidates: Box<[AtomicU64]>,
    promoting: Mutex<()>,
}

impl Leases {
    pub(super) fn new(settings: Ahead, limit: u64) -> Self {
        // A clock that shows a moment late is read in a fraction of the time. Tokens die that much earlier by it.
        let coarse = Clock::coarse();
        let late = coarse.resolution();
        let (clock, lifetime) = match settings.ttl.get() / late.get() {
            0..WORTH_COARSE => (Clock::system(), settings.ttl),
            _ => (coarse, settings.ttl.since(late)),
        };
        Self {
            settings,
            limit,
            clock,
            lifetime,
            hasher: foldhash::quality::RandomState::default(),
            keys: ArcSwap::default(),
            candidates: (0..CANDIDATES).map(|_| AtomicU64::new(0)).collect(),
            promoting: Mutex::new(()),
        }
    }

    /// The most tokens of one key that can die unspent in this process.
    pub(super) fn stranded(&self) -> u64 {
        self.most().saturating_mul(2)
    }

    pub(super) fn settings(&self) -> &Ahead {
        &self.settings
    }

    pub(super) fn now(&self) -> Micros {
        self.clock.now()
    }

    /// How long tokens live by [`Leases::now`], from before they were asked for.
    pub(super) fn lifetime(&self) -> Micros {
        self.lifetime
    }

    /// The balance of a key that has one.
    pub(super) fn balance(&self, key: &str) -> (u64, Option<Arc<Balance>>) {
        let owner = self.owner(key);
        (owner, self.keys.load().get(&owner).cloned())
    }

    /// Spends what is there without asking anyone; `None` when that is not enough.
    #[inline]
    pub(super) fn spend(&self, key: &str, cost: u64) -> Option<(Decision, Need)> {
        let keys = self.keys.load();
        let balance = keys.get(&self.owner(key))?;
        let now = self.clock.now();
        if let Some(left) = balance.spend(now, cost) {
            let need = match balance.wants_more(now, left) {
                true => Need::Refill(balance.clone()),
                false => Need::Nothing,
            };
            return Some((Decision::prefetched(self.limit, left.saturating_add(balance.rest())), need));
        }
        let retry = balance.denied_for(now)?;
        Some((Decision::deny(self.limit, retry), Need::Nothing))
    }

    /// Counts a key that was asked for one by one, and gives it a balance when that is worth it.
    pub(super) fn note(&self, owner: u64, key: &str) {
        let word = &self.candidates[owner as usize % CANDIDATES];
        let (tag, seen) = (owner & !0xff, word.load(Ordering::Relaxed));
        let count = if seen & !0xff == tag { (seen & 0xff) + 1 } else { 1 };
        if count < WORTH_IT {
            return word.store(tag | count, Ordering::Relaxed);
        }
        word.store(0, Ordering::Relaxed);
        let _guard = self.promoting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = HashMap::clone(&self.keys.load());
        if keys.len() >= MOST_KEYS {
            let now = self.clock.now();
            keys.retain(|_, balance| !balance.is_idle(now));
        }
        if keys.len() < MOST_KEYS {
            keys.entry(owner).or_insert_with(|| Arc::new(Balance::new(key, self.settings.floor)));
            self.keys.store(Arc::new(keys));
        }
    }

    /// Forgets what is held for a key.
    pub(super) fn forget(&self, key: &str) {
        let _guard = self.promoting.lock().unwrap_or_else(PoisonError::into_inner);
        let mut keys = HashMap::clone(&self.keys.load());
        if let Some(balance) = keys.remove(&self.owner(key)) {
            balance.clear();
            self.keys.store(Arc::new(keys));
        }
    }

    /// Takes back everything that is held, by key, with the proof of it.
    pub(super) fn empty(&self) -> Vec<(String, Charged, u64)> {
        let now = self.clock.now();
        let keys = self.keys.load();
        let held = keys.values().flat_map(|balance| {
            balance.empty(now).into_iter().map(|(charged, tokens)| (balance.key.clone(), charged, tokens))
        });
        held.collect()
    }

    /// How much to take now; `None` when there is too little to be worth it.
    pub(super) fn amount(&self, balance: &Balance, now: Micros) -> Option<u64> {
        let rest = balance.rest.load(Ordering::Relaxed);
        let amount = balance.size(now, &self.settings, self.most()).min(rest / PART_OF_REST);
        (amount >= self.settings.floor).then_some(amount)
    }

    fn most(&self) -> u64 {
        self.settings.most.min(self.limit / PART_OF_LIMIT).clamp(1, MOST_TOKENS)
    }

    fn owner(&self, key: &str) -> u64 {
        use std::hash::BuildHasher as _;
        self.hasher.hash_one(key)
    }
}

/// What is to be done after a token was spent.
pub(super) enum Need {
    Nothing,
    /// It is time to take more, before the last is spent.
    Refill(Arc<Balance>),
}

/// What is held for one key: two slots, one of which is spent while the other is filled.
///
/// A slot is one word, so that its tokens and the moment of their death are read and changed together.
#[derive(Debug)]
pub(super) struct Balance {
    key: String,
    slots: [AtomicU64; 2],
    proofs: Mutex<[Charged; 2]>,
    is_filling: AtomicBool,
    /// How many to take next.
    size: AtomicU64,
    filled_at: AtomicU64,
    /// What the store had left when it was last asked.
    rest: AtomicU64,
    denied_until: AtomicU64,
}

/// Tokens in the upper bits of a slot, the moment of their death in the others, in 1024ths of a second or so: 34 years.
const TOKEN_BITS: u32 = 24;
const MOST_TOKENS: u64 = (1 << TOKEN_BITS) - 1;
const DEATH_BITS: u32 = 64 - TOKEN_BITS;
const DEATH: u64 = (1 << DEATH_BITS) - 1;

/// Rounded down: tokens die early rather than late.
fn tick(moment: Micros) -> u64 {
    (moment.get() >> 10) & DEATH
}

impl Balance {
    /// Nothing is held; the first lease will be of this size.
    pub(super) fn new(key: &str, size: u64) -> Self {
        Self {
            key: key.to_owned(),
            slots: [AtomicU64::new(0), AtomicU64::new(0)],
            proofs: Mutex::default(),
            is_filling: AtomicBool::new(false),
            size: AtomicU64::new(size),
            filled_at: AtomicU64::new(0),
            rest: AtomicU64::new(u64::MAX),
            denied_until: AtomicU64::new(0),
        }
    }

    /// Spends `cost` out of one slot; what is left in it, or `None` if there is not enough.
    #[inline]
    pub(super) fn spend(&self, now: Micros, cost: u64) -> Option<u64> {
        let now = tick(now);
        for slot in &self.slots {
            let mut word = slot.load(Ordering::Acquire);
            while word & DEATH > now && word >> DEATH_BITS >= cost {
                let next = word - (cost << DEATH_BITS);
                match slot.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return Some(next >> DEATH_BITS),
                    Err(other) => word = other,
                }
            }
        }
        None
    }

    /// Puts tokens into a slot that holds none, and says which: those that the store debited after it was asked at
    /// `asked`. `None` when both slots still hold some; the tokens are then lost.
    pub(super) fn put(&self, now: Micros, asked: Micros, ttl: Micros, tokens: u64) -> Option<usize> {
        let (now, death) = (tick(now), tick(asked.plus(ttl)));
        let word = tokens.min(MOST_TOKENS) << DEATH_BITS | death;
        self.slots.iter().position(|slot| {
            let seen = slot.load(Ordering::Acquire);
            let is_empty = seen >> DEATH_BITS == 0 || seen & DEATH <= now;
            // Nobody spends from an empty slot, and only one fills it.
            is_empty && slot.compare_exchange(seen, word, Ordering::AcqRel, Ordering::Acquire).is_ok()
        })
    }

    /// Keeps the proof of what is in a slot.
    pub(super) fn prove(&self, slot: usize, charged: Charged) {
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)[slot] = charged;
    }

    /// Takes out everything that is alive, with the proof of it.
    fn empty(&self, now: Micros) -> Vec<(Charged, u64)> {
        let proofs = self.proofs.lock().unwrap_or_else(PoisonError::into_inner);
        let left = self.slots.iter().zip(proofs.iter()).filter_map(|(slot, charged)| {
            let word = slot.swap(0, Ordering::AcqRel);
            let tokens = word >> DEATH_BITS;
            (tokens > 0 && word & DEATH > tick(now)).then(|| (charged.clone(), tokens))
        });
        left.collect()
    }

    /// Whether it is time to take more, and nobody does yet: to be followed by [`Balance::filled`].
    fn wants_more(&self, now: Micros, left: u64) -> bool {
        let is_low = left <= self.size.load(Ordering::Relaxed) / 2;
        is_low && self.has_room(now) && self.start_filling()
    }

    /// Whether a slot is empty or dead.
    fn has_room(&self, now: Micros) -> bool {
        let now = tick(now);
        let is_empty = |word: u64| word >> DEATH_BITS == 0 || word & DEATH <= now;
        self.slots.iter().any(|slot| is_empty(slot.load(Ordering::Relaxed)))
    }

    pub(super) fn start_filling(&self) -> bool {
        !self.is_filling.load(Ordering::Relaxed) && !self.is_filling.swap(true, Ordering::AcqRel)
    }

    pub(super) fn filled(&self) {
        self.is_filling.store(false, Ordering::Release);
    }

    /// What the store has left, as far as it is known.
    pub(super) fn knows(&self, now: Micros, decision: &Decision) {
        self.rest.store(decision.remaining(), Ordering::Relaxed);
        let denied = decision.retry_after().map_or(Micros::ZERO, |wait| now.plus(wait));
        self.denied_until.store(denied.get(), Ordering::Relaxed);
    }

    /// A key that has too little left goes without leases for a while, then tries again.
    pub(super) fn go_straight(&self, now: Micros) -> bool {
        let straight = now.since(Micros::new(self.filled_at.load(Ordering::Relaxed))) < STRAIGHT;
        if !straight {
            self.filled_at.store(now.get(), Ordering::Relaxed);
        }
        straight
    }

    /// What was left may have grown since: the next lease finds out.
    pub(super) fn forget_rest(&self) {
        self.rest.store(u64::MAX, Ordering::Relaxed);
    }

    fn rest(&self) -> u64 {
        match self.rest.load(Ordering::Relaxed) {
            u64::MAX => 0,
            rest => rest,
        }
    }

    /// How long a denial still holds that the store has told.
    fn denied_for(&self, now: Micros) -> Option<Micros> {
        let wait = Micros::new(self.denied_until.load(Ordering::Relaxed)).since(now);
        (wait > Micros::ZERO).then_some(wait)
    }

    /// The size of the next lease: twice the last if that was spent in less than half its time, half of it if much of
    /// it died.
    fn size(&self, now: Micros, settings: &Ahead, most: u64) -> u64 {
        let last = Micros::new(self.filled_at.swap(now.get(), Ordering::Relaxed));
        let size = self.size.load(Ordering::Relaxed);
        let age = now.since(last);
        let next = if age < Micros::new(settings.ttl.get() / 2) {
            size.saturating_mul(2)
        } else if age > settings.ttl {
            size / 2
        } else {
            size
        };
        let next = next.clamp(settings.floor, most.max(settings.floor));
        self.size.store(next, Ordering::Relaxed);
        next
    }

    fn is_idle(&self, now: Micros) -> bool {
        let now = tick(now);
        self.slots.iter().all(|slot| slot.load(Ordering::Relaxed) & DEATH <= now)
    }

    fn clear(&self) {
        self.slots.iter().for_each(|slot| slot.store(0, Ordering::Release));
        self.denied_until.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod model;
