//! Real servers for tests: each test starts its own on loopback, and no process or file outlives the test.
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
//! | item | purpose |
//! |---|---|
//! | [`RedisServer`] | one Redis or Valkey server, configured by a [`RedisServerBuilder`] |
//! | [`RedisCluster`] | three primaries with a replica each; a [`Migration`] moves a slot |
//! | [`RedisSentinel`] | a primary and a replica under three sentinels |
//! | [`NginxServer`] | one nginx, with the system clock or a clock that the test sets |
//! | [`AppServer`] | one web application in Node or Flask, one Caddy, one Envoy, or one Prometheus |
//! | [`Proxy`] | a TCP proxy to a server that injects a [`NetworkFault`] |
//! | [`ReservedPort`] | an address that refuses connections |
//! | [`RespConnection`], [`RespValue`] | a minimal Redis client, to inspect a server without a driver |
//! | [`faketime_library`] | the library that sets the clock of a program |
//! | [`wait_until`] | waits for another process |
//! | [`skip_without`] | skips a test, or fails it if every component is required |
//!
//! Set `TIDEGATE_REDIS` to use another program than `redis-server`: `valkey-server`, or a path.

mod app;
mod builder;
mod certificates;
mod cluster;
mod faketime;
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
pub use faketime::faketime_library;
pub use migration::Migration;
pub use nginx::{NginxServer, SentHttpRequest};
pub use port::ReservedPort;
pub use proxy::{NetworkFault, Proxy};
pub use redis::{RedisServer, RedisServerState};
pub use required::skip_without;
pub use resp::{RespConnection, RespValue};
pub use sentinel::RedisSentinel;
pub use version::ServerVersion;
pub use wait::wait_until;
