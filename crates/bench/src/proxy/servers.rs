//! The servers: nginx as a backend and as a proxy, and the gateway, each in a separate process.

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

/// The request that is sent.
pub const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
/// The end of every response of the backend.
pub const RESPONSE_END: &[u8] = b"\r\n\r\nok";

/// A server process, killed on drop.
#[derive(Debug)]
pub struct BenchServer {
    process: BenchProcess,
    /// The address that it listens on.
    pub address: SocketAddr,
    config: Option<PathBuf>,
    /// The file that it serves.
    file: Option<PathBuf>,
}

impl BenchServer {
    /// Starts an nginx backend that responds with two bytes.
    pub fn start_backend() -> BenchResult<Self> {
        Self::launch_nginx(LOAD_CORE, "", "return 200 \"ok\";")
    }

    /// Starts an nginx backend that responds to every request with a file of this size.
    pub fn start_file_backend(bytes: u64) -> BenchResult<Self> {
        let path = env::temp_dir().join(format!("tidegate-bench-{}-file.data", process::id()));
        // Without content, so that the file takes no room.
        fs::File::create(&path)?.set_len(bytes)?;
        let (folder, name) = (env::temp_dir(), path.file_name().unwrap_or_default().display().to_string());
        let location = format!("root {}; rewrite ^ /{name} break; sendfile on;", folder.display());
        let mut backend = Self::launch_nginx(LOAD_CORE, "", &location)?;
        backend.file = Some(path);
        Ok(backend)
    }

    /// Starts an nginx proxy. `zone` and `limit` are the declaration of its zone and the directives that use it.
    pub fn start_nginx(backend: &Self, (zone, limit): (String, String)) -> BenchResult<Self> {
        let upstream = format!(
            "upstream backend {{ server {}; keepalive 128; keepalive_requests 1000000000; }} {zone}",
            backend.address
        );
        let forward = "proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        Self::launch_nginx(MEASURED_CORE, &upstream, &format!("{limit} {forward}"))
    }

    /// Starts a gateway with these rules. Like nginx with this configuration, it adds no forwarded headers.
    pub fn start_gateway(backend: &Self, rules: &str) -> BenchResult<Self> {
        let address = free_address()?;
        let path = temp_path(address, "yaml");
        let policy = format!(
            "listen: {address}\n\
             connections: {{ max: 100000, max-per-client: 100000, idle-timeout: 600s }}\n\
             upstreams: {{ backend: {{ servers: \"http://{}\", keep-alive: 128 }} }}\n\
             routes: backend\n\
             forwarded-headers: none\n\
             {rules}\n",
            backend.address
        );
        fs::write(&path, policy)?;
        let program = env::current_exe()?;
        let arguments = format!("{} serve {}", program.display(), path.display());
        Self::start(MEASURED_CORE, &arguments, address, Some(path))
    }

    /// Starts a Redis server on the core of the load.
    pub fn start_redis() -> BenchResult<Self> {
        let process = BenchProcess::start_redis()?;
        Ok(Self { address: process.address, process, config: None, file: None })
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
        Ok(Self { process: BenchProcess::start(core, program, address)?, address, config, file: None })
    }

    /// The resident memory in bytes.
    pub fn resident_memory(&self) -> BenchResult<u64> {
        self.process.resident_memory()
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            let _ = fs::remove_file(file);
        }
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

/// Sends one request on a keep-alive connection and reads the response.
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

/// Runs the gateway in this process with one worker, like `tidegate serve`.
pub fn serve(policy: &str) -> BenchResult<()> {
    let gateway = Gateway::open(PolicySource::file(Path::new(policy)), tidegate::rules())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(gateway.workers(NonZeroUsize::MIN).run(std::future::pending()))?;
    Ok(())
}
