//! Measures the load of this process and its machine, and adjusts limits to it.
//!
//! ```text
//!   CpuLoad, MemoryLoad, PressureLoad, FileDescriptorLoad, EventLoopLag, your own
//!        │ read off the request path, every 250 ms
//!        ▼
//!   LoadMonitor ──▶ an atomic word: LoadReading { share, level }   one load on the request path
//!        │ notifies observers after each reading
//!        ├──▶ ScaledLimit: a limiter or semaphore by load and by time of day
//!        └──▶ Features: disabled by level, enabled in order
//! ```
//!
//! A signal that this machine does not provide is `None`; the others are still used.

mod cgroup;
mod cpu;
mod denials;
#[cfg(feature = "tokio")]
mod event_loop_lag;
mod ewma;
mod file_descriptors;
mod host;
mod level;
mod memory;
mod monitor;
mod network;
mod pressure;
mod scale;
mod scaled_limit;
mod schedule;
mod shedder;
mod signal;
mod time_windows;

pub use cpu::CpuLoad;
pub use denials::DenialLoad;
#[cfg(feature = "tokio")]
pub use event_loop_lag::EventLoopLag;
pub use ewma::Ewma;
pub use file_descriptors::FileDescriptorLoad;
pub use host::HostPaths;
pub use level::{LoadGauge, LoadLevel, LoadLevels};
pub use memory::MemoryLoad;
pub use monitor::{LoadMonitor, LoadMonitorBuilder, LoadObserver, LoadReading};
pub use network::NetworkLoad;
pub use pressure::PressureLoad;
pub use scale::{ScalePolicy, Scaler};
pub use scaled_limit::{Scalable, ScaledLimit, ScaledLimitBuilder};
pub use schedule::{Schedule, ScheduleError};
pub use shedder::LoadShedder;
pub use signal::MachineSignal;
pub use time_windows::TimeWindows;

use tidegate_core::{Micros, Percent};

/// A resource whose use can be measured as a share. Read by one thread, off the request path.
///
/// A closure is one too: `|_now| Some(Percent::from_ratio(queue.len() as u64, 1_000))`.
pub trait LoadSource: Send {
    /// The share in use at `now`; `None` if there is no such signal, or not yet.
    fn read(&mut self, now: Micros) -> Option<Percent>;
}

impl<F: FnMut(Micros) -> Option<Percent> + Send> LoadSource for F {
    fn read(&mut self, now: Micros) -> Option<Percent> {
        self(now)
    }
}

/// The smoothed share as a percentage.
fn smoothed_percent(average: &Ewma) -> Option<Percent> {
    average.value().map(|share| Percent::from_millionths((share * 1e6 + 0.5) as u32))
}
