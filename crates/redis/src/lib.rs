//! Tidegate's state in Redis or Valkey: the same decisions across a fleet.

mod address;
mod cluster;
mod dial;
mod error;
mod health;
mod message;
mod names;
mod node;
mod script;
mod servers;
mod store;
mod verify;

pub use error::ConnectError;
pub use store::{RedisStore, RedisStoreBuilder};
pub use verify::{Compared, Difference, Plan, VerifyError, verify};
