//! The wrapper around a stream.

use super::{Bandwidth, stream_handle::StreamHandle};
use pin_project_lite::pin_project;
use std::{fmt, pin::Pin};

pin_project! {
    /// A stream whose bytes are limited: an `AsyncRead`, an `AsyncWrite`, or both; with the feature `stream` a `Stream`
    /// of bytes, with the feature `http-body` a body.
    ///
    /// Reading and writing are limited apart from each other, by bandwidths of their own or by the same:
    ///
    /// ```
    /// use tidegate_bandwidth::Bandwidth;
    ///
    /// let (down, up) = (Bandwidth::new("5MB/s")?, Bandwidth::new("1MB/s")?);
    /// let (socket, _peer) = tokio::io::duplex(64);
    /// let socket = down.limit_reads(socket).limit_writes(&up).limit_after(100_000);
    /// # Ok::<(), tidegate_limiter::BuildError>(())
    /// ```
    ///
    /// Dropping it gives back whatever it holds. It waits on one timer, which needs a tokio runtime.
    pub struct ShapedStream<T> {
        #[pin]
        inner: T,
        read_handle: Option<StreamHandle>,
        write_handle: Option<StreamHandle>,
    }
}

/// What the traits work with: the stream, and the limit of the direction they are about.
pub(super) struct DirectionParts<'a, T> {
    pub(super) inner: Pin<&'a mut T>,
    pub(super) handle: Option<&'a mut StreamHandle>,
}

impl<T> ShapedStream<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, read_handle: None, write_handle: None }
    }

    /// Limits what is read from it too, in place of a limit that it already has.
    #[must_use]
    pub fn limit_reads(self, bandwidth: &Bandwidth) -> Self {
        Self { read_handle: Some(bandwidth.new_handle()), ..self }
    }

    /// Limits what is written to it too, in place of a limit that it already has.
    #[must_use]
    pub fn limit_writes(self, bandwidth: &Bandwidth) -> Self {
        Self { write_handle: Some(bandwidth.new_handle()), ..self }
    }

    /// How many bytes it moves, in each direction, before the limits hold; in place of what the bandwidths say.
    #[must_use]
    pub fn limit_after(mut self, bytes: u64) -> Self {
        self.read_handle.iter_mut().chain(&mut self.write_handle).for_each(|tap| tap.set_free_bytes(bytes));
        self
    }

    /// The stream inside.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The stream inside. What is moved past the wrapper is not counted.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// The stream inside, without the limits.
    pub fn into_inner(self) -> T {
        self.inner
    }

    pub(super) fn project_read(self: Pin<&mut Self>) -> DirectionParts<'_, T> {
        let this = self.project();
        DirectionParts { inner: this.inner, handle: this.read_handle.as_mut() }
    }

    pub(super) fn project_write(self: Pin<&mut Self>) -> DirectionParts<'_, T> {
        let this = self.project();
        DirectionParts { inner: this.inner, handle: this.write_handle.as_mut() }
    }
}

impl<T: fmt::Debug> fmt::Debug for ShapedStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, read_handle: reads, write_handle: writes } = self;
        f.debug_struct("ShapedStream")
            .field("inner", inner)
            .field("reads", reads)
            .field("writes", writes)
            .finish()
    }
}
