//! Temporary bans in a bounded table.
//!
//! ```text
//!   by key    fingerprint ──▶ expiry, ban count, name
//!   by end    (expiry, fingerprint), earliest first ──▶ eviction and cleanup
//! ```
//!
//! Without bans a check is one atomic load. Each call drops a few expired bans; there is no background sweep. Note
//! that in a full table the ban that ends first is evicted, even if it is the new one.

use super::ban_rule::{BanRule, DenialCounter};
use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    hash::BuildHasher,
    sync::{
        PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::{BuildError, Capacity, Clock, LimitKey, short_name};

/// A table of temporarily banned keys: addresses, users, anything that can be hashed.
///
/// ```
/// use std::time::Duration;
/// use tidegate_access::Bans;
/// use tidegate_limiter::Clock;
///
/// let (clock, manual_clock) = Clock::manual();
/// let bans = Bans::builder().clock(clock).rule("3/min for 1h".parse()?).build()?;
/// bans.ban("mallory", Duration::from_secs(60));
/// assert!(bans.check("mallory").is_some());
/// for denial in 1..=3 {
///     assert_eq!(bans.record_denial("eve").is_some(), denial == 3); // the third in a minute bans
/// }
/// manual_clock.advance(Duration::from_secs(3600));
/// assert_eq!((bans.check("mallory"), bans.check("eve")), (None, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A key is stored as 128 bits of a seeded hash, with a name for operators. With a million bans, the probability
/// that another key has the same fingerprint is about 10^-32. Keys of different types are different keys. Use
/// [`std::net::IpAddr::to_canonical`] for addresses, so that an IPv4-mapped address equals the IPv4 address, or
/// use [`crate::AccessControl`], which does.
pub struct Bans {
    clock: Clock,
    hashers: [foldhash::quality::RandomState; 2],
    capacity: usize,
    denial_counter: Option<DenialCounter>,
    /// The time at which the next ban can be dropped; [`NO_EXPIRY`] without bans.
    next_drop: AtomicU64,
    evicted: AtomicU64,
    table: RwLock<BanTable>,
}

/// The result of [`Bans::ban`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanOutcome {
    /// The key is banned now and was not before.
    Banned,
    /// The key was banned, and the ban is longer now.
    Extended,
    /// The key is already banned for as long or longer; nothing changed.
    Unchanged,
    /// The table is full of bans that all end later; the key is not banned. Counted in [`BanStats::evicted`].
    TableFull,
}

/// A banned key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BannedKey {
    /// The key as text, cut after 128 characters.
    pub key: String,
    /// The remaining time of the ban.
    pub remaining: Micros,
    /// The number of bans of this key that are still on record.
    pub ban_count: u32,
}

/// The usage of a table of bans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanStats {
    /// The maximum number of bans.
    pub capacity: u64,
    /// The number of stored bans, including expired ones that are not dropped yet.
    pub stored: u64,
    /// The number of bans that were evicted before their end because the table was full.
    pub evicted: u64,
    /// The number of denials that were not counted for lack of memory.
    pub uncounted_denials: u64,
}

/// The settings of [`Bans`].
#[derive(Clone, Debug)]
pub struct BansBuilder {
    clock: Option<Clock>,
    capacity: usize,
    rule: Option<BanRule>,
    denial_capacity: Capacity,
}

const DEFAULT_CAPACITY: usize = 100_000;
const DEFAULT_DENIAL_CAPACITY: Capacity = Capacity::Bytes(16 << 20);
/// Later than any time.
const NO_EXPIRY: u64 = u64::MAX;
/// The maximum number of expired bans that one call drops.
const MAX_DROPS_PER_CALL: usize = 8;

impl BansBuilder {
    /// Sets the clock; the system clock by default.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Sets the maximum number of bans; 100,000 by default. In a full table the ban that ends first is evicted,
    /// even if it is the new one, and [`BanStats::evicted`] counts it.
    #[must_use]
    pub fn capacity(self, bans: usize) -> Self {
        Self { capacity: bans, ..self }
    }

    /// Sets the rule that bans keys after repeated denials; see [`Bans::record_denial`].
    #[must_use]
    pub fn rule(self, rule: BanRule) -> Self {
        Self { rule: Some(rule), ..self }
    }

    /// Sets the memory for counting denials; 16 MiB by default. A key without room is neither counted nor banned,
    /// and [`BanStats::uncounted_denials`] counts its denials.
    #[must_use]
    pub fn denial_capacity(self, capacity: Capacity) -> Self {
        Self { denial_capacity: capacity, ..self }
    }

    /// Builds an empty table of bans.
    pub fn build(self) -> Result<Bans, BuildError> {
        if self.capacity == 0 {
            return Err(BuildError::ZeroCapacity);
        }
        let clock = self.clock.unwrap_or_default();
        let denial_counter = match self.rule {
            Some(rule) => Some(DenialCounter::new(rule, clock.clone(), self.denial_capacity)?),
            None => None,
        };
        Ok(Bans {
            clock,
            hashers: Default::default(),
            capacity: self.capacity,
            denial_counter,
            next_drop: AtomicU64::new(NO_EXPIRY),
            evicted: AtomicU64::new(0),
            table: RwLock::default(),
        })
    }
}

impl Bans {
    /// Returns a builder with the default settings.
    pub fn builder() -> BansBuilder {
        BansBuilder {
            clock: None,
            capacity: DEFAULT_CAPACITY,
            rule: None,
            denial_capacity: DEFAULT_DENIAL_CAPACITY,
        }
    }

    /// Returns the remaining time of the ban of a key; `None` if the key is not banned.
    #[inline]
    pub fn check<K: LimitKey + ?Sized>(&self, key: &K) -> Option<Micros> {
        match self.next_drop.load(Ordering::Acquire) {
            NO_EXPIRY => None,
            next_drop => self.check_table(key, next_drop),
        }
    }

    /// Bans a key from now on. A ban that ends later does not change: only [`Bans::lift`] shortens a ban.
    pub fn ban<K: LimitKey + ?Sized>(&self, key: &K, length: Duration) -> BanOutcome {
        let (owner, now) = (self.fingerprint(key), self.clock.now());
        let mut table = self.write();
        let outcome = self.insert_ban(&mut table, owner, &key, now, now.saturating_add(length.into()));
        self.update_next_drop(&table);
        outcome
    }

    /// Ends a ban and returns its remaining time. Also drops the ban count and the denials of the key.
    pub fn lift<K: LimitKey + ?Sized>(&self, key: &K) -> Option<Micros> {
        let (owner, now) = (self.fingerprint(key), self.clock.now());
        let mut table = self.write();
        let ban = table.remove(owner);
        self.update_next_drop(&table);
        drop(table);
        if let Some(counter) = &self.denial_counter {
            counter.reset(key);
        }
        ban.and_then(|ban| ban.remaining(now))
    }

    /// Counts a denial of the key, and bans it if the rule requires it. Returns the remaining time of the ban, if any.
    ///
    /// With `10/min for 1h` the tenth denial within a minute bans. Denials of a banned key are not counted, and
    /// after a ban the count restarts. Does nothing without a [`BansBuilder::rule`].
    pub fn record_denial<K: LimitKey + ?Sized>(&self, key: &K) -> Option<Micros> {
        if let Some(remaining) = self.check(key) {
            return Some(remaining);
        }
        let counter = self.denial_counter.as_ref()?;
        if !counter.record_denial(key) {
            return None;
        }
        let (owner, now) = (self.fingerprint(key), self.clock.now());
        let mut table = self.write();
        table.drop_if_expired(owner, now, self.retention());
        let before = table.bans.get(&owner);
        // Two threads may both record the last denial: the second finds the ban of the first.
        if before.is_none_or(|ban| ban.remaining(now).is_none()) {
            let length = counter.ban_length(before.map_or(0, |ban| ban.ban_count));
            self.insert_ban(&mut table, owner, &key, now, now.saturating_add(length));
        }
        let remaining = table.bans.get(&owner).and_then(|ban| ban.remaining(now));
        self.update_next_drop(&table);
        remaining
    }

    /// Returns up to `limit` banned keys, the longest remaining time first.
    pub fn active(&self, limit: usize) -> Vec<BannedKey> {
        let now = self.clock.now();
        let table = self.read();
        let bans = table.expirations.iter().rev().filter_map(|(_, owner)| table.bans.get(owner));
        let live = bans.map_while(|ban| {
            Some(BannedKey {
                key: ban.name.to_string(),
                remaining: ban.remaining(now)?,
                ban_count: ban.ban_count,
            })
        });
        live.take(limit).collect()
    }

    /// Returns the usage of the table.
    pub fn stats(&self) -> BanStats {
        BanStats {
            capacity: self.capacity as u64,
            stored: self.read().bans.len() as u64,
            evicted: self.evicted.load(Ordering::Relaxed),
            uncounted_denials: self.denial_counter.as_ref().map_or(0, DenialCounter::uncounted_denials),
        }
    }

    #[inline(never)]
    fn check_table<K: LimitKey + ?Sized>(&self, key: &K, next_drop: u64) -> Option<Micros> {
        let now = self.clock.now();
        // Cleans up a little, unless another thread holds the lock.
        if now.get() >= next_drop
            && let Ok(mut table) = self.table.try_write()
        {
            table.drop_expired(now, self.retention());
            self.update_next_drop(&table);
        }
        let owner = self.fingerprint(key);
        self.read().bans.get(&owner)?.remaining(now)
    }

    fn insert_ban(
        &self,
        table: &mut BanTable,
        owner: u128,
        key: &dyn fmt::Display,
        now: Micros,
        expires_at: Micros,
    ) -> BanOutcome {
        table.drop_expired(now, self.retention());
        table.drop_if_expired(owner, now, self.retention());
        if let Some(ban) = table.bans.get_mut(&owner) {
            let outcome = match ban.remaining(now) {
                Some(_) if expires_at <= ban.expires_at => return BanOutcome::Unchanged,
                Some(_) => BanOutcome::Extended,
                None => BanOutcome::Banned,
            };
            ban.ban_count = ban.ban_count.saturating_add(u32::from(outcome == BanOutcome::Banned));
            table.expirations.remove(&(ban.expires_at, owner));
            table.expirations.insert((expires_at, owner));
            ban.expires_at = expires_at;
            return outcome;
        }
        if table.bans.len() >= self.capacity
            && let Some(&(soonest, other)) = table.expirations.first()
        {
            if soonest > now {
                self.evicted.fetch_add(1, Ordering::Relaxed);
            }
            if soonest > expires_at {
                return BanOutcome::TableFull;
            }
            table.remove(other);
        }
        // The `Display` of a key may panic, so it runs before both insertions.
        let name = short_name(key).into();
        table.expirations.insert((expires_at, owner));
        table.bans.insert(owner, Ban { expires_at, ban_count: 1, name });
        BanOutcome::Banned
    }

    /// Stores the time of the next cleanup, before the lock is released.
    fn update_next_drop(&self, table: &BanTable) {
        let next = table
            .expirations
            .first()
            .map_or(NO_EXPIRY, |(until, _)| until.saturating_add(self.retention()).get());
        self.next_drop.store(next, Ordering::Release);
    }

    /// How long an expired ban is stored.
    fn retention(&self) -> Micros {
        self.denial_counter.as_ref().map_or(Micros::ZERO, DenialCounter::retention)
    }

    fn fingerprint<K: LimitKey + ?Sized>(&self, key: &K) -> u128 {
        let [high, low] = &self.hashers;
        u128::from(high.hash_one(key)) << 64 | u128::from(low.hash_one(key))
    }

    // A panic in the code of a key leaves the table consistent, so a poisoned lock is usable.
    fn read(&self) -> RwLockReadGuard<'_, BanTable> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BanTable> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Bans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bans").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct BanTable {
    bans: HashMap<u128, Ban, foldhash::quality::RandomState>,
    expirations: BTreeSet<(Micros, u128)>,
}

struct Ban {
    expires_at: Micros,
    ban_count: u32,
    name: Box<str>,
}

impl Ban {
    fn remaining(&self, now: Micros) -> Option<Micros> {
        (now < self.expires_at).then(|| self.expires_at.saturating_sub(now))
    }
}

impl BanTable {
    /// Drops some of the bans that expired `retention` ago.
    fn drop_expired(&mut self, now: Micros, retention: Micros) {
        for _ in 0..MAX_DROPS_PER_CALL {
            match self.expirations.first() {
                Some(&(until, owner)) if until.saturating_add(retention) <= now => self.remove(owner),
                _ => return,
            };
        }
    }

    /// Drops a ban that expired `retention` ago, regardless of how many expired before it.
    fn drop_if_expired(&mut self, owner: u128, now: Micros, retention: Micros) {
        if self.bans.get(&owner).is_some_and(|ban| ban.expires_at.saturating_add(retention) <= now) {
            self.remove(owner);
        }
    }

    fn remove(&mut self, owner: u128) -> Option<Ban> {
        let ban = self.bans.remove(&owner)?;
        self.expirations.remove(&(ban.expires_at, owner));
        Some(ban)
    }
}
