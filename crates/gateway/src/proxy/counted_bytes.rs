//! Counts the buffered bytes of HTTP/2 responses.

use crate::client::Http2Stream;
use bytes::{Buf, Bytes};
use std::rc::Rc;

/// A frame of a response. Its bytes count as unsent until they are written, or until their stream is reset. The memory of the
/// connection is used until it is dropped.
pub(crate) struct CountedBytes {
    bytes: Bytes,
    /// The number of bytes of the whole frame.
    length: u64,
    stream: Rc<Http2Stream>,
}

impl CountedBytes {
    pub(super) fn new(bytes: Bytes, stream: &Rc<Http2Stream>) -> Self {
        let length = bytes.len() as u64;
        stream.client().add_unsent(length);
        if length > 0 {
            stream.add_unsent(length);
        }
        Self { bytes, length, stream: stream.clone() }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.stream.client().remove_unsent(self.length);
        if !self.bytes.is_empty() {
            self.stream.remove_unsent(self.bytes.len() as u64);
        }
    }
}

impl Buf for CountedBytes {
    #[inline]
    fn remaining(&self) -> usize {
        self.bytes.len()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        &self.bytes
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.bytes.advance(count);
        if count > 0 {
            self.stream.on_sent(count as u64);
        }
    }

    #[inline]
    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        let bytes = self.bytes.copy_to_bytes(length);
        if length > 0 {
            self.stream.on_sent(length as u64);
        }
        bytes
    }
}
