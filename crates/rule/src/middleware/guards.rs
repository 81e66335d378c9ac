//! One guard per key: a breaker per host, an adaptive limit per route.
//!
//! A flood of keys must neither evict the state of a guard nor use unbounded memory. Therefore new keys share
//! one guard when the table is full, and only idle guards are removed.

use std::{
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::{BuildHasher, Hash},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::Clock;

/// One guard per key.
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
    /// The guard of keys without an entry when the table is full.
    fallback: Arc<G>,
    make: Box<dyn Fn() -> G + Send + Sync>,
    settings: GuardsBuilder,
    hasher: RandomState,
}

struct GuardTable<G> {
    guards: HashMap<u64, GuardEntry<G>>,
    /// When to look for idle guards again.
    next_sweep: Micros,
}

struct GuardEntry<G> {
    guard: Arc<G>,
    last_used: Micros,
}

/// The settings of [`Guards`].
#[derive(Clone, Debug)]
pub struct GuardsBuilder {
    max_keys: usize,
    idle_timeout: Micros,
    clock: Clock,
}

/// The type parameter is determined by [`GuardsBuilder::build`].
impl Guards<()> {
    /// Creates a builder.
    pub fn builder() -> GuardsBuilder {
        GuardsBuilder { max_keys: 1_024, idle_timeout: Micros::from_secs(600), clock: Clock::default() }
    }
}

impl<G> Guards<G> {
    /// The guard of a key: the same one as long as it is in use.
    pub fn get<K: Hash + ?Sized>(&self, key: &K) -> Arc<G> {
        let fingerprint = self.hasher.hash_one(key);
        let now = self.settings.clock.now();
        let mut table = self.lock();
        if let Some(entry) = table.guards.get_mut(&fingerprint) {
            entry.last_used = now;
            return entry.guard.clone();
        }
        if table.guards.len() >= self.settings.max_keys && now >= table.next_sweep {
            // At most 64 sweeps per idle timeout, however many keys arrive.
            table.next_sweep = now.saturating_add(Micros::new(self.settings.idle_timeout.get() / 64));
            let idle = self.settings.idle_timeout;
            table.guards.retain(|_, entry| entry.is_in_use() || now.saturating_sub(entry.last_used) < idle);
        }
        if table.guards.len() >= self.settings.max_keys {
            return self.fallback.clone();
        }
        let guard = Arc::new((self.make)());
        table.guards.insert(fingerprint, GuardEntry { guard: guard.clone(), last_used: now });
        guard
    }

    /// The number of keys with their own guard.
    pub fn count(&self) -> usize {
        self.lock().guards.len()
    }

    fn lock(&self) -> MutexGuard<'_, GuardTable<G>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<G> GuardEntry<G> {
    /// Whether it is referenced, by a permit for example.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.guard) > 1
    }
}

impl GuardsBuilder {
    /// Sets the maximum number of keys with their own guard, 1024 by default. Other keys share one.
    #[must_use]
    pub fn max_keys(self, keys: usize) -> Self {
        Self { max_keys: keys, ..self }
    }

    /// Sets the time without a call after which a guard may be removed; ten minutes by default. It must
    /// exceed the open time of a breaker, or the removal would close it.
    #[must_use]
    pub fn idle_timeout(self, time: Duration) -> Self {
        Self { idle_timeout: time.into(), ..self }
    }

    /// Sets the clock; the system clock by default.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock, ..self }
    }

    /// Builds the guards; `make` creates one when its key is first used. It must not use these guards itself.
    pub fn build<G>(self, make: impl Fn() -> G + Send + Sync + 'static) -> Guards<G> {
        let table = GuardTable { guards: HashMap::new(), next_sweep: Micros::ZERO };
        Guards {
            table: Mutex::new(table),
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
        let expected = Arc::as_ptr(&mine);
        drop(mine);
        let shared =
            (0..1_000).map(|key| Arc::as_ptr(&guards.get(&key))).collect::<std::collections::HashSet<_>>();
        assert_eq!(guards.count(), 3);
        assert_eq!(shared.len(), 3, "two with their own guard, and one for all others");
        assert_eq!(Arc::as_ptr(&guards.get("mine")), expected);

        manual_clock.advance(Duration::from_secs(599));
        let in_use = guards.get("mine");
        manual_clock.advance(Duration::from_secs(1));
        let newcomer = guards.get("newcomer");
        assert_eq!(guards.count(), 2, "idle guards are removed");
        assert_eq!(Arc::as_ptr(&guards.get("mine")), expected);
        manual_clock.advance(Duration::from_secs(6_000));
        for key in 0..10 {
            guards.get(&key);
        }
        assert_eq!(Arc::as_ptr(&guards.get("mine")), expected, "it is referenced");
        drop((in_use, newcomer));
    }
}
