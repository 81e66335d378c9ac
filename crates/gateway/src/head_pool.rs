//! Heads of messages whose memory is reused.

use crate::http1::ParsedResponse;
use std::cell::RefCell;
use tidegate_policy::head::ParsedRequest;

/// The heads of a worker that are not in use. Most requests need no memory of their own.
#[derive(Default)]
pub(crate) struct HeadPool {
    requests: RefCell<Vec<ParsedRequest>>,
    responses: RefCell<Vec<ParsedResponse>>,
}

/// The number of heads of each kind.
const MAX_HEADS: usize = 64;
/// The memory of a head. A larger one is released.
const MAX_HEAD_MEMORY: usize = 4_096;

impl HeadPool {
    /// An empty head, or an old one.
    #[inline]
    pub(crate) fn take_request(&self) -> ParsedRequest {
        self.requests.borrow_mut().pop().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn take_response(&self) -> ParsedResponse {
        self.responses.borrow_mut().pop().unwrap_or_default()
    }

    #[inline]
    pub(crate) fn give_request(&self, head: ParsedRequest) {
        let mut heads = self.requests.borrow_mut();
        if heads.len() < MAX_HEADS && head.memory() <= MAX_HEAD_MEMORY {
            heads.push(head);
        }
    }

    #[inline]
    pub(crate) fn give_response(&self, head: ParsedResponse) {
        let mut heads = self.responses.borrow_mut();
        if heads.len() < MAX_HEADS && head.fields.memory() <= MAX_HEAD_MEMORY {
            heads.push(head);
        }
    }
}
