//! A layer that counts by the client's address, on a server that does not record it.

use super::RequestHead;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Reports once that requests carry no peer address. Clones report together.
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
            tracing::error!(
                fix,
                "requests carry no client address; clients cannot be told apart, and each counts as one without a key"
            );
        }
    }
}
