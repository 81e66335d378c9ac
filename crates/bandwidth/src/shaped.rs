//! The wrapper around a stream.

use super::{Bandwidth, tap::Tap};
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
    /// let socket = down.limit_reads(socket).and_writes(&up).first_free(100_000);
    /// # Ok::<(), tidegate_limiter::BuildError>(())
    /// ```
    ///
    /// Dropping it gives back whatever it holds. It waits on one timer, which needs a tokio runtime.
    pub struct Shaped<T> {
        #[pin]
        inner: T,
        reads: Option<Tap>,
        writes: Option<Tap>,
    }
}

/// What the traits work with: the stream, and the limit of the direction they are about.
pub(super) struct Parts<'a, T> {
    pub(super) inner: Pin<&'a mut T>,
    pub(super) tap: Option<&'a mut Tap>,
}

impl<T> Shaped<T> {
    pub(super) fn new(inner: T) -> Self {
        Self { inner, reads: None, writes: None }
    }

    /// Limits what is read from it too, in place of a limit that it already has.
    #[must_use]
    pub fn and_reads(self, bandwidth: &Bandwidth) -> Self {
        Self { reads: Some(bandwidth.tap()), ..self }
    }

    /// Limits what is written to it too, in place of a limit that it already has.
    #[must_use]
    pub fn and_writes(self, bandwidth: &Bandwidth) -> Self {
        Self { writes: Some(bandwidth.tap()), ..self }
    }

    /// How many bytes it moves, in each direction, before the limits hold; in place of what the bandwidths say.
    #[must_use]
    pub fn first_free(mut self, bytes: u64) -> Self {
        self.reads.iter_mut().chain(&mut self.writes).for_each(|tap| tap.set_free(bytes));
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

    pub(super) fn reading(self: Pin<&mut Self>) -> Parts<'_, T> {
        let this = self.project();
        Parts { inner: this.inner, tap: this.reads.as_mut() }
    }

    pub(super) fn writing(self: Pin<&mut Self>) -> Parts<'_, T> {
        let this = self.project();
        Parts { inner: this.inner, tap: this.writes.as_mut() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Shaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { inner, reads, writes } = self;
        f.debug_struct("Shaped").field("inner", inner).field("reads", reads).field("writes", writes).finish()
    }
}
