//! Fewer calls to what fails: by chance, or by a quota that holds only meanwhile.
//!
//! ```text
//!   chance ┤              ╭────── the most
//!          │           ╭──╯                    requests − K · accepts
//!          │        ╭──╯                 p  =  ──────────────────────
//!        0 ┼────────╯                               requests + 1
//!          0 %      1 − 1/K        100 %  of requests fail
//! ```
//!
//! [`ClientThrottle`] is the rule of Google's book on site reliability: with `K` = 2 a client sends twice what its
//! backend accepts, and sheds the rest itself. Its surprise: requests that were shed count as requests, so that
//! shedding goes on while the demand does; a backend that recovers is found by those that still pass.
//!
//! [`ErrorRate`] is plainer: it says whether both the number of requests and their rate of errors are over what was
//! set. Few requests say nothing, whatever their rate.

mod client_throttle;
mod rate;
mod throttle;

pub use client_throttle::ClientThrottleState;
pub use client_throttle::{ClientThrottleBuilder, ClientThrottleSettings};
pub use rate::{ErrorRate, ErrorRateBuilder, ErrorRateSettings};
pub use throttle::{ClientThrottle, ClientThrottleEntry, ErrorThrottle};
