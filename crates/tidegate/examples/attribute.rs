//! A program for the command line with attributes and nothing else: no runtime, no settings, no middleware.
//!
//! ```text
//! cargo run --example attribute
//! ```

use std::{error::Error, fmt, io, process::ExitCode};
use tidegate::{Limited, breaker, concurrency, limit};

/// Everything that can go wrong here.
#[derive(Debug)]
enum ExampleError {
    Limited(Limited),
    NoSuchHost,
}

// All that the attributes ask of an error.
impl From<Limited> for ExampleError {
    fn from(limited: Limited) -> Self {
        Self::Limited(limited)
    }
}

impl fmt::Display for ExampleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited(limited) => limited.fmt(f),
            Self::NoSuchHost => f.write_str("there is no such host"),
        }
    }
}

impl Error for ExampleError {}

/// Three mails an hour for everybody, whoever sends them.
#[limit("3/h", key = to, message = "three mails an hour are enough")]
fn mail(to: &str, text: &str) -> Result<String, ExampleError> {
    Ok(format!("to {to}: {text}"))
}

/// Half of the last four calls failed: it is not called again before a minute is over.
#[breaker(over = 4, failure_rate = "50%", on_limit = guess)]
fn resolve(host: &str) -> Result<&'static str, ExampleError> {
    match host {
        "example.org" => Ok("192.0.2.1"),
        _ => Err(ExampleError::NoSuchHost),
    }
}

fn guess(_: &str) -> Result<&'static str, ExampleError> {
    Ok("192.0.2.255, perhaps")
}

/// No deeper than three calls at once.
#[concurrency(3)]
fn descend(floor: u32) -> Result<u32, Limited> {
    Ok(descend(floor + 1).unwrap_or(floor))
}

/// Writes what happens.
pub(crate) fn run(out: &mut impl io::Write) -> io::Result<()> {
    for to in ["alice", "alice", "alice", "alice", "bob"] {
        match mail(to, "hello") {
            Ok(sent) => writeln!(out, "{sent}")?,
            Err(trouble) => writeln!(out, "to {to}: not sent, {trouble}")?,
        }
    }
    for host in ["example.org", "example.org", "nowhere", "nowhere", "example.org"] {
        match resolve(host) {
            Ok(address) => writeln!(out, "{host} is {address}")?,
            Err(trouble) => writeln!(out, "{host}: {trouble}")?,
        }
    }
    match descend(1) {
        Ok(deepest) => writeln!(out, "the deepest floor is {deepest}"),
        Err(limited) => writeln!(out, "{limited}"),
    }
}

#[allow(dead_code, reason = "a test calls what it calls")]
fn main() -> ExitCode {
    match run(&mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("attribute: {error}");
            ExitCode::FAILURE
        }
    }
}
