//! The peak memory of a replay, which must not depend on the length of the log.

use crate::traffic::{GeneratedLog, POLICY};
use std::{
    env, fs,
    io::{self, Write as _},
    path::Path,
    process::{Command, Stdio},
};
use tidegate_bench::{BenchResult, interleaved::median, suite::Measurement};
use tidegate_policy::Policy;
use tidegate_replay::{
    ReplayProgress,
    log::{LineFormats, LogInput, RequestLog},
    replay_log,
};

pub(crate) const ABOUT: &str = "peak memory of a replay of a generated 10 GB log, over that of a 100 MB log";

const SMALL_LOG_MEGABYTES: u64 = 100;
const LARGE_LOG_MEGABYTES: u64 = 10_000;
/// New processes per size; a large log takes half a minute.
const ROUNDS: usize = 2;

pub(crate) fn measure() -> BenchResult<Measurement> {
    let (mut small, mut large, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let small_peak = peak_of_child(SMALL_LOG_MEGABYTES)? as f64;
        let large_peak = peak_of_child(LARGE_LOG_MEGABYTES)? as f64;
        ratios.push(large_peak / small_peak);
        small.push(small_peak);
        large.push(large_peak);
    }
    let megabytes = |bytes: &[f64]| median(bytes) / f64::from(1 << 20);
    let figures = format!("{:.1} over {:.1} MB", megabytes(&large), megabytes(&small));
    Ok(Measurement::from_rounds(&ratios, figures))
}

/// Returns the peak memory of a child process.
fn peak_of_child(megabytes: u64) -> BenchResult<u64> {
    let mut command = Command::new(env::current_exe()?);
    let output = command.arg("peak").arg(megabytes.to_string()).stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8(output.stdout)?;
    Ok(text
        .trim()
        .parse()
        .map_err(|_| format!("unexpected output of a replay of {megabytes} MB: `{}`", text.trim()))?)
}

/// Replays a log of this size and prints the peak memory of this process.
pub(crate) fn print_peak_memory(megabytes: &str) -> BenchResult<()> {
    let bytes = megabytes.parse::<u64>()? * 1_000_000;
    let policy: Policy = POLICY.parse()?;
    let log = RequestLog::open(
        vec![LogInput::from_stream("log", GeneratedLog::new(bytes))],
        LineFormats::builtin(&[])?,
        None,
    )?;
    let mut next = 0;
    let on_progress = |progress: ReplayProgress| {
        if progress.bytes_read >= next && bytes > 1_000_000_000 {
            next += 1_000_000_000;
            // Ignored if standard error is closed.
            let _ = writeln!(
                io::stderr(),
                "  {} of {} GB",
                progress.bytes_read / 1_000_000_000,
                bytes / 1_000_000_000
            );
        }
    };
    let result = replay_log(log, (&policy, Path::new("")), None, on_progress)?;
    if result.log.broken > 0 || result.stats.denied == 0 {
        return Err("unexpected replay result".into());
    }
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").trim().parse()?;
    println!("{}", kilobytes * 1_024);
    Ok(())
}
