//! A replay compared with only parsing the same log.

use crate::traffic::{GeneratedLog, POLICY};
use std::{hint::black_box, io::Read as _, path::Path, sync::Arc, time::Instant};
use tidegate_bench::{BenchResult, interleaved::median, suite::Measurement};
use tidegate_policy::Policy;
use tidegate_replay::{
    log::{LineFormats, LogInput, RequestLog},
    replay_log,
};
use tidegate_rule::request::RequestHead as _;

pub(crate) const ABOUT: &str =
    "lines/s of a replay under a policy of 10 rules over reading the same log with the same parser";

const LOG_BYTES: u64 = 300 << 20;
const ROUNDS: usize = 11;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let mut log = Vec::new();
    GeneratedLog::new(LOG_BYTES).read_to_end(&mut log)?;
    let log: Arc<[u8]> = log.into();
    let policy: Policy = POLICY.parse()?;
    let (mut alone, mut replayed, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (parse_rate, replay_rate) = (parse(&log)?, replay(&log, &policy)?);
        ratios.push(replay_rate / parse_rate);
        alone.push(parse_rate);
        replayed.push(replay_rate);
    }
    let million = |rates: &[f64]| median(rates) / 1e6;
    let figures = format!("{:.2} over {:.2} million lines/s", million(&replayed), million(&alone));
    Ok(Measurement::from_rounds(&ratios, figures))
}

fn open_log(log: &Arc<[u8]>) -> BenchResult<RequestLog> {
    Ok(RequestLog::open(vec![LogInput::from_bytes("log", log.clone())], LineFormats::builtin(&[])?, None)?)
}

/// Returns the lines per second of parsing only.
fn parse(log: &Arc<[u8]>) -> BenchResult<f64> {
    let start = Instant::now();
    let mut log = open_log(log)?;
    let mut lines = 0_u64;
    while let Some((line, now)) = log.next_request()? {
        black_box((line.path(), now));
        lines += 1;
    }
    Ok(lines as f64 / start.elapsed().as_secs_f64())
}

/// Returns the lines per second of a replay.
fn replay(log: &Arc<[u8]>, policy: &Policy) -> BenchResult<f64> {
    let start = Instant::now();
    let result = replay_log(open_log(log)?, (policy, Path::new("")), None, |_| {})?;
    let seconds = start.elapsed().as_secs_f64();
    if result.log.broken > 0 || result.stats.denied == 0 || result.stats.admitted == 0 {
        return Err("unexpected replay result".into());
    }
    Ok(result.log.requests as f64 / seconds)
}
