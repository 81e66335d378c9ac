//! A warning for limits by client address on a server that does not record the peer address.

use super::RequestHead;
use crate::events;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Logs once that requests have no peer address. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct PeerWarning {
    is_reported: Arc<AtomicBool>,
}

impl PeerWarning {
    /// Logs an error if the server could have recorded the peer address of this request and did not.
    #[cold]
    pub(crate) fn check(&self, head: &dyn RequestHead) {
        if head.peer().is_some() {
            return;
        }
        if let Some(fix) = head.peer_hint()
            && !self.is_reported.swap(true, Ordering::Relaxed)
        {
            events::PeerAddressMissing { fix }.emit();
        }
    }
}
