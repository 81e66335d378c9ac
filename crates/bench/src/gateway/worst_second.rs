//! The most bytes of a limited download in any second, compared with nginx.

use crate::{BenchResult, Measurement};
use std::{
    env,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tidegate_bench::{
    process::LOAD_CORE,
    proxy::{BenchServer, ClientProtocol, NginxSettings},
};

pub(crate) const ABOUT: &str =
    "bytes of the worst second over the rate, at 10 kB/s to 100 MB/s, one and ten connections of a key";

/// In bytes per second, without a declared burst.
const RATES: [u64; 4] = [10_000, 100_000, 1_000_000, 100_000_000];
const CONNECTION_COUNTS: [u64; 2] = [1, 10];
const DOWNLOAD_TIME: Duration = Duration::from_millis(2_200);
/// Rounds of the gateway. nginx is measured once, because it is not part of the value.
const ROUNDS: usize = 2;
/// A gateway that sends less than this share of the rate does not limit, it fails.
const MIN_SHARE: f64 = 0.9;
const FILE_BYTES: u64 = 400_000_000;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let backend = BenchServer::start_file_backend(FILE_BYTES)?;
    let rules: String = RATES
        .iter()
        .map(|rate| {
            format!("  - {{ name: r{rate}, match: {{ path: /{rate}/** }}, key: ip, bandwidth: {rate}B/s }}\n")
        })
        .collect();
    let gateway = BenchServer::start_gateway(&backend, ClientProtocol::Http, &format!("rules:\n{rules}"))?;
    // nginx has a rate for each connection only: each gets its share.
    let rates: String = RATES
        .iter()
        .flat_map(|rate| CONNECTION_COUNTS.map(|count| format!("/{rate}/{count} {}; ", rate / count)))
        .collect();
    let zone = format!("map $uri $share {{ default 1; {rates} }}");
    let directives = "limit_rate $share; proxy_max_temp_file_size 0;".to_owned();
    let settings = NginxSettings { zone, directives, ..Default::default() };
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Http, &settings)?;

    // Each rate rests while the others are measured.
    let cases: Vec<(u64, u64)> =
        CONNECTION_COUNTS.iter().flat_map(|count| RATES.map(|rate| (rate, *count))).collect();
    let (mut worst_of_rounds, mut highest) = ([0.0_f64; ROUNDS], vec![0.0_f64; cases.len()]);
    for worst in &mut worst_of_rounds {
        for ((rate, count), highest) in cases.iter().zip(&mut highest) {
            let ours = worst_second(&gateway, *rate, *count)?;
            if ours < MIN_SHARE {
                return Err(format!("the gateway sends {ours:.3} of {rate} B/s").into());
            }
            *worst = worst.max(ours);
            *highest = highest.max(ours);
        }
    }
    let mut figures = Vec::new();
    for ((rate, count), ours) in cases.iter().zip(&highest) {
        let theirs = worst_second(&nginx, *rate, *count)?;
        figures.push(format!("{} kB/s x{count} {ours:.3}, nginx {theirs:.3}", rate / 1_000));
    }
    let value = worst_of_rounds.into_iter().fold(0.0, f64::max);
    Ok(Measurement { value, ..Measurement::from_rounds(&worst_of_rounds, figures.join("; ")) })
}

/// The bytes of the worst second of `count` connections together, over the rate.
fn worst_second(server: &BenchServer, rate: u64, count: u64) -> BenchResult<f64> {
    let output = Command::new("taskset")
        .args(["-c", LOAD_CORE])
        .arg(env::current_exe()?)
        .args(["download", &server.address.to_string(), &format!("/{rate}/{count}"), &count.to_string()])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    match text.trim().parse::<f64>() {
        Ok(bytes) if output.status.success() => Ok(bytes / rate as f64),
        _ => Err(format!("the download failed: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Downloads in a child process and prints the bytes of the worst second.
pub(crate) fn download(address: &str, path: &str, count: &str) -> BenchResult<()> {
    let address: SocketAddr = address.parse()?;
    let count: usize = count.parse()?;
    let results: Vec<_> = thread::scope(|scope| {
        let readers: Vec<_> = (0..count)
            .map(|_| scope.spawn(move || read_body(address, path).map_err(|error| error.to_string())))
            .collect();
        readers.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut pieces = Vec::new();
    for result in results {
        pieces.extend(result.map_err(|_| "a reader panicked")??);
    }
    pieces.sort_unstable();
    println!("{}", max_in_second(&pieces));
    Ok(())
}

/// The arrival time and the length of each piece of a body.
fn read_body(address: SocketAddr, path: &str) -> BenchResult<Vec<(Instant, usize)>> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DOWNLOAD_TIME))?;
    write!(stream, "GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let start = Instant::now();
    let (mut buffer, mut head, mut pieces) = (vec![0; 1 << 18], Vec::new(), Vec::new());
    let mut is_body = false;
    while start.elapsed() < DOWNLOAD_TIME {
        let length = match stream.read(&mut buffer) {
            Ok(0) => return Err("the server closed a connection".into()),
            Ok(length) => length,
            // nginx pauses for longer than this.
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) => return Err(error.into()),
        };
        if is_body {
            pieces.push((Instant::now(), length));
            continue;
        }
        head.extend_from_slice(buffer.get(..length).unwrap_or_default());
        if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            if !head.starts_with(b"HTTP/1.1 200 ") {
                return Err("the server rejected a request".into());
            }
            is_body = true;
            pieces.push((Instant::now(), head.len() - end - 4));
        }
    }
    Ok(pieces)
}

/// The most bytes in any second that starts with a piece.
fn max_in_second(pieces: &[(Instant, usize)]) -> usize {
    let (mut most, mut sum, mut first) = (0, 0, 0);
    for (at, length) in pieces {
        sum += length;
        while let Some((from, length)) = pieces.get(first)
            && at.duration_since(*from) >= Duration::from_secs(1)
        {
            sum -= length;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}
