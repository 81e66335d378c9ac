//! Child processes of a benchmark, each pinned to a core.

use crate::BenchResult;
use std::{
    fs,
    net::{SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The core of the measured server.
pub const MEASURED_CORE: &str = "0";
/// The core of the load and the backend.
pub const LOAD_CORE: &str = "1";

/// A child process, killed on drop.
#[derive(Debug)]
pub struct BenchProcess {
    child: Child,
    /// The address that it listens on.
    pub address: SocketAddr,
}

impl BenchProcess {
    /// Starts a program on a core and waits until it listens.
    pub fn start(core: &str, program: &str, address: SocketAddr) -> BenchResult<Self> {
        let process = Self::spawn(core, program, address)?;
        let start = Instant::now();
        while TcpStream::connect(address).is_err() {
            if start.elapsed() > Duration::from_secs(10) {
                return Err(format!("`{program}` does not listen on {address} after 10 s").into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(process)
    }

    /// Starts a program on a core.
    pub fn spawn(core: &str, program: &str, address: SocketAddr) -> BenchResult<Self> {
        let child = Command::new("sh")
            .arg("-c")
            .arg(format!("ulimit -n $(ulimit -Hn) && exec taskset -c {core} {program}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Self { child, address })
    }

    /// Starts a Redis server on the core of the load.
    pub fn start_redis() -> BenchResult<Self> {
        let address = free_address()?;
        let port = address.port();
        let program = format!("redis-server --port {port} --bind 127.0.0.1 --save '' --loglevel warning");
        Self::start(LOAD_CORE, &program, address)
    }

    /// The processor time of its threads, in nanoseconds.
    pub fn cpu_time(&self) -> BenchResult<u64> {
        let mut total = 0;
        for thread in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(thread?.path().join("schedstat"))?;
            total += text.split_whitespace().next().ok_or("no schedstat")?.parse::<u64>()?;
        }
        Ok(total)
    }

    /// The number of its open files, including its connections.
    pub fn open_files(&self) -> BenchResult<usize> {
        Ok(fs::read_dir(format!("/proc/{}/fd", self.child.id()))?.count())
    }

    /// The resident memory in bytes.
    pub fn resident_memory(&self) -> BenchResult<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix(" kB")).ok_or("no VmRSS")?;
        Ok(kilobytes.trim().parse::<u64>()? * 1_024)
    }
}

impl Drop for BenchProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns an unused address on loopback.
pub fn free_address() -> BenchResult<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
