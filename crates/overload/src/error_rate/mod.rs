//! Admits fewer calls to a failing backend: at random, or by a quota that applies only meanwhile.
//!
//! ```text
//!   probability ┤              ╭────── maximum
//!               │           ╭──╯               requests − K · accepts
//!               │        ╭──╯            p  =  ──────────────────────
//!             0 ┼────────╯                          requests + 1
//!               0 %      1 − 1/K        100 %  of requests fail
//! ```
//!
//! [`ClientThrottle`] implements the adaptive throttling of Google's SRE book: with `K` = 2 a client sends twice what its
//! backend accepts, and sheds the remaining requests itself. Shed requests count as requests, so shedding lasts as long
//! as the demand; the admitted requests detect when the backend recovers.
//!
//! [`ErrorRate`] is simpler: it reports whether both the number of requests and their error rate exceed their thresholds.
//! A few requests are no evidence, whatever their rate.

mod client_throttle;
mod keyed;
mod rate;
mod throttle;

pub use client_throttle::ClientThrottleState;
pub use client_throttle::{ClientThrottleBuilder, ClientThrottleSettings};
pub use keyed::KeyedErrorRate;
pub use rate::{ErrorRate, ErrorRateBuilder, ErrorRateSettings};
pub use throttle::{ClientThrottle, ClientThrottleEntry, ErrorThrottle};
