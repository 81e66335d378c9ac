//! Real servers for tests: each test starts its own, on loopback, and nothing of them outlives it.
//!
//! ```no_run
//! use tidegate_testkit::servers::{Fault, Proxy, RedisServer};
//!
//! # fn main() -> Result<(), String> {
//! let server = RedisServer::builder().password("secret").config("maxmemory", "2mb").start()?;
//! let proxy = Proxy::before(&server)?;
//! // ... a client connects to `proxy.url()` ...
//! proxy.inject(Fault::Stall);
//! server.kill();
//! server.restart()?;
//! # Ok(())
//! # }
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`RedisServer`] | one Redis or Valkey, as a [`Builder`] describes it |
//! | [`RedisCluster`] | three primaries with a replica each; slots can be moved with a [`Migration`] |
//! | [`RedisSentinel`] | a primary and a replica under three sentinels |
//! | [`NginxServer`] | one nginx, by its own clock or by one that the test moves |
//! | [`AppServer`] | one web application in Node or in Flask, one Caddy, or one Envoy |
//! | [`Proxy`] | a wire to a server, with a [`Fault`] when asked for one |
//! | [`Connection`], [`Value`] | enough of the protocol to look at a server without a driver |
//! | [`until`] | waits for what another process does |
//! | [`skip_without`] | skips a test, or fails it where every component is required |
//!
//! Set `TIDEGATE_REDIS` to run them all with another program than `redis-server`: `valkey-server`, or a path.

mod app;
mod builder;
mod certificates;
mod cluster;
mod migration;
mod nginx;
mod port;
mod process;
mod proxy;
mod redis;
mod required;
mod resp;
mod sentinel;
mod slot;
mod until;
mod version;

pub use app::AppServer;
pub use builder::Builder;
pub use certificates::Certificates;
pub use cluster::RedisCluster;
pub use migration::Migration;
pub use nginx::{NginxServer, Sent};
pub use proxy::{Fault, Proxy};
pub use redis::{RedisServer, State};
pub use required::skip_without;
pub use resp::{Connection, Value};
pub use sentinel::RedisSentinel;
pub use until::until;
pub use version::Version;
