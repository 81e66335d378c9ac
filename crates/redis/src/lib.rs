//! A Redis and Valkey store for Tidegate limiters, so that all processes of a fleet share one count per key.
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
//! The address is a URL: `redis://`, `rediss://`, `redis+unix://`, `redis+sentinel://h1,h2/name` or
//! `redis+cluster://h1,h2`. Supported servers are Redis 6.2 and later, and Valkey.
//!
//! ```text
//!   Limiter ──request──▶ RedisStore ──▶ node: batches concurrent requests
//!                                              │ one script call
//!                                              ▼
//!                        server: TIME · GET · decide · SET with expiry
//! ```
//!
//! | item | purpose |
//! |---|---|
//! | [`RedisStore`] | the store: one server, a primary behind sentinels, or a cluster |
//! | [`RedisStoreBuilder`] | its settings: key prefix, deadline, permit lease, TLS |
//! | [`ConnectError`] | why a store cannot connect, and how to fix it |
//! | [`verify()`] | compares the decisions of a server with those of the in-memory store |
//!
//! It does not:
//!
//! - use the clocks of its clients: every decision uses the server's clock;
//! - choose a decision when the server is unavailable or slow: it returns an error within the deadline, and the limiter's
//!   failure mode decides;
//! - resend a request whose reply was lost;
//! - decide atomically across the nodes of a cluster: when one node denies, it refunds the charges on the others, which
//!   are visible until then. Requests about keys of one node are atomic.

mod address;
mod cluster;
mod connector;
mod counters;
mod error;
mod events;
mod health;
mod key_names;
mod message;
mod node;
mod overrides;
mod script;
mod store;
#[cfg(feature = "tls")]
mod tls;
mod topology;
mod verify;

pub use error::ConnectError;
pub use store::{RedisStore, RedisStoreBuilder};
pub use verify::{VerifyDifference, VerifyError, VerifyOptions, VerifyReport, verify};
