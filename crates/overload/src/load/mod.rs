//! How loaded this process and its machine are, and limits that follow it.
//!
//! ```text
//!   Cpu, Memory, Stall, Descriptors, EventLoopLag, yours
//!        │ read off the request path, every 250 ms
//!        ▼
//!   LoadMonitor ──▶ an atomic word: Load { share, level }   one load on the request path
//!        │ tells after each reading
//!        ├──▶ Scaled: a limiter, throttle or gate by load and by time of day
//!        └──▶ Switchboard: features off by level, back in order
//! ```
//!
//! A signal that this machine does not have is `None`, quietly; the others carry on.

mod average;
mod cgroup;
mod cpu;
mod denials;
mod descriptors;
mod host;
#[cfg(feature = "tokio")]
mod lag;
mod level;
mod memory;
mod monitor;
mod scale;
mod scaled;
mod schedule;
mod stall;

pub use average::Average;
pub use cpu::Cpu;
pub use denials::Denials;
pub use descriptors::Descriptors;
pub use host::Host;
#[cfg(feature = "tokio")]
pub use lag::EventLoopLag;
pub use level::{LoadGauge, LoadLevel, LoadLevels};
pub use memory::Memory;
pub use monitor::{Follower, Load, LoadMonitor, LoadMonitorBuilder};
pub use scale::{Scale, Scaler};
pub use scaled::{Scalable, Scaled, ScaledBuilder};
pub use schedule::{Schedule, ScheduleError};
pub use stall::Stall;

use tidegate_core::{Micros, Percent};

/// Something whose use can be told as a share. Read by one thread, off the request path.
///
/// A closure is one too: `|_now| Some(SlotOwner::ratio(queue.len() as u64, 1_000))`.
pub trait Probe: Send {
    /// The share that is used, at `now`; `None` if there is no such signal, or not yet.
    fn read(&mut self, now: Micros) -> Option<Percent>;
}

impl<F: FnMut(Micros) -> Option<Percent> + Send> Probe for F {
    fn read(&mut self, now: Micros) -> Option<Percent> {
        self(now)
    }
}

/// A smoothed share, as a share again.
fn smoothed(average: &Average) -> Option<Percent> {
    average.value().map(|share| Percent::from_millionths((share * 1e6 + 0.5) as u32))
}
