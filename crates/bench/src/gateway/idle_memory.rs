//! Memory with many idle connections, beside nginx.

use crate::{Measured, Result};
use std::{
    env,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Command, Stdio},
    thread,
    time::Duration,
};
use tidegate_bench::{
    process::OTHERS,
    proxy::{Server, speak},
};

pub(crate) const ABOUT: &str = "memory with 10,000 idle keep-alive connections, over nginx's";

const CONNECTIONS: usize = 10_000;
/// What connections are given to become idle.
const REST: Duration = Duration::from_secs(2);

pub(crate) fn measure() -> Result<Measured> {
    let backend = Server::backend()?;
    let theirs = with_crowd(&Server::nginx_before(&backend, Default::default())?)?;
    let ours = with_crowd(&Server::gateway_before(&backend, "")?)?;
    let megabytes = |bytes: u64| bytes as f64 / (1 << 20) as f64;
    let figures = format!("{:.1} over {:.1} MB", megabytes(ours), megabytes(theirs));
    Ok(Measured { value: ours as f64 / theirs as f64, figures })
}

fn with_crowd(server: &Server) -> Result<u64> {
    let program = env::current_exe()?;
    let command = format!(
        "ulimit -n $(ulimit -Hn) && exec taskset -c {OTHERS} {} crowd {} {CONNECTIONS}",
        program.display(),
        server.address
    );
    let mut crowd =
        Command::new("sh").arg("-c").arg(command).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let mut said = String::new();
    BufReader::new(crowd.stdout.take().ok_or("no output")?).read_line(&mut said)?;
    thread::sleep(REST);
    let memory = server.memory();
    drop(crowd.stdin.take());
    crowd.wait()?;
    match said.trim() {
        "here" => memory,
        _ => Err("not all connections came about".into()),
    }
}

/// Opens connections, has one request answered on each, and stays until its input ends.
pub(crate) fn crowd(address: &str, count: &str) -> Result<()> {
    let address: SocketAddr = address.parse()?;
    let mut all = Vec::new();
    for _ in 0..count.parse::<usize>()? {
        let mut stream = TcpStream::connect(address)?;
        speak(&mut stream)?;
        all.push(stream);
    }
    println!("here");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
