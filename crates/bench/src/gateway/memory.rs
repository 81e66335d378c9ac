//! Memory with many idle connections, and with clients that do not read, compared with nginx.

use crate::{BenchResult, Measurement, median};
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};
use tidegate_bench::{
    process::LOAD_CORE,
    proxy::{BenchServer, ClientProtocol, NginxSettings, REQUEST, exchange},
};

pub(crate) const IDLE_ABOUT: &str = "memory with 10,000 idle keep-alive connections, over nginx's";

pub(crate) const SLOW_ABOUT: &str =
    "memory of 1,000 clients that do not read an answer of 20 MB, over nginx without temporary files";

/// The time until connections are considered idle, or buffers full.
const SETTLE_DELAY: Duration = Duration::from_secs(2);
const SLOW_BODY_BYTES: u64 = 20_000_000;
const MIN_ROUNDS: usize = 3;
/// After this time no further rounds start beyond the minimum, so that a case ends within a minute.
const TIME_BUDGET: Duration = Duration::from_secs(40);

/// The clients of a case, which are a child process of this program.
struct MemoryLoad {
    /// The argument that selects what they do.
    client: &'static str,
    /// The number of their connections.
    count: usize,
}

pub(crate) fn measure_idle() -> BenchResult<Measurement> {
    // The clients, few connections to the backend, and the sixteenth that nginx needs free.
    let settings = NginxSettings { connections: 11_000, ..Default::default() };
    let load = MemoryLoad { client: "client", count: 10_000 };
    compare_memory(&BenchServer::start_backend()?, &settings, &load)
}

pub(crate) fn measure_slow_readers() -> BenchResult<Measurement> {
    // Otherwise nginx writes the answers to files.
    let directives = "proxy_max_temp_file_size 0;".to_owned();
    // A connection to the backend for each client, and the sixteenth that nginx needs free.
    let settings = NginxSettings { directives, connections: 2_200, ..Default::default() };
    let load = MemoryLoad { client: "slow-readers", count: 1_000 };
    compare_memory(&BenchServer::start_file_backend(SLOW_BODY_BYTES)?, &settings, &load)
}

/// Compares the memory with these clients, with new processes of both servers in each round.
fn compare_memory(
    backend: &BenchServer,
    settings: &NginxSettings,
    load: &MemoryLoad,
) -> BenchResult<Measurement> {
    let nginx = || {
        let server = BenchServer::start_nginx(backend, ClientProtocol::Http, settings)?;
        memory_with_connections(&server, load)
    };
    let gateway = || {
        let server = BenchServer::start_gateway(backend, ClientProtocol::Http, "")?;
        memory_with_connections(&server, load)
    };
    let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    let start = Instant::now();
    while ratios.len() < MIN_ROUNDS || start.elapsed() < TIME_BUDGET {
        let (own, other) = if ratios.len() % 2 == 0 {
            let own = gateway()?;
            (own, nginx()?)
        } else {
            let other = nginx()?;
            (gateway()?, other)
        };
        ratios.push(own / other);
        ours.push(own);
        theirs.push(other);
    }
    let megabytes = |bytes: &[f64]| median(bytes) / f64::from(1 << 20);
    let figures = format!("{:.1} over {:.1} MB", megabytes(&ours), megabytes(&theirs));
    Ok(Measurement::from_rounds(&ratios, figures))
}

/// Returns the resident memory in bytes.
fn memory_with_connections(server: &BenchServer, load: &MemoryLoad) -> BenchResult<f64> {
    let MemoryLoad { client, count } = load;
    let program = env::current_exe()?;
    let command = format!(
        "ulimit -n $(ulimit -Hn) && exec taskset -c {LOAD_CORE} {} {client} {} {count}",
        program.display(),
        server.address
    );
    let mut client =
        Command::new("sh").arg("-c").arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(client.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    thread::sleep(SETTLE_DELAY);
    let (memory, open_files) = (server.resident_memory(), server.open_files());
    drop(client.stdin.take());
    client.wait()?;
    match line.trim() {
        "ready" if open_files? >= *count => Ok(memory? as f64),
        "ready" => Err(format!("the server on {} closed connections", server.address).into()),
        _ => Err("cannot open all connections".into()),
    }
}

/// Opens connections, exchanges one request on each, and keeps them open until its input ends.
pub(crate) fn hold_connections(address: &str, count: &str) -> BenchResult<()> {
    hold(address, count, exchange)
}

/// Opens connections, sends one request on each, and reads nothing until its input ends.
pub(crate) fn hold_slow_readers(address: &str, count: &str) -> BenchResult<()> {
    hold(address, count, |stream| stream.write_all(REQUEST))
}

fn hold(
    address: &str,
    count: &str,
    start: impl Fn(&mut TcpStream) -> std::io::Result<()>,
) -> BenchResult<()> {
    let address: SocketAddr = address.parse()?;
    let mut all = Vec::new();
    for _ in 0..count.parse::<usize>()? {
        let mut stream = TcpStream::connect(address)?;
        start(&mut stream)?;
        all.push(stream);
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
