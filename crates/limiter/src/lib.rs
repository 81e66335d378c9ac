//! Limits calls per key, in memory or in a shared store, with waiting, reservations and permits.
//!
//! ```
//! use tidegate_limiter::Limiter;
//!
//! let limiter = Limiter::new("100/min burst 20")?;
//! let decision = limiter.check("203.0.113.7");
//! assert!(decision.is_allowed());
//! assert_eq!(decision.remaining(), 19);
//! # Ok::<(), tidegate_limiter::BuildError>(())
//! ```
//!
//! | noun | meaning |
//! |---|---|
//! | [`Limiter`] | one or several quotas, for many keys |
//! | [`DirectLimiter`] | one quota, without keys |
//! | [`Bucket`] | one key of a limiter: check, wait, reserve, acquire a permit |
//! | [`Reservation`] | tokens charged before their use |
//! | [`Permit`] | a slot that is released on drop |
//! | [`Semaphore`] | a limit on calls in flight, without keys |
//! | `LimitedStream` | a stream that yields items at the rate of a limiter (feature `stream`) |
//! | [`Store`] | state that several processes share |
//! | [`Clock`] | the system clock, or a manual one for tests |
//!
//! It does not
//!
//! - remove idle keys on a background thread or during a decision,
//! - use more memory for keys than the configured bound,
//! - implement a store: see the crate `tidegate-redis`.

#[cfg(feature = "tokio")]
#[doc(hidden)]
pub mod background;
mod clock;
mod counter_store;
mod denied;
mod direct;
mod key;
mod limiter;
mod memory;
mod most_restrictive;
mod semaphore;
pub mod store;
#[cfg(feature = "stream")]
mod stream;
#[doc(hidden)]
pub mod sync;
mod top_keys;
mod wait;

pub use clock::{Clock, ManualClock};
pub use counter_store::{CounterStore, Increment};
pub use denied::DeniedKey;
#[doc(hidden)]
pub use denied::short_name;
pub use direct::{DirectLimiter, DirectLimiterBuilder};
pub use key::{EscapeWriter, KeyPair, LimitKey};
pub use limiter::{
    BlockingBucket, BlockingLimiter, Bucket, BuildError, Capacity, Check, CombinedReservation, FleetBound,
    KeyId, KeyIdBucket, Limiter, LimiterBuilder, LimiterStats, MAX_OVERRIDE_QUOTAS, OutageBound, Overflow,
    OverrideChange, Permit, QuotaOverride, Reservation, Settlement, TableSize,
};
#[cfg(feature = "tokio")]
pub use limiter::{FailureMode, TokenPrefetch, decide_all, reserve_all};
#[doc(hidden)]
pub use semaphore::HasWaiters;
pub use semaphore::{Semaphore, SemaphoreBuilder, SemaphorePermit};
pub use store::{Store, StoreError};
#[cfg(feature = "stream")]
pub use stream::{InFlightItem, LimitedStream, StreamLimit, StreamLimitExt, StreamPermit};
pub use top_keys::{TopKey, TopKeys};
#[doc(hidden)]
pub use wait::{Notify, block_until};
#[cfg(feature = "tokio")]
#[doc(hidden)]
pub use wait::{Timer, WaitUntil};
pub use wait::{WaitError, WaitPriority, Waiter};
