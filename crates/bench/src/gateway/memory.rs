//! Memory with many idle connections, and with clients that do not read, compared with nginx.

use crate::{BenchResult, Measurement};
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use tidegate_bench::{
    process::LOAD_CORE,
    proxy::{BenchServer, ClientProtocol, REQUEST, exchange},
};

pub(crate) const IDLE_ABOUT: &str = "memory with 10,000 idle keep-alive connections, over nginx's";

pub(crate) const SLOW_ABOUT: &str =
    "memory of 1,000 clients that do not read an answer of 20 MB, over nginx without temporary files";

/// The time until connections are considered idle, or buffers full.
const SETTLE_DELAY: Duration = Duration::from_secs(2);
const SLOW_BODY_BYTES: u64 = 20_000_000;

pub(crate) fn measure_idle() -> BenchResult<Measurement> {
    compare_memory(&BenchServer::start_backend()?, "", "client", "10000")
}

pub(crate) fn measure_slow_readers() -> BenchResult<Measurement> {
    // Otherwise nginx writes the answers to files.
    let limit = "proxy_max_temp_file_size 0;";
    compare_memory(&BenchServer::start_file_backend(SLOW_BODY_BYTES)?, limit, "slow-readers", "1000")
}

/// Compares the memory with connections of a child process.
fn compare_memory(backend: &BenchServer, limit: &str, client: &str, count: &str) -> BenchResult<Measurement> {
    let settings = (String::new(), limit.to_owned());
    let nginx = BenchServer::start_nginx(backend, ClientProtocol::Http, settings)?;
    let nginx_memory = memory_with_connections(&nginx, client, count)?;
    drop(nginx);
    let gateway = BenchServer::start_gateway(backend, ClientProtocol::Http, "")?;
    let ours = memory_with_connections(&gateway, client, count)?;
    let megabytes = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let figures = format!("{:.1} over {:.1} MB", megabytes(ours), megabytes(nginx_memory));
    Ok(Measurement { value: ours as f64 / nginx_memory as f64, figures })
}

fn memory_with_connections(server: &BenchServer, client: &str, count: &str) -> BenchResult<u64> {
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
    let memory = server.resident_memory();
    drop(client.stdin.take());
    client.wait()?;
    match line.trim() {
        "ready" => memory,
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
