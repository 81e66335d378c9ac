//! The HTTP log of HAProxy (`option httplog`), with or without a syslog header:
//!
//! ```text
//! Feb  6 12:14:14 host haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1"
//! ```
//!
//! The values of captured headers are ignored, because the line does not name the headers. The time has no zone, and is
//! taken as UTC.

use super::{
    batch::LogRecord,
    escape::Escape,
    field::{DurationUnit, LogField},
    time::TimeFormat,
};

/// The number of timers: receive, queue, connect, response, total.
const TIMERS: usize = 5;

/// Parses a line that starts at `at`; unescaped values are appended to `unescaped`. `Err` names the part that does not match.
pub(super) fn parse(
    line: &[u8],
    at: usize,
    record: &mut LogRecord,
    unescaped: &mut String,
) -> Result<(), &'static str> {
    let (client, time, rest) = split_header(line).ok_or("client:port [date]")?;
    let mut set = |field: LogField, value: &[u8], at: usize| {
        Escape::Hash.parse_field(field, value, at, record, unescaped)
    };
    set(LogField::IpAndPort, client, 0).ok_or("client:port")?;
    set(LogField::Time(TimeFormat::Common), time, 0).ok_or("date")?;
    // frontend backend/server timers status bytes
    let mut words = rest.splitn(6, |byte| *byte == b' ');
    let (_frontend, server) = (words.next(), words.next());
    server.filter(|server| server.contains(&b'/')).ok_or("backend/server")?;
    let timers = words.next().filter(|timers| timers.split(|byte| *byte == b'/').count() == TIMERS);
    let total = timers.and_then(|timers| timers.rsplit(|byte| *byte == b'/').next()).ok_or("timers")?;
    // `option logasap` logs before the end, and marks the duration and the size with a `+`.
    let total = total.strip_prefix(b"+").unwrap_or(total);
    set(LogField::Duration(DurationUnit::Millis), total, 0).ok_or("timers")?;
    let status = words.next().ok_or("status")?;
    // The status is -1 if there is no response.
    set(LogField::Status, if status == b"-1" { b"-" } else { status }, 0).ok_or("status")?;
    let bytes = words.next().ok_or("bytes")?;
    set(LogField::Number, bytes.strip_prefix(b"+").unwrap_or(bytes), 0).ok_or("bytes")?;
    // The request is last. Quotes in it and in captured headers are escaped. A long line is truncated in it.
    let tail = words.next().ok_or("request")?;
    let open = memchr::memchr(b'"', tail).ok_or("request")?;
    let request = &tail[open + 1..];
    let request = request.strip_suffix(b"\"").unwrap_or(request);
    // All parts are slices of the line, so this is the offset of the request.
    let offset = line.len() - tail.len() + open + 1;
    set(LogField::Request, request, at + offset).ok_or("request")
}

/// Splits a line at `client [time] `, after an optional syslog header.
fn split_header(line: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let mut from = 0;
    loop {
        let open = from + memchr::memmem::find(&line[from..], b" [")?;
        let time = &line[open + 2..];
        if time.get(2) == Some(&b'/')
            && let Some(close) = memchr::memmem::find(time, b"] ")
        {
            let start = memchr::memrchr(b' ', &line[..open]).map_or(0, |blank| blank + 1);
            return Some((&line[start..open], &time[..close], &time[close + 2..]));
        }
        from = open + 2;
    }
}
