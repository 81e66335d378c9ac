//! One Redis or Valkey server.

use super::{
    Certificates, RedisServerBuilder, RespConnection, RespValue, ServerVersion, builder::RedisRole,
    port::ReservedPort, process::ServerProcess, wait_until,
};
use std::{
    fs::{self, File},
    io::{self, Write},
    net::SocketAddr,
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tempfile::TempDir;

/// A Redis or Valkey server on loopback. Dropping it kills it and removes its directory.
///
/// Its port stays reserved while it is down, so that it restarts on the same port.
#[derive(Debug)]
pub struct RedisServer {
    running: Mutex<Option<RunningServer>>,
    parts: ServerParts,
}

/// The parts of a server that outlive its process.
#[derive(Debug)]
pub(super) struct ServerParts {
    pub(super) builder: RedisServerBuilder,
    pub(super) version: ServerVersion,
    pub(super) port: ReservedPort,
    pub(super) bus: Option<ReservedPort>,
    pub(super) socket: Option<PathBuf>,
    pub(super) tls: Option<(ReservedPort, Certificates)>,
    pub(super) directory: TempDir,
}

/// The state of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisServerState {
    /// The server runs.
    Running,
    /// The process is stopped; its connections are open.
    Paused,
    /// There is no process.
    Down,
}

#[derive(Debug)]
struct RunningServer {
    process: ServerProcess,
    state: RedisServerState,
}

impl RedisServer {
    /// Starts a server with default settings.
    pub fn start() -> Result<Self, String> {
        Self::builder().start()
    }

    /// Returns a builder with default settings.
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::new()
    }

    /// The URL for clients: `redis://127.0.0.1:PORT`, with the required user and password.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// The URL for clients with TLS, if TLS is enabled.
    pub fn tls_url(&self) -> Option<String> {
        let (port, _) = self.parts.tls.as_ref()?;
        Some(format!("rediss://{}{}", self.login(), port.address()))
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.parts.port.address()
    }

    /// The port of its address.
    pub fn port(&self) -> u16 {
        self.parts.port.number()
    }

    /// Its socket file, if it has one.
    pub fn socket(&self) -> Option<&Path> {
        self.parts.socket.as_deref()
    }

    /// Its certificates, if it has TLS.
    pub fn certificates(&self) -> Option<&Certificates> {
        self.parts.tls.as_ref().map(|(_, certificates)| certificates)
    }

    /// Its directory, with its configuration, its log and its data.
    pub fn directory(&self) -> &Path {
        self.parts.directory.path()
    }

    /// Its version.
    pub fn version(&self) -> ServerVersion {
        self.parts.version
    }

    /// The process id, unless the server is down.
    pub fn pid(&self) -> Option<u32> {
        self.running().as_ref().map(|run| run.process.id())
    }

    /// The current state.
    pub fn state(&self) -> RedisServerState {
        self.running().as_ref().map_or(RedisServerState::Down, |run| run.state)
    }

    /// Opens a connection with all permissions.
    pub fn connect(&self) -> Result<RespConnection, String> {
        let mut connection = RespConnection::connect_tcp(self.address())?;
        if let Some(password) = &self.parts.builder.password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Runs one command on a new connection.
    pub fn command(&self, words: &[&str]) -> Result<RespValue, String> {
        self.connect()?.command(words)
    }

    /// Kills it with `SIGKILL`.
    pub fn kill(&self) {
        self.running().take();
    }

    /// Shuts it down with `SIGTERM`.
    pub fn stop(&self) -> Result<(), String> {
        let run = self.running().take();
        run.map_or(Ok(()), |run| run.process.terminate())
    }

    /// Shuts it down, if it runs, and starts it on the same port.
    pub fn restart(&self) -> Result<(), String> {
        self.stop()?;
        self.launch()
    }

    /// Stops its process: clients can connect but get no reply.
    pub fn pause(&self) -> Result<(), String> {
        self.set_state(RedisServerState::Paused)
    }

    /// Continues its process.
    pub fn resume(&self) -> Result<(), String> {
        self.set_state(RedisServerState::Running)
    }

    fn set_state(&self, state: RedisServerState) -> Result<(), String> {
        let mut run = self.running();
        let run = run.as_mut().ok_or_else(|| format!("{} is down", self.address()))?;
        let result = match state {
            RedisServerState::Paused => run.process.pause(),
            _ => run.process.resume(),
        };
        run.state = state;
        result.map_err(|error| format!("process {}: {error}", run.process.id()))
    }

    /// The process, unless it has exited.
    fn running(&self) -> MutexGuard<'_, Option<RunningServer>> {
        let mut run = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        run.take_if(|run| run.process.exit_status().is_some());
        run
    }

    fn login(&self) -> String {
        match (&self.parts.builder.user, &self.parts.builder.password) {
            (Some((name, password)), _) => format!("{}:{}@", escape(name), escape(password)),
            (None, Some(password)) => format!(":{}@", escape(password)),
            (None, None) => String::new(),
        }
    }
}

impl RedisServer {
    pub(super) fn new(parts: ServerParts) -> Self {
        Self { running: Mutex::new(None), parts }
    }

    /// The URL for clients that connect through a proxy at `address`.
    pub(super) fn url_at(&self, address: SocketAddr) -> String {
        format!("redis://{}{address}", self.login())
    }

    pub(super) fn password(&self) -> Option<&str> {
        self.parts.builder.password.as_deref()
    }

    pub(super) fn bus(&self) -> Option<u16> {
        self.parts.bus.as_ref().map(ReservedPort::number)
    }

    /// The node id in a cluster or of a sentinel: forty digits, derived from the port, which is unique.
    pub(super) fn id(&self) -> String {
        format!("{:040x}", self.port())
    }

    /// Appends to a file in its directory.
    pub(super) fn append(&self, name: &str, text: &str) -> Result<(), String> {
        let file = File::options().create(true).append(true).open(self.directory().join(name));
        file.and_then(|mut file| file.write_all(text.as_bytes())).map_err(|error| format!("{name}: {error}"))
    }

    /// Starts its process, and returns when it replies.
    pub(super) fn launch(&self) -> Result<(), String> {
        let mut process = self.spawn()?;
        wait_until("the server replies", || match process.exit_status() {
            Some(status) => {
                Ok(Err(format!("{} exited with {status}:\n{}", self.parts.builder.binary, self.log())))
            }
            None => {
                self.command(&["PING"])?;
                let (listening, own) = (self.listening_pid()?, process.id());
                if listening == own {
                    Ok(Ok(()))
                } else {
                    Err(format!("process {listening} listens on the port, not {own}"))
                }
            }
        })??;
        *self.running() = Some(RunningServer { process, state: RedisServerState::Running });
        Ok(())
    }

    /// The process that listens on the port of this server.
    fn listening_pid(&self) -> Result<u32, String> {
        let information = self.command(&["INFO", "server"])?;
        let mut lines = information.text().unwrap_or_default().lines();
        let number = lines.find_map(|line| line.strip_prefix("process_id:"));
        number.and_then(|number| number.parse().ok()).ok_or_else(|| "INFO has no process_id".to_owned())
    }

    fn spawn(&self) -> Result<ServerProcess, String> {
        let binary = &self.parts.builder.binary;
        let start = || {
            let log = File::options().create(true).append(true).open(self.directory().join("log"))?;
            let mut command = Command::new(binary);
            command.arg("redis.conf").stdout(log.try_clone()?).stderr(log);
            if let RedisRole::Sentinel = self.parts.builder.role {
                command.arg("--sentinel");
            }
            ServerProcess::start(&mut command, self.directory())
        };
        start().map_err(|error: io::Error| format!("cannot start {binary}: {error}"))
    }

    /// The last lines of its log.
    fn log(&self) -> String {
        let text = fs::read_to_string(self.directory().join("log")).unwrap_or_default();
        let lines: Vec<_> = text.lines().collect();
        lines[lines.len().saturating_sub(6)..].join("\n")
    }
}

/// Percent-encodes everything except letters, digits, `-` and `_`.
fn escape(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'_' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}
