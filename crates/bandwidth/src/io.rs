//! Limited reading and writing: a move is cut to what is allowed, and charged.

use super::{
    shaped::{Parts, Shaped},
    tap::Tap,
};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

impl<T: AsyncRead> AsyncRead for Shaped<T> {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Parts { inner, tap } = self.reading();
        let wanted = buffer.remaining();
        let Some(tap) = tap.filter(|_| wanted > 0) else { return inner.poll_read(context, buffer) };
        let allowed = ready!(tap.poll_allowance(wanted, context));
        let before = buffer.filled().len();
        let end = match allowed < wanted {
            true => Pin::new(&mut inner.take(allowed as u64)).poll_read(context, buffer),
            false => inner.poll_read(context, buffer),
        };
        settle(tap, buffer.filled().len().saturating_sub(before), allowed);
        end
    }
}

impl<T: AsyncWrite> AsyncWrite for Shaped<T> {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Parts { inner, tap } = self.writing();
        let Some(tap) = tap.filter(|_| !bytes.is_empty()) else { return inner.poll_write(context, bytes) };
        let allowed = ready!(tap.poll_allowance(bytes.len(), context));
        let end = inner.poll_write(context, bytes.get(..allowed).unwrap_or(bytes));
        settle(tap, written(&end), allowed);
        end
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Parts { inner, tap } = self.writing();
        let wanted = slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len()));
        let Some(tap) = tap.filter(|_| wanted > 0) else {
            return inner.poll_write_vectored(context, slices);
        };
        let allowed = ready!(tap.poll_allowance(wanted, context));
        // Whole slices as far as they fit; if not even the first does, a part of it.
        let mut left = allowed;
        let fit = slices.iter().take_while(|slice| match left.checked_sub(slice.len()) {
            Some(rest) => {
                left = rest;
                true
            }
            None => false,
        });
        let end = match (slices.split_at_checked(fit.count()), left == allowed) {
            (Some((_, [first, ..])), true) => {
                inner.poll_write(context, first.get(..allowed).unwrap_or_default())
            }
            (Some((whole, _)), _) => inner.poll_write_vectored(context, whole),
            (None, _) => Poll::Ready(Ok(0)),
        };
        settle(tap, written(&end), allowed);
        end
    }

    fn is_write_vectored(&self) -> bool {
        self.get_ref().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing().inner.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writing().inner.poll_shutdown(context)
    }
}

#[inline]
fn settle(tap: &mut Tap, moved: usize, allowed: usize) {
    match moved {
        0 => tap.rest(),
        bytes => tap.moved(bytes, allowed),
    }
}

fn written(end: &Poll<io::Result<usize>>) -> usize {
    match end {
        Poll::Ready(Ok(bytes)) => *bytes,
        _ => 0,
    }
}
