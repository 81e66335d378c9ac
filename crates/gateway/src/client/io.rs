//! The I/O of a client connection, which reports reads and writes to the connection.

use super::ClientConnection;
use bytes::{Buf, Bytes};
use socket2::SockRef;
use std::{
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
    time::Duration,
};
use tidegate_http_server::Stream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The I/O of a client connection.
pub(crate) struct ClientIo {
    stream: Stream,
    /// Bytes that the next read returns first.
    unread: Bytes,
    read_state: ReadState,
    client: Rc<ClientConnection>,
}

/// Whether the client has closed its side.
#[derive(PartialEq, Eq)]
enum ReadState {
    Eof,
    Open,
}

impl ClientIo {
    pub(super) fn new(stream: Stream, client: Rc<ClientConnection>) -> Self {
        Self { stream, unread: Bytes::new(), read_state: ReadState::Open, client }
    }

    /// Returns these bytes with the next read.
    pub(super) fn unread(&mut self, bytes: &[u8]) {
        // A copy, because a slice would keep the whole buffer alive.
        self.unread = Bytes::copy_from_slice(bytes);
    }

    /// Ends the reports. Nothing may be unread.
    pub(super) fn into_stream(self) -> Stream {
        debug_assert!(self.unread.is_empty());
        self.stream
    }

    /// The connection.
    pub(super) fn client(&self) -> &ClientConnection {
        &self.client
    }

    pub(super) fn is_read_closed(&self) -> bool {
        self.read_state == ReadState::Eof
    }

    /// Shuts down the write side.
    pub(super) fn poll_write_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    /// Reads and discards bytes, without TLS decryption; returns the number of bytes.
    pub(super) fn poll_discard(
        &mut self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        ready!(Pin::new(self.stream.tcp_mut()).poll_read(context, &mut into))?;
        Poll::Ready(Ok(into.filled().len()))
    }

    /// Resets the connection, so that the client does not take a truncated response for a complete one.
    pub(super) fn reset(self) {
        // If the option cannot be set, the connection is closed normally.
        let _ = SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO));
    }

    fn record_write(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Pending => self.client.on_write_blocked(),
            Poll::Ready(written) => self.client.on_written(*written.as_ref().unwrap_or(&0)),
        }
        written
    }
}

impl AsyncRead for ClientIo {
    #[inline]
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.unread.is_empty() {
            let length = self.unread.len().min(into.remaining());
            into.put_slice(&self.unread[..length]);
            self.unread.advance(length);
            if self.unread.is_empty() {
                self.unread = Bytes::new();
            }
            self.client.on_read();
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        match into.filled().len() > before {
            true => self.client.on_read(),
            false => self.read_state = ReadState::Eof,
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ClientIo {
    #[inline]
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, from);
        self.record_write(written)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, from);
        self.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A TLS connection accepts bytes that the socket does not.
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        match &flushed {
            Poll::Pending => self.client.on_write_blocked(),
            Poll::Ready(_) => self.client.on_flushed(),
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
