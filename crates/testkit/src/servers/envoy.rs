//! One Envoy.

use super::{nginx::Sent, port::Port, process::Process, until};
use std::{fs, io, net::SocketAddr, path::Path, process::Command};
use tempfile::TempDir;

/// An Envoy on loopback that this test started: one process, its own directory. Dropping it kills it.
///
/// Its configuration is a file in which `PORT` and `ADMIN` stand for the ports that it was given.
#[derive(Debug)]
pub struct EnvoyServer {
    process: Process,
    port: Port,
    admin: Port,
    directory: TempDir,
}

impl EnvoyServer {
    /// Starts one; `None` where no `envoy` is installed.
    pub fn start(config: &str) -> Result<Option<Self>, String> {
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().map_err(|e| e.to_string())?;
        let (port, admin) = (Port::any()?, Port::any()?);
        let config = config
            .replace(": PORT", &format!(": {}", port.number()))
            .replace("ADMIN", &admin.number().to_string());
        let path = directory.path().join("envoy.yaml");
        fs::write(&path, config).map_err(|error| format!("envoy.yaml: {error}"))?;
        let process = match spawn(directory.path()) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("envoy does not start: {error}")),
        };
        let mut server = Self { process, port, admin, directory };
        until("envoy is ready", || match server.process.end() {
            Some(status) => Ok(Err(format!("envoy ended with {status}:\n{}", server.log()))),
            None => match Sent::new(server.admin.address(), "/ready")?.wait()? {
                200 => Ok(Ok(())),
                status => Err(format!("it says {status}")),
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
    let mut command = Command::new("envoy");
    // One thread, and nothing that two of them on one machine would share.
    command.args(["-c", "envoy.yaml", "--concurrency", "1", "--use-dynamic-base-id", "-l", "warning"]);
    command.stdout(output.try_clone()?).stderr(output);
    Process::start(&mut command, directory)
}
