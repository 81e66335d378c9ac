//! What servers say in these headers. Nobody has checked it: what makes no sense is passed over, and however long a value
//! is, only its start is read.

use super::Remaining;

/// Bytes of a value that are read, and items of a list.
const MAX_HEADER_LEN: usize = 4_096;
const MAX_ITEMS: usize = 32;

/// Reads a number of seconds, as `Retry-After`, `X-RateLimit-Reset` and others give it: digits, with spaces around. `None`
/// for anything else, such as a date.
///
/// ```
/// use tidegate_core::header::parse_seconds;
///
/// assert_eq!(parse_seconds(b" 120 "), Some(120));
/// assert_eq!(parse_seconds(b"Fri, 31 Dec 1999 23:59:59 GMT"), None);
/// ```
pub fn parse_seconds(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    match digits.is_empty() || digits.len() > MAX_HEADER_LEN || !digits.iter().all(u8::is_ascii_digit) {
        true => None,
        false => Some(parse_digits(digits)),
    }
}

/// Reads `RateLimit`: of all quotas that it tells of, what is left of the tightest. `None` if it tells of none.
///
/// ```
/// use tidegate_core::header::{Remaining, parse_rate_limit};
///
/// let left = parse_rate_limit(br#""burst";r=40;t=3, "daily";r=0;t=3600"#);
/// assert_eq!(left, Some(Remaining { remaining: 0, refill_after: Some(3_600) }));
/// ```
pub fn parse_rate_limit(value: &[u8]) -> Option<Remaining> {
    parse_items(value).map(|(_, left)| left).reduce(Remaining::more_restrictive)
}

/// The quotas that a `RateLimit` tells of: each by its name, as it stands between the quotes, and what is left of it.
pub fn parse_items(value: &[u8]) -> RateLimitItems<'_> {
    RateLimitItems { rest: value.get(..MAX_HEADER_LEN).unwrap_or(value), count: 0 }
}

/// The parse_items of a `RateLimit`; see [`parse_items`].
#[derive(Clone, Debug)]
pub struct RateLimitItems<'a> {
    rest: &'a [u8],
    count: usize,
}

impl<'a> Iterator for RateLimitItems<'a> {
    type Item = (&'a [u8], Remaining);

    fn next(&mut self) -> Option<Self::Item> {
        while self.count < MAX_ITEMS && !self.rest.is_empty() {
            self.count += 1;
            let (item, rest) = split_unquoted(self.rest, b',');
            self.rest = rest;
            if let Some(item) = parse_item(item) {
                return Some(item);
            }
        }
        None
    }
}

/// One item: a name and its parameters.
fn parse_item(item: &[u8]) -> Option<(&[u8], Remaining)> {
    let (name, mut rest) = split_unquoted(item, b';');
    let (mut remaining, mut more_after) = (None, None);
    while !rest.is_empty() {
        let (parameter, after) = split_unquoted(rest, b';');
        rest = after;
        let (key, value) = split_unquoted(parameter, b'=');
        match key.trim_ascii() {
            b"r" => remaining = parse_integer(value),
            b"t" => more_after = parse_integer(value),
            _ => {}
        }
    }
    let name = name.trim_ascii();
    let name = name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name);
    remaining.map(|remaining| (name, Remaining { remaining, refill_after: more_after }))
}

/// What is before a sign that does not stand in quotes, and what is behind it.
fn split_unquoted(text: &[u8], separator: u8) -> (&[u8], &[u8]) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (place, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if *byte == separator && !is_quoted => return (&text[..place], &text[place + 1..]),
            _ => {}
        }
    }
    (text, &[])
}

/// A number that is not negative. One with a fraction, which the draft does not know, is rounded up.
fn parse_integer(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let point = value.iter().position(|byte| *byte == b'.');
    let (digits, fraction) = match point {
        Some(place) => (&value[..place], &value[place + 1..]),
        None => (value, &value[..0]),
    };
    if digits.is_empty() || !digits.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    let more = u64::from(fraction.iter().any(|digit| *digit != b'0'));
    Some(parse_digits(digits).saturating_add(more))
}

/// The number that digits mean, at most `u64::MAX`.
fn parse_digits(digits: &[u8]) -> u64 {
    digits.iter().fold(0_u64, |number, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0')))
    })
}
