//! A log through a policy, in a line.

use std::path::Path;
use tidegate_policy::Policy;
use tidegate_replay::{
    Failure, Play, Replay,
    log::{Formats, Input, Log},
    play,
};

/// The log that comes with the tests: 10,000 real requests.
pub(crate) const REAL: &[u8] = include_bytes!("../data/access-apache-10k.log.gz");

pub(crate) fn policy(text: &str) -> Policy {
    text.parse().unwrap_or_else(|problems| panic!("{problems}\n{text}"))
}

pub(crate) fn known() -> Formats {
    Formats::known(&[]).unwrap()
}

/// Several logs, each in one piece.
pub(crate) fn logs(logs: &[&[u8]], formats: Formats, policy: &Policy) -> Result<Log, Failure> {
    let inputs = logs.iter().enumerate().map(|(place, bytes)| Input::bytes(format!("log{place}"), *bytes));
    Ok(Log::open(inputs.collect(), formats, Replay::user_header(policy))?)
}

/// A log through a policy.
pub(crate) fn played(log: &[u8], text: &str) -> Result<Play, Failure> {
    let policy = policy(text);
    play(logs(&[log], known(), &policy)?, (&policy, Path::new("")), None, |_| {})
}

/// The same beside another policy.
pub(crate) fn compared(log: &[u8], text: &str, against: &str) -> Play {
    let (policy, against) = (policy(text), self::policy(against));
    let log = logs(&[log], known(), &policy).unwrap();
    play(log, (&policy, Path::new("")), Some((&against, Path::new(""))), |_| {}).unwrap()
}

/// Lines of the common format: seconds after noon, address, method and path, status.
pub(crate) fn common(lines: &[(u64, &str, &str, u16)]) -> String {
    let line = |(at, ip, request, status): &(u64, &str, &str, u16)| {
        let (hour, minute, second) = (12 + at / 3_600, at / 60 % 60, at % 60);
        format!(
            "{ip} - - [01/Feb/2024:{hour:02}:{minute:02}:{second:02} +0000] \"{request} HTTP/1.1\" {status} 12\n"
        )
    };
    lines.iter().map(line).collect()
}
