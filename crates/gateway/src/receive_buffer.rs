//! Received bytes that are not processed.

use bytes::{Buf, Bytes, BytesMut};
use std::{
    future::Future,
    io, mem,
    pin::pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncReadExt};

/// Received bytes. Its memory is allocated by the first read, and grows if a peer sends much at a time.
#[derive(Default)]
pub(crate) struct ReceiveBuffer {
    bytes: BytesMut,
    /// Whether the last read filled the buffer.
    fill: LastFill,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum LastFill {
    #[default]
    Partial,
    Full,
}

/// The size of the first read, and of reads from a peer that sends much.
const SMALL_READ: usize = 8_192;
const LARGE_READ: usize = 32_768;
/// The smallest free space to read into.
const MIN_FREE: usize = 2_048;

impl ReceiveBuffer {
    /// The bytes.
    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Drops bytes from the start.
    #[inline]
    pub(crate) fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
    }

    /// Removes bytes from the start.
    #[inline]
    pub(crate) fn split_to(&mut self, count: usize) -> Bytes {
        self.bytes.split_to(count).freeze()
    }

    /// Removes all bytes.
    pub(crate) fn take(&mut self) -> Bytes {
        mem::take(&mut self.bytes).freeze()
    }

    /// Releases the memory, if there are no bytes.
    pub(crate) fn release(&mut self) {
        if self.bytes.is_empty() {
            *self = Self::default();
        }
    }

    /// Reads more; returns the number of bytes, and 0 at the end of the connection.
    #[inline]
    pub(crate) fn poll_read<R: AsyncRead + Unpin>(
        &mut self,
        io: &mut R,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<usize>> {
        if self.bytes.capacity() - self.bytes.len() < MIN_FREE {
            self.bytes.reserve(if self.fill == LastFill::Full { LARGE_READ } else { SMALL_READ });
        }
        let count = ready!(pin!(io.read_buf(&mut self.bytes)).poll(context))?;
        let is_full = self.bytes.len() == self.bytes.capacity();
        self.fill = if is_full { LastFill::Full } else { LastFill::Partial };
        Poll::Ready(Ok(count))
    }
}
