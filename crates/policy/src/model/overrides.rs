//! Where overrides of quotas by operators are stored.

use std::path::PathBuf;

/// `overrides: store`, or `overrides: { file: overrides.jsonl }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OverrideLocation {
    /// In the default store, for all gateways that use it.
    Store,
    /// `file`: in a file of this gateway.
    File(PathBuf),
}
