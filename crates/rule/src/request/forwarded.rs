//! The client address according to trusted proxies: `X-Forwarded-For` and `Forwarded`, read from right to
//! left.
//!
//! Everything left of the entry of the outermost trusted proxy is from the client, and may be anything.
//! Therefore nothing is read from the left: neither to find the start of a quoted string nor to count.

use super::{ClientIpHeader, RequestHead};
use std::{
    borrow::Cow,
    net::{IpAddr, Ipv6Addr},
};

/// The maximum number of entries that are read.
const MAX_ENTRIES: usize = 32;
/// The maximum length of an entry; a longer one is not an address.
const MAX_ENTRY_BYTES: usize = 1_024;

/// Reads the last remaining entry.
type ReadEntry = fn(&mut HeaderListReader<'_>) -> Option<IpAddr>;

/// Resolves the client of a trusted peer.
pub(super) fn resolve_client(
    head: &dyn RequestHead,
    header: &ClientIpHeader,
    peer: IpAddr,
    is_trusted: impl Fn(IpAddr) -> bool,
) -> IpAddr {
    let (name, read): (_, ReadEntry) = match header {
        ClientIpHeader::XForwardedFor => {
            ("x-forwarded-for", |reader| parse_address(reader.pop_entry()?.trim_ascii()))
        }
        ClientIpHeader::Forwarded => {
            ("forwarded", |reader| parse_forwarded_for(reader.pop_entry_quote_aware()?.trim_ascii()))
        }
        ClientIpHeader::Custom(name) => return parse_custom_header(head, name).unwrap_or(peer),
    };
    let mut reader = HeaderListReader::default();
    head.for_each_header(name, &mut |line| reader.push(line));

    let mut last = peer;
    for _ in 0..MAX_ENTRIES {
        match read(&mut reader) {
            Some(address) if is_trusted(address) => last = address,
            Some(address) => return address,
            None => return last,
        }
    }
    last
}

/// The address in a header that one proxy sets. Several lines or a list do not come from one proxy.
fn parse_custom_header(head: &dyn RequestHead, name: &str) -> Option<IpAddr> {
    let (mut found, mut lines) = (None, 0_usize);
    head.for_each_header(name, &mut |line| {
        lines = lines.saturating_add(1);
        found = parse_address(line.trim_ascii());
    });
    found.filter(|_| lines == 1)
}

/// The last lines of a header. Each has at least one entry, so more are not needed.
struct HeaderListReader<'a> {
    lines: [&'a [u8]; MAX_ENTRIES],
    count: usize,
    /// The unread part of the current line.
    rest: Option<&'a [u8]>,
}

impl Default for HeaderListReader<'_> {
    fn default() -> Self {
        Self { lines: [&[]; MAX_ENTRIES], count: 0, rest: None }
    }
}

impl<'a> HeaderListReader<'a> {
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

    /// The last remaining entry, up to a comma.
    fn pop_entry(&mut self) -> Option<&'a [u8]> {
        let line = self.next_line()?;
        let start = line.len().saturating_sub(MAX_ENTRY_BYTES);
        let comma = line[start..].iter().rposition(|byte| *byte == b',').map(|index| start + index);
        self.split(line, comma)
    }

    /// The last remaining entry, up to a comma outside of quotes.
    fn pop_entry_quote_aware(&mut self) -> Option<&'a [u8]> {
        let line = self.next_line()?;
        let start = line.len().saturating_sub(MAX_ENTRY_BYTES);
        let mut is_quoted = false;
        for index in (start..line.len()).rev() {
            match line[index] {
                b'"' if !is_escaped(&line[start..index]) => is_quoted = !is_quoted,
                b',' if !is_quoted => return self.split(line, Some(index)),
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

/// Whether the next byte is escaped by a backslash.
fn is_escaped(before: &[u8]) -> bool {
    before.iter().rev().take_while(|byte| **byte == b'\\').count() % 2 == 1
}

/// The address of `for=` in an entry of `Forwarded`.
fn parse_forwarded_for(entry: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    let mut rest = entry;
    while !rest.is_empty() {
        let end = find_pair_end(rest);
        let pair = rest[..end].trim_ascii();
        rest = rest.get(end + 1..).unwrap_or_default();
        let equals = pair.iter().position(|byte| *byte == b'=')?;
        if pair[..equals].eq_ignore_ascii_case(b"for") {
            // One proxy writes it only once.
            if found.is_some() {
                return None;
            }
            found = Some(parse_address(&unquote(&pair[equals + 1..])?)?);
        }
    }
    found
}

/// The end of a pair: a semicolon outside of quotes.
fn find_pair_end(text: &[u8]) -> usize {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (index, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b';' if !is_quoted => return index,
            _ => {}
        }
    }
    text.len()
}

/// Removes the quotes of a value, if any; `None` if they are unbalanced.
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

/// Parses an address, with or without a port and brackets. RFC 7239 allows obfuscated ports.
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
    let is_port_char = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match text.strip_prefix('_') {
        Some(hidden) => !hidden.is_empty() && hidden.bytes().all(is_port_char),
        None => matches!(text.len(), 1..=5) && text.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
