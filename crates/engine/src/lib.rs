//! The shell around Tidegate's core: it owns the clock, the memory and the waiting.
//!
//! ```
//! use tidegate_engine::Limiter;
//!
//! let limiter = Limiter::new("100/min burst 20")?;
//! let decision = limiter.check("203.0.113.7");
//! assert!(decision.is_allowed());
//! assert_eq!(decision.remaining(), 19);
//! # Ok::<(), tidegate_engine::BuildError>(())
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`Limiter`] | one quota or several, for many keys |
//! | [`Throttle`] | one quota, without keys |
//! | [`Bucket`] | one key of a limiter, and everything that can be done with it |
//! | [`Reservation`] | tokens taken ahead of their use |
//! | [`Permit`] | a slot that gives itself back on drop |
//! | [`Slots`] | how much may be in flight, without keys |
//! | [`AdaptiveLimit`] | the same, found by a controller |
//! | [`PriorityLimit`] | the same, shared by classes: the important lose last |
//! | [`Breaker`] | keeps calls from what fails |
//! | [`ClientThrottle`], [`ErrorThrottle`] | let fewer calls through to what fails |
//! | [`Guard`] | what most of these have in common: a [`Pass`] per call, and a report of its end |
//! | [`LoadMonitor`] | how loaded the machine is, read off the request path |
//! | [`Scaled`] | a limit that follows the load and the time of day |
//! | [`Switchboard`] | features that go off by hand or by load, and come back in order |
//! | [`Cause`] | why there is no answer, for the one that is given instead |
//! | [`AccessList`] | who is let in and who is not |
//! | [`Bans`] | who is kept out for a time |
//! | `Bandwidth` | bytes per second, of one stream or of several together |
//! | `Paced` | a stream that is pulled no faster than a rate and no wider than a number at once |
//! | [`Clock`] | the machine's time, or a test's |
//!
//! No background thread unless a monitor is started, no sweep on the way to a decision, no memory beyond the bound that
//! was given.

mod access;
mod adaptive;
#[cfg(feature = "tokio")]
#[doc(hidden)]
pub mod background;
#[cfg(feature = "tokio")]
mod bandwidth;
mod breaker;
mod clock;
mod denied;
mod error_rate;
pub mod fallback;
mod fold;
mod guard;
mod key;
mod limiter;
pub mod load;
mod memory;
#[cfg(feature = "stream")]
mod pace;
mod priority;
mod slots;
pub mod store;
mod switchboard;
mod sync;
mod tally;
mod throttle;
mod top_keys;
mod wait;

pub use access::{
    Access, AccessControl, AccessList, AccessListBuilder, BanOutcome, BanRule, BanStats, BannedKey, Bans,
    BansBuilder, ListError, ListProblem, Prefix, Stance, Standing,
};
pub use adaptive::{AdaptiveEntry, AdaptiveLimit};
#[cfg(feature = "stream")]
pub use bandwidth::ByteLen;
#[cfg(feature = "tokio")]
pub use bandwidth::{Bandwidth, BandwidthBuilder, Bandwidths, Shaped};
pub use breaker::{Breaker, BreakerEntry};
pub use clock::{Clock, ClockHand};
pub use denied::DeniedKey;
pub use error_rate::{ClientThrottle, ClientThrottleEntry, ErrorThrottle};
pub use fallback::Cause;
pub use guard::{Guard, Pass, Settle};
pub use key::{Escaped, Joined, Key};
#[cfg(feature = "tokio")]
pub use limiter::{Ahead, Outage, decide_all, reserve_all};
pub use limiter::{
    Blocking, BlockingBucket, Bucket, BuildError, Capacity, Check, Claim, FleetBound, Limiter,
    LimiterBuilder, Mark, OutageBound, Overflow, Permit, Reservation, Settlement, Stats, TableSize,
};
pub use load::{LoadMonitor, Scaled};
#[cfg(feature = "stream")]
pub use pace::{InFlight, Pace, PaceExt, PaceSlot, Paced};
pub use priority::{PriorityLimit, PriorityLimitBuilder};
pub use slots::{Slot, Slots, SlotsBuilder};
pub use store::{Store, StoreError};
pub use switchboard::{Feature, Switchboard};
pub use tally::{Addition, Tally};
pub use throttle::{Throttle, ThrottleBuilder};
pub use top_keys::{TopKey, TopKeys};
pub use wait::{Priority, Refused, Waiter};
