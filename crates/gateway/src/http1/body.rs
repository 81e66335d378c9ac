//! The end of a body: by length, by chunks, or by the end of the connection.

use super::{ResponseFraming, chunked::ChunkedDecoder};
use http::HeaderMap;
use std::fmt;
use tidegate_policy::head::BodyFraming;

/// Finds the data of a body in bytes that arrive in pieces.
#[derive(Debug)]
pub struct BodyDecoder {
    state: DecoderState,
}

#[derive(Debug)]
enum DecoderState {
    /// The remaining bytes of a body with a length.
    Length(u64),
    Chunked(Box<ChunkedDecoder>),
    UntilClose,
    Complete,
}

/// What follows in the input.
#[derive(Debug, PartialEq)]
pub enum BodyStep {
    /// More input is needed. If the connection ends, the body is incomplete, except for [`ResponseFraming::UntilClose`].
    NeedInput,
    /// This number of bytes is data. The caller takes all of them.
    Data(usize),
    /// The body is complete. Bytes that follow belong to the next message.
    Complete(Option<HeaderMap>),
}

/// An invalid body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyError(pub(super) &'static str);

impl BodyDecoder {
    /// The decoder of the body of a request.
    pub fn for_request(framing: BodyFraming) -> Self {
        match framing {
            BodyFraming::None => Self::with_length(0),
            BodyFraming::Length(length) => Self::with_length(length),
            BodyFraming::Chunked => Self::chunked(),
        }
    }

    /// The decoder of the body of a response.
    pub fn for_response(framing: ResponseFraming) -> Self {
        match framing {
            ResponseFraming::None => Self::with_length(0),
            ResponseFraming::Length(length) => Self::with_length(length),
            ResponseFraming::Chunked => Self::chunked(),
            ResponseFraming::UntilClose => Self { state: DecoderState::UntilClose },
        }
    }

    fn with_length(length: u64) -> Self {
        let state = if length == 0 { DecoderState::Complete } else { DecoderState::Length(length) };
        Self { state }
    }

    fn chunked() -> Self {
        Self { state: DecoderState::Chunked(Box::default()) }
    }

    /// Whether the body is complete.
    #[inline]
    pub fn is_complete(&self) -> bool {
        matches!(self.state, DecoderState::Complete)
    }

    /// Whether the end of the connection is the end of the body.
    pub fn ends_at_close(&self) -> bool {
        matches!(self.state, DecoderState::UntilClose)
    }

    /// The remaining number of bytes, if the length of the body is known.
    pub fn remaining(&self) -> Option<u64> {
        match &self.state {
            DecoderState::Length(remaining) => Some(*remaining),
            DecoderState::Complete => Some(0),
            DecoderState::Chunked(_) | DecoderState::UntilClose => None,
        }
    }

    /// Returns the number of bytes of framing at the start of `input`, which the caller drops, and what follows them.
    #[inline]
    pub fn decode(&mut self, input: &[u8]) -> Result<(usize, BodyStep), BodyError> {
        Ok(match &mut self.state {
            DecoderState::Complete => (0, BodyStep::Complete(None)),
            _ if input.is_empty() => (0, BodyStep::NeedInput),
            DecoderState::UntilClose => (0, BodyStep::Data(input.len())),
            DecoderState::Length(remaining) => {
                let length = usize::try_from(*remaining).map_or(input.len(), |left| left.min(input.len()));
                *remaining -= length as u64;
                if *remaining == 0 {
                    self.state = DecoderState::Complete;
                }
                (0, BodyStep::Data(length))
            }
            DecoderState::Chunked(chunked) => {
                let (framing, step) = chunked.decode(input)?;
                if matches!(step, BodyStep::Complete(_)) {
                    self.state = DecoderState::Complete;
                }
                (framing, step)
            }
        })
    }
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for BodyError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http1::{write_chunk_end, write_chunk_start, write_last_chunk};
    use http::HeaderValue;
    use proptest::{collection::vec, prelude::*};

    type DecodedBody = (Vec<u8>, Option<HeaderMap>, Vec<u8>);

    /// Decodes an input that arrives in pieces of these sizes. Returns the data, the trailers and the rest of the input.
    fn decode(
        mut decoder: BodyDecoder,
        input: &[u8],
        sizes: &[usize],
    ) -> Result<Option<DecodedBody>, BodyError> {
        let (mut data, mut buffer, mut sizes) = (Vec::new(), Vec::new(), sizes.iter().cycle());
        let mut input = input;
        loop {
            let (framing, step) = decoder.decode(&buffer)?;
            buffer.drain(..framing);
            match step {
                BodyStep::NeedInput if input.is_empty() => return Ok(None),
                BodyStep::NeedInput => {
                    let size = sizes.next().map_or(1, |size| *size).clamp(1, input.len());
                    buffer.extend_from_slice(&input[..size]);
                    input = &input[size..];
                }
                BodyStep::Data(length) => data.extend(buffer.drain(..length)),
                BodyStep::Complete(trailers) => return Ok(Some((data, trailers, [&buffer, input].concat()))),
            }
        }
    }

    fn encode(chunks: &[Vec<u8>], trailers: Option<&HeaderMap>) -> Vec<u8> {
        let mut out = Vec::new();
        for chunk in chunks {
            write_chunk_start(&mut out, chunk.len());
            out.extend_from_slice(chunk);
            write_chunk_end(&mut out);
        }
        write_last_chunk(&mut out, trailers);
        out
    }

    proptest! {
        #[test]
        fn chunked_body_round_trips_in_pieces_of_any_size(
            chunks in vec(vec(any::<u8>(), 1..40), 0..6),
            trailer in proptest::option::of("[a-z]{1,9}"),
            next in vec(any::<u8>(), 0..9),
            sizes in vec(1_usize..30, 1..5),
        ) {
            let trailers = trailer.as_ref().map(|value| {
                HeaderMap::from_iter([(http::HeaderName::from_static("x-sum"), HeaderValue::from_str(value).unwrap())])
            });
            let mut input = encode(&chunks, trailers.as_ref());
            input.extend_from_slice(&next);
            let decoded = decode(BodyDecoder::for_request(BodyFraming::Chunked), &input, &sizes);
            prop_assert_eq!(decoded, Ok(Some((chunks.concat(), trailers, next))));
        }

        #[test]
        fn body_with_a_length_leaves_the_next_message(
            input in vec(any::<u8>(), 0..60),
            length in 0_usize..60,
            sizes in vec(1_usize..30, 1..5),
        ) {
            let decoded = decode(BodyDecoder::for_request(BodyFraming::Length(length as u64)), &input, &sizes);
            let expected = (length <= input.len()).then(|| (input[..length].to_vec(), None, input[length..].to_vec()));
            prop_assert_eq!(decoded, Ok(expected));
        }

        #[test]
        fn pieces_do_not_change_the_result(
            input in "[0-9a-f;= \"\r\n]{0,30}",
            sizes in vec(1_usize..9, 1..5),
        ) {
            let decode = |sizes: &[usize]| decode(BodyDecoder::for_request(BodyFraming::Chunked), input.as_bytes(), sizes);
            let (whole, pieces) = (decode(&[usize::MAX]), decode(&sizes));
            prop_assert_eq!(whole.is_err(), pieces.is_err());
            if whole.is_ok() {
                prop_assert_eq!(whole, pieces);
            }
        }
    }
}
