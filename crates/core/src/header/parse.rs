//! Parses rate limit headers of servers. The input is untrusted: invalid items are skipped, and only the first
//! bytes of a value are read.

use super::Remaining;

/// The maximum number of bytes of a value, and of items of a list.
const MAX_HEADER_LEN: usize = 4_096;
const MAX_ITEMS: usize = 32;

/// Parses a number of seconds, as in `Retry-After` and `X-RateLimit-Reset`: digits, with optional spaces around.
/// `None` for anything else, such as a date.
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

/// Parses `RateLimit` and returns the most restrictive item; `None` if there is no valid item.
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

/// Parses the items of `RateLimit`: the raw name between the quotes, and the remaining amount.
pub fn parse_items(value: &[u8]) -> RateLimitItems<'_> {
    RateLimitItems { rest: value.get(..MAX_HEADER_LEN).unwrap_or(value), count: 0 }
}

/// The items of a `RateLimit` header; see [`parse_items`].
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

/// Parses one item: a name and its parameters.
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

/// Splits at the first separator outside of quotes.
fn split_unquoted(text: &[u8], separator: u8) -> (&[u8], &[u8]) {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (index, byte) in text.iter().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ if *byte == separator && !is_quoted => return (&text[..index], &text[index + 1..]),
            _ => {}
        }
    }
    (text, &[])
}

/// Parses a non-negative number. A fraction, which the draft does not allow, is rounded up.
fn parse_integer(value: &[u8]) -> Option<u64> {
    let value = value.trim_ascii();
    let point = value.iter().position(|byte| *byte == b'.');
    let (digits, fraction) = match point {
        Some(point) => (&value[..point], &value[point + 1..]),
        None => (value, &value[..0]),
    };
    if digits.is_empty() || !digits.iter().chain(fraction).all(u8::is_ascii_digit) {
        return None;
    }
    let more = u64::from(fraction.iter().any(|digit| *digit != b'0'));
    Some(parse_digits(digits).saturating_add(more))
}

/// The value of a string of digits, at most `u64::MAX`.
fn parse_digits(digits: &[u8]) -> u64 {
    digits.iter().fold(0_u64, |number, digit| {
        number.saturating_mul(10).saturating_add(u64::from(digit.wrapping_sub(b'0')))
    })
}
