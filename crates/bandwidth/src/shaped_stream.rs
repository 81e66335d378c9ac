//! The wrapper around a stream.

use super::{Bandwidth, stream_handle::StreamHandle};
use bytes::Bytes;
use pin_project_lite::pin_project;
use std::{fmt, pin::Pin};

pin_project! {
    /// A stream with limited bytes: an `AsyncRead`, an `AsyncWrite`, or both; with the feature `stream` a `Stream`
    /// of bytes, with the feature `http-body` a body.
    ///
    /// Reads and writes are limited separately, by different bandwidths or by the same:
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
    /// Dropping it returns its unused bytes. It waits on one timer, which needs a tokio runtime.
    pub struct ShapedStream<T> {
        #[pin]
        inner: T,
        // The part of the last frame of a body that was not passed yet.
        rest: Bytes,
        read_handle: Option<StreamHandle>,
        write_handle: Option<StreamHandle>,
    }
}

/// The parts that one direction works with: the stream, and the handle of its limit.
pub(super) struct DirectionParts<'a, T> {
    pub(super) inner: Pin<&'a mut T>,
    pub(super) handle: Option<&'a mut StreamHandle>,
}

/// The parts that a body works with.
#[cfg(feature = "http-body")]
pub(super) struct BodyParts<'a, T> {
    pub(super) inner: Pin<&'a mut T>,
    pub(super) rest: &'a mut Bytes,
    pub(super) handle: Option<&'a mut StreamHandle>,
}

impl<T> ShapedStream<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, rest: Bytes::new(), read_handle: None, write_handle: None }
    }

    /// Limits the reads, in place of an existing limit.
    #[must_use]
    pub fn limit_reads(self, bandwidth: &Bandwidth) -> Self {
        Self { read_handle: Some(bandwidth.new_handle()), ..self }
    }

    /// Limits the writes, in place of an existing limit.
    #[must_use]
    pub fn limit_writes(self, bandwidth: &Bandwidth) -> Self {
        Self { write_handle: Some(bandwidth.new_handle()), ..self }
    }

    /// Sets the number of bytes in each direction before the limits apply, in place of that of the bandwidths.
    #[must_use]
    pub fn limit_after(mut self, bytes: u64) -> Self {
        self.read_handle
            .iter_mut()
            .chain(&mut self.write_handle)
            .for_each(|handle| handle.set_free_bytes(bytes));
        self
    }

    /// The inner stream.
    pub fn get_ref(&self) -> &T {
        &self.inner
    }

    /// The inner stream. Bytes that are moved through it directly are not counted.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    /// Removes the limits. The part of a frame of a body that was not passed yet is dropped.
    pub fn into_inner(self) -> T {
        self.inner
    }

    #[cfg(feature = "http-body")]
    pub(super) fn rest(&self) -> &Bytes {
        &self.rest
    }

    #[cfg(feature = "http-body")]
    pub(super) fn project_body(self: Pin<&mut Self>) -> BodyParts<'_, T> {
        let this = self.project();
        BodyParts { inner: this.inner, rest: this.rest, handle: this.read_handle.as_mut() }
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
        let Self { inner, rest: _, read_handle: reads, write_handle: writes } = self;
        f.debug_struct("ShapedStream")
            .field("inner", inner)
            .field("reads", reads)
            .field("writes", writes)
            .finish()
    }
}
