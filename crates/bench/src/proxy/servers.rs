//! The cast: nginx as a backend and as a proxy, and the gateway, each in a process of its own.

use crate::{
    BenchResult,
    process::{BenchProcess, LOAD_CORE, MEASURED_CORE, free_address},
};
use std::{
    env, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process,
};
use tidegate_gateway::{Gateway, PolicySource};

/// What is asked for.
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// How every answer of the backend ends.
pub const RESPONSE_END: &[u8] = b"\r\n\r\nok";

/// A process that ends with this value.
#[derive(Debug)]
pub struct BenchServer {
    process: BenchProcess,
    /// Where it listens.
    pub address: SocketAddr,
    config: Option<PathBuf>,
}

impl BenchServer {
    /// An nginx that answers everything with two bytes.
    pub fn start_backend() -> BenchResult<Self> {
        Self::launch_nginx(LOAD_CORE, "", "return 200 \"ok\";")
    }

    /// An nginx that forwards everything that it lets through. `limit` is what it says of a zone, and where it applies it.
    pub fn start_nginx(backend: &Self, (zone, limit): (String, String)) -> BenchResult<Self> {
        let upstream = format!(
            "upstream backend {{ server {}; keepalive 128; keepalive_requests 1000000000; }} {zone}",
            backend.address
        );
        let forward = "proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        Self::launch_nginx(MEASURED_CORE, &upstream, &format!("{limit} {forward}"))
    }

    /// A gateway that forwards everything that its rules let through. Like nginx as it is set up here, it tells the backend
    /// nothing of the client.
    pub fn start_gateway(backend: &Self, rules: &str) -> BenchResult<Self> {
        let address = free_address()?;
        let path = temp_path(address, "yaml");
        let policy = format!(
            "listen: {address}\n\
             connections: {{ most: 100000, per-client: 100000, idle-timeout: 600s }}\n\
             upstreams: {{ backend: {{ servers: \"http://{}\", keep-alive: 128 }} }}\n\
             routes: backend\n\
             introduce: none\n\
             {rules}\n",
            backend.address
        );
        fs::write(&path, policy)?;
        let program = env::current_exe()?;
        let arguments = format!("{} serve {}", program.display(), path.display());
        Self::start(MEASURED_CORE, &arguments, address, Some(path))
    }

    /// A Redis, on the core of the load.
    pub fn start_redis() -> BenchResult<Self> {
        let process = BenchProcess::start_redis()?;
        Ok(Self { address: process.address, process, config: None })
    }

    fn launch_nginx(core: &str, upstream: &str, location: &str) -> BenchResult<Self> {
        let address = free_address()?;
        let path = temp_path(address, "conf");
        let text = format!(
            "daemon off; master_process off; worker_processes 1; pid {0}.pid; error_log stderr crit;\n\
             events {{ worker_connections 32768; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; {upstream}\n\
             client_body_temp_path {0}.body; proxy_temp_path {0}.proxy; fastcgi_temp_path {0}.fastcgi;\n\
             uwsgi_temp_path {0}.uwsgi; scgi_temp_path {0}.scgi;\n\
             server {{ listen {address} backlog=4096; location / {{ {location} }} }} }}\n",
            path.display()
        );
        fs::write(&path, text)?;
        let arguments = format!("nginx -c {}", path.display());
        Self::start(core, &arguments, address, Some(path))
    }

    fn start(core: &str, program: &str, address: SocketAddr, config: Option<PathBuf>) -> BenchResult<Self> {
        Ok(Self { process: BenchProcess::start(core, program, address)?, address, config })
    }

    /// Bytes of memory that it has.
    pub fn resident_memory(&self) -> BenchResult<u64> {
        self.process.resident_memory()
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        if let Some(config) = &self.config {
            for end in ["", ".pid"] {
                let _ = fs::remove_file(format!("{}{end}", config.display()));
            }
            for end in ["body", "proxy", "fastcgi", "uwsgi", "scgi"] {
                let _ = fs::remove_dir_all(format!("{}.{end}", config.display()));
            }
        }
    }
}

fn temp_path(address: SocketAddr, kind: &str) -> PathBuf {
    env::temp_dir().join(format!("tidegate-bench-{}-{}.{kind}", process::id(), address.port()))
}

/// One request and its answer, on a connection that is kept.
pub fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 1_024];
    while !answer.ends_with(RESPONSE_END) {
        match stream.read(&mut buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            length => answer.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(())
}

/// The gateway as `tidegate serve` runs it, in this process, with one worker.
pub fn serve(policy: &str) -> BenchResult<()> {
    let gateway = Gateway::open(PolicySource::file(Path::new(policy)), tidegate::rules())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(gateway.workers(NonZeroUsize::MIN).run(std::future::pending()))?;
    Ok(())
}
