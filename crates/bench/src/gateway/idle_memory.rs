//! Memory with many idle connections, compared with nginx.

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
    proxy::{BenchServer, exchange},
};

pub(crate) const ABOUT: &str = "memory with 10,000 idle keep-alive connections, over nginx's";

const CONNECTION_COUNT: usize = 10_000;
/// The time until connections are considered idle.
const IDLE_DELAY: Duration = Duration::from_secs(2);

pub(crate) fn measure() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let nginx_memory = memory_with_connections(&BenchServer::start_nginx(&backend, Default::default())?)?;
    let ours = memory_with_connections(&BenchServer::start_gateway(&backend, "")?)?;
    let megabytes = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let figures = format!("{:.1} over {:.1} MB", megabytes(ours), megabytes(nginx_memory));
    Ok(Measurement { value: ours as f64 / nginx_memory as f64, figures })
}

fn memory_with_connections(server: &BenchServer) -> BenchResult<u64> {
    let program = env::current_exe()?;
    let command = format!(
        "ulimit -n $(ulimit -Hn) && exec taskset -c {LOAD_CORE} {} client {} {CONNECTION_COUNT}",
        program.display(),
        server.address
    );
    let mut client =
        Command::new("sh").arg("-c").arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut line = String::new();
    BufReader::new(client.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    thread::sleep(IDLE_DELAY);
    let memory = server.resident_memory();
    drop(client.stdin.take());
    client.wait()?;
    match line.trim() {
        "ready" => memory,
        _ => Err("cannot open all connections".into()),
    }
}

/// Opens connections, sends one request on each, and keeps them open until its input ends.
pub(crate) fn hold_connections(address: &str, count: &str) -> BenchResult<()> {
    let address: SocketAddr = address.parse()?;
    let mut all = Vec::new();
    for _ in 0..count.parse::<usize>()? {
        let mut stream = TcpStream::connect(address)?;
        exchange(&mut stream)?;
        all.push(stream);
    }
    println!("ready");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
