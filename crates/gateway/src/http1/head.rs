//! What heads of requests and of responses have in common: their end, and their fields.

use super::MAX_FIELDS;
use http::Version;
use httparse::Header;
use std::mem::MaybeUninit;
use tidegate_policy::head::{FieldKinds, HeadError, HeaderFields, list_elements};

/// Finds the end of a head in bytes that arrive in pieces. Each byte is scanned once.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeadScanner {
    scanned: usize,
}

impl HeadScanner {
    /// The length of the head at the start of `input`, with its empty line; `None` if it is incomplete. `input` contains all bytes
    /// of previous calls.
    ///
    /// A line feed without a carriage return is an error: servers disagree on whether it ends a line.
    #[inline]
    pub fn find_end(&mut self, input: &[u8], max_len: usize) -> Result<Option<usize>, HeadError> {
        // Most often one head arrives alone, and at once.
        if self.scanned == 0 && input.len() <= max_len && is_single_head(input) {
            return Ok(Some(input.len()));
        }
        self.find_end_by_lines(input, max_len)
    }

    fn find_end_by_lines(&mut self, input: &[u8], max_len: usize) -> Result<Option<usize>, HeadError> {
        for found in memchr::memchr_iter(b'\n', input.get(self.scanned..).unwrap_or_default()) {
            let end = self.scanned + found + 1;
            let Some(line) = input[..end].strip_suffix(b"\r\n") else {
                return Err(HeadError::Malformed("line feed without carriage return"));
            };
            if line.ends_with(b"\r\n") {
                self.scanned = 0;
                return if end > max_len { Err(HeadError::HeaderTooLarge) } else { Ok(Some(end)) };
            }
        }
        self.scanned = input.len();
        if input.len() < max_len { Ok(None) } else { Err(HeadError::HeaderTooLarge) }
    }
}

/// Whether this is one head, and nothing else. The loop has no branches, so that the compiler uses vector instructions.
#[inline]
fn is_single_head(input: &[u8]) -> bool {
    // An empty line may precede a head.
    if matches!(input, [b'\r' | b'\n', ..] | [_, b'\n', ..]) || !input.ends_with(b"\r\n\r\n") {
        return false;
    }
    let (mut bare_line_feeds, mut empty_lines) = (0_u32, 0_u32);
    for ((one, two), three) in input.iter().zip(&input[1..]).zip(&input[2..]) {
        bare_line_feeds += u32::from((*three == b'\n') & (*two != b'\r'));
        empty_lines += u32::from((*one == b'\n') & (*two == b'\r') & (*three == b'\n'));
    }
    bare_line_feeds == 0 && empty_lines == 1
}

/// The number of bytes of empty lines before a head, which are ignored (RFC 9112, 2.2).
pub(super) fn empty_lines(input: &[u8]) -> usize {
    input.chunks_exact(2).take_while(|line| *line == b"\r\n").count() * 2
}

/// Space for the fields of a head, which `httparse` fills.
pub(super) fn field_space<'a>() -> [MaybeUninit<Header<'a>>; MAX_FIELDS] {
    [const { MaybeUninit::uninit() }; MAX_FIELDS]
}

/// The usual number of fields that the gateway adds to a head, and their size.
const ADDED_FIELDS: usize = 6;
const ADDED_BYTES: usize = 256;

/// Appends the parsed fields of a head of this length.
pub(super) fn push_fields(fields: &mut HeaderFields, headers: &[Header<'_>], head_len: usize) {
    // With room for the fields that the gateway adds.
    fields.reserve(headers.len() + ADDED_FIELDS, head_len + ADDED_BYTES);
    headers.iter().for_each(|header| fields.push(header.name.as_bytes(), header.value));
}

/// Whether the connection stays open after a message, as far as its sender is concerned (RFC 9112, 9.3).
#[inline]
pub(super) fn keeps_alive(version: Version, fields: &HeaderFields) -> bool {
    let mut keeps_alive = version >= Version::HTTP_11;
    if !fields.may_contain(FieldKinds::CONNECTION) {
        return keeps_alive;
    }
    for option in fields.get_all(b"connection").flat_map(list_elements) {
        if option.eq_ignore_ascii_case(b"close") {
            return false;
        }
        keeps_alive |= option.eq_ignore_ascii_case(b"keep-alive");
    }
    keeps_alive
}

/// Writes fields, each with its line end.
#[inline]
pub(super) fn write_fields(out: &mut Vec<u8>, fields: &HeaderFields) {
    for (name, value) in fields.iter() {
        out.extend_from_slice(name);
        out.extend_from_slice(b": ");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
    }
}

/// The error for a head that `httparse` rejects.
pub(super) fn head_error(error: httparse::Error) -> HeadError {
    match error {
        httparse::Error::HeaderName => HeadError::Malformed("invalid field name"),
        httparse::Error::HeaderValue => HeadError::Malformed("invalid character in a field value"),
        httparse::Error::NewLine => HeadError::Malformed("carriage return without line feed"),
        httparse::Error::Status => HeadError::Malformed("invalid status line"),
        httparse::Error::Token => HeadError::Malformed("invalid character in the first line"),
        httparse::Error::TooManyHeaders => HeadError::HeaderTooLarge,
        httparse::Error::Version => HeadError::Version,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::{collection::vec, prelude::*};

    proptest! {
        /// The result of a head that is too long must not depend on the sizes of reads either.
        #[test]
        fn pieces_do_not_change_the_end_of_a_head(
            input in vec(prop_oneof![Just("\r\n"), Just("\n"), Just("a: b"), Just("\r"), Just("GET /")], 0..20),
            sizes in vec(1_usize..30, 1..5),
            max_len in 1_usize..60,
        ) {
            let input = input.concat().into_bytes();
            let whole = HeadScanner::default().find_end(&input, max_len);
            let (mut scanner, mut len, mut pieces) = (HeadScanner::default(), 0, Ok(None));
            for size in sizes.iter().cycle() {
                if len == input.len() || pieces != Ok(None) {
                    break;
                }
                len = input.len().min(len + size);
                pieces = scanner.find_end(&input[..len], max_len);
            }
            let statuses = [&whole, &pieces].map(|result| result.as_ref().map_err(|error| error.status()));
            // An error after the maximum length may be found or not.
            prop_assert!(statuses[0] == statuses[1] || statuses == [Err(400), Err(431)], "{whole:?} {pieces:?}");
        }
    }

    #[test]
    fn head_end_is_found_in_pieces_of_any_size() {
        let head = b"GET / HTTP/1.1\r\nhost: a\r\n\r\nGET";
        for size in 1..=head.len() {
            let mut scanner = HeadScanner::default();
            let ends: Vec<_> = (size..=head.len())
                .step_by(size)
                .chain([head.len()])
                .map_while(|len| match scanner.find_end(&head[..len], 100) {
                    Ok(None) => Some(None),
                    Ok(Some(end)) => Some(Some(end)),
                    Err(error) => panic!("{error}"),
                })
                .find(Option::is_some)
                .into_iter()
                .collect();
            assert_eq!(ends, [Some(head.len() - 3)]);
        }
    }

    #[test]
    fn bare_line_feed_and_long_head_are_rejected() {
        let find = |input: &[u8]| HeadScanner::default().find_end(input, 20);
        for (input, status) in [
            (&b"GET / HTTP/1.1\n"[..], 400),
            (b"GET / HTTP/1.1\r\na: b\n\n", 400),
            (b"\n", 400),
            (b"GET /aaaaaaaaaaaaaaaaaaaaaaaaaa", 431),
            (b"GET / HTTP/1.1\r\na: bbbbbbbbbbbbb", 431),
            (b"GET / HTTP/1.1\r\na: bbbb\r\n\r\n", 431),
        ] {
            assert_eq!(find(input).unwrap_err().status(), status, "{}", input.escape_ascii());
        }
        assert_eq!(find(b"GET / HTTP/1.1\r\n\r\n").unwrap(), Some(18));
    }
}
