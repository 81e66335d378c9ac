//! Load, and what follows from it: pure state machines that are told what was seen and when.
//!
//! ```text
//!   readings ──Average──▶ load ──LoadGauge──▶ level: which features are on
//!                              └──Scaler─────▶ factor ┐
//!                          time ──Schedule───▶ factor ┴▶ of a limit
//! ```

mod average;
mod level;
mod scale;
mod schedule;

pub use average::Average;
pub use level::{LoadGauge, LoadLevel, LoadLevels};
pub use scale::{Scale, Scaler};
pub use schedule::{Schedule, ScheduleError};
