//! The processor time of large responses, compared with nginx.

use crate::{BenchResult, Measurement};
use std::{
    env,
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
};
use tidegate_bench::{
    process::LOAD_CORE,
    proxy::{BenchServer, ClientProtocol, NginxSettings, compare_servers},
};

pub(crate) const ABOUT: &str =
    "processor time per GB of responses of 100 MB, over nginx with `proxy_buffering off`";

const BODY_BYTES: u64 = 100_000_000;
/// The number of downloads of a round, one after the other on one connection.
const DOWNLOADS: u64 = 10;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let backend = BenchServer::start_file_backend(BODY_BYTES)?;
    let unbuffered = NginxSettings { directives: "proxy_buffering off;".to_owned(), ..Default::default() };
    let nginx = BenchServer::start_nginx(&backend, ClientProtocol::Http, &unbuffered)?;
    let gateway = BenchServer::start_gateway(&backend, ClientProtocol::Http, "")?;
    compare_servers(&gateway, &nginx, "ms per GB", |server| {
        let before = server.cpu_time()?;
        run_downloads(server)?;
        let gigabytes = (BODY_BYTES * DOWNLOADS) as f64 / 1e9;
        Ok((server.cpu_time()? - before) as f64 / 1e6 / gigabytes)
    })
}

fn run_downloads(server: &BenchServer) -> BenchResult<()> {
    let output = Command::new("taskset")
        .args(["-c", LOAD_CORE])
        .arg(env::current_exe()?)
        .args(["discard", &server.address.to_string()])
        .output()?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("the download failed: {}", String::from_utf8_lossy(&output.stderr)).into()),
    }
}

/// Downloads the file in a child process, and discards it.
pub(crate) fn download(address: &str) -> BenchResult<()> {
    let mut stream = TcpStream::connect(address.parse::<SocketAddr>()?)?;
    let mut buffer = vec![0; 1 << 18];
    for _ in 0..DOWNLOADS {
        stream.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
        let mut head = Vec::new();
        let mut left = loop {
            let length = read(&mut stream, &mut buffer)?;
            head.extend_from_slice(&buffer[..length]);
            if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                break BODY_BYTES - (head.len() - end - 4) as u64;
            }
        };
        if !head.starts_with(b"HTTP/1.1 200 ") {
            return Err("the server rejected a request".into());
        }
        while left > 0 {
            left =
                left.checked_sub(read(&mut stream, &mut buffer)? as u64).ok_or("the response is too long")?;
        }
    }
    Ok(())
}

fn read(stream: &mut TcpStream, buffer: &mut [u8]) -> BenchResult<usize> {
    match stream.read(buffer)? {
        0 => Err("the server closed a connection".into()),
        length => Ok(length),
    }
}
