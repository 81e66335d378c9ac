//! Requests per second with a million overrides of keys.

use crate::{BenchResult, Measurement};
use std::{
    env,
    fmt::Write as _,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    process,
};
use tidegate_bench::proxy::{
    BenchServer, ClientProtocol, ExpectedStatus, compare_servers, run_wrk_with_script,
};

pub(crate) const ABOUT: &str =
    "requests/s of random keys with 1,000,000 overrides in a file, of which half are requested, over none";

const OVERRIDES: usize = 1_000_000;
/// Keys are random numbers below this one, so half of the requests have an override.
const KEYS: usize = 2 * OVERRIDES;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let backend = BenchServer::start_backend()?;
    let rule = "headers: none\nrules: { name: each, key: query user, quota: 1000000/s burst 100000 }";
    let none = BenchServer::start_gateway(&backend, ClientProtocol::Http, rule)?;
    let policy = format!("overrides: {{ file: overrides.jsonl }}\n{rule}");
    let files = [("overrides.jsonl", overrides()?)];
    let many = BenchServer::start_gateway_with_files(&backend, ClientProtocol::Http, &policy, &files)?;
    wait_ready(&many)?;
    let script = env::temp_dir().join(format!("tidegate-bench-{}-overrides.lua", process::id()));
    let text = format!("request = function() return wrk.format(nil, '/?user=' .. math.random({KEYS})) end\n");
    fs::write(&script, text)?;
    let measured = compare_servers(&many, &none, "requests/s", |server| {
        Ok(run_wrk_with_script(server, ExpectedStatus::Ok, &script)?.rate)
    });
    fs::remove_file(&script)?;
    measured
}

/// The lines of the file.
fn overrides() -> BenchResult<String> {
    let mut lines = String::new();
    for key in 1..=OVERRIDES {
        let burst = 200_000 + key % 60;
        writeln!(
            lines,
            "{{\"change\":{key},\"time\":\"2026-11-20T00:00:00.000000Z\",\"by\":\"bench\",\"rule\":\"each\",\"key\":\"{key}\",\
             \"quota\":\"2000000/s burst {burst}\",\"until\":\"2200-01-01T00:00:00.000000Z\"}}"
        )?;
    }
    Ok(lines)
}

/// Waits until the gateway has read its overrides and responds.
fn wait_ready(server: &BenchServer) -> BenchResult<()> {
    let mut stream = TcpStream::connect(server.address)?;
    stream.write_all(b"GET /?user=1 HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")?;
    let mut response = Vec::new();
    stream.read_to_end(&mut response)?;
    match response.starts_with(b"HTTP/1.1 200") {
        true => Ok(()),
        false => Err("the gateway with overrides does not respond with 200".into()),
    }
}
