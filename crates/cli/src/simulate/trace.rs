//! Recorded loads: one line per request.
//!
//! ```text
//!   # from an access log           quota 10/s burst 3
//!   0.25                           at 0ms    cost 2   allow  remaining 1
//!   1s cost 3                      at 0ms    cost 2   deny   retry 100ms
//! ```
//!
//! On the right, a scenario in the format of the tests: its expectations are ignored, and its quotas are the default. The
//! requests of several scenarios in one file form one load.

use super::time;
use crate::error::CliError;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    ops::Range,
    path::Path,
    str,
};
use tidegate_core::{Quota, QuotaError};
use tidegate_simulation::SimulatedRequest;

/// A recorded load.
#[derive(Debug)]
pub(crate) struct LoadTrace {
    /// The name of the source.
    pub(crate) name: String,
    /// The requests, ordered by time.
    pub(crate) arrivals: Vec<SimulatedRequest>,
    /// The quotas in the trace.
    pub(crate) quotas: Vec<Quota>,
}

/// Words that start the expectations of a test scenario.
const EXPECTATIONS: [&str; 6] = ["allow", "delay", "deny", "remaining", "reset", "limit"];

/// The maximum length of a line in bytes; a longer line indicates that the file is not a trace.
const MAX_LINE_LEN: u64 = 4_096;

impl LoadTrace {
    /// Reads the file at `path`, or standard input if it is `-`; an error if it has more than `max` requests and quotas.
    pub(crate) fn read(path: &Path, max: usize) -> Result<Self, CliError> {
        let (name, source): (_, io::Result<Box<dyn BufRead>>) = match path.to_str() {
            Some("-") => ("standard input".into(), Ok(Box::new(io::stdin().lock()))),
            _ => {
                (path.display().to_string(), File::open(path).map(|file| Box::new(BufReader::new(file)) as _))
            }
        };
        let unreadable = |error: io::Error| CliError::input(format!("cannot read {name}: {error}"));
        let mut source = source.map_err(unreadable)?;

        let mut trace = Self { name: name.clone(), arrivals: Vec::new(), quotas: Vec::new() };
        let mut bytes = Vec::new();
        for number in 1.. {
            bytes.clear();
            let read =
                source.by_ref().take(MAX_LINE_LEN).read_until(b'\n', &mut bytes).map_err(unreadable)?;
            if read == 0 {
                break;
            }
            let line = line_text(&bytes).map_err(|problem| {
                CliError::input(format!(
                    "{name}:{number}: {problem}\nuse a text file with one request per line"
                ))
            })?;
            trace.parse_line(line).map_err(|error| error.into_cli_error(&name, number, line))?;
            if trace.arrivals.len() + trace.quotas.len() > max {
                let problem = format!("{name} has more than {max} requests and quotas");
                return Err(CliError::input(format!("{problem}\nuse a part of it")));
            }
        }
        if trace.arrivals.is_empty() {
            let fix = "write one time per line, such as `12.5ms` or `at 1s cost 2`";
            return Err(CliError::input(format!("{name} has no requests\n{fix}")));
        }
        // Servers log requests when they end, so the lines are not ordered by start time.
        trace.arrivals.sort_by_key(|arrival| arrival.at);
        Ok(trace)
    }

    fn parse_line(&mut self, line: &str) -> Result<(), LoadTraceError> {
        let content = line.split('#').next().unwrap_or("");
        let mut words = TraceWords { line: content, position: 0 };
        let Some(first) = words.next() else { return Ok(()) };
        if first.text == "quota" {
            self.quotas.push(words.parse_quota()?);
            return Ok(());
        }

        let when = if first.text == "at" { words.next() } else { Some(first) };
        let when = when.ok_or_else(|| words.missing_error("a time after `at`", "write `at 12.5ms`"))?;
        let at = time::parse(when.text).map_err(|error| when.error(error.problem, &error.fix))?;

        let mut cost = 1;
        let mut next = words.next();
        if next.is_some_and(|word| word.text == "cost") {
            let fix = "write `cost 2`";
            let word = words.next().ok_or_else(|| words.missing_error("a number after `cost`", fix))?;
            let error = |_| word.error(format!("`{}` is not a whole number below 2^64", word.text), fix);
            cost = word.text.parse().map_err(error)?;
            next = words.next();
        }

        if let Some(word) = next.filter(|word| !EXPECTATIONS.contains(&word.text)) {
            let fix = "write a time, then `cost` and a number if it is not 1";
            return Err(word.error(format!("unexpected `{}`", word.text), fix));
        }
        self.arrivals.push(SimulatedRequest { at, cost });
        Ok(())
    }
}

/// Returns a line without its line break and without a byte order mark.
fn line_text(bytes: &[u8]) -> Result<&str, String> {
    if bytes.len() as u64 == MAX_LINE_LEN && !bytes.ends_with(b"\n") {
        return Err(format!("line of {MAX_LINE_LEN} bytes or more"));
    }
    let line = str::from_utf8(bytes).map_err(|_| "invalid UTF-8".to_string())?;
    Ok(line.trim_start_matches('\u{feff}').trim_end())
}

/// The words of a line with their positions.
struct TraceWords<'a> {
    line: &'a str,
    position: usize,
}

#[derive(Clone, Copy)]
struct TraceWord<'a> {
    text: &'a str,
    start: usize,
}

impl<'a> TraceWords<'a> {
    fn next(&mut self) -> Option<TraceWord<'a>> {
        let rest = &self.line[self.position..];
        let start = self.line.len() - rest.trim_start().len();
        let text = rest.split_whitespace().next()?;
        self.position = start + text.len();
        Some(TraceWord { text, start })
    }

    /// Parses the rest of the line as a quota.
    fn parse_quota(&self) -> Result<Quota, LoadTraceError> {
        let rest = &self.line[self.position..];
        let start = self.line.len() - rest.trim_start().len();
        rest.trim().parse().map_err(|error: QuotaError| {
            let span = error.span().unwrap_or(0..rest.trim().len());
            let span = start + span.start..start + span.end;
            LoadTraceError { span, problem: error.problem().into(), fix: error.fix().into() }
        })
    }

    fn missing_error(&self, missing: &str, fix: &str) -> LoadTraceError {
        let end = self.line.trim_end().len();
        LoadTraceError { span: end..end, problem: format!("missing {missing}"), fix: fix.into() }
    }
}

impl TraceWord<'_> {
    fn error(&self, problem: String, fix: &str) -> LoadTraceError {
        LoadTraceError { span: self.start..self.start + self.text.len(), problem, fix: fix.into() }
    }
}

/// An error in a line, with its byte range.
struct LoadTraceError {
    span: Range<usize>,
    problem: String,
    fix: String,
}

impl LoadTraceError {
    /// The whole message: the position and the problem, the line, a caret under the error, and the fix.
    fn into_cli_error(self, name: &str, number: usize, line: &str) -> CliError {
        let Self { span, problem, fix } = self;
        // Columns and carets count characters, not bytes.
        let before = line[..span.start].chars().count();
        let caret = "^".repeat(line[span].chars().count().max(1));
        let column = before + 1;
        CliError::input(format!(
            "{name}:{number}:{column}: {problem}\n  {line}\n  {:before$}{caret}\n{fix}",
            ""
        ))
    }
}
