//! What a field of a line says of a request.

use super::{
    batch::{Record, Span},
    time::{self, TimeForm, decimal, digits},
};
use std::net::{IpAddr, Ipv4Addr};

/// How many headers a log may carry.
pub const MOST_HEADERS: usize = 8;

/// What a field of a line says of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// Nothing that is looked at.
    Other,
    /// A number that is not looked at, or `-`; it helps to tell one format from another.
    Number,
    /// The address of the client, with or without a port; or its name, which is no address.
    Ip,
    /// `GET /path HTTP_ABOUT/1.1`
    Request,
    /// `GET`
    Method,
    /// The path and what follows it.
    Target,
    /// What stands behind the `?`, with or without it.
    Query,
    /// The host that was asked for.
    Host,
    /// The user.
    User,
    /// The moment at which it came.
    Time(TimeForm),
    /// The moment at which it had been answered.
    Answered(TimeForm),
    /// The status of the answer.
    Status,
    /// How long it took; so many microseconds are one.
    Took(u64),
    /// A header of the request, by its place among those that are known.
    Header(usize),
    /// The same, which also tells the address where nothing else does: the last of a list.
    Forwarded(usize),
}

impl Field {
    /// Whether it may be any text.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Other | Self::Header(_))
    }

    /// Whether it is one word.
    pub(super) fn is_word(self) -> bool {
        matches!(self, Self::Other | Self::User)
    }

    /// Notes down what this field says. `None` if it cannot say that. `at` is where the value stands.
    #[inline]
    pub(super) fn put(self, value: &[u8], at: Span, record: &mut Record) -> Option<()> {
        match self {
            Self::Other => {}
            Self::Number => {
                if value != b"-" {
                    digits(value)?;
                }
            }
            Self::Ip => match address(value) {
                Some(ip) => record.ip = Some(ip),
                None if is_name(value) => {}
                None => return None,
            },
            Self::Request => return request(value, at, record),
            Self::Method => record.method = method(value, at)?,
            Self::Target => return target(value, at, record),
            Self::Query => {
                let skip = usize::from(value.first() == Some(&b'?'));
                record.query = present(&value[skip..], at.from(skip));
            }
            Self::Host => record.host = present(value, at),
            Self::User => record.user = present(value, at),
            Self::Time(form) => {
                record.time = time::parse(form, value)?;
                record.is_of_answer = false;
            }
            Self::Answered(form) => {
                record.time = time::parse(form, value)?;
                record.is_of_answer = true;
            }
            Self::Status => record.status = status(value)?,
            Self::Took(unit) => {
                if value != b"-" {
                    record.took = Some(u32::try_from(decimal(value, unit)?).unwrap_or(u32::MAX));
                }
            }
            Self::Header(place) => *record.headers.get_mut(place)? = present(value, at),
            Self::Forwarded(place) => {
                *record.headers.get_mut(place)? = present(value, at);
                let last = value.rsplit(|byte| *byte == b',').next().unwrap_or_default();
                record.ip = record.ip.or_else(|| address(last.trim_ascii()));
            }
        }
        Some(())
    }
}

/// A dash stands for nothing.
#[inline]
fn present(value: &[u8], at: Span) -> Span {
    match value {
        b"-" | b"" => Span::default(),
        _ => at,
    }
}

#[inline]
fn method(value: &[u8], at: Span) -> Option<Span> {
    let is_method = !value.is_empty() && value.len() <= 32;
    (is_method && value.iter().all(|byte| byte.is_ascii_alphabetic() || matches!(byte, b'-' | b'_')))
        .then_some(at)
}

#[inline]
fn request(value: &[u8], at: Span, record: &mut Record) -> Option<()> {
    let blank = memchr::memchr(b' ', value)?;
    record.method = method(&value[..blank], at.part(0, blank))?;
    let rest = &value[blank + 1..];
    // A path with blanks in it is no reason to lose the request.
    let end = match memchr::memrchr(b' ', rest) {
        Some(end) if rest[end + 1..].starts_with(b"HTTP/") => end,
        _ => rest.len(),
    };
    target(&rest[..end], at.part(blank + 1, end), record)
}

#[inline]
fn target(value: &[u8], at: Span, record: &mut Record) -> Option<()> {
    let (value, at) = match value.first()? {
        b'/' => (value, at),
        _ => origin(value, at, record)?,
    };
    match memchr::memchr(b'?', value) {
        None => record.path = at,
        Some(mark) => {
            record.path = at.part(0, mark);
            record.query = at.from(mark + 1);
        }
    }
    Some(())
}

/// `http://host/path`, `*`, or `host:443` of a `CONNECT`.
#[cold]
fn origin<'v>(value: &'v [u8], at: Span, record: &mut Record) -> Option<(&'v [u8], Span)> {
    if value == b"*" || is_name(value) {
        return Some((value, at));
    }
    let scheme = [&b"http://"[..], b"https://"].into_iter().find(|scheme| value.starts_with(scheme))?;
    let rest = &value[scheme.len()..];
    let slash = memchr::memchr(b'/', rest).unwrap_or(rest.len());
    record.host = at.part(scheme.len(), slash);
    Some((&rest[slash..], at.from(scheme.len() + slash)))
}

#[inline]
fn status(value: &[u8]) -> Option<u16> {
    match value {
        b"-" => Some(0),
        [a, b, c] => u16::try_from(digits(&[*a, *b, *c])?).ok(),
        b"0" => Some(0),
        _ => None,
    }
}

/// An address, with or without a port.
#[inline]
pub(super) fn address(value: &[u8]) -> Option<IpAddr> {
    match four(value) {
        Some((address, rest)) if rest.is_empty() || rest[0] == b':' => Some(IpAddr::V4(address)),
        _ => six(value),
    }
}

/// Four numbers with dots between them, and what follows.
#[inline]
fn four(value: &[u8]) -> Option<(Ipv4Addr, &[u8])> {
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
fn six(value: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(value).ok()?;
    let text = match text.strip_prefix('[') {
        Some(inner) => inner.split_once(']')?.0,
        None => text,
    };
    // What an address means within one machine, `fe80::1%eth0`.
    let text = text.split_once('%').map_or(text, |(address, _)| address);
    text.parse().ok()
}

/// Whether this may be the name of a host.
fn is_name(value: &[u8]) -> bool {
    let is_of_names = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_' | b':');
    !value.is_empty() && value.len() < 256 && value.iter().all(is_of_names)
}

impl Span {
    /// A part of it.
    #[inline]
    pub(super) fn part(self, from: usize, len: usize) -> Self {
        self.from(from).up_to(len)
    }
}
