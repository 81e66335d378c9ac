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
use tidegate_testkit::servers::Certificates;

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
    /// The scheme of its URLs.
    pub(super) scheme: &'static str,
    /// The directory of its files, which is removed with it.
    directory: Option<PathBuf>,
}

/// The settings of nginx as a proxy.
#[derive(Clone, Debug)]
pub struct NginxSettings {
    /// The declaration of a zone.
    pub zone: String,
    /// The directives of its only location, in addition to those of the proxy.
    pub directives: String,
    /// Its `worker_connections`, of clients and of the backend together. nginx allocates memory for all of them at start, and
    /// closes idle connections while less than a sixteenth of them is free.
    pub connections: u32,
}

impl Default for NginxSettings {
    fn default() -> Self {
        Self { zone: String::new(), directives: String::new(), connections: 1_024 }
    }
}

/// The `worker_connections` of a backend, which is not measured.
const BACKEND_CONNECTIONS: u32 = 16_384;

/// How clients connect to a proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientProtocol {
    /// HTTP/1.1.
    Http,
    /// HTTP/1.1 over TLS 1.3 with [`CIPHER_SUITE`].
    Https,
    /// HTTP/2 without TLS.
    Http2,
}

/// The cipher suite of nginx over TLS. It is the first choice of wrk, which the gateway follows.
pub const CIPHER_SUITE: &str = "TLS_AES_256_GCM_SHA384";

impl BenchServer {
    /// Starts an nginx backend that responds with two bytes.
    pub fn start_backend() -> BenchResult<Self> {
        Self::start_nginx_backend("return 200 \"ok\";")
    }

    /// Starts an nginx backend that responds to every request with a file of this size.
    pub fn start_file_backend(bytes: u64) -> BenchResult<Self> {
        let location = "root file; rewrite ^ /data break; sendfile on;";
        let backend = Self::start_nginx_backend(location)?;
        let folder = backend.directory.as_deref().unwrap_or(Path::new("")).join("file");
        fs::create_dir(&folder)?;
        // Without content, so that the file takes no room.
        fs::File::create(folder.join("data"))?.set_len(bytes)?;
        Ok(backend)
    }

    /// Starts this program on the core of the load, with a command and its address.
    pub fn start_program(command: &str) -> BenchResult<Self> {
        let address = free_address()?;
        let program = format!("{} {command} {address}", env::current_exe()?.display());
        let process = BenchProcess::start(LOAD_CORE, &program, address)?;
        Ok(Self { process, address, scheme: "http", directory: None })
    }

    fn start_nginx_backend(location: &str) -> BenchResult<Self> {
        Self::launch_nginx(LOAD_CORE, ClientProtocol::Http, BACKEND_CONNECTIONS, "", location)
    }

    /// Starts an nginx proxy.
    pub fn start_nginx(
        backend: &Self,
        clients: ClientProtocol,
        settings: &NginxSettings,
    ) -> BenchResult<Self> {
        let NginxSettings { zone, directives, connections } = settings;
        let upstream = format!(
            "upstream backend {{ server {}; keepalive 128; keepalive_requests 1000000000; }} {zone}",
            backend.address
        );
        let forward = "proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        let location = format!("{directives} {forward}");
        Self::launch_nginx(MEASURED_CORE, clients, *connections, &upstream, &location)
    }

    /// Starts a gateway with these rules. Like nginx with this configuration, it adds no forwarded headers.
    pub fn start_gateway(backend: &Self, clients: ClientProtocol, rules: &str) -> BenchResult<Self> {
        Self::start_gateway_with_files(backend, clients, rules, &[])
    }

    /// Starts a gateway with these rules, and with these files next to its policy.
    pub fn start_gateway_with_files(
        backend: &Self,
        clients: ClientProtocol,
        rules: &str,
        files: &[(&str, String)],
    ) -> BenchResult<Self> {
        let address = free_address()?;
        let directory = create_directory(address)?;
        let tls = match clients {
            ClientProtocol::Http | ClientProtocol::Http2 => String::new(),
            ClientProtocol::Https => {
                let Certificates { certificate, key, .. } = Certificates::create(&directory)?;
                format!(", tls: {{ certificate: {}, key: {} }}", certificate.display(), key.display())
            }
        };
        let policy = format!(
            "listen: {{ address: \"{address}\"{tls} }}\n\
             connections: {{ max: 100000, max-per-client: 100000, idle-timeout: 600s }}\n\
             upstreams: {{ backend: {{ servers: \"http://{}\", keep-alive: 128 }} }}\n\
             routes: backend\n\
             forwarded-headers: none\n\
             {rules}\n",
            backend.address
        );
        for (name, content) in files {
            fs::write(directory.join(name), content)?;
        }
        let path = directory.join("policy.yaml");
        fs::write(&path, policy)?;
        let program = env::current_exe()?;
        let arguments = format!("{} serve {}", program.display(), path.display());
        Self::start(MEASURED_CORE, clients, &arguments, address, directory)
    }

    /// Starts a Redis server on the core of the load.
    pub fn start_redis() -> BenchResult<Self> {
        let process = BenchProcess::start_redis()?;
        Ok(Self { address: process.address, process, scheme: "redis", directory: None })
    }

    fn launch_nginx(
        core: &str,
        clients: ClientProtocol,
        connections: u32,
        upstream: &str,
        location: &str,
    ) -> BenchResult<Self> {
        let address = free_address()?;
        let directory = create_directory(address)?;
        let (option, tls) = match clients {
            ClientProtocol::Http => ("", String::new()),
            ClientProtocol::Http2 => ("http2", String::new()),
            ClientProtocol::Https => {
                let Certificates { certificate, key, .. } = Certificates::create(&directory)?;
                let (certificate, key) = (certificate.display(), key.display());
                let tls = format!(
                    "ssl_certificate {certificate}; ssl_certificate_key {key}; ssl_protocols TLSv1.3; \
                     ssl_conf_command Ciphersuites {CIPHER_SUITE};"
                );
                ("ssl", tls)
            }
        };
        let text = format!(
            "daemon off; master_process off; worker_processes 1; pid pid; error_log stderr crit;\n\
             events {{ worker_connections {connections}; }}\n\
             http {{ access_log off; keepalive_requests 1000000000; keepalive_timeout 600s; {upstream}\n\
             client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
             uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
             server {{ listen {address} backlog=4096 {option}; {tls} location / {{ {location} }} }} }}\n"
        );
        fs::write(directory.join("nginx.conf"), text)?;
        let arguments = format!("nginx -p {} -c nginx.conf", directory.display());
        Self::start(core, clients, &arguments, address, directory)
    }

    fn start(
        core: &str,
        clients: ClientProtocol,
        program: &str,
        address: SocketAddr,
        directory: PathBuf,
    ) -> BenchResult<Self> {
        let scheme = if clients == ClientProtocol::Https { "https" } else { "http" };
        let process = BenchProcess::start(core, program, address)?;
        Ok(Self { process, address, scheme, directory: Some(directory) })
    }

    /// The processor time in nanoseconds.
    pub fn cpu_time(&self) -> BenchResult<u64> {
        self.process.cpu_time()
    }

    /// The number of its open files, including its connections.
    pub fn open_files(&self) -> BenchResult<usize> {
        self.process.open_files()
    }

    /// The resident memory in bytes.
    pub fn resident_memory(&self) -> BenchResult<u64> {
        self.process.resident_memory()
    }
}

impl Drop for BenchServer {
    fn drop(&mut self) {
        if let Some(directory) = &self.directory {
            let _ = fs::remove_dir_all(directory);
        }
    }
}

fn create_directory(address: SocketAddr) -> BenchResult<PathBuf> {
    let directory = env::temp_dir().join(format!("tidegate-bench-{}-{}", process::id(), address.port()));
    fs::create_dir(&directory)?;
    Ok(directory)
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
