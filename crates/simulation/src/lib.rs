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
//! use tidegate_overload::adaptive::Anchored;
//! use tidegate_simulation::{AdaptiveGuard, NoGuard, Scene, Surge};
//!
//! let scene = Scene::surge(Surge::TenTimes).seconds(2);
//! let without = scene.play(NoGuard);
//! let with = scene.play(AdaptiveGuard::new(Anchored::new(Micros::from_millis(20))?));
//! assert!(with.goodput_of_the_change() > 2.0 * without.goodput_of_the_change());
//! # Ok::<(), tidegate_core::SettingError>(())
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`Scene`] | clients and a backend, and what happens to them |
//! | [`Guard`] | what decides which attempts reach the backend |
//! | [`Actor`] | a guard by name, of the [`cast`] |
//! | [`Story`] | what came of it, over time |
//! | [`SimulatedQuota`] | one quota with the state of one key, in the same virtual time |

mod backend;
mod cast;
mod guard;
mod play;
mod quota;
mod scene;
mod story;

pub use backend::Backend;
pub use cast::{Actor, cast};
pub use guard::{AdaptiveGuard, BreakerGuard, FixedGuard, Guard, NoGuard, Pass, Side, ThrottleGuard};
pub use quota::{Arrival, SimulatedQuota};
pub use scene::{Clients, Scene, Surge};
pub use story::{Bin, Story};
