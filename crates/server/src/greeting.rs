//! Who connects and says nothing does not keep its place.

use std::{
    future::Future,
    io,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::oneshot,
    time::{self, Sleep},
};

/// What every client of HTTP/2 says first, and no other.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection whose client has to say soon which version of HTTP it speaks. Servers wait for that as long as it takes.
pub(crate) struct Greeting<I> {
    io: I,
    /// As much as was said of the preface.
    said: usize,
    /// Until when, while it is not known.
    until: Option<Pin<Box<Sleep>>>,
    /// Is told as soon as anything was said.
    heard: Option<oneshot::Sender<()>>,
}

impl<I> Greeting<I> {
    /// A connection, and what becomes ready when its client has said anything, or is gone.
    pub(crate) fn new(io: I, within: Duration) -> (Self, oneshot::Receiver<()>) {
        let (told, heard) = oneshot::channel();
        (Self { io, said: 0, until: Some(Box::pin(time::sleep(within))), heard: Some(told) }, heard)
    }

    /// Looks at what came: anything but a part of the preface is another version, or none.
    fn heard(&mut self, bytes: &[u8]) {
        if let Some(heard) = self.heard.take() {
            // Nobody may wait for it.
            let _ = heard.send(());
        }
        let rest = &PREFACE[self.said.min(PREFACE.len())..];
        self.said = self.said.saturating_add(bytes.len());
        if bytes.len() >= rest.len() || !rest.starts_with(bytes) {
            self.until = None;
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Greeting<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let Some(until) = &mut this.until else { return Pin::new(&mut this.io).poll_read(context, into) };
        let before = into.filled().len();
        match Pin::new(&mut this.io).poll_read(context, into) {
            Poll::Ready(Ok(())) => {
                this.heard(&into.filled()[before..]);
                Poll::Ready(Ok(()))
            }
            Poll::Pending if until.as_mut().poll(context).is_ready() => {
                Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
            }
            polled => polled,
        }
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Greeting<I> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(context)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a story ends where it goes wrong")]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    const WITHIN: Duration = Duration::from_secs(10);

    /// What is read of a client that says this and then nothing, in virtual time.
    async fn read(said: &[u8]) -> io::Result<Vec<u8>> {
        let (mut client, server) = tokio::io::duplex(64);
        client.write_all(said).await.unwrap();
        let (mut greeting, _heard) = Greeting::new(server, WITHIN);
        let mut heard = Vec::new();
        let reading = async {
            while heard.len() < PREFACE.len() {
                greeting.read_buf(&mut heard).await?;
            }
            Ok(())
        };
        match time::timeout(WITHIN * 2, reading).await {
            Ok(read) => read.map(|()| heard),
            Err(_) => Ok(heard),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_greeting_is_none() {
        for said in [&b""[..], b"P", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r"] {
            assert_eq!(read(said).await.unwrap_err().kind(), io::ErrorKind::TimedOut, "{said:?}");
        }
        for said in [PREFACE, b"GET ", b"PRI * HTTP/2.1"] {
            assert_eq!(read(said).await.unwrap(), said, "its server has to wait or to refuse");
        }
    }
}
