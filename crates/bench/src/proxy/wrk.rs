//! As many requests as a server can take.

use super::BenchServer;
use crate::{BenchResult, interleaved::median, process::LOAD_CORE, suite::Measurement};
use std::process::Command;

/// What most answers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpectedStatus {
    /// 200.
    Ok,
    /// But for one in a hundred, where a store that is slow for a moment is an outage.
    MostlyOk,
    /// 429.
    TooManyRequests,
}

/// Rounds, of one second for each load.
const ROUNDS: usize = 13;

/// Requests per second of `ours` over those of `theirs`.
pub fn compare_throughput(
    ours: &BenchServer,
    theirs: &BenchServer,
    answers: ExpectedStatus,
) -> BenchResult<Measurement> {
    let (mut ratios, mut our_rates, mut their_rates) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..=ROUNDS {
        // Each of ours between two of theirs, so that a machine that drifts favours nobody.
        let (before, own, after) =
            (run_wrk(theirs, answers)?, run_wrk(ours, answers)?, run_wrk(theirs, answers)?);
        // The first one is for warming up.
        if round > 0 {
            ratios.push(own * 2.0 / (before + after));
            our_rates.push(own);
            their_rates.extend([before, after]);
        }
    }
    let figures = format!("{:.0} over {:.0} requests/s", median(&our_rates), median(&their_rates));
    Ok(Measurement { value: median(&ratios), figures })
}

/// Requests per second that wrk has answered, over 64 connections, for one second.
pub fn run_wrk(server: &BenchServer, answers: ExpectedStatus) -> BenchResult<f64> {
    let url = format!("http://{}/", server.address);
    let output =
        Command::new("taskset").args(["-c", LOAD_CORE, "wrk", "-t1", "-c64", "-d1s", &url]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |before: &str, after: &str| {
        let line =
            text.lines().map(str::trim).find(|line| line.starts_with(before) && line.contains(after))?;
        line.strip_prefix(before)?.split_whitespace().next()?.parse::<f64>().ok()
    };
    let all = number("", " requests in ").ok_or_else(|| format!("wrk said {text}"))?;
    let refused = number("Non-2xx or 3xx responses:", "").unwrap_or(0.0);
    let as_expected = match answers {
        ExpectedStatus::Ok => refused == 0.0,
        ExpectedStatus::MostlyOk => refused < all * 0.01,
        ExpectedStatus::TooManyRequests => refused > all * 0.99,
    };
    if !as_expected || text.contains("Socket errors") {
        return Err(format!("not what was expected: {text}").into());
    }
    number("Requests/sec:", "").ok_or_else(|| format!("wrk said {text}").into())
}
