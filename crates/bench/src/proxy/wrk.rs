//! The throughput of a server under wrk.

use super::BenchServer;
use crate::{BenchResult, interleaved::median, process::LOAD_CORE, suite::Measurement};
use std::{path::Path, process::Command};

/// The expected status of the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedStatus {
    /// All are 200.
    Ok,
    /// At least 99 % are 200: a briefly slow store counts as an outage.
    MostlyOk,
    /// At least 99 % are 429.
    TooManyRequests,
}

/// Rounds of one second per load.
const ROUNDS: usize = 13;

/// Measures the requests per second of `ours` over those of `theirs`.
pub fn compare_throughput(
    ours: &BenchServer,
    theirs: &BenchServer,
    answers: ExpectedStatus,
) -> BenchResult<Measurement> {
    compare_servers(ours, theirs, "requests/s", |server| Ok(run_wrk(server, answers)?.rate))
}

/// Measures a figure of `ours` over that of `theirs`, in alternating rounds.
pub fn compare_servers(
    ours: &BenchServer,
    theirs: &BenchServer,
    unit: &str,
    measure: impl Fn(&BenchServer) -> BenchResult<f64>,
) -> BenchResult<Measurement> {
    let (mut ratios, mut our_figures, mut their_figures) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // Each run of ours is between two of theirs, so that a drift of the machine cancels out.
        let (before, own, after) = (measure(theirs)?, measure(ours)?, measure(theirs)?);
        // The first round warms up.
        if round > 0 {
            ratios.push(own * 2.0 / (before + after));
            our_figures.push(own);
            their_figures.extend([before, after]);
        }
    }
    let (ours, theirs) = (median(&our_figures), median(&their_figures));
    Ok(Measurement::from_rounds(&ratios, format!("{ours:.0} over {theirs:.0} {unit}")))
}

/// The result of a run of wrk.
#[derive(Clone, Copy, Debug)]
pub struct WrkRun {
    /// The requests per second.
    pub rate: f64,
    /// The number of requests.
    pub requests: f64,
}

/// Runs wrk for one second with 64 connections.
pub fn run_wrk(server: &BenchServer, answers: ExpectedStatus) -> BenchResult<WrkRun> {
    run_wrk_with_headers(server, &[], answers)
}

/// Like [`run_wrk`], with these headers, as in `x-user: ada`.
pub fn run_wrk_with_headers(
    server: &BenchServer,
    headers: &[String],
    answers: ExpectedStatus,
) -> BenchResult<WrkRun> {
    let mut command = wrk_command();
    command.args(headers.iter().flat_map(|header| ["-H", header.as_str()]));
    run_wrk_command(&mut command, server, answers)
}

/// Like [`run_wrk`], with the requests of a script in Lua.
pub fn run_wrk_with_script(
    server: &BenchServer,
    answers: ExpectedStatus,
    script: &Path,
) -> BenchResult<WrkRun> {
    run_wrk_command(wrk_command().arg("-s").arg(script), server, answers)
}

fn wrk_command() -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", LOAD_CORE, "wrk"]);
    command
}

fn run_wrk_command(
    command: &mut Command,
    server: &BenchServer,
    answers: ExpectedStatus,
) -> BenchResult<WrkRun> {
    let url = format!("{}://{}/", server.scheme, server.address);
    let output = command.args(["-t1", "-c64", "-d1s", &url]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |before: &str, after: &str| {
        let line =
            text.lines().map(str::trim).find(|line| line.starts_with(before) && line.contains(after))?;
        line.strip_prefix(before)?.split_whitespace().next()?.parse::<f64>().ok()
    };
    let requests = number("", " requests in ").ok_or_else(|| format!("unexpected wrk output: {text}"))?;
    let rejected = number("Non-2xx or 3xx responses:", "").unwrap_or(0.0);
    let as_expected = match answers {
        ExpectedStatus::Ok => rejected == 0.0,
        ExpectedStatus::MostlyOk => rejected < requests * 0.01,
        ExpectedStatus::TooManyRequests => rejected > requests * 0.99,
    };
    if !as_expected || text.contains("Socket errors") {
        return Err(format!("unexpected responses: {text}").into());
    }
    let rate = number("Requests/sec:", "").ok_or_else(|| format!("unexpected wrk output: {text}"))?;
    Ok(WrkRun { rate, requests })
}
