//! Rate-limited reads and writes: each one is cut to the allowed size and charged.

use super::{
    shaped_stream::{DirectionParts, ShapedStream},
    stream_handle::StreamHandle,
};
use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};

impl<T: AsyncRead> AsyncRead for ShapedStream<T> {
    #[inline]
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let DirectionParts { inner, handle } = self.project_read();
        let wanted = buffer.remaining();
        let Some(handle) = handle.filter(|_| wanted > 0) else { return inner.poll_read(context, buffer) };
        let allowed = ready!(handle.poll_allowance(wanted, context));
        let before = buffer.filled().len();
        let end = match allowed < wanted {
            true => Pin::new(&mut inner.take(allowed as u64)).poll_read(context, buffer),
            false => inner.poll_read(context, buffer),
        };
        record_progress(handle, buffer.filled().len().saturating_sub(before), allowed);
        end
    }
}

impl<T: AsyncWrite> AsyncWrite for ShapedStream<T> {
    #[inline]
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let DirectionParts { inner, handle } = self.project_write();
        let Some(handle) = handle.filter(|_| !bytes.is_empty()) else {
            return inner.poll_write(context, bytes);
        };
        let allowed = ready!(handle.poll_allowance(bytes.len(), context));
        let end = inner.poll_write(context, bytes.get(..allowed).unwrap_or(bytes));
        record_progress(handle, written_bytes(&end), allowed);
        end
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let DirectionParts { inner, handle } = self.project_write();
        let wanted = slices.iter().fold(0_usize, |sum, slice| sum.saturating_add(slice.len()));
        let Some(handle) = handle.filter(|_| wanted > 0) else {
            return inner.poll_write_vectored(context, slices);
        };
        let allowed = ready!(handle.poll_allowance(wanted, context));
        // As many whole slices as fit; if the first does not fit, a part of it.
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
        record_progress(handle, written_bytes(&end), allowed);
        end
    }

    fn is_write_vectored(&self) -> bool {
        self.get_ref().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project_write().inner.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project_write().inner.poll_shutdown(context)
    }
}

#[inline]
fn record_progress(handle: &mut StreamHandle, moved: usize, allowed: usize) {
    match moved {
        0 => handle.release_unused(),
        bytes => handle.record_moved(bytes, allowed),
    }
}

fn written_bytes(end: &Poll<io::Result<usize>>) -> usize {
    match end {
        Poll::Ready(Ok(bytes)) => *bytes,
        _ => 0,
    }
}
