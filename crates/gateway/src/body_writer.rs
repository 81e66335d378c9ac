//! Writes the body of an HTTP/1.1 message, and checks that it has the length of the head.

use crate::{
    http1::{ResponseFraming, write_last_chunk},
    proxy::IncompleteBody,
    send_buffer::SendBuffer,
};
use bytes::Bytes;
use hyper::body::{Body, Frame};

/// How the end of a body is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyWriter {
    /// The number of bytes that are missing.
    Length(u64),
    Chunked,
    /// By the end of the connection.
    UntilClose,
}

/// Whether a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WrittenBody {
    Incomplete,
    Complete,
}

impl BodyWriter {
    /// Appends a frame of `body`, and the end of the body after the last frame. Another length than that of the head is an error: the
    /// receiver would take the next message for the rest of the body, or the rest for the next message. Call it only if there is
    /// [room](SendBuffer::has_room).
    #[inline]
    pub(crate) fn write_frame<B: Body>(
        &mut self,
        output: &mut SendBuffer,
        frame: Option<Frame<Bytes>>,
        body: &B,
    ) -> Result<WrittenBody, IncompleteBody> {
        let trailers = match frame.map(Frame::into_data) {
            Some(Ok(data)) => {
                self.count(data.len())?;
                match self {
                    Self::Chunked => output.push_chunk(data),
                    Self::Length(_) | Self::UntilClose => output.push_frame(data),
                }
                if !body.is_end_stream() {
                    return Ok(WrittenBody::Incomplete);
                }
                None
            }
            Some(Err(frame)) => frame.into_trailers().ok(),
            None => None,
        };
        match self {
            Self::Length(1..) => return Err(IncompleteBody),
            Self::Chunked => write_last_chunk(output.bytes_mut(), trailers.as_ref()),
            Self::Length(0) | Self::UntilClose => {}
        }
        Ok(WrittenBody::Complete)
    }

    /// Counts bytes of the body.
    fn count(&mut self, length: usize) -> Result<(), IncompleteBody> {
        if let Self::Length(missing) = self {
            *missing = missing.checked_sub(length as u64).ok_or(IncompleteBody)?;
        }
        Ok(())
    }
}

impl From<ResponseFraming> for BodyWriter {
    fn from(framing: ResponseFraming) -> Self {
        match framing {
            ResponseFraming::None => Self::Length(0),
            ResponseFraming::Length(length) => Self::Length(length),
            ResponseFraming::Chunked => Self::Chunked,
            ResponseFraming::UntilClose => Self::UntilClose,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Empty, Full};

    fn data(text: &'static str) -> Option<Frame<Bytes>> {
        Some(Frame::data(Bytes::from_static(text.as_bytes())))
    }

    #[test]
    fn body_with_another_length_than_its_head_is_an_error() {
        let (rest, no_rest) = (Full::new(Bytes::from_static(b"rest")), Empty::<Bytes>::new());
        let start = || (BodyWriter::Length(4), SendBuffer::default());

        let (mut writer, mut output) = start();
        assert_eq!(writer.write_frame(&mut output, data("ab"), &rest).unwrap(), WrittenBody::Incomplete);
        assert_eq!(writer.write_frame(&mut output, data("cd"), &no_rest).unwrap(), WrittenBody::Complete);
        assert_eq!(output.bytes_mut(), b"abcd");

        // The end follows the last frame, or is reported with it.
        let (mut writer, mut output) = start();
        assert_eq!(writer.write_frame(&mut output, data("abc"), &rest).unwrap(), WrittenBody::Incomplete);
        assert!(writer.write_frame(&mut output, None, &no_rest).is_err());
        let (mut writer, mut output) = start();
        assert!(writer.write_frame(&mut output, data("abc"), &no_rest).is_err());
        let (mut writer, mut output) = start();
        let trailers = Some(Frame::trailers(http::HeaderMap::new()));
        assert!(writer.write_frame(&mut output, trailers, &no_rest).is_err());

        // Bytes beyond the length are not written.
        let (mut writer, mut output) = start();
        assert!(writer.write_frame(&mut output, data("abcde"), &no_rest).is_err());
        assert_eq!(output.bytes_mut(), b"");
    }
}
