//! Who sent a request, as trusted proxies tell it: `X-Forwarded-For` and `Forwarded`, from right to left.
//!
//! Everything left of what the outermost trusted proxy wrote is from the client, and may be anything. So nothing is ever
//! read from the left: not to find the start of a quoted string, and not to count.

use super::{AddressHeader, RequestHead};
use std::{
    borrow::Cow,
    net::{IpAddr, Ipv6Addr},
};

/// Entries that are looked at.
const MAX_ENTRIES: usize = 32;
/// Bytes of an entry that are looked at; one that is longer is no address.
const MAX_ENTRY_BYTES: usize = 1_024;

/// Reads the last entry that is left.
type ReadEntry = fn(&mut HeaderLines<'_>) -> Option<IpAddr>;

/// The client, where the peer is trusted.
pub(super) fn resolve_client(
    head: &dyn RequestHead,
    header: &AddressHeader,
    peer: IpAddr,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let (name, read): (_, ReadEntry) = match header {
        AddressHeader::XForwardedFor => ("x-forwarded-for", |lines| parse_address(lines.pop()?.trim_ascii())),
        AddressHeader::Forwarded => {
            ("forwarded", |lines| parse_forwarded_for(lines.pop_quoted()?.trim_ascii()))
        }
        AddressHeader::Single(name) => return single_address(head, name).unwrap_or(peer),
    };
    let mut lines = HeaderLines::default();
    head.for_each_header(name, &mut |line| lines.push(line));

    let mut last = peer;
    for _ in 0..MAX_ENTRIES {
        match read(&mut lines) {
            Some(address) if is_trusted(address) => last = address,
            Some(address) => return address,
            None => return last,
        }
    }
    last
}

/// The one address of a header that a proxy sets. Two of them, or a list, were not written by one proxy.
fn single_address(head: &dyn RequestHead, name: &str) -> Option<IpAddr> {
    let (mut found, mut lines) = (None, 0_usize);
    head.for_each_header(name, &mut |line| {
        lines = lines.saturating_add(1);
        found = parse_address(line.trim_ascii());
    });
    found.filter(|_| lines == 1)
}

/// The last lines of a header. Each has an entry at least, so that more need not be kept.
struct HeaderLines<'a> {
    lines: [&'a [u8]; MAX_ENTRIES],
    count: usize,
    /// What is left of the line that is being read.
    rest: Option<&'a [u8]>,
}

impl Default for HeaderLines<'_> {
    fn default() -> Self {
        Self { lines: [&[]; MAX_ENTRIES], count: 0, rest: None }
    }
}

impl<'a> HeaderLines<'a> {
    fn push(&mut self, line: &'a [u8]) {
        if self.count == MAX_ENTRIES {
            self.lines.rotate_left(1);
            self.count -= 1;
        }
        self.lines[self.count] = line;
        self.count += 1;
    }

    fn next_line(&mut self) -> Option<&'a [u8]> {
        self.rest.take().or_else(|| {
            self.count = self.count.checked_sub(1)?;
            Some(self.lines[self.count])
        })
    }

    /// The last entry that is left, up to a comma.
    fn pop(&mut self) -> Option<&'a [u8]> {
        let line = self.next_line()?;
        let least = line.len().saturating_sub(MAX_ENTRY_BYTES);
        let comma = line[least..].iter().rposition(|byte| *byte == b',').map(|place| least + place);
        self.split(line, comma)
    }

    /// The last entry that is left, up to a comma that does not stand in quotes.
    fn pop_quoted(&mut self) -> Option<&'a [u8]> {
        let line = self.next_line()?;
        let least = line.len().saturating_sub(MAX_ENTRY_BYTES);
        let mut is_quoted = false;
        for place in (least..line.len()).rev() {
            match line[place] {
                b'"' if !is_escaped(&line[least..place]) => is_quoted = !is_quoted,
                b',' if !is_quoted => return self.split(line, Some(place)),
                _ => {}
            }
        }
        self.split(line, None)
    }

    fn split(&mut self, line: &'a [u8], comma: Option<usize>) -> Option<&'a [u8]> {
        match comma {
            Some(comma) => {
                self.rest = Some(&line[..comma]);
                Some(&line[comma + 1..])
            }
            None => Some(line).filter(|line| line.len() <= MAX_ENTRY_BYTES),
        }
    }
}

/// Whether what follows has a backslash of its own in front.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address of a `for=` in an entry of `Forwarded`.
fn parse_forwarded_for(entry: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = entry;
    while !rest.is_empty() {
        let end = find_pair_end(rest);
        let pair = rest[..end].trim_ascii();
        rest = rest.get(end + 1..).unwrap_or_default();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        if pair[..equals].eq_ignore_ascii_case(b"for") {
            // Two of them are not what one proxy saw.
            if found.is_some() {
                return None;
            }
            found = Some(parse_address(&unquote(&pair[equals + 1..])?)?);
        }
    }
    found
}

/// Where a pair ends: at a semicolon that does not stand in quotes.
fn find_pair_end(text: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (place, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b';' if !is_quoted => return place,
            _ => {}
        }
    }
    text.len()
}

/// A value without its quotes, if it has some; `None` if it has only one.
fn unquote(value: &[u8]) -> Option<Cow<'_, [u8]>> {
    let Some(inner) = value.strip_prefix(b"\"") else { return Some(value.into()) };
    let inner = inner.strip_suffix(b"\"").filter(|inner| !is_escaped(inner))?;
    if !inner.contains(&b'\\') {
        return Some(inner.into());
    }
    let mut plain = Vec::with_capacity(inner.len());
    let mut is_escaped = false;
    for byte in inner {
        is_escaped = !is_escaped && *byte == b'\\';
        if !is_escaped {
            plain.push(*byte);
        }
    }
    Some(plain.into())
}

/// An address, with or without a port and brackets. A port may be any name, as RFC 7239 has it.
fn parse_address(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?;
    let address = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            let is_port = port.is_empty() || port.strip_prefix(':').is_some_and(is_port);
            address.parse::<Ipv6Addr>().ok().filter(|_| is_port)?.into()
        }
        None => match text.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => {
                let (address, port) = text.split_once(':')?;
                IpAddr::V4(address.parse().ok().filter(|_| is_port(port))?)
            }
        },
    };
    Some(address.to_canonical())
}

fn is_port(text: &str) -> bool {
    let is_sign = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.strip_prefix('_') {
        Some(hidden) => !hidden.is_empty() && hidden.bytes().all(is_sign),
        None => matches!(text.len(), 1..=5) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
