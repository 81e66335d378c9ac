//! Third-party HTTP servers: applications in Node and Flask, Caddy, Envoy, Prometheus.

use super::{nginx::SentHttpRequest, port::ReservedPort, process::ServerProcess, wait_until};
use std::{
    fs, io,
    net::{SocketAddr, TcpStream},
    process::Command,
};
use tempfile::TempDir;

/// An HTTP server on loopback, with one process and its own directory. Dropping it kills it.
#[derive(Debug)]
pub struct AppServer {
    process: ServerProcess,
    port: ReservedPort,
    /// The port on which Envoy reports readiness. Other servers are ready when they accept connections.
    admin_port: Option<ReservedPort>,
    directory: TempDir,
}

/// Disables Caddy's admin API and automatic HTTPS.
const CADDY_GLOBAL: &str = "{\n\tadmin off\n\tauto_https off\n}\n";

impl AppServer {
    /// Runs a Node script, which must listen on the port in its first argument; `None` if `node` is not installed.
    pub fn start_node(script: &str) -> Result<Option<Self>, String> {
        let port = ReservedPort::reserve()?;
        let number = port.number().to_string();
        Self::start("node", &["app.js", &number], ("app.js", script), (port, None))
    }

    /// Runs a Flask module with an `app`; `None` if `flask` is not installed.
    pub fn start_flask(module: &str) -> Result<Option<Self>, String> {
        let port = ReservedPort::reserve()?;
        let number = port.number().to_string();
        let args = ["--app", "app.py", "run", "--host", "127.0.0.1", "--port", &number, "--with-threads"];
        Self::start("flask", &args, ("app.py", module), (port, None))
    }

    /// Runs Caddy with a Caddyfile, in which `PORT` is replaced by its port; `None` if `caddy` is not installed.
    pub fn start_caddy(config: &str) -> Result<Option<Self>, String> {
        let port = ReservedPort::reserve()?;
        let config = format!("{CADDY_GLOBAL}{}", config.replace("PORT", &port.number().to_string()));
        let args = ["run", "--config", "Caddyfile", "--adapter", "caddyfile"];
        Self::start("caddy", &args, ("Caddyfile", &config), (port, None))
    }

    /// Runs Envoy with a configuration, in which `PORT` and `ADMIN` are replaced by its ports; `None` if `envoy` is not
    /// installed.
    pub fn start_envoy(config: &str) -> Result<Option<Self>, String> {
        let (port, admin) = (ReservedPort::reserve()?, ReservedPort::reserve()?);
        let config = config
            .replace(": PORT", &format!(": {}", port.number()))
            .replace("ADMIN", &admin.number().to_string());
        // One thread, and no shared memory with other Envoys on this machine.
        let args = ["-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"];
        Self::start("envoy", &args, ("envoy.yaml", &config), (port, Some(admin)))
    }

    /// Runs Prometheus with a configuration; `None` if `prometheus` is not installed.
    pub fn start_prometheus(config: &str) -> Result<Option<Self>, String> {
        let port = ReservedPort::reserve()?;
        let address = format!("--web.listen-address={}", port.address());
        let args = ["--config.file=prometheus.yml", "--storage.tsdb.path=data", &address];
        Self::start("prometheus", &args, ("prometheus.yml", config), (port, None))
    }

    fn start(
        program: &str,
        args: &[&str],
        (file, text): (&str, &str),
        (port, admin): (ReservedPort, Option<ReservedPort>),
    ) -> Result<Option<Self>, String> {
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().map_err(|e| e.to_string())?;
        let path = directory.path();
        fs::write(path.join(file), text).map_err(|error| format!("{file}: {error}"))?;
        let spawn = || {
            let output = fs::File::create(path.join("output"))?;
            let mut command = Command::new(program);
            command.args(args).stdout(output.try_clone()?).stderr(output);
            // All files stay in its directory.
            command.env("HOME", path).env("XDG_DATA_HOME", path).env("XDG_CONFIG_HOME", path);
            command.env("PYTHONDONTWRITEBYTECODE", "1");
            ServerProcess::start(&mut command, path)
        };
        let process = match spawn() {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("cannot start {program}: {error}")),
        };
        let mut server = Self { process, port, admin_port: admin, directory };
        wait_until(&format!("{program} is ready"), || match server.process.exit_status() {
            Some(status) => Ok(Err(format!("{program} exited with {status}:\n{}", server.log()))),
            None => server.check_ready().map(Ok),
        })??;
        Ok(Some(server))
    }

    fn check_ready(&self) -> Result<(), String> {
        match &self.admin_port {
            Some(admin) => match SentHttpRequest::new(admin.address(), "/ready")?.wait()? {
                200 => Ok(()),
                status => Err(format!("/ready returns {status}")),
            },
            None => TcpStream::connect(self.address()).map(drop).map_err(|error| error.to_string()),
        }
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// Its output.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }
}
