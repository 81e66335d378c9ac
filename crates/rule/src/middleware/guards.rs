//! One guard for each key: a breaker for each host, an adaptive limit for each route.
//!
//! No flood of keys may make a guard forget what it knows, or take memory without end. So guards that are full of others'
//! keys give newcomers one guard that they share, and only a guard that has long been idle makes room.

use std::{
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::{BuildHasher, Hash},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::Clock;

/// A guard for each key.
///
/// ```
/// use tidegate_overload::{Breaker, BreakerSettings, CallGuard as _};
/// use tidegate_rule::middleware::Guards;
///
/// let settings = BreakerSettings::builder().count_window(1).build()?;
/// let breakers = Guards::builder().max_keys(100).build(move || Breaker::new(settings.clone()));
/// breakers.get("orders.test").try_acquire()?.fail();
/// assert!(breakers.get("orders.test").try_acquire().is_err());
/// assert!(breakers.get("users.test").try_acquire().is_ok());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Guards<G> {
    table: Mutex<GuardTable<G>>,
    /// For keys that there is no room for.
    fallback: Arc<G>,
    make: Box<dyn Fn() -> G + Send + Sync>,
    settings: GuardsBuilder,
    hasher: RandomState,
}

struct GuardTable<G> {
    guards: HashMap<u64, GuardEntry<G>>,
    /// Looking for idle ones before this is not worth it.
    next_sweep: Micros,
}

struct GuardEntry<G> {
    guard: Arc<G>,
    last_used: Micros,
}

/// Settings of [`Guards`].
#[derive(Clone, Debug)]
pub struct GuardsBuilder {
    max_keys: usize,
    idle_timeout: Micros,
    clock: Clock,
}

/// Of no kind yet: what is built says which.
impl Guards<()> {
    /// Guards with settings of their own.
    pub fn builder() -> GuardsBuilder {
        GuardsBuilder { max_keys: 1_024, idle_timeout: Micros::from_secs(600), clock: Clock::default() }
    }
}

impl<G> Guards<G> {
    /// The guard of one key, the same for all who ask while it is in use.
    pub fn get<K: Hash + ?Sized>(&self, key: &K) -> Arc<G> {
        let fingerprint = self.hasher.hash_one(key);
        let now = self.settings.clock.now();
        let mut known = self.lock();
        if let Some(entry) = known.guards.get_mut(&fingerprint) {
            entry.last_used = now;
            return entry.guard.clone();
        }
        if known.guards.len() >= self.settings.max_keys && now >= known.next_sweep {
            // Looked for at most sixty-four times in the time that makes one idle, however many keys come.
            known.next_sweep = now.plus(Micros::new(self.settings.idle_timeout.get() / 64));
            let idle = self.settings.idle_timeout;
            known.guards.retain(|_, entry| entry.is_in_use() || now.since(entry.last_used) < idle);
        }
        if known.guards.len() >= self.settings.max_keys {
            return self.fallback.clone();
        }
        let guard = Arc::new((self.make)());
        known.guards.insert(fingerprint, GuardEntry { guard: guard.clone(), last_used: now });
        guard
    }

    /// How many keys have a guard of their own.
    pub fn count(&self) -> usize {
        self.lock().guards.len()
    }

    fn lock(&self) -> MutexGuard<'_, GuardTable<G>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G> GuardEntry<G> {
    /// Whether somebody has a pass of it, or holds it.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.guard) > 1
    }
}

impl GuardsBuilder {
    /// How many keys may have a guard of their own, 1024 unless told otherwise. The others share one.
    #[must_use]
    pub fn max_keys(self, keys: usize) -> Self {
        Self { max_keys: keys, ..self }
    }

    /// After how long without a call a guard makes room for others; ten minutes unless told otherwise. Longer than a
    /// breaker stays open, or it would be closed by that.
    #[must_use]
    pub fn idle_timeout(self, time: Duration) -> Self {
        Self { idle_timeout: time.into(), ..self }
    }

    /// The clock by which a guard is idle; the machine's unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Guards that are made by `make` when their key is first asked for. It must not ask these guards itself.
    pub fn build<G>(self, make: impl Fn() -> G + Send + Sync + 'static) -> Guards<G> {
        let known = GuardTable { guards: HashMap::new(), next_sweep: Micros::ZERO };
        Guards {
            table: Mutex::new(known),
            fallback: Arc::new(make()),
            make: Box::new(make),
            settings: self,
            hasher: RandomState::new(),
        }
    }
}

impl<G> fmt::Debug for Guards<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guards({} of {})", self.count(), self.settings.max_keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_flood_does_not_evict_active_guard() {
        let (clock, manual_clock) = Clock::manual();
        let guards = Guards::builder().max_keys(3).clock(clock).build(|| ());
        let mine = guards.get("mine");
        let kept = Arc::as_ptr(&mine);
        drop(mine);
        let shared =
            (0..1_000).map(|key| Arc::as_ptr(&guards.get(&key))).collect::<std::collections::HashSet<_>>();
        assert_eq!(guards.count(), 3);
        assert_eq!(shared.len(), 3, "two of their own, and one for all the others");
        assert_eq!(Arc::as_ptr(&guards.get("mine")), kept);

        manual_clock.advance(Duration::from_secs(599));
        let in_use = guards.get("mine");
        manual_clock.advance(Duration::from_secs(1));
        let newcomer = guards.get("newcomer");
        assert_eq!(guards.count(), 2, "the idle made room");
        assert_eq!(Arc::as_ptr(&guards.get("mine")), kept);
        manual_clock.advance(Duration::from_secs(6_000));
        for key in 0..10 {
            guards.get(&key);
        }
        assert_eq!(Arc::as_ptr(&guards.get("mine")), kept, "somebody holds it");
        drop((in_use, newcomer));
    }
}
