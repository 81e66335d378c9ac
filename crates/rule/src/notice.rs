//! What an operator should know of rules and settings.
//!
//! It is told when nothing is locked: whoever listens may be limited itself.

use crate::settings::SettingsError;
use std::sync::Arc;
use tidegate_core::SettingError;
use tidegate_engine::{BuildError, TableSize};

pub(crate) enum Notice {
    /// A rule without numbers.
    NoNumbers { rule: Arc<str> },
    /// Code names a store that settings do not have.
    Stray { rule: Arc<str>, store: String },
    /// An attribute declares a rule in another way than code did before.
    Conflict { rule: Arc<str>, error: SettingError },
    /// What settings say of a rule cannot be.
    Misfit { rule: Arc<str>, error: SettingsError },
    /// A limiter was not left to the rule that has it.
    Meddling { rule: Arc<str>, error: BuildError },
    /// New keys find no room in memory.
    Full { rule: Arc<str>, size: TableSize },
    /// New settings hold.
    #[cfg(feature = "file")]
    Reloaded { path: std::path::PathBuf },
    /// New settings do not.
    #[cfg(feature = "file")]
    NotReloaded { error: Arc<str> },
    /// Nobody looks at the file.
    #[cfg(feature = "file")]
    NoWatcher { error: std::io::Error },
}

impl Notice {
    pub(crate) fn tell(self) {
        match self {
            Self::NoNumbers { rule } => {
                tracing::warn!(%rule, "a rule without numbers limits nothing; give it a quota in the settings");
            }
            Self::Stray { rule, store } => {
                tracing::warn!(%rule, store, "settings have no store of this name; the default one is used");
            }
            Self::Conflict { rule, error } => {
                tracing::error!(%rule, %error, "conflicting rule declarations, calls are refused");
            }
            Self::Misfit { rule, error } => {
                tracing::error!(%rule, %error, "settings do not fit the rule, which is as code declares it");
            }
            Self::Meddling { rule, error } => {
                tracing::error!(%rule, %error, "somebody changed the limiter of this rule meanwhile");
            }
            Self::Full { rule, size } => {
                let TableSize { capacity, replaced, overflowed, .. } = size;
                tracing::warn!(
                    %rule, capacity, replaced, overflowed,
                    "no room for new keys in memory: some replaced keys that had used least (replaced), or shared a counter or \
                     were denied (overflowed); give the rule a larger capacity"
                );
            }
            #[cfg(feature = "file")]
            Self::Reloaded { path } => tracing::info!(path = %path.display(), "new settings hold"),
            #[cfg(feature = "file")]
            Self::NotReloaded { error } => {
                tracing::error!(%error, "new settings are wrong, and the old ones stay");
            }
            #[cfg(feature = "file")]
            Self::NoWatcher { error } => {
                tracing::error!(%error, "no thread to look for changes of the settings");
            }
        }
    }
}
