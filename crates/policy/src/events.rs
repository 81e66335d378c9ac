//! The log events of this crate, one struct each.

use crate::problem::Problems;
use std::{io, path::Path};

/// The policy file changed, and its content is applied.
pub(crate) struct PolicyFileReloaded<'a> {
    pub(crate) path: &'a Path,
}

impl PolicyFileReloaded<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(path = %self.path.display(), "policy reloaded");
    }
}

/// The policy file changed, but its content has problems.
pub(crate) struct PolicyFileRejected<'a> {
    pub(crate) path: &'a Path,
    pub(crate) error: &'a Problems,
}

impl PolicyFileRejected<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(
            path = %self.path.display(),
            error = %self.error,
            "policy rejected, keeping the previous one"
        );
    }
}

/// The thread that watches the policy file could not be started.
pub(crate) struct PolicyWatchFailed<'a> {
    pub(crate) error: &'a io::Error,
}

impl PolicyWatchFailed<'_> {
    pub(crate) fn emit(self) {
        tracing::error!(error = %self.error, "cannot watch the policy file; changes are not applied");
    }
}
