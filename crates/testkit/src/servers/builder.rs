//! The settings of a Redis server.

use super::{RedisServer, ServerVersion, certificates::Certificates, port::ReservedPort, redis::ServerParts};
use std::env;

/// Builds a server. By default it has a TCP port on loopback, no password and no persistence.
#[derive(Clone, Debug)]
#[must_use]
pub struct RedisServerBuilder {
    pub(super) binary: String,
    pub(super) role: RedisRole,
    pub(super) password: Option<String>,
    pub(super) user: Option<(String, String)>,
    has_socket: bool,
    has_tls: bool,
    config: String,
}

/// The role of a server.
#[derive(Clone, Copy, Debug)]
pub(super) enum RedisRole {
    /// A single server, with or without replicas.
    Single,
    /// A node of a cluster.
    Node,
    /// A sentinel.
    Sentinel,
}

/// Replicas sync through a file, because a diskless sync waits for a second first.
const BASE_CONFIG: &str = "\
bind 127.0.0.1
save \"\"
repl-diskless-sync no
rdb-del-sync-files yes
repl-ping-replica-period 1
";

/// Tests may call `DEBUG`, and a shutdown does not wait for paused replicas.
const CONFIG_SINCE_7: &str = "\
enable-debug-command local
shutdown-timeout 0
";

/// Clients need no certificate by default.
const TLS_CONFIG: &str = "\
tls-ca-cert-file authority.crt
tls-cert-file server.crt
tls-key-file server.key
tls-auth-clients no
";

impl RedisServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            binary: env::var("TIDEGATE_REDIS").unwrap_or_else(|_| "redis-server".into()),
            role: RedisRole::Single,
            password: None,
            user: None,
            has_socket: false,
            has_tls: false,
            config: String::new(),
        }
    }

    /// Sets the program, by its name or path, such as `valkey-server`.
    pub fn binary(mut self, binary: &str) -> Self {
        binary.clone_into(&mut self.binary);
        self
    }

    /// Adds a line to the configuration, such as `maxmemory 2mb`.
    pub fn config(mut self, key: &str, value: &str) -> Self {
        self.config += &format!("{key} {value}\n");
        self
    }

    /// Requires this password.
    pub fn password(mut self, password: &str) -> Self {
        self.password = Some(password.to_owned());
        self.config("requirepass", &format!("\"{password}\""))
            .config("masterauth", &format!("\"{password}\""))
    }

    /// Adds a user with permissions such as `~* +@all`; [`RedisServer::url`] then uses this user.
    pub fn user(mut self, name: &str, password: &str, rights: &str) -> Self {
        self.user = Some((name.to_owned(), password.to_owned()));
        self.config("user", &format!("{name} on \">{password}\" {rights}"))
    }

    /// Also listens on a Unix socket.
    pub fn unix_socket(mut self) -> Self {
        self.has_socket = true;
        self
    }

    /// Also listens with TLS, on a separate port.
    pub fn tls(mut self) -> Self {
        self.has_tls = true;
        self
    }

    /// Writes every change to disk at once, so that a killed server has all data after a restart.
    pub fn append_only(self) -> Self {
        self.config("appendonly", "yes").config("appendfsync", "always")
    }

    /// Starts the server, and returns when it replies.
    ///
    /// # Errors
    ///
    /// Returns an error if the program is not installed or exits.
    pub fn start(&self) -> Result<RedisServer, String> {
        let server = self.prepare()?;
        server.launch()?;
        Ok(server)
    }

    pub(super) fn role(mut self, role: RedisRole) -> Self {
        self.role = role;
        self
    }

    /// Creates a server without starting its process.
    pub(super) fn prepare(&self) -> Result<RedisServer, String> {
        let binary = &self.binary;
        let version = ServerVersion::detect(binary)
            .ok_or_else(|| format!("{binary} is not installed; run apt-get install {binary}"))?;
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().map_err(|e| e.to_string())?;
        let (port, bus) = match self.role {
            RedisRole::Node => ReservedPort::reserve_with_bus().map(|(port, bus)| (port, Some(bus)))?,
            RedisRole::Single | RedisRole::Sentinel => (ReservedPort::reserve()?, None),
        };
        let mut config = format!("{BASE_CONFIG}port {}\n", port.number());
        if version >= ServerVersion::REDIS_7 {
            config += CONFIG_SINCE_7;
        }

        let socket = self.has_socket.then(|| directory.path().join("redis.sock"));
        if socket.is_some() {
            config += "unixsocket redis.sock\n";
        }
        let mut tls = None;
        if self.has_tls {
            let port = ReservedPort::reserve()?;
            config += &format!("{TLS_CONFIG}tls-port {}\n", port.number());
            tls = Some((port, Certificates::create(directory.path())?));
        }

        let parts = ServerParts { builder: self.clone(), version, port, bus, socket, tls, directory };
        let server = RedisServer::new(parts);
        server.append("redis.conf", &(config + &self.config))?;
        Ok(server)
    }
}
