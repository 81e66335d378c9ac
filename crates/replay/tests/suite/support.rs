//! Helpers that replay a log through a policy.

use std::path::Path;
use tidegate_policy::Policy;
use tidegate_replay::{
    Replay, ReplayError, ReplayResult,
    log::{LineFormats, LogInput, RequestLog},
    replay_log,
};

/// A log of 10,000 real requests.
pub(crate) const REAL_LOG: &[u8] = include_bytes!("../data/access-apache-10k.log.gz");

pub(crate) fn parse_policy(text: &str) -> Policy {
    text.parse().unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

pub(crate) fn builtin_formats() -> LineFormats {
    LineFormats::builtin(&[]).unwrap()
}

/// Opens several logs from memory.
pub(crate) fn open_logs(
    logs: &[&[u8]],
    formats: LineFormats,
    policy: &Policy,
) -> Result<RequestLog, ReplayError> {
    let inputs =
        logs.iter().enumerate().map(|(place, bytes)| LogInput::from_bytes(format!("log{place}"), *bytes));
    Ok(RequestLog::open(inputs.collect(), formats, Replay::user_key(policy))?)
}

/// Replays a log through a policy.
pub(crate) fn replay(log: &[u8], text: &str) -> Result<ReplayResult, ReplayError> {
    let policy = parse_policy(text);
    replay_log(open_logs(&[log], builtin_formats(), &policy)?, (&policy, Path::new("")), None, |_| {})
}

/// Replays a log through a policy and a baseline.
pub(crate) fn replay_compared(log: &[u8], text: &str, against: &str) -> ReplayResult {
    let (policy, against) = (parse_policy(text), self::parse_policy(against));
    let log = open_logs(&[log], builtin_formats(), &policy).unwrap();
    replay_log(log, (&policy, Path::new("")), Some((&against, Path::new(""))), |_| {}).unwrap()
}

/// Formats lines of the common format: seconds after noon, address, method and path, status.
pub(crate) fn common_log(lines: &[(u64, &str, &str, u16)]) -> String {
    let line = |(at, ip, request, status): &(u64, &str, &str, u16)| {
        let (hour, minute, second) = (12 + at / 3_600, at / 60 % 60, at % 60);
        format!(
            "{ip} - - [01/Feb/2024:{hour:02}:{minute:02}:{second:02} +0000] \"{request} HTTP/1.1\" {status} 12\n"
        )
    };
    lines.iter().map(line).collect()
}
