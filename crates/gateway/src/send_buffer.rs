//! Bytes to send on a connection.

use crate::http1::{write_chunk_end, write_chunk_start};
use bytes::{Buf, Bytes};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::AsyncWrite;

/// Bytes to send: heads and small bodies in one buffer, with at most one large frame between them. So memory is bounded, most
/// messages need one write, and large bodies are not copied.
#[derive(Default)]
pub(crate) struct SendBuffer {
    bytes: Vec<u8>,
    /// The number of bytes that are sent, besides the frame.
    sent: usize,
    frame: Bytes,
    /// The position of the frame in the bytes.
    frame_position: usize,
    flush: FlushState,
}

/// Whether the writer has sent everything. A TLS connection has a buffer of its own.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum FlushState {
    #[default]
    Flushed,
    Unflushed,
}

/// The largest frame that is copied.
pub(crate) const MAX_COPIED_FRAME: usize = 8_192;
/// The number of buffered bytes beyond which nothing is appended.
const MAX_BUFFERED: usize = 16_384;
/// The memory that is retained for the next message.
const MAX_RETAINED: usize = 8_192;

impl SendBuffer {
    /// Whether everything is sent.
    #[inline]
    pub(crate) fn is_sent(&self) -> bool {
        self.is_empty() && self.flush == FlushState::Flushed
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.bytes.len() == self.sent && self.frame.is_empty()
    }

    /// Whether a frame may be appended before the next flush.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        self.frame.is_empty()
            && self.bytes.len() - self.sent < MAX_BUFFERED
            && self.flush == FlushState::Flushed
    }

    /// The buffer, to append to.
    #[inline]
    pub(crate) fn bytes_mut(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a frame. Call it only if there is [room](Self::has_room).
    #[inline]
    pub(crate) fn push_frame(&mut self, frame: Bytes) {
        if frame.len() <= MAX_COPIED_FRAME {
            self.bytes.extend_from_slice(&frame);
        } else {
            (self.frame, self.frame_position) = (frame, self.bytes.len());
        }
    }

    /// Appends a frame as a chunk. Call it only if there is [room](Self::has_room).
    #[inline]
    pub(crate) fn push_chunk(&mut self, frame: Bytes) {
        // An empty chunk would be the last one.
        if !frame.is_empty() {
            write_chunk_start(&mut self.bytes, frame.len());
            self.push_frame(frame);
            write_chunk_end(&mut self.bytes);
        }
    }

    /// Sends everything.
    #[inline]
    pub(crate) fn poll_flush<W: AsyncWrite + Unpin>(
        &mut self,
        io: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.is_empty() {
            self.flush = FlushState::Unflushed;
            let written = match self.frame.is_empty() {
                true => ready!(Pin::new(&mut *io).poll_write(context, &self.bytes[self.sent..]))?,
                false => {
                    let (before, after) = self.bytes.split_at(self.frame_position);
                    let parts = [before.get(self.sent..).unwrap_or_default(), &self.frame, after];
                    ready!(Pin::new(&mut *io).poll_write_vectored(context, &parts.map(IoSlice::new)))?
                }
            };
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.on_written(written);
        }
        self.sent = 0;
        self.bytes.clear();
        self.bytes.shrink_to(MAX_RETAINED);
        ready!(Pin::new(io).poll_flush(context))?;
        self.flush = FlushState::Flushed;
        Poll::Ready(Ok(()))
    }

    /// Removes bytes from the start.
    #[inline]
    fn on_written(&mut self, written: usize) {
        let before = match self.frame.is_empty() {
            true => written,
            false => written.min(self.frame_position.saturating_sub(self.sent)),
        };
        let of_frame = self.frame.len().min(written - before);
        self.sent += written - of_frame;
        match of_frame == self.frame.len() {
            // Releases the buffer of the frame.
            true => self.frame = Bytes::new(),
            false => self.frame.advance(of_frame),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// Accepts at most three bytes at a time. The first flush of everything must wait.
    #[derive(Default)]
    struct SlowWriter {
        written: Vec<u8>,
        flushes: usize,
    }

    impl AsyncWrite for SlowWriter {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, from: &[u8]) -> Poll<io::Result<usize>> {
            let length = from.len().min(3);
            self.written.extend_from_slice(&from[..length]);
            Poll::Ready(Ok(length))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            from: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<_> = from.iter().flat_map(|part| part.iter().copied()).collect();
            self.poll_write(context, &all)
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.flushes += 1;
            if self.flushes == 1 { Poll::Pending } else { Poll::Ready(Ok(())) }
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn buffer_and_frame_are_sent_in_order_by_partial_writes() {
        let (mut buffer, mut writer) = (SendBuffer::default(), SlowWriter::default());
        let large = Bytes::from(vec![b'x'; MAX_COPIED_FRAME + 1]);
        buffer.bytes_mut().extend_from_slice(b"head");
        buffer.push_frame(Bytes::from_static(b"small"));
        assert!(buffer.has_room());
        buffer.push_chunk(large.clone());
        assert!(!buffer.has_room() && !buffer.is_sent());
        let mut context = Context::from_waker(Waker::noop());
        assert!(buffer.poll_flush(&mut writer, &mut context).is_pending());
        assert!(!buffer.has_room() && !buffer.is_sent());
        assert!(buffer.poll_flush(&mut writer, &mut context).is_ready());
        assert_eq!(writer.written, [b"headsmall2001\r\n", &large[..], b"\r\n"].concat());
        assert!(buffer.is_sent() && buffer.has_room());
    }
}
