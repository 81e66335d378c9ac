//! The throughput of a server under h2load, with HTTP/2.

use super::BenchServer;
use crate::{BenchResult, process::LOAD_CORE};
use std::process::Command;

/// Runs h2load for one second with 8 connections of 8 streams, and returns the requests per second.
pub fn run_h2load(server: &BenchServer) -> BenchResult<f64> {
    let url = format!("{}://{}/", server.scheme, server.address);
    let output = Command::new("taskset")
        .args(["-c", LOAD_CORE, "h2load", "--clients=8", "--max-concurrent-streams=8", "--duration=1"])
        .args(["--warm-up-time=0", &url])
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |line: &str, before: &str, after: &str| {
        let line = text.lines().find(|text| text.starts_with(line))?;
        line.split_once(before)?.1.split_once(after)?.0.trim().parse::<f64>().ok()
    };
    let rate = number("finished in", ", ", " req/s");
    let (failed, succeeded) =
        (number("requests:", "succeeded, ", " failed"), number("status codes:", ":", " 2xx"));
    match (rate, failed, succeeded) {
        (Some(rate), Some(0.0), Some(1.0..)) => Ok(rate),
        _ => Err(format!("unexpected h2load output: {text}").into()),
    }
}
