//! A web application in a language of its own: one in Node, one in Flask.

use super::{port::Port, process::Process, until};
use std::{fs, io, net::SocketAddr, path::Path, process::Command};
use tempfile::TempDir;

/// A web application on loopback that this test started: one process, its own directory. Dropping it kills it.
#[derive(Debug)]
pub struct AppServer {
    process: Process,
    port: Port,
    directory: TempDir,
}

impl AppServer {
    /// Runs a script in Node, which listens on the port of its first argument; `None` where no `node` is installed.
    pub fn node(script: &str) -> Result<Option<Self>, String> {
        Self::start("app.js", script, |port| {
            let mut command = Command::new("node");
            command.args(["app.js", port]);
            command
        })
    }

    /// Runs a module with an `app` in Flask; `None` where no `flask` is installed.
    pub fn flask(module: &str) -> Result<Option<Self>, String> {
        Self::start("app.py", module, |port| {
            let mut command = Command::new("flask");
            command.args(["--app", "app.py", "run", "--host", "127.0.0.1", "--port", port, "--with-threads"]);
            command
        })
    }

    fn start(file: &str, source: &str, command: impl Fn(&str) -> Command) -> Result<Option<Self>, String> {
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().map_err(|e| e.to_string())?;
        fs::write(directory.path().join(file), source).map_err(|error| format!("{file}: {error}"))?;
        let port = Port::any()?;
        let process = match spawn(command(&port.number().to_string()), directory.path()) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(format!("{file} does not start: {error}")),
        };
        let mut server = Self { process, port, directory };
        until("the application is ready", || match server.process.end() {
            Some(status) => Ok(Err(format!("{file} ended with {status}:\n{}", server.log()))),
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

fn spawn(mut command: Command, directory: &Path) -> io::Result<Process> {
    let output = fs::File::create(directory.join("output"))?;
    command.env("HOME", directory).env("PYTHONDONTWRITEBYTECODE", "1");
    command.stdout(output.try_clone()?).stderr(output);
    Process::start(&mut command, directory)
}
