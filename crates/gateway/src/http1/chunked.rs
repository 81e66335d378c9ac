//! The chunked transfer coding (RFC 9112, 7.1).

use super::{BodyStep, MAX_FIELDS, body::BodyError};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::mem;

/// The state of a chunked body.
#[derive(Debug, Default)]
pub(super) struct ChunkedDecoder {
    state: ChunkState,
    /// The bytes of extensions so far.
    extension_bytes: usize,
    /// The trailer section so far.
    trailers: Vec<u8>,
}

#[derive(Clone, Copy, Debug)]
enum ChunkState {
    /// In the digits of a size.
    Size {
        size: u64,
        digits: u8,
    },
    /// In the extensions, which are ignored.
    Extensions {
        size: u64,
        part: ExtensionPart,
    },
    /// Before the line feed after a size.
    SizeLineFeed {
        size: u64,
    },
    /// In the data, with the remaining bytes.
    Data(u64),
    /// Before the line end after the data.
    DataCarriageReturn,
    DataLineFeed,
    /// In the trailer section.
    Trailers,
}

/// A part of `BWS ";" BWS name [ BWS "=" BWS value ]`; a value is a token or a quoted string.
#[derive(Clone, Copy, Debug)]
enum ExtensionPart {
    BeforeSemicolon,
    BeforeName,
    Name,
    BeforeEquals,
    BeforeValue,
    Token,
    Quoted,
    /// After a backslash in a quoted string.
    Escaped,
    AfterQuoted,
}

impl ExtensionPart {
    /// The part after a byte; `None` if the byte is invalid.
    fn next(self, byte: u8) -> Option<Self> {
        let is_quotable = matches!(byte, b'\t' | b' '..=b'~' | 0x80..);
        Some(match (self, byte) {
            (Self::Quoted, b'"') => Self::AfterQuoted,
            (Self::Quoted, b'\\') => Self::Escaped,
            (Self::Quoted | Self::Escaped, _) if is_quotable => Self::Quoted,
            (Self::BeforeName | Self::BeforeEquals | Self::BeforeValue, b' ' | b'\t') => self,
            (Self::Name, b' ' | b'\t') => Self::BeforeEquals,
            (Self::BeforeSemicolon | Self::Token | Self::AfterQuoted, b' ' | b'\t') => Self::BeforeSemicolon,
            (
                Self::BeforeSemicolon | Self::Name | Self::BeforeEquals | Self::Token | Self::AfterQuoted,
                b';',
            ) => Self::BeforeName,
            (Self::Name | Self::BeforeEquals, b'=') => Self::BeforeValue,
            (Self::BeforeValue, b'"') => Self::Quoted,
            (Self::BeforeName | Self::Name, _) if is_token_byte(byte) => Self::Name,
            (Self::BeforeValue | Self::Token, _) if is_token_byte(byte) => Self::Token,
            _ => return None,
        })
    }

    /// Whether an extension may end here.
    fn is_complete(self) -> bool {
        matches!(self, Self::Name | Self::Token | Self::AfterQuoted)
    }
}

/// Whether a byte may occur in a token (RFC 9110, 5.6.2).
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The maximum number of bytes of all extensions of a body: there is no use for them, and they are not forwarded.
const MAX_EXTENSION_BYTES: usize = 4_096;
/// The maximum size of a trailer section.
const MAX_TRAILER_BYTES: usize = 8_192;
/// The number of digits of the largest size.
const MAX_SIZE_DIGITS: u8 = 16;

impl Default for ChunkState {
    fn default() -> Self {
        Self::Size { size: 0, digits: 0 }
    }
}

impl ChunkedDecoder {
    /// Like [`BodyDecoder::decode`](super::BodyDecoder::decode).
    pub(super) fn decode(&mut self, input: &[u8]) -> Result<(usize, BodyStep), BodyError> {
        let mut position = 0;
        while let Some(byte) = input.get(position) {
            match self.state {
                ChunkState::Data(remaining) => {
                    let available = input.len() - position;
                    let length = usize::try_from(remaining).map_or(available, |left| left.min(available));
                    let remaining = remaining - length as u64;
                    self.state = if remaining == 0 {
                        ChunkState::DataCarriageReturn
                    } else {
                        ChunkState::Data(remaining)
                    };
                    return Ok((position, BodyStep::Data(length)));
                }
                ChunkState::Trailers => {
                    let (length, step) = self.read_trailers(&input[position..])?;
                    position += length;
                    if step != BodyStep::NeedInput {
                        return Ok((position, step));
                    }
                }
                _ => {
                    self.state = self.next_state(*byte)?;
                    position += 1;
                }
            }
        }
        Ok((position, BodyStep::NeedInput))
    }

    /// The state after a byte of framing.
    fn next_state(&mut self, byte: u8) -> Result<ChunkState, BodyError> {
        Ok(match (self.state, byte) {
            (ChunkState::Size { size, digits }, _) if byte.is_ascii_hexdigit() => {
                if digits == MAX_SIZE_DIGITS {
                    return Err(BodyError("chunk size too large"));
                }
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                ChunkState::Size { size: size << 4 | u64::from(digit), digits: digits + 1 }
            }
            (ChunkState::Size { digits: 0, .. }, _) => return Err(BodyError("chunk without a size")),
            (ChunkState::Size { size, .. }, b'\r') => ChunkState::SizeLineFeed { size },
            (ChunkState::Size { size, .. }, _) => {
                self.next_extension_part(size, ExtensionPart::BeforeSemicolon, byte)?
            }
            (ChunkState::Extensions { size, part }, b'\r') if part.is_complete() => {
                ChunkState::SizeLineFeed { size }
            }
            (ChunkState::Extensions { size, part }, _) => self.next_extension_part(size, part, byte)?,
            (ChunkState::SizeLineFeed { size: 0 }, b'\n') => ChunkState::Trailers,
            (ChunkState::SizeLineFeed { size }, b'\n') => ChunkState::Data(size),
            (ChunkState::DataCarriageReturn, b'\r') => ChunkState::DataLineFeed,
            (ChunkState::DataLineFeed, b'\n') => ChunkState::default(),
            (ChunkState::DataCarriageReturn | ChunkState::DataLineFeed, _) => {
                return Err(BodyError("chunk longer than its size"));
            }
            _ => return Err(BodyError("invalid character in a chunk size")),
        })
    }

    fn next_extension_part(
        &mut self,
        size: u64,
        part: ExtensionPart,
        byte: u8,
    ) -> Result<ChunkState, BodyError> {
        self.extension_bytes += 1;
        if self.extension_bytes > MAX_EXTENSION_BYTES {
            return Err(BodyError("chunk extensions too long"));
        }
        match part.next(byte) {
            Some(part) => Ok(ChunkState::Extensions { size, part }),
            None => Err(BodyError("invalid character in a chunk size")),
        }
    }

    /// Reads a part of the trailer section; returns the number of bytes, and whether it is complete.
    fn read_trailers(&mut self, input: &[u8]) -> Result<(usize, BodyStep), BodyError> {
        let line_end = memchr::memchr(b'\n', input).map_or(input.len(), |found| found + 1);
        self.trailers.extend_from_slice(&input[..line_end]);
        if self.trailers.len() > MAX_TRAILER_BYTES {
            return Err(BodyError("trailer section too long"));
        }
        if !self.trailers.ends_with(b"\n") {
            return Ok((line_end, BodyStep::NeedInput));
        }
        let Some(lines) = self.trailers.strip_suffix(b"\r\n") else {
            return Err(BodyError("line feed without carriage return"));
        };
        let step = match lines {
            [] => BodyStep::Complete(None),
            [.., b'\r', b'\n'] => BodyStep::Complete(Some(parse_trailers(&mem::take(&mut self.trailers))?)),
            _ => BodyStep::NeedInput,
        };
        Ok((line_end, step))
    }
}

fn parse_trailers(section: &[u8]) -> Result<HeaderMap, BodyError> {
    let mut space = [httparse::EMPTY_HEADER; MAX_FIELDS];
    let invalid = BodyError("invalid trailer section");
    let Ok(httparse::Status::Complete((_, fields))) = httparse::parse_headers(section, &mut space) else {
        return Err(invalid);
    };
    let mut trailers = HeaderMap::with_capacity(fields.len());
    for field in fields {
        let name = HeaderName::from_bytes(field.name.as_bytes()).map_err(|_| invalid)?;
        trailers.append(name, HeaderValue::from_bytes(field.value).map_err(|_| invalid)?);
    }
    Ok(trailers)
}

/// The field of a message with a chunked body, with its line end.
pub const CHUNKED_FIELD: &[u8] = b"transfer-encoding: chunked\r\n";

/// Writes what precedes the data of a chunk. `size` is at least 1.
#[inline]
pub fn write_chunk_start(out: &mut Vec<u8>, size: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = (usize::BITS - size.leading_zeros()).div_ceil(4).max(1);
    out.extend((0..digits).rev().map(|digit| DIGITS[size >> (4 * digit) & 0xf]));
    out.extend_from_slice(b"\r\n");
}

/// Writes what follows the data of a chunk.
#[inline]
pub fn write_chunk_end(out: &mut Vec<u8>) {
    out.extend_from_slice(b"\r\n");
}

/// Writes the end of a body.
pub fn write_last_chunk(out: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    for (name, value) in trailers.into_iter().flatten() {
        out.extend_from_slice(name.as_str().as_bytes());
        out.extend_from_slice(b": ");
        out.extend_from_slice(value.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes a body that arrives at once.
    fn decode(input: &[u8]) -> Result<(Vec<u8>, Option<HeaderMap>), BodyError> {
        let (mut decoder, mut input, mut data) = (ChunkedDecoder::default(), input, Vec::new());
        loop {
            let (framing, step) = decoder.decode(input)?;
            input = &input[framing..];
            match step {
                BodyStep::Data(length) => {
                    data.extend_from_slice(&input[..length]);
                    input = &input[length..];
                }
                BodyStep::Complete(trailers) => return Ok((data, trailers)),
                BodyStep::NeedInput => return Err(BodyError("incomplete")),
            }
        }
    }

    #[test]
    fn chunk_framing_is_strict() {
        for (input, expected) in [
            ("3\r\nabc\r\n0\r\n\r\n", "abc"),
            ("003\r\nabc\r\n0\r\n\r\n", "abc"),
            ("A\r\n0123456789\r\n0\r\n\r\n", "0123456789"),
            ("1;x=\"y z\"\r\na\r\n1 ;x\r\nb\r\n0;end\r\n\r\n", "ab"),
            ("1 \t; x = \"\\\";\" ;y=z ; z;w\r\na\r\n0\r\n\r\n", "a"),
            ("0\r\n\r\n", ""),
        ] {
            assert_eq!(decode(input.as_bytes()), Ok((expected.as_bytes().to_vec(), None)), "{input:?}");
        }
        let long = format!("1;{}\r\na\r\n0\r\n\r\n", "x".repeat(MAX_EXTENSION_BYTES));
        let digits = format!("{}\r\n", "0".repeat(17));
        let trailers = format!("0\r\na: {}\r\n\r\n", "x".repeat(MAX_TRAILER_BYTES));
        let many = format!("0\r\n{}\r\n", "a: b\r\n".repeat(MAX_FIELDS + 1));
        for (input, error) in [
            ("\r\nabc", "chunk without a size"),
            ("x\r\n", "chunk without a size"),
            ("-1\r\n", "chunk without a size"),
            (&digits, "chunk size too large"),
            ("1ffffffffffffffff\r\n", "chunk size too large"),
            ("3x\r\n", "invalid character in a chunk size"),
            ("3 \r\nabc\r\n", "invalid character in a chunk size"),
            ("3\nabc\r\n", "invalid character in a chunk size"),
            ("3;\r\nabc\r\n", "invalid character in a chunk size"),
            ("3;;x\r\nabc\r\n", "invalid character in a chunk size"),
            ("3;=x\r\nabc\r\n", "invalid character in a chunk size"),
            ("3;x=\r\nabc\r\n", "invalid character in a chunk size"),
            ("3;x \r\nabc\r\n", "invalid character in a chunk size"),
            ("3;x y\r\nabc\r\n", "invalid character in a chunk size"),
            ("3;x=\"y\r\nabc\r\n", "invalid character in a chunk size"),
            ("3;x=\"y\\\r\nabc\r\n", "invalid character in a chunk size"),
            ("3;x=\"y\"z\r\nabc\r\n", "invalid character in a chunk size"),
            ("3\rabc\r\n", "invalid character in a chunk size"),
            ("3;x\nabc\r\n", "invalid character in a chunk size"),
            ("3;\0\r\nabc\r\n", "invalid character in a chunk size"),
            (&long, "chunk extensions too long"),
            ("3\r\nabcd\r\n", "chunk longer than its size"),
            ("3\r\nabc\n0\r\n\r\n", "chunk longer than its size"),
            ("3\r\nabc\r0\r\n\r\n", "chunk longer than its size"),
            ("0\r\na: b\n\r\n", "line feed without carriage return"),
            ("0\r\n\n", "line feed without carriage return"),
            ("0\r\na : b\r\n\r\n", "invalid trailer section"),
            ("0\r\na\r\n\r\n", "invalid trailer section"),
            (&trailers, "trailer section too long"),
            (&many, "invalid trailer section"),
            ("3\r\nab", "incomplete"),
            ("0\r\n", "incomplete"),
        ] {
            assert_eq!(decode(input.as_bytes()), Err(BodyError(error)), "{input:?}");
        }
    }

    #[test]
    fn trailers_are_read() {
        let (data, trailers) = decode(b"1\r\na\r\n0\r\nX-Sum: 1\r\nx-sum: 2\r\n\r\n").unwrap();
        let trailers = trailers.unwrap();
        assert_eq!((&*data, trailers.get_all("x-sum").iter().count()), (&b"a"[..], 2));
    }

    #[test]
    fn chunk_sizes_are_hexadecimal() {
        for (size, text) in [(1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (0xabcde, "abcde\r\n")] {
            let mut out = Vec::new();
            write_chunk_start(&mut out, size);
            assert_eq!(str::from_utf8(&out).unwrap(), text);
        }
    }
}
