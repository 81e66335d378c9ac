//! Bytes of an answer that wait to be sent over HTTP/2.

use crate::client::ClientConnection;
use bytes::{Buf, Bytes};
use std::rc::Rc;

/// A part of an answer. Its bytes count as unsent from the moment at which it is made until it is dropped: when it was written,
/// and also when its stream was reset.
pub(crate) struct CountedBytes {
    bytes: Bytes,
    /// How many bytes it had, and whose they are. In HTTP/1.1 nobody counts: hyper asks for no more than one buffer.
    counted: Option<(u64, Rc<ClientConnection>)>,
}

impl CountedBytes {
    pub(super) fn uncounted(bytes: Bytes) -> Self {
        Self { bytes, counted: None }
    }

    pub(super) fn counted(bytes: Bytes, client: &Rc<ClientConnection>) -> Self {
        let length = bytes.len() as u64;
        client.add_unsent(length);
        Self { bytes, counted: Some((length, client.clone())) }
    }
}

impl Drop for CountedBytes {
    fn drop(&mut self) {
        if let Some((length, client)) = &self.counted {
            client.remove_unsent(*length);
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
    }

    #[inline]
    fn copy_to_bytes(&mut self, length: usize) -> Bytes {
        self.bytes.copy_to_bytes(length)
    }
}
