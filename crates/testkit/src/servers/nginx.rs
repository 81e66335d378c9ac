//! One nginx, by its own clock or by ours.

use super::{port::ReservedPort, process::ServerProcess, wait_until};
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};
use tempfile::TempDir;

/// An nginx on loopback that this test started: one process, its own directory. Dropping it kills it.
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

/// A request that was sent, and may not be answered yet.
#[derive(Debug)]
pub struct SentHttpRequest {
    stream: TcpStream,
    answer: Vec<u8>,
}

/// One process, nothing outside of its directory, and a second port that nothing is limited on.
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
    /// Starts one with this in its `http` block; `PORT` in it is the port that it was given.
    pub fn start(http: &str) -> Result<Self, String> {
        Self::launch(http, None)
    }

    /// The same, whose clock stands still until [`set_clock`](Self::set_clock) moves it; `None` where there is no faketime.
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
            .map_err(|error| format!("nginx does not start: {error}: apt-get install nginx"))?;
        let mut server = Self { process, port, probe_port: probe, directory };
        wait_until("nginx answers", || match server.process.exit_status() {
            Some(status) => Ok(Err(format!("nginx ended with {status}:\n{}", server.log()))),
            None => server.process_events().map(Ok),
        })??;
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.port.address()
    }

    /// The file that it was started with.
    pub fn config(&self) -> PathBuf {
        self.directory.path().join("nginx.conf")
    }

    /// What it has to say, at the level of `info`.
    pub fn log(&self) -> String {
        let read = |name: &str| fs::read_to_string(self.directory.path().join(name)).unwrap_or_default();
        read("error.log") + &read("output")
    }

    /// Moves its clock, and returns when it has done whatever it was to do by then.
    pub fn set_clock(&self, time: Duration) -> Result<(), String> {
        write_clock(self.directory.path(), time)?;
        self.process_events()
    }

    /// Sends a request, and returns when it has been looked at: what is not answered then has to wait.
    pub fn get(&self, path: &str) -> Result<SentHttpRequest, String> {
        let sent = SentHttpRequest::new(self.address(), path)?;
        self.process_events()?;
        Ok(sent)
    }

    /// Has it go through all that has happened: connections are taken in the order in which they were made.
    fn process_events(&self) -> Result<(), String> {
        match SentHttpRequest::new(self.probe_port.address(), "/")?.wait()? {
            200 => Ok(()),
            status => Err(format!("nginx answers {status}")),
        }
    }
}

impl SentHttpRequest {
    /// Sends a request to whoever listens there.
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

    /// The status, if there is an answer already.
    pub fn status(mut self) -> Result<Option<u16>, String> {
        self.poll()
    }

    /// The status, if there is an answer by now.
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

    /// The status, when there is an answer.
    pub fn wait(mut self) -> Result<u16, String> {
        wait_until("there is an answer", || self.poll()?.ok_or_else(|| "there is none".to_owned()))
    }
}

fn spawn(directory: &Path, faketime: Option<&Path>) -> io::Result<ServerProcess> {
    let output = fs::File::create(directory.join("output"))?;
    // Debian has it where only the system's own programs are looked for.
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

/// The library that tells a program another time.
fn faketime_library() -> Option<PathBuf> {
    let folders = fs::read_dir("/usr/lib").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|library| library.exists())
}

/// Half a millisecond more than is meant: who counts whole ones rounds down.
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
