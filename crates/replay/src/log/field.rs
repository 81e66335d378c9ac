//! The fields of a line, and how their values are parsed.

use super::{
    batch::{BatchSpan, LogRecord, TimeKind},
    time::{self, TimeFormat, parse_decimal, parse_digits},
};
use std::net::{IpAddr, Ipv4Addr};

/// The maximum number of headers in a log.
pub const MAX_HEADERS: usize = 8;

/// The meaning of a field of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogField {
    /// Any text; ignored.
    Other,
    /// A number or `-`; ignored, but distinguishes formats.
    Number,
    /// The address of the client, with or without a port; or its host name, which has no address.
    Ip,
    /// The address of the client with a port, as in `192.0.2.1:443`, `[2001:db8::1]:443` and `2001:db8::1:443`.
    IpAndPort,
    /// `GET /path HTTP/1.1`
    Request,
    /// `GET`
    Method,
    /// The path and the query.
    Target,
    /// The query, with or without the `?`.
    Query,
    /// The host of the request.
    Host,
    /// The user.
    User,
    /// The time of the request.
    Time(TimeFormat),
    /// The time of the response.
    CompletionTime(TimeFormat),
    /// The status of the response.
    Status,
    /// The duration.
    Duration(DurationUnit),
    /// A part of the duration; the parts are added.
    PartialDuration(DurationUnit),
    /// A request header, by its index among the known headers.
    Header(usize),
    /// A request header whose last list element is the client address if no other field has it.
    ForwardedFor(usize),
}

/// The unit of a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DurationUnit {
    /// Seconds.
    Seconds,
    /// Milliseconds.
    Millis,
    /// Microseconds.
    Micros,
    /// Nanoseconds.
    Nanos,
}

impl DurationUnit {
    /// Parses a duration to microseconds.
    fn parse(self, value: &[u8]) -> Option<u32> {
        let micros = match self {
            Self::Seconds => parse_decimal(value, 1_000_000)?,
            Self::Millis => parse_decimal(value, 1_000)?,
            Self::Micros => parse_decimal(value, 1)?,
            Self::Nanos => parse_decimal(value, 1)? / 1_000,
        };
        Some(u32::try_from(micros).unwrap_or(u32::MAX))
    }
}

impl LogField {
    /// Whether the field may be any text.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Other | Self::Header(_))
    }

    /// Whether the value is text of the request, which servers escape.
    pub(super) fn is_request_text(self) -> bool {
        matches!(
            self,
            Self::Request
                | Self::Method
                | Self::Target
                | Self::Query
                | Self::Host
                | Self::User
                | Self::Header(_)
                | Self::ForwardedFor(_)
        )
    }

    /// Whether the field is one word.
    pub(super) fn is_word(self) -> bool {
        matches!(self, Self::Other | Self::User)
    }

    /// Parses the value into the record. `None` if the value is invalid. `at` is the span of the value.
    #[inline]
    pub(super) fn parse_into(self, value: &[u8], at: BatchSpan, record: &mut LogRecord) -> Option<()> {
        match self {
            Self::Other => {}
            Self::Number => {
                if value != b"-" {
                    parse_digits(value)?;
                }
            }
            Self::Ip => match parse_address(value) {
                Some(ip) => record.ip = Some(ip),
                None if is_host_name(value) => {}
                None => return None,
            },
            Self::IpAndPort => {
                let port = memchr::memrchr(b':', value)?;
                record.ip = parse_address(&value[..port]);
            }
            Self::Request => return parse_request(value, at, record),
            Self::Method => record.method = parse_method(value, at)?,
            Self::Target => return parse_target(value, at, record),
            Self::Query => {
                let skip = usize::from(value.first() == Some(&b'?'));
                record.query = non_dash_span(&value[skip..], at.skip(skip));
            }
            Self::Host => {
                let host = non_dash_span(value, at);
                if !host.is_empty() {
                    record.host = host;
                }
            }
            Self::User => record.user = non_dash_span(value, at),
            Self::Time(form) => record.set_time(time::parse(form, value)?, TimeKind::Arrival),
            Self::CompletionTime(form) => record.set_time(time::parse(form, value)?, TimeKind::Completion),
            Self::Status => record.status = parse_status(value)?,
            // Servers write `-` or `-1` for an unknown duration.
            Self::Duration(_) | Self::PartialDuration(_) if value.first() == Some(&b'-') => {}
            Self::Duration(unit) => record.duration = Some(unit.parse(value)?),
            Self::PartialDuration(unit) => {
                let part = unit.parse(value)?;
                record.duration = Some(record.duration.unwrap_or(0).saturating_add(part));
            }
            Self::Header(place) => *record.headers.get_mut(place)? = non_dash_span(value, at),
            Self::ForwardedFor(place) => {
                *record.headers.get_mut(place)? = non_dash_span(value, at);
                let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
                record.ip = record.ip.or_else(|| parse_address(last.trim_ascii()));
            }
        }
        Some(())
    }
}

/// Returns an empty span for a dash, which stands for a missing value.
#[inline]
fn non_dash_span(value: &[u8], at: BatchSpan) -> BatchSpan {
    match value {
        b"-" | b"" => BatchSpan::default(),
        _ => at,
    }
}

#[inline]
fn parse_method(value: &[u8], at: BatchSpan) -> Option<BatchSpan> {
    let is_method = !value.is_empty() && value.len() <= 32;
    (is_method && value.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_')))
        .then_some(at)
}

#[inline]
fn parse_request(value: &[u8], at: BatchSpan, record: &mut LogRecord) -> Option<()> {
    let blank = memchr::memchr(b' ', value)?;
    record.method = parse_method(&value[..blank], at.slice(0, blank))?;
    let rest = &value[blank + 1..];
    // Accept a path with spaces.
    let end = match memchr::memrchr(b' ', rest) {
        Some(end) if rest[end + 1..].starts_with(b"HTTP/") => end,
        _ => rest.len(),
    };
    parse_target(&rest[..end], at.slice(blank + 1, end), record)
}

#[inline]
fn parse_target(value: &[u8], at: BatchSpan, record: &mut LogRecord) -> Option<()> {
    let (value, at) = match value.first()? {
        b'/' => (value, at),
        _ => parse_absolute_target(value, at, record)?,
    };
    match memchr::memchr(b'?', value) {
        None => record.path = at,
        Some(mark) => {
            record.path = at.slice(0, mark);
            record.query = at.skip(mark + 1);
        }
    }
    Some(())
}

/// Parses `http://host/path`, `*`, or `host:443` of a `CONNECT`.
#[cold]
fn parse_absolute_target<'v>(
    value: &'v [u8],
    at: BatchSpan,
    record: &mut LogRecord,
) -> Option<(&'v [u8], BatchSpan)> {
    if value == b"*" || is_host_name(value) {
        return Some((value, at));
    }
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| value.starts_with(scheme))?;
    let rest = &value[scheme.len()..];
    let slash = memchr::memchr(b'/', rest).unwrap_or(rest.len());
    // Load balancers add the default port, which clients do not send.
    let port: &[u8] = if scheme.len() == 7 { b":80" } else { b":443" };
    let host = rest[..slash].strip_suffix(port).unwrap_or(&rest[..slash]);
    record.host = at.slice(scheme.len(), host.len());
    Some((&rest[slash..], at.skip(scheme.len() + slash)))
}

#[inline]
fn parse_status(value: &[u8]) -> Option<u16> {
    match value {
        b"-" => Some(0),
        [a, b, c] => u16::try_from(parse_digits(&[*a, *b, *c])?).ok(),
        b"0" => Some(0),
        _ => None,
    }
}

/// Parses an address, with or without a port.
#[inline]
pub(super) fn parse_address(value: &[u8]) -> Option<IpAddr> {
    match parse_ipv4(value) {
        Some((address, rest)) if rest.is_empty() || rest[0] == b':' => Some(IpAddr::V4(address)),
        _ => parse_ipv6(value),
    }
}

/// Parses an IPv4 address, and returns the remaining bytes.
#[inline]
fn parse_ipv4(value: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
    let mut octets = [0_u8; 4];
    let mut at = 0;
    for (place, octet) in octets.iter_mut().enumerate() {
        if place > 0 {
            if value.get(at) != Some(&b'.') {
                return None;
            }
            at += 1;
        }
        let start = at;
        let mut number = 0_u16;
        while at < start + 3
            && let Some(digit) = value.get(at).filter(|byte| byte.is_ascii_digit())
        {
            number = number * 10 + u16::from(digit - b'0');
            at += 1;
        }
        if at == start {
            return None;
        }
        *octet = u8::try_from(number).ok()?;
    }
    Some((octets.into(), &value[at..]))
}

#[cold]
fn parse_ipv6(value: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(value).ok()?;
    let text = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?.0,
        None => text,
    };
    // Ignore the zone of `fe80::1%eth0`.
    let text = text.split_once('%').map_or(text, |(address, _)| address);
    text.parse().ok()
}

/// Whether the value can be a host name.
fn is_host_name(value: &[u8]) -> bool {
    let is_of_names = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    !value.is_empty() && value.len() < 256 && value.iter().all(is_of_names)
}

impl BatchSpan {
    /// Returns a part of the span.
    #[inline]
    pub(super) fn slice(self, from: usize, len: usize) -> Self {
        self.skip(from).prefix(len)
    }
}
