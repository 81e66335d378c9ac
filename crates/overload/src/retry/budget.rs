//! A bound on retries, as a share of all calls.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};
use tidegate_core::{Percent, Quota, SettingError};
use tidegate_limiter::{Clock, DirectLimiter};

/// A bound on retries and hedges, so that they cannot multiply the load of a failing backend: each call adds its share of a
/// retry, and each retry takes one.
///
/// In any time t, at most 10 retries, plus the percentage of the calls, plus the minimum for t and one more second are
/// admitted.
///
/// ```
/// use tidegate_overload::RetryBudget;
///
/// let budget = RetryBudget::new("20%".parse()?);
/// (0..100).for_each(|_| budget.add_call());
/// // Calls without retries save up at most ten.
/// assert_eq!((0..100).filter(|_| budget.try_take()).count(), 10);
/// (0..30).for_each(|_| budget.add_call());
/// assert_eq!((0..100).filter(|_| budget.try_take()).count(), 6);
/// # Ok::<(), tidegate_core::SettingError>(())
/// ```
pub struct RetryBudget {
    /// In millionths of a retry, like the balance.
    per_call: u64,
    balance: AtomicU64,
    /// Admits retries beyond the balance.
    min_rate: Option<DirectLimiter>,
}

/// One retry, in the unit of the balance.
const ONE_RETRY: u64 = Percent::FULL.millionths() as u64;
/// The maximum balance, with which a budget starts.
const MAX_BALANCE: u64 = 10 * ONE_RETRY;

impl RetryBudget {
    /// Creates a budget of this percentage of all calls. It starts with ten retries.
    pub fn new(share: Percent) -> Self {
        Self { per_call: share.millionths().into(), balance: AtomicU64::new(MAX_BALANCE), min_rate: None }
    }

    /// Admits at least this number of retries per second, so that rare calls are retried, too.
    pub fn min_per_second(self, retries: u32, clock: Clock) -> Result<Self, SettingError> {
        if retries == 0 {
            return Ok(Self { min_rate: None, ..self });
        }
        let rate = Quota::per_second(retries.into()).quota();
        let rate = rate.map_err(|error| error.to_string()).and_then(|quota| {
            DirectLimiter::builder().clock(clock).build(quota).map_err(|error| error.to_string())
        });
        match rate {
            Ok(min_rate) => Ok(Self { min_rate: Some(min_rate), ..self }),
            Err(problem) => Err(SettingError::new(problem, "give a smaller number of retries per second")),
        }
    }

    /// Counts a call, which adds its share.
    #[inline]
    pub fn add_call(&self) {
        // A full budget, which is the normal case, is only read.
        if self.balance.load(Ordering::Relaxed) < MAX_BALANCE {
            let add = |balance: u64| Some(balance.saturating_add(self.per_call).min(MAX_BALANCE));
            let _previous = self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        }
    }

    /// Takes one retry. Returns whether there was one.
    pub fn try_take(&self) -> bool {
        let take = |balance: u64| balance.checked_sub(ONE_RETRY);
        self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok()
            || self.min_rate.as_ref().is_some_and(|rate| rate.check().is_allowed())
    }
}

impl fmt::Debug for RetryBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let balance = self.balance.load(Ordering::Relaxed) / ONE_RETRY;
        f.debug_struct("RetryBudget").field("balance", &balance).finish_non_exhaustive()
    }
}
