//! Recorded traces of the real `com.google.common.util.concurrent.RateLimiter`, one row per operation.

use flate2::read::GzDecoder;
use std::io::Read;

/// One operation on a Guava limiter: the call, its result, and the limiter's fields afterwards.
#[derive(Clone, Debug, PartialEq)]
pub struct GuavaRow {
    /// The name of the scenario; its rows are consecutive.
    pub scenario: String,
    /// The kind of limiter.
    pub kind: GuavaKind,
    /// The permits per second at its creation, as the shortest digits of a double.
    pub rate: String,
    /// The call.
    pub operation: Operation,
    /// The fake clock before the call.
    pub at_us: u64,
    /// The number of requested permits.
    pub permits: u64,
    /// The result of `tryAcquire`; `reserve` is always granted.
    pub granted: bool,
    /// How long the caller sleeps.
    pub wait_us: u64,
    /// Stored permits afterwards.
    pub stored: f64,
    /// The maximum number of stored permits.
    pub max_permits: f64,
    /// The time at which the next call is admitted.
    pub next_free_us: u64,
}

/// Guava's two limiters.
#[derive(Clone, Debug, PartialEq)]
pub enum GuavaKind {
    /// `SmoothBursty`.
    Bursty,
    /// `SmoothWarmingUp`.
    WarmingUp {
        /// The warm-up period.
        warm_up_ms: u64,
        /// The cold factor, as the shortest digits of a double.
        cold_factor: String,
    },
}

/// A call of a Guava limiter.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// A new limiter.
    Create,
    /// `acquire`, without the sleep.
    Reserve,
    /// `tryAcquire` with a timeout.
    TryAcquire {
        /// The longest wait.
        timeout_us: u64,
    },
    /// A change of rate.
    SetRate {
        /// The new rate, as the shortest digits of a double.
        rate: String,
    },
}

/// Returns all recorded rows.
///
/// # Errors
///
/// Returns the first line that does not parse.
pub fn rows() -> Result<Vec<GuavaRow>, String> {
    let packed: &[u8] = include_bytes!("../vectors/guava-traces.csv.gz");
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).map_err(|error| error.to_string())?;
    let rows = text.lines().enumerate().skip(1);
    rows.map(|(index, line)| parse_row(line).map_err(|problem| format!("line {}: {problem}", index + 1)))
        .collect()
}

fn parse_row(line: &str) -> Result<GuavaRow, String> {
    let columns: Vec<_> = line.split(',').collect();
    let [
        scenario,
        kind,
        rate,
        warm_up_ms,
        cold_factor,
        _step,
        operation,
        at,
        permits,
        result,
        wait,
        stored,
        most,
        _stable,
        free,
    ] = columns[..]
    else {
        return Err(format!("{} columns", columns.len()));
    };
    let kind = match kind {
        "bursty" => GuavaKind::Bursty,
        "warm" | "warmingup" => {
            GuavaKind::WarmingUp { warm_up_ms: parse_u64(warm_up_ms)?, cold_factor: cold_factor.to_owned() }
        }
        other => return Err(format!("unknown kind `{other}`")),
    };
    Ok(GuavaRow {
        scenario: scenario.to_owned(),
        kind,
        rate: rate.to_owned(),
        operation: parse_operation(operation)?,
        at_us: parse_u64(at)?,
        permits: parse_u64(permits)?,
        granted: result != "false",
        wait_us: parse_u64(wait)?,
        stored: parse_f64(stored)?,
        max_permits: parse_f64(most)?,
        next_free_us: parse_u64(free)?,
    })
}

fn parse_operation(text: &str) -> Result<Operation, String> {
    match text.split_once('/') {
        None if text == "create" => Ok(Operation::Create),
        None if text == "reserve" => Ok(Operation::Reserve),
        None if text == "tryAcquire" => Ok(Operation::TryAcquire { timeout_us: 0 }),
        Some(("tryAcquire", timeout)) => {
            Ok(Operation::TryAcquire { timeout_us: parse_u64(timeout.trim_end_matches("us"))? })
        }
        Some(("setRate", rate)) => Ok(Operation::SetRate { rate: rate.to_owned() }),
        _ => Err(format!("unknown operation `{text}`")),
    }
}

fn parse_u64(text: &str) -> Result<u64, String> {
    text.parse().map_err(|error| format!("`{text}`: {error}"))
}

fn parse_f64(text: &str) -> Result<f64, String> {
    text.parse().map_err(|error| format!("`{text}`: {error}"))
}
