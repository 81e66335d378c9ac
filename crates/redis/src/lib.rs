//! Tidegate's state in Redis or Valkey: the same decisions across a fleet.
//!
//! ```no_run
//! use tidegate_limiter::Limiter;
//! use tidegate_redis::RedisStore;
//!
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
//! let limiter = Limiter::builder().name("login").store(store).build("5/min")?;
//! if limiter.decide("alice", 1).await.is_allowed() { /* … */ }
//! # Ok(())
//! # }
//! ```
//!
//! Where the store is, is one line: `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://h1,h2/name` or
//! `redis+cluster://h1,h2`. Redis 6.2 and later, and Valkey.
//!
//! ```text
//!   Limiter ──request──▶ RedisStore ──▶ Node: gathers what is asked at the same time
//!                                              │ one script call
//!                                              ▼
//!                        server: TIME · GET · decide · SET with expiry
//! ```
//!
//! It depends on the server's clock and no other. When the server is away or slow it says so within the deadline;
//! what to decide then is up to the limiter. A request whose answer is lost is never sent again.
//!
//! In a cluster a request about one key, or about keys of one node, is decided as a whole. One that spans nodes is not:
//! what was charged on one is given back when another denies, and may be seen as charged for a moment.

mod address;
mod cluster;
mod connector;
mod counters;
mod error;
mod health;
mod key_names;
mod message;
mod node;
mod script;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod verify;

pub use error::ConnectError;
pub use store::{RedisStore, RedisStoreBuilder};
pub use verify::{VerifyDifference, VerifyError, VerifyOptions, VerifyReport, verify};
