//! The wire of a client, which tells its connection what happens on it.

use super::Client;
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
    again: Bytes,
    end: End,
    client: Rc<Client>,
}

/// Whether the client has said that nothing more comes.
#[derive(PartialEq, Eq)]
enum End {
    Seen,
    Open,
}

impl ClientIo {
    pub(super) fn new(stream: Stream, client: Rc<Client>) -> Self {
        Self { stream, again: Bytes::new(), end: End::Open, client }
    }

    /// Has these bytes read first.
    pub(super) fn again(&mut self, bytes: &[u8]) {
        // A copy, since even an empty part of a buffer would keep all of it.
        self.again = Bytes::copy_from_slice(bytes);
    }

    pub(super) fn poll_ready(&self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.again.is_empty() {
            true => self.stream.poll_read_ready(context),
            false => Poll::Ready(Ok(())),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        self.end == End::Seen
    }

    /// Says that nothing more is written.
    pub(super) fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
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

    fn wrote(&self, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match written {
            Poll::Pending => self.client.stands(),
            Poll::Ready(_) => self.client.flows(),
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
        if !self.again.is_empty() {
            let length = self.again.len().min(into.remaining());
            into.put_slice(&self.again[..length]);
            self.again.advance(length);
            if self.again.is_empty() {
                self.again = Bytes::new();
            }
            self.client.arrived();
            return Poll::Ready(Ok(()));
        }
        let before = into.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, into))?;
        match into.filled().len() > before {
            true => self.client.arrived(),
            false => self.end = End::Seen,
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
        self.wrote(written)
    }

    #[inline]
    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        from: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, from);
        self.wrote(written)
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
