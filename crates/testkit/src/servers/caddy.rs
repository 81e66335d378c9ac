//! One Caddy.

use super::{port::Port, process::Process, until};
use std::{fs, io, net::SocketAddr, path::Path, process::Command};
use tempfile::TempDir;

/// A Caddy on loopback that this test started: one process, its own directory. Dropping it kills it.
///
/// Its configuration is a Caddyfile in which `PORT` stands for the port that it was given.
#[derive(Debug)]
pub struct CaddyServer {
    process: Process,
    port: Port,
    directory: TempDir,
}

/// Nothing that it would do for a site of the world.
const GLOBAL: &str = "{\n\tadmin off\n\tauto_https off\n}\n";

impl CaddyServer {
    /// Starts one; `None` where no `caddy` is installed.
    pub fn start(config: &str) -> Result<Option<Self>, String> {
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().map_err(|e| e.to_string())?;
        let port = Port::any()?;
        let config = format!("{GLOBAL}{}", config.replace("PORT", &port.number().to_string()));
        fs::write(directory.path().join("Caddyfile"), config)
            .map_err(|error| format!("Caddyfile: {error}"))?;
        let process = match spawn(directory.path()) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("caddy does not start: {error}")),
        };
        let mut server = Self { process, port, directory };
        until("caddy is ready", || match server.process.end() {
            Some(status) => Ok(Err(format!("caddy ended with {status}:\n{}", server.log()))),
            None => match std::net::TcpStream::connect(server.port.address()) {
                Ok(_) => Ok(Ok(())),
                Err(error) => Err(error.to_string()),
            },
        })??;
        Ok(Some(server))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// What it has to say.
    pub fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("output")).unwrap_or_default()
    }
}

fn spawn(directory: &Path) -> io::Result<Process> {
    let output = fs::File::create(directory.join("output"))?;
    let mut command = Command::new("caddy");
    command.args(["run", "--config", "Caddyfile", "--adapter", "caddyfile"]);
    // It keeps nothing elsewhere.
    command.env("HOME", directory).env("XDG_DATA_HOME", directory).env("XDG_CONFIG_HOME", directory);
    command.stdout(output.try_clone()?).stderr(output);
    Process::start(&mut command, directory)
}
