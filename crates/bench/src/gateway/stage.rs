//! The cast: nginx as a backend and as a proxy, and the gateway, each in a process of its own.

use crate::Result;
use std::{
    collections::BTreeMap,
    env, fs,
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    num::NonZeroUsize,
    path::PathBuf,
    process::{self, Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};
use tidegate_core::Share;
use tidegate_policy::model::{
    Balance, Connections, Listener, Log, Protocol, Retries, Timeouts, Upstream, UpstreamServer,
};
use tidegate_server::{Bound, Config, Outcome, Roots, run};

/// The core of proxies, and that of load and backend.
const PROXY: &str = "0";
pub(crate) const OTHERS: &str = "1";

/// What is asked for, and how every answer of the backend ends.
pub(crate) const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";
pub(crate) const OK: &[u8] = b"\r\n\r\nok";

/// A process that ends with this value.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    config: Option<PathBuf>,
}

impl Server {
    /// An nginx that answers everything with two bytes.
    pub(crate) fn backend() -> Result<Self> {
        Self::nginx(OTHERS, "", "return 200 \"ok\";")
    }

    /// An nginx that forwards everything.
    pub(crate) fn nginx_before(backend: &Self) -> Result<Self> {
        let upstream = format!(
            "upstream backend {{ server {}; keepalive 128; keepalive_requests 1000000000; }}",
            backend.address
        );
        let forward = "proxy_pass http://backend; proxy_http_version 1.1; proxy_set_header Connection \"\";";
        Self::nginx(PROXY, &upstream, forward)
    }

    /// A gateway that forwards everything.
    pub(crate) fn gateway_before(backend: &Self) -> Result<Self> {
        let address = free_address()?;
        let program = env::current_exe()?;
        let arguments = format!("{} proxy {address} http://{}", program.display(), backend.address);
        Self::start(PROXY, &arguments, address, None)
    }

    fn nginx(core: &str, upstream: &str, location: &str) -> Result<Self> {
        let address = free_address()?;
        let path = env::temp_dir().join(format!("tidegate-bench-{}-{}.conf", process::id(), address.port()));
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

    fn start(core: &str, program: &str, address: SocketAddr, config: Option<PathBuf>) -> Result<Self> {
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -n $(ulimit -Hn) && exec taskset -c {core} {program}"))
            .stdin(Stdio::null())
            .spawn()?;
        let server = Self { child, address, config };
        let start = Instant::now();
        while ask(address).is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(format!("`{program}` did not start").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Bytes of memory that it has.
    pub(crate) fn memory(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no VmRSS")?;
        Ok(kilobytes.trim().parse::<u64>()? * 1_024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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

fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

fn ask(address: SocketAddr) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(address)?;
    speak(&mut stream)?;
    Ok(stream)
}

/// One request and its answer, on a connection that is kept.
pub(crate) fn speak(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(REQUEST)?;
    let mut answer = Vec::new();
    let mut buffer = [0; 1_024];
    while !answer.ends_with(OK) {
        match stream.read(&mut buffer)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            length => answer.extend_from_slice(&buffer[..length]),
        }
    }
    Ok(())
}

/// The gateway, in this process, with one worker.
pub(crate) fn proxy(listen: &str, url: &str) -> Result<()> {
    let upstream = Upstream {
        servers: vec![UpstreamServer { url: url.to_owned(), weight: 1 }],
        balance: Balance::default(),
        protocol: Protocol::default(),
        timeouts: Timeouts::default(),
        keep_alive: 128,
        health: None,
        breaker: None,
        retries: Retries { most: 1, budget: Share::percent(20.0)? },
    };
    let idle_timeout = Duration::from_secs(600);
    let config = Config {
        connections: Connections {
            most: 100_000,
            per_client: 100_000,
            idle_timeout,
            ..Connections::default()
        },
        upstreams: BTreeMap::from([("backend".to_owned(), upstream)]),
        trusted: Vec::new(),
        log: Log::default(),
        roots: Roots::default(),
        workers: NonZeroUsize::MIN,
    };
    let backend = config.target("backend").ok_or("no upstream")?;
    let listener = Bound::bind(&Listener { address: listen.parse()?, tls: None })?;
    let judge = Arc::new(move |_: &http::request::Parts| Outcome::Go(backend, ()));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(run(config, vec![listener], judge, std::future::pending()))?;
    Ok(())
}
