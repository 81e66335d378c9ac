//! Simulates overload in virtual time: clients with retries, a backend whose latency depends on its load, and a
//! guard between them.
//!
//! ```text
//!   clients ──attempt──▶ guard ──admitted──▶ backend: workers, a queue
//!      ▲                   │ rejected          │
//!      └── retry, if any is left ◀── response, error or timeout
//! ```
//!
//! It is deterministic: the same scenario always gives the same result. It reads no clock and does not wait.
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
//! | noun | meaning |
//! |---|---|
//! | [`Scenario`] | clients, a backend, and a change of either for a while |
//! | [`SimulatedGuard`] | decides which attempts reach the backend |
//! | [`GuardPreset`] | a guard by name, one of [`guard_presets`] |
//! | [`SimulationResult`] | the counts and latencies over time |
//! | [`SimulatedQuota`] | a quota with the state of one key, in the same virtual time |
//!
//! It does not
//!
//! - run the code of an application or a network;
//! - simulate several backends or keys.

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
