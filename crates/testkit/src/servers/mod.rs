//! Real servers for tests: each test starts its own, on loopback, and nothing of them outlives it.
//!
//! ```no_run
//! use tidegate_testkit::servers::{NetworkFault, Proxy, RedisServer};
//!
//! # fn main() -> Result<(), String> {
//! let server = RedisServer::builder().password("secret").config("maxmemory", "2mb").start()?;
//! let proxy = Proxy::for_server(&server)?;
//! // ... a client connects to `proxy.url()` ...
//! proxy.inject(NetworkFault::Stall);
//! server.kill();
//! server.restart()?;
//! # Ok(())
//! # }
//! ```
//!
//! | noun | is |
//! |---|---|
//! | [`RedisServer`] | one Redis or Valkey, as a [`RedisServerBuilder`] describes it |
//! | [`RedisCluster`] | three primaries with a replica each; slots can be moved with a [`Migration`] |
//! | [`RedisSentinel`] | a primary and a replica under three sentinels |
//! | [`NginxServer`] | one nginx, by its own clock or by one that the test moves |
//! | [`AppServer`] | one web application in Node or in Flask, one Caddy, or one Envoy |
//! | [`Proxy`] | a wire to a server, with a [`NetworkFault`] when asked for one |
//! | [`RespConnection`], [`RespValue`] | enough of the protocol to look at a server without a driver |
//! | [`wait_until`] | waits for what another process does |
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
mod version;
mod wait;

pub use app::AppServer;
pub use builder::RedisServerBuilder;
pub use certificates::Certificates;
pub use cluster::RedisCluster;
pub use migration::Migration;
pub use nginx::{NginxServer, SentHttpRequest};
pub use proxy::{NetworkFault, Proxy};
pub use redis::{RedisServer, RedisServerState};
pub use required::skip_without;
pub use resp::{RespConnection, RespValue};
pub use sentinel::RedisSentinel;
pub use version::ServerVersion;
pub use wait::wait_until;
