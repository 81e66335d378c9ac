//! A warning for limits by client address on a server that does not record the peer address.

use super::RequestHead;
use crate::events;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Logs once that requests have no peer address. Clones share the state.
#[derive(Clone, Default)]
pub(crate) struct MissingPeerWarning {
    is_reported: Arc<AtomicBool>,
}

impl MissingPeerWarning {
    /// Logs an error if the server could have recorded the peer address of this request and did not.
    #[cold]
    pub(crate) fn emit_once(&self, head: &dyn RequestHead) {
        if head.peer().is_some() {
            return;
        }
        if let Some(fix) = head.missing_peer_fix()
            && !self.is_reported.swap(true, Ordering::Relaxed)
        {
            events::PeerAddressMissing { fix }.emit();
        }
    }
}
