//! Counts the buffered bytes of HTTP/2 responses.

use crate::client::ClientConnection;
use bytes::{Buf, Bytes};
use std::rc::Rc;

/// A frame of a response. Its bytes count as unsent until it is dropped, after it was written or its stream was reset.
pub(crate) struct CountedBytes {
    bytes: Bytes,
    /// The number of bytes that are counted.
    length: u64,
    client: Rc<ClientConnection>,
}

impl CountedBytes {
    pub(super) fn new(bytes: Bytes, client: &Rc<ClientConnection>) -> Self {
        let length = bytes.len() as u64;
        client.add_unsent(length);
        Self { bytes, length, client: client.clone() }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        self.client.remove_unsent(self.length);
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
    }

    #[inline]
    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        self.bytes.copy_to_bytes(length)
    }
}
