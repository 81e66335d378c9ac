//! Bans that end by themselves, in a bounded table.
//!
//! ```text
//!   by key    fingerprint ──▶ until, how often, name
//!   by end    (until, fingerprint), soonest first ──▶ who gives way, and what can be dropped
//! ```
//!
//! While nobody is banned a check is one load. Ended bans are dropped a few at a time by whoever comes by, never by a
//! sweep. The surprise: in a full table the ban that ends soonest gives way, be it the new one.

use super::automatic::{Automatic, BanRule};
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
use tidegate_limiter::{BuildError, Capacity, Clock, Key, short_name};

/// Keeps keys out for a time: addresses, users, anything that can be hashed.
///
/// ```
/// use std::time::Duration;
/// use tidegate_access::Bans;
/// use tidegate_limiter::Clock;
///
/// let (clock, hand) = Clock::manual();
/// let bans = Bans::builder().clock(clock).automatic("3/min for 1h".parse()?).build()?;
/// bans.ban("mallory", Duration::from_secs(60));
/// assert!(bans.check("mallory").is_some());
/// for denial in 1..=3 {
///     assert_eq!(bans.record_denial("eve").is_some(), denial == 3); // the third in a minute bans
/// }
/// hand.advance(Duration::from_secs(3600));
/// assert_eq!((bans.check("mallory"), bans.check("eve")), (None, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A key is kept as 128 bits of a seeded hash, with a name for operators: with a million bans, that anybody shares
/// the fingerprint of one has a chance of one in 10^32. Keys of different types are different keys; give an address
/// as [`std::net::IpAddr::to_canonical`], so that a mapped one is not another, or ask [`crate::AccessControl`], which does.
pub struct Bans {
    clock: Clock,
    hashers: [foldhash::quality::RandomState; 2],
    capacity: usize,
    automatic: Option<Automatic>,
    /// When the next ban can be dropped. [`NOBODY`] while there is none.
    next_drop: AtomicU64,
    displaced: AtomicU64,
    table: RwLock<Table>,
}

/// What became of a ban.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BanOutcome {
    /// The key was not banned, and is now.
    Banned,
    /// The key was banned, and now is for longer.
    Extended,
    /// The key was banned for as long or longer already: nothing changed.
    Kept,
    /// The table is full of bans that all end later: the key is not banned. Counted in [`BanStats::displaced`].
    NoRoom,
}

/// A key that is banned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BannedKey {
    /// The key as it is written out, cut after 128 characters.
    pub key: String,
    /// How long it still is.
    pub remaining: Micros,
    /// How often it was banned, as far as is remembered.
    pub times: u32,
}

/// How full a table of bans is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BanStats {
    /// Bans that it has room for.
    pub capacity: u64,
    /// Bans that it holds, ended ones that are not dropped yet among them.
    pub held: u64,
    /// Bans that gave way before their end because there was no room.
    pub displaced: u64,
    /// Denials that were not counted because there was no room to count them.
    pub uncounted: u64,
}

/// Settings of [`Bans`].
#[derive(Clone, Debug)]
pub struct BansBuilder {
    clock: Option<Clock>,
    capacity: usize,
    rule: Option<BanRule>,
    counting: Capacity,
}

const DEFAULT_CAPACITY: usize = 100_000;
const DEFAULT_COUNTING: Capacity = Capacity::Bytes(16 << 20);
/// Later than any moment.
const NOBODY: u64 = u64::MAX;
/// Ended bans that one call drops at most.
const DROPPED_AT_ONCE: usize = 8;

impl BansBuilder {
    /// The clock; the machine's exact one unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Bans at the same time at most; 100,000 unless told otherwise. In a full table the ban that ends soonest gives
    /// way, be it the new one, and [`BanStats::displaced`] counts it.
    #[must_use]
    pub fn capacity(self, bans: usize) -> Self {
        Self { capacity: bans, ..self }
    }

    /// Bans keys that are denied too often, as [`Bans::record_denial`] hears of it.
    #[must_use]
    pub fn automatic(self, rule: BanRule) -> Self {
        Self { rule: Some(rule), ..self }
    }

    /// Memory to count denials in; 16 MiB unless told otherwise. A key that finds no room is not counted and so not
    /// banned, and [`BanStats::uncounted`] says how often that was.
    #[must_use]
    pub fn counting(self, capacity: Capacity) -> Self {
        Self { counting: capacity, ..self }
    }

    /// An empty table of bans.
    pub fn build(self) -> Result<Bans, BuildError> {
        if self.capacity == 0 {
            return Err(BuildError::NoRoom);
        }
        let clock = self.clock.unwrap_or_default();
        let automatic = match self.rule {
            Some(rule) => Some(Automatic::new(rule, clock.clone(), self.counting)?),
            None => None,
        };
        Ok(Bans {
            clock,
            hashers: Default::default(),
            capacity: self.capacity,
            automatic,
            next_drop: AtomicU64::new(NOBODY),
            displaced: AtomicU64::new(0),
            table: RwLock::default(),
        })
    }
}

impl Bans {
    /// Bans with settings of their own.
    pub fn builder() -> BansBuilder {
        BansBuilder { clock: None, capacity: DEFAULT_CAPACITY, rule: None, counting: DEFAULT_COUNTING }
    }

    /// How long the key is banned from now on; `None` if it is not.
    #[inline]
    pub fn check<K: Key + ?Sized>(&self, key: &K) -> Option<Micros> {
        match self.next_drop.load(Ordering::Acquire) {
            NOBODY => None,
            next_drop => self.look(key, next_drop),
        }
    }

    /// Bans a key from now on. A ban that lasts longer already stays as it is: only [`Bans::lift`] shortens one.
    pub fn ban<K: Key + ?Sized>(&self, key: &K, length: Duration) -> BanOutcome {
        let (owner, now) = (self.fingerprint(key), self.clock.now());
        let mut table = self.write();
        let outcome = self.place(&mut table, owner, &key, now, now.plus(length.into()));
        self.finish(&table);
        outcome
    }

    /// Ends a ban, and says how long it would have lasted. Whatever was remembered of the key is forgotten, its
    /// denials too.
    pub fn lift<K: Key + ?Sized>(&self, key: &K) -> Option<Micros> {
        let (owner, now) = (self.fingerprint(key), self.clock.now());
        let mut table = self.write();
        let ban = table.remove(owner);
        self.finish(&table);
        drop(table);
        if let Some(automatic) = &self.automatic {
            automatic.forget(key);
        }
        ban.and_then(|ban| ban.remaining(now))
    }

    /// Counts a denial of the key, and bans it if that is one too many. Says how long the key is banned, if it is.
    ///
    /// Under `10/min for 1h` the tenth denial within a minute bans. Denials of a key that is banned are not counted,
    /// and after a ban the count starts anew. Does nothing unless built with [`BansBuilder::automatic`].
    pub fn record_denial<K: Key + ?Sized>(&self, key: &K) -> Option<Micros> {
        if let Some(remaining) = self.check(key) {
            return Some(remaining);
        }
        let automatic = self.automatic.as_ref()?;
        if !automatic.is_one_too_many(key) {
            return None;
        }
        let (owner, now) = (self.fingerprint(key), self.clock.now());
        let mut table = self.write();
        table.forget(owner, now, self.memory());
        let before = table.bans.get(&owner);
        // Two threads may both have seen the last denial: the second finds the ban of the first.
        if before.is_none_or(|ban| ban.remaining(now).is_none()) {
            let length = automatic.length_after(before.map_or(0, |ban| ban.times));
            self.place(&mut table, owner, &key, now, now.plus(length));
        }
        let remaining = table.bans.get(&owner).and_then(|ban| ban.remaining(now));
        self.finish(&table);
        remaining
    }

    /// Up to `most` of the keys that are banned, those that are for longest first.
    pub fn active(&self, most: usize) -> Vec<BannedKey> {
        let now = self.clock.now();
        let table = self.read();
        let bans = table.ends.iter().rev().filter_map(|(_, owner)| table.bans.get(owner));
        let live = bans.map_while(|ban| {
            Some(BannedKey { key: ban.name.to_string(), remaining: ban.remaining(now)?, times: ban.times })
        });
        live.take(most).collect()
    }

    /// How full the table is.
    pub fn stats(&self) -> BanStats {
        BanStats {
            capacity: self.capacity as u64,
            held: self.read().bans.len() as u64,
            displaced: self.displaced.load(Ordering::Relaxed),
            uncounted: self.automatic.as_ref().map_or(0, Automatic::uncounted),
        }
    }

    #[inline(never)]
    fn look<K: Key + ?Sized>(&self, key: &K, next_drop: u64) -> Option<Micros> {
        let now = self.clock.now();
        // Whoever comes by tidies up a little, unless another is at it.
        if now.get() >= next_drop
            && let Ok(mut table) = self.table.try_write()
        {
            table.drop_ended(now, self.memory());
            self.finish(&table);
        }
        let owner = self.fingerprint(key);
        self.read().bans.get(&owner)?.remaining(now)
    }

    fn place(
        &self,
        table: &mut Table,
        owner: u128,
        key: &dyn fmt::Display,
        now: Micros,
        until: Micros,
    ) -> BanOutcome {
        table.drop_ended(now, self.memory());
        table.forget(owner, now, self.memory());
        if let Some(ban) = table.bans.get_mut(&owner) {
            let outcome = match ban.remaining(now) {
                Some(_) if until <= ban.until => return BanOutcome::Kept,
                Some(_) => BanOutcome::Extended,
                None => BanOutcome::Banned,
            };
            ban.times = ban.times.saturating_add(u32::from(outcome == BanOutcome::Banned));
            table.ends.remove(&(ban.until, owner));
            table.ends.insert((until, owner));
            ban.until = until;
            return outcome;
        }
        if table.bans.len() >= self.capacity
            && let Some(&(soonest, other)) = table.ends.first()
        {
            if soonest > now {
                self.displaced.fetch_add(1, Ordering::Relaxed);
            }
            if soonest > until {
                return BanOutcome::NoRoom;
            }
            table.remove(other);
        }
        // A key's own code may panic: not between these two.
        let name = short_name(key).into();
        table.ends.insert((until, owner));
        table.bans.insert(owner, Ban { until, times: 1, name });
        BanOutcome::Banned
    }

    /// Says when to tidy up next, before the lock is given back.
    fn finish(&self, table: &Table) {
        let next = table.ends.first().map_or(NOBODY, |(until, _)| until.plus(self.memory()).get());
        self.next_drop.store(next, Ordering::Release);
    }

    /// How long an ended ban is remembered.
    fn memory(&self) -> Micros {
        self.automatic.as_ref().map_or(Micros::ZERO, Automatic::memory)
    }

    fn fingerprint<K: Key + ?Sized>(&self, key: &K) -> u128 {
        let [high, low] = &self.hashers;
        u128::from(high.hash_one(key)) << 64 | u128::from(low.hash_one(key))
    }

    // Nothing is half-done when a key's own code panics, so that a poisoned lock is as good as any.
    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Bans {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bans").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Table {
    bans: HashMap<u128, Ban, foldhash::quality::RandomState>,
    ends: BTreeSet<(Micros, u128)>,
}

struct Ban {
    until: Micros,
    times: u32,
    name: Box<str>,
}

impl Ban {
    fn remaining(&self, now: Micros) -> Option<Micros> {
        (now < self.until).then(|| self.until.since(now))
    }
}

impl Table {
    /// Drops some of the bans that ended `memory` ago.
    fn drop_ended(&mut self, now: Micros, memory: Micros) {
        for _ in 0..DROPPED_AT_ONCE {
            match self.ends.first() {
                Some(&(until, owner)) if until.plus(memory) <= now => self.remove(owner),
                _ => return,
            };
        }
    }

    /// Drops a ban that ended `memory` ago, be there ever so many to be dropped before it.
    fn forget(&mut self, owner: u128, now: Micros, memory: Micros) {
        if self.bans.get(&owner).is_some_and(|ban| ban.until.plus(memory) <= now) {
            self.remove(owner);
        }
    }

    fn remove(&mut self, owner: u128) -> Option<Ban> {
        let ban = self.bans.remove(&owner)?;
        self.ends.remove(&(ban.until, owner));
        Some(ban)
    }
}
