//! One nginx, with the system clock or a manual clock.

use super::{faketime::faketime_library, port::ReservedPort, process::ServerProcess, wait_until};
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// An nginx on loopback, with one process and its own directory. Dropping it kills it.
///
/// ```no_run
/// use tidegate_testkit::servers::NginxServer;
///
/// # fn main() -> Result<(), String> {
/// let server = NginxServer::start("server { listen 127.0.0.1:PORT; location / { empty_gif; } }")?;
/// assert_eq!(server.get("/")?.status()?, Some(200));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct NginxServer {
    process: ServerProcess,
    port: ReservedPort,
    probe_port: ReservedPort,
    directory: TempDir,
}

/// A request that was sent and may not have a response yet.
#[derive(Debug)]
pub struct SentHttpRequest {
    stream: TcpStream,
    answer: Vec<u8>,
}

/// One process, all files in its directory, and a second port without limits for probes.
const MAIN_CONFIG: &str = "\
daemon off;
master_process off;
pid nginx.pid;
error_log error.log info;
env FAKETIME_TIMESTAMP_FILE;
env FAKETIME_NO_CACHE;
events { worker_connections 1024; }
http {
  access_log off;
  client_body_temp_path temp;
  proxy_temp_path temp;
  fastcgi_temp_path temp;
  uwsgi_temp_path temp;
  scgi_temp_path temp;
HTTP
  server { listen 127.0.0.1:PROBE; location / { empty_gif; } }
}
";

impl NginxServer {
    /// Starts nginx with this content of its `http` block, in which `PORT` is replaced by its port.
    pub fn start(http: &str) -> Result<Self, String> {
        Self::launch(http, None)
    }

    /// Like [`start`](Self::start), with a clock that only [`set_clock`](Self::set_clock) changes; `None` if faketime is
    /// not installed.
    pub fn start_with_manual_clock(http: &str) -> Result<Option<Self>, String> {
        match faketime_library() {
            Some(library) => Self::launch(http, Some(&library)).map(Some),
            None => Ok(None),
        }
    }

    fn launch(http: &str, faketime: Option<&Path>) -> Result<Self, String> {
        let directory = tempfile::Builder::new().prefix("tidegate-").tempdir().map_err(|e| e.to_string())?;
        let (port, probe) = (ReservedPort::reserve()?, ReservedPort::reserve()?);
        let config = MAIN_CONFIG
            .replace("HTTP", &http.replace("PORT", &port.number().to_string()))
            .replace("PROBE", &probe.number().to_string());
        let path = directory.path().join("nginx.conf");
        fs::write(&path, config).map_err(|error| format!("nginx.conf: {error}"))?;
        write_clock(directory.path(), Duration::ZERO)?;
        let process = spawn(directory.path(), faketime)
            .map_err(|error| format!("cannot start nginx: {error}; run apt-get install nginx"))?;
        let mut server = Self { process, port, probe_port: probe, directory };
        wait_until("nginx responds", || match server.process.exit_status() {
            Some(status) => Ok(Err(format!("nginx exited with {status}:\n{}", server.log()))),
            None => server.process_events().map(Ok),
        })??;
        Ok(server)
    }

    /// The address that it listens on.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The path of its configuration file.
    pub fn config(&self) -> PathBuf {
        self.directory.path().join("nginx.conf")
    }

    /// Its error log at level `info`, and its output.
    pub fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
        read("error.log") + &read("output")
    }

    /// Sets its clock, and returns when it has processed all timers up to that time.
    pub fn set_clock(&self, time: Duration) -> Result<(), String> {
        write_clock(self.directory.path(), time)?;
        self.process_events()
    }

    /// Sends a request, and returns when nginx has processed it: without a response by then, it is delayed.
    pub fn get(&self, path: &str) -> Result<SentHttpRequest, String> {
        let sent = SentHttpRequest::new(self.address(), path)?;
        self.process_events()?;
        Ok(sent)
    }

    /// Waits until nginx has processed all events: it accepts connections in order, so a probe is served last.
    fn process_events(&self) -> Result<(), String> {
        match SentHttpRequest::new(self.probe_port.address(), "/")?.wait()? {
            200 => Ok(()),
            status => Err(format!("nginx returns {status}")),
        }
    }
}

impl SentHttpRequest {
    /// Sends a GET request to an address.
    pub fn new(address: SocketAddr, path: &str) -> Result<Self, String> {
        let head = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let send = || {
            let mut stream = TcpStream::connect(address)?;
            stream.write_all(head.as_bytes())?;
            stream.set_nonblocking(true)?;
            Ok(Self { stream, answer: Vec::new() })
        };
        send().map_err(|error: io::Error| format!("{address}: {error}"))
    }

    /// The status, if there is a response.
    pub fn status(mut self) -> Result<Option<u16>, String> {
        self.poll()
    }

    /// Reads without blocking; returns the status if there is a response.
    pub fn poll(&mut self) -> Result<Option<u16>, String> {
        let mut buffer = [0; 4_096];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => self.answer.extend_from_slice(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.to_string()),
            }
        }
        let text = String::from_utf8_lossy(&self.answer);
        Ok(text.split(' ').nth(1).and_then(|status| status.parse().ok()))
    }

    /// Waits for the response and returns its status.
    pub fn wait(mut self) -> Result<u16, String> {
        wait_until("there is a response", || self.poll()?.ok_or_else(|| "no response".to_owned()))
    }
}

fn spawn(directory: &Path, faketime: Option<&Path>) -> io::Result<ServerProcess> {
    let output = fs::File::create(directory.join("output"))?;
    // Debian installs nginx in /usr/sbin, which is not in every user's PATH.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin";
    let mut command = Command::new("env");
    command.env("PATH", path);
    if let Some(library) = faketime {
        command.arg(format!("LD_PRELOAD={}", library.display()));
        command.env("FAKETIME_TIMESTAMP_FILE", directory.join("clock")).env("FAKETIME_NO_CACHE", "1");
    }
    command.arg("nginx").arg("-p").arg(directory).args(["-c", "nginx.conf", "-e", "error.log"]);
    command.stdout(output.try_clone()?).stderr(output);
    ServerProcess::start(&mut command, directory)
}

/// Writes the clock file. Adds half a millisecond, because nginx rounds down to whole milliseconds.
fn write_clock(directory: &Path, time: Duration) -> Result<(), String> {
    const HALF_MILLISECOND: Duration = Duration::from_micros(500);
    let time = time + HALF_MILLISECOND;
    let (minutes, seconds) = (time.as_secs() / 60, time.as_secs() % 60);
    let text = format!(
        "2026-01-01 {:02}:{:02}:{seconds:02}.{:06}\n",
        1 + minutes / 60,
        minutes % 60,
        time.subsec_micros()
    );
    let write = || {
        fs::write(directory.join("clock.new"), text)?;
        fs::rename(directory.join("clock.new"), directory.join("clock"))
    };
    write().map_err(|error: io::Error| format!("clock: {error}"))
}
