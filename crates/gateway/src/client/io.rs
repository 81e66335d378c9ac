//! The wire of a client, which tells its connection what happens on it.

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

/// The wire of a client.
pub(crate) struct ClientIo {
    stream: Stream,
    /// What was read and is to be read again.
    unread: Bytes,
    read_state: ReadState,
    client: Rc<ClientConnection>,
}

/// Whether the client has said that nothing more comes.
#[derive(PartialEq, Eq)]
enum ReadState {
    Eof,
    Open,
}

impl ClientIo {
    pub(super) fn new(stream: Stream, client: Rc<ClientConnection>) -> Self {
        Self { stream, unread: Bytes::new(), read_state: ReadState::Open, client }
    }

    /// Has these bytes read first.
    pub(super) fn unread(&mut self, bytes: &[u8]) {
        // A copy, since even an empty part of a buffer would keep all of it.
        self.unread = Bytes::copy_from_slice(bytes);
    }

    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.unread.is_empty() {
            true => self.stream.poll_read_ready(context),
            false => Poll::Ready(Ok(())),
        }
    }

    pub(super) fn is_read_closed(&self) -> bool {
        self.read_state == ReadState::Eof
    }

    /// Says that nothing more is written.
    pub(super) fn poll_write_shutdown(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    /// Reads what nobody wants to know, not even what is secret in it; how much it was.
    pub(super) fn poll_discard(
        &mut self,
        context: &mut Context<'_>,
        into: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        let mut into = ReadBuf::new(into);
        ready!(Pin::new(self.stream.tcp_mut()).poll_read(context, &mut into))?;
        Poll::Ready(Ok(into.filled().len()))
    }

    /// Closes it in such a way that its client cannot take what came for all there is.
    pub(super) fn reset(self) {
        // Where that is not possible it is closed like any other.
        let _ = SockRef::from(self.stream.tcp()).set_linger(Some(Duration::ZERO));
    }

    fn record_write(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => self.client.on_write_blocked(),
            Poll::Ready(_) => self.client.on_write_resumed(),
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
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
