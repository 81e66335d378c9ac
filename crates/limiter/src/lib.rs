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
//! | [`Throttle`] | one quota, without keys |
//! | [`Bucket`] | one key of a limiter: check, wait, reserve, hold |
//! | [`Reservation`] | tokens taken ahead of their use |
//! | [`Permit`] | a slot that is released on drop |
//! | [`Slots`] | a bound on calls in flight, without keys |
//! | `Paced` | a stream that is pulled at the rate of a limiter |
//! | [`Store`] | where a fleet counts |
//! | [`Clock`] | the machine's time, or a test's |
//!
//! There is no background thread, no sweep on the way to a decision and no memory beyond the configured bound.

#[cfg(feature = "tokio")]
#[doc(hidden)]
pub mod background;
mod clock;
mod denied;
mod fold;
mod key;
mod limiter;
mod memory;
#[cfg(feature = "stream")]
mod pace;
mod slots;
pub mod store;
#[doc(hidden)]
pub mod sync;
mod tally;
mod throttle;
mod top_keys;
mod wait;

pub use clock::{Clock, ClockHand};
pub use denied::DeniedKey;
#[doc(hidden)]
pub use denied::short_name;
pub use key::{Escaped, Joined, Key};
#[cfg(feature = "tokio")]
pub use limiter::{Ahead, Outage, decide_all, reserve_all};
pub use limiter::{
    Blocking, BlockingBucket, Bucket, BuildError, Capacity, Check, Claim, FleetBound, Limiter,
    LimiterBuilder, Mark, MarkedBucket, OutageBound, Overflow, Permit, Reservation, Settlement, Stats,
    TableSize,
};
#[cfg(feature = "stream")]
pub use pace::{InFlight, Pace, PaceExt, PaceSlot, Paced};
#[doc(hidden)]
pub use slots::Awaited;
pub use slots::{Slot, Slots, SlotsBuilder};
pub use store::{Store, StoreError};
pub use tally::{Addition, Tally};
pub use throttle::{Throttle, ThrottleBuilder};
pub use top_keys::{TopKey, TopKeys};
#[cfg(feature = "tokio")]
#[doc(hidden)]
pub use wait::{Alarm, Pause};
#[doc(hidden)]
pub use wait::{Bell, block_until};
pub use wait::{Priority, Refused, Waiter};
