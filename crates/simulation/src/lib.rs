//! A closed loop in virtual time: clients that retry, a backend whose latency depends on its load, and a guard between
//! them.
//!
//! ```text
//!   clients ──attempt──▶ guard ──admitted──▶ backend: so many workers, a queue
//!      ▲                   │ refused           │
//!      └── retry, if any is left ◀── answer, error, or nothing in time
//! ```
//!
//! The same scene always gives the same story. No clock is read and nothing waits: a minute takes as long as its events.
//!
//! ```
//! use tidegate_core::Micros;
//! use tidegate_overload::adaptive::LatencyTarget;
//! use tidegate_simulation::{AdaptiveGuard, NoGuard, Scenario, Surge};
//!
//! let scenario = Scenario::surge(Surge::TenTimes).with_seconds(2);
//! let without = scenario.run(NoGuard);
//! let with = scenario.run(AdaptiveGuard::new(LatencyTarget::new(Micros::from_millis(20))?));
//! assert!(with.goodput_during_change() > 2.0 * without.goodput_during_change());
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`Scenario`] | clients and a backend, and what happens to them |
//! | [`SimulatedGuard`] | what decides which attempts reach the backend |
//! | [`GuardPreset`] | a guard by name, of the [`guard_presets`] |
//! | [`SimulationResult`] | what came of it, over time |
//! | [`SimulatedQuota`] | one quota with the state of one key, in the same virtual time |

mod backend;
mod guard;
mod presets;
mod quota;
mod result;
mod scenario;
mod simulation;

pub use backend::SimulatedBackend;
pub use guard::{
    AdaptiveGuard, BreakerGuard, FixedGuard, GuardSide, NoGuard, SimulatedGuard, SimulatedPermit,
    ThrottleGuard,
};
pub use presets::{GuardPreset, guard_presets};
pub use quota::{SimulatedQuota, SimulatedRequest};
pub use result::{SimulationBin, SimulationResult};
pub use scenario::{Clients, Scenario, Surge};
