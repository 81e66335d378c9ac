//! Limiters: quotas counted for keys, in memory or in a store, with waiting, reservations and permits.
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
//! | noun | is |
//! |---|---|
//! | [`Limiter`] | one quota or several, for many keys |
//! | [`DirectLimiter`] | one quota, without keys |
//! | [`Bucket`] | one key of a limiter: check, wait, reserve, hold |
//! | [`Reservation`] | tokens taken ahead of their use |
//! | [`Permit`] | a slot that is released on drop |
//! | [`Semaphore`] | a bound on calls in flight, without keys |
//! | `LimitedStream` | a stream that is pulled at the rate of a limiter |
//! | [`Store`] | where a fleet counts |
//! | [`Clock`] | the machine's time, or a test's |
//!
//! There is no background thread, no sweep on the way to a decision and no memory beyond the configured bound.

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
    KeyId, KeyIdBucket, Limiter, LimiterBuilder, LimiterStats, OutageBound, Overflow, Permit, Reservation,
    Settlement, TableSize,
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
