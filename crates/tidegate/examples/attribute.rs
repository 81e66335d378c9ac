//! A command line program that uses only attributes: no runtime, no settings, no middleware.
//!
//! ```text
//! cargo run -p tidegate --example attribute
//! ```

use std::{error::Error, fmt, io, process::ExitCode};
use tidegate::{Limited, breaker, concurrency, limit};

/// The error of the example.
#[derive(Debug)]
enum ExampleError {
    Limited(Limited),
    NoSuchHost,
}

// The attributes need only this conversion.
impl From<Limited> for ExampleError {
    fn from(limited: Limited) -> Self {
        Self::Limited(limited)
    }
}

impl fmt::Display for ExampleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(limited) => limited.fmt(f),
            Self::NoSuchHost => f.write_str("unknown host"),
        }
    }
}

impl Error for ExampleError {}

/// Allows three mails per hour and recipient.
#[limit("3/h", key = to, message = "mail limit reached")]
fn mail(to: &str, text: &str) -> Result<String, ExampleError> {
    Ok(format!("to {to}: {text}"))
}

/// Opens for a minute if half of the last four calls failed.
#[breaker(window_size = 4, failure_rate = "50%", on_limit = guess)]
fn resolve(host: &str) -> Result<&'static str, ExampleError> {
    match host {
        "example.org" => Ok("192.0.2.1"),
        _ => Err(ExampleError::NoSuchHost),
    }
}

fn guess(_: &str) -> Result<&'static str, ExampleError> {
    Ok("192.0.2.255 (fallback)")
}

/// Allows three nested calls.
#[concurrency(3)]
fn descend(floor: u32) -> Result<u32, Limited> {
    Ok(descend(floor + 1).unwrap_or(floor))
}

/// Runs the example and writes its results.
pub(crate) fn run(out: &mut impl io::Write) -> io::Result<()> {
    for to in ["alice", "alice", "alice", "alice", "bob"] {
        match mail(to, "hello") {
            Ok(sent) => writeln!(out, "{sent}")?,
            Err(error) => writeln!(out, "to {to}: not sent: {error}")?,
        }
    }
    for host in ["example.org", "example.org", "nowhere", "nowhere", "example.org"] {
        match resolve(host) {
            Ok(address) => writeln!(out, "{host} is {address}")?,
            Err(error) => writeln!(out, "{host}: {error}")?,
        }
    }
    match descend(1) {
        Ok(deepest) => writeln!(out, "the maximum depth is {deepest}"),
        Err(limited) => writeln!(out, "{limited}"),
    }
}

#[allow(dead_code, reason = "the test calls `run`")]
fn main() -> ExitCode {
    match run(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attribute: {error}");
            ExitCode::FAILURE
        }
    }
}
