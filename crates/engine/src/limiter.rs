//! One quota or several, for many keys.

use crate::{
    bucket::Bucket,
    build::{BuildError, LimiterBuilder},
    clock::Clock,
    denied::{Denied, DeniedKey},
    memory::{Space, decide_together},
    wait::Lines,
};
use std::{
    fmt,
    hash::{BuildHasher, Hash},
    sync::Arc,
};
use tidegate_core::{Bound, CarryOver, Decision, Micros, Quota};

/// Limits many keys by one quota or several, in memory.
///
/// ```
/// use tidegate_engine::Limiter;
///
/// let limiter = Limiter::new("100/min burst 2")?;
/// assert!(limiter.check("alice").is_allowed());
/// assert!(limiter.check("alice").is_allowed());
/// assert!(!limiter.check("alice").is_allowed());
/// assert!(limiter.check("bob").is_allowed());
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// A key is anything that can be hashed and shown; it is neither cloned nor kept. Memory is bounded from the
/// start (see [`LimiterBuilder::capacity`]), and keys that say nothing any more make room by themselves.
pub struct Limiter {
    space: Space,
    clock: Clock,
    hasher: foldhash::quality::RandomState,
    overflow: Overflow,
    denied: Option<Denied>,
    lines: Lines,
}

/// What can name a bucket: anything that can be hashed, and shown to an operator.
pub trait Key: Hash + fmt::Debug {}

impl<K: Hash + fmt::Debug + ?Sized> Key for K {}

/// What stands for a key in one limiter; see [`Limiter::mark`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(u64);

impl Mark {
    /// It as a number: another for almost every key, and the same for one key of one limiter as long as that is there.
    pub fn get(self) -> u64 {
        self.0
    }
}

/// What happens to a new key when the table is full of keys that have used something. A key that is limited always stays: no flood
/// of new keys gives it anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// It replaces the key near it that has used least and is not limited: new clients get their quota during a flood of random
    /// keys, and a key that was replaced gets again what it had used. Counted in [`Stats::replaced`]. Where all keys near it are
    /// limited, it shares. The default.
    #[default]
    Replace,
    /// It shares a bucket with other such keys: nobody gets more than the quota, some get less. Counted in
    /// [`Stats::overflowed`].
    Share,
    /// It is denied, and counted in [`Stats::overflowed`]. Always so for concurrency, where a shared permit could not be told apart.
    Deny,
}

/// How full a limiter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Keys that have room of their own at most: at least as many as it was made for.
    pub capacity: u64,
    /// Keys whose state is worth keeping now.
    pub live: u64,
    /// Cells that hold a key, live or not; they are used again before any more memory is.
    pub used: u64,
    /// How often a key found no room, and shared one or was denied.
    pub overflowed: u64,
    /// How many keys gave way to others.
    pub replaced: u64,
    /// The most memory that the table ever takes.
    pub bytes: u64,
}

/// How large a limiter is, as far as can be said without a look at every cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSize {
    /// Keys that have room of their own at most.
    pub capacity: u64,
    /// Cells that hold a key, live or not.
    pub used: u64,
    /// How often a key found no room, and shared one or was denied.
    pub overflowed: u64,
    /// How many keys gave way to others.
    pub replaced: u64,
    /// The most memory that the table ever takes.
    pub bytes: u64,
}

/// Who is told that a table is full, see [`LimiterBuilder::on_full`].
#[derive(Clone)]
pub(crate) struct FullListener(pub(crate) Arc<dyn Fn(TableSize) + Send + Sync>);

impl FullListener {
    pub(crate) fn tell(&self, size: TableSize) {
        (self.0)(size);
    }
}

impl fmt::Debug for FullListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FullListener")
    }
}

/// One question to one limiter, to be decided together with others by [`decide_all`].
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    pub(crate) limiter: &'a Limiter,
    pub(crate) owner: u64,
    pub(crate) cost: u64,
    pub(crate) tier: usize,
    pub(crate) patience: Micros,
}

impl Ask<'_> {
    /// The same question with another cost.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same question under another of the limiter's tiers; under the first if there is no such tier.
    #[must_use]
    pub fn tier(self, tier: usize) -> Self {
        Self { tier: if tier < self.limiter.tiers() { tier } else { 0 }, ..self }
    }
}

/// Decides several questions at once: either all are charged, or none is.
///
/// The answers come in the order of the questions; those that denied say so. Two questions for the same key of
/// the same limiter count as one with both costs. All are asked on the first limiter's clock.
///
/// ```
/// use tidegate_engine::{Limiter, decide_all};
///
/// let per_user = Limiter::new("1/min")?;
/// let per_address = Limiter::new("100/min")?;
/// let ask = || decide_all(&[per_user.ask("alice"), per_address.ask("192.0.2.1")]);
/// assert!(ask().iter().all(|decision| decision.is_allowed()));
/// assert!(!ask()[0].is_allowed());
/// assert_eq!(per_address.key("192.0.2.1").peek(1).remaining(), 99); // the denied one charged nothing
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
pub fn decide_all(asks: &[Ask<'_>]) -> Vec<Decision> {
    decide_together(asks)
}

impl Limiter {
    /// A limiter of one quota, on the machine's clock, with the default bound on memory.
    pub fn new<Q>(quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        Self::builder().build(quota)
    }

    /// A limiter with settings of its own.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    pub(crate) fn from_parts(
        space: Space,
        clock: Clock,
        hasher: foldhash::quality::RandomState,
        overflow: Overflow,
        denied: Option<Denied>,
        lines: Lines,
    ) -> Self {
        Self { space, clock, hasher, overflow, denied, lines }
    }

    /// Takes one token for `key`, now or not at all.
    #[inline]
    pub fn check<K: Key + ?Sized>(&self, key: &K) -> Decision {
        self.check_cost(key, 1)
    }

    /// Takes `cost` tokens for `key`, now or not at all. A cost of zero takes nothing: it is a peek.
    #[inline]
    pub fn check_cost<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        let owner = self.fingerprint(key);
        let decision = self.space.check(owner, &self.clock, cost, self.overflow);
        if let Some(denied) = &self.denied
            && !decision.is_granted()
        {
            denied.note(owner, &key);
        }
        decision
    }

    /// The bucket of one key, for everything else that can be done with it.
    pub fn key<K: Key + ?Sized>(&self, key: &K) -> Bucket<'_> {
        Bucket::of_key(self, self.fingerprint(key))
    }

    /// What stands for a key here, for whoever asks of it later or more than once.
    #[inline]
    pub fn mark<K: Key + ?Sized>(&self, key: &K) -> Mark {
        Mark(self.fingerprint(key))
    }

    /// The bucket of the key that this stands for, which must come from the same limiter.
    #[inline]
    pub fn marked(&self, mark: Mark) -> Bucket<'_> {
        Bucket::of_key(self, mark.0)
    }

    /// The bucket of one key under a tier; under the first if there is no such tier.
    #[cfg(feature = "tokio")]
    pub(crate) fn bucket<K: Key + ?Sized>(&self, key: &K, tier: usize) -> Bucket<'_> {
        let bucket = self.key(key);
        bucket.tier(tier).unwrap_or(bucket)
    }

    /// A question for one token, to be decided together with others.
    pub fn ask<K: Key + ?Sized>(&self, key: &K) -> Ask<'_> {
        self.ask_of(self.fingerprint(key))
    }

    /// The same for what stands for a key.
    pub(crate) fn ask_of(&self, owner: u64) -> Ask<'_> {
        Ask { limiter: self, owner, cost: 1, tier: 0, patience: Micros::ZERO }
    }

    /// Replaces the quota while running. Every key keeps its history, carried over as `how` says.
    ///
    /// The new quota must be of the same algorithm and windows, and need no more state than the old one. For anything else make a new limiter
    /// that [replaces](LimiterBuilder::replacing) this one.
    ///
    /// # Compared with Go's `golang.org/x/time/rate`
    ///
    /// A change of the rate alone does what `SetLimit` does, to the microsecond. A change of the burst differs from `SetBurst`
    /// by the difference of the bursts, so by one token where the burst changes by one: Go keeps the tokens that are
    /// available, and here the tokens that were used stay used. A quota without `burst` has the burst of its amount: from
    /// `5/s` to `10/s` both change; write `10/s burst 5` to change the rate alone. A reservation that was made before the change
    /// gives nothing back when it is cancelled after it; in Go it does.
    ///
    /// ```
    /// use tidegate_core::CarryOver;
    /// use tidegate_engine::Limiter;
    ///
    /// let limiter = Limiter::new("1/h burst 1")?;
    /// assert!(limiter.check("alice").is_allowed());
    /// assert!(!limiter.check("alice").is_allowed());
    /// limiter.change("1/h burst 2", CarryOver::default())?;
    /// assert!(limiter.check("alice").is_allowed(), "one of two is used; Go waits for an hour");
    /// assert!(!limiter.check("alice").is_allowed());
    /// # Ok::<(), tidegate_engine::BuildError>(())
    /// ```
    pub fn change<Q>(&self, quota: Q, how: CarryOver) -> Result<(), BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        self.change_all(&[quota], how)
    }

    /// Replaces all quotas while running, one by one in the order they were given; see [`change`](Self::change).
    pub fn change_all(&self, quotas: &[Quota], how: CarryOver) -> Result<(), BuildError> {
        self.can_change_all(quotas)?;
        self.space
            .change(quotas, how, self.clock.now())
            .map_err(|()| BuildError::different_quota(&self.quotas(), quotas))?;
        self.lines.wake_all_first();
        Ok(())
    }

    /// Whether [`change_all`](Self::change_all) can be done, and if not, why. Changes nothing.
    pub fn can_change_all(&self, quotas: &[Quota]) -> Result<(), BuildError> {
        let old = self.quotas();
        let shares_states =
            old.len() == quotas.len() && old.iter().zip(quotas).all(|(old, new)| new.shares_state(old));
        match shares_states && self.space.has_room_for(quotas) {
            true => Ok(()),
            false => Err(BuildError::different_quota(&old, quotas)),
        }
    }

    /// Takes over what `old` knows of its keys, for a limiter that was built to [replace](LimiterBuilder::replacing) it. Keys keep
    /// what they used under quotas that share a state with those of `old`; what other quotas of `old` counted is kept for the case
    /// that they come back. Where this table is too small for all keys, those that have used least are forgotten first, and limited
    /// ones are kept.
    pub fn take_over(&self, old: &Self) {
        self.space.take_over(&old.space, &self.clock);
        self.lines.wake_all_first();
    }

    /// How many tiers a call can choose from; one unless it was built with [`LimiterBuilder::build_tiers`].
    pub fn tiers(&self) -> usize {
        self.space.tiers()
    }

    /// The quotas that keys are limited by: all of them together, or one of the tiers.
    pub fn quotas(&self) -> Vec<Quota> {
        self.space.quotas()
    }

    /// The worst case of each quota, as this limiter's clock shows time.
    pub fn bounds(&self) -> Vec<Bound> {
        self.quotas().iter().map(|quota| self.clock.blur(quota.bound())).collect()
    }

    /// How full the table is. Looks at every cell: for operators, not for every request.
    pub fn stats(&self) -> Stats {
        let TableSize { capacity, used, overflowed, replaced, bytes } = self.size();
        Stats { capacity, live: self.space.live(self.clock.now()), used, overflowed, replaced, bytes }
    }

    /// How large the table is. It costs nothing; [`Limiter::stats`] says more.
    pub fn size(&self) -> TableSize {
        self.space.table().size()
    }

    /// The keys that were denied most often, if the limiter was told to watch them
    /// ([`LimiterBuilder::watch_denied`]).
    pub fn top_denied(&self) -> Vec<DeniedKey> {
        self.denied.as_ref().map(Denied::top).unwrap_or_default()
    }

    pub(crate) fn hasher(&self) -> foldhash::quality::RandomState {
        self.hasher.clone()
    }

    pub(crate) fn space(&self) -> &Space {
        &self.space
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(crate) fn overflow(&self) -> Overflow {
        self.overflow
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// 64 bits that stand for the key; zero stands for none.
    #[inline]
    pub(crate) fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.hasher.hash_one(key).max(1)
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let quotas: Vec<_> = self.quotas().iter().map(ToString::to_string).collect();
        f.debug_struct("Limiter").field("quotas", &quotas).field("clock", &self.clock).finish_non_exhaustive()
    }
}
