//! What an operator should know of rules and settings.
//!
//! It is told when nothing is locked: whoever listens may be limited itself.

use crate::settings::SettingsError;
use std::sync::Arc;
use tidegate_core::SettingError;
use tidegate_limiter::{BuildError, TableSize};

pub(crate) enum Notice {
    /// A rule without numbers.
    NoQuota { rule: Arc<str> },
    /// Code names a store that settings do not have.
    UnknownStore { rule: Arc<str>, store: String },
    /// An attribute declares a rule in another way than code did before.
    Conflict { rule: Arc<str>, error: SettingError },
    /// The settings of a rule do not fit what code declares.
    InvalidSettings { rule: Arc<str>, error: SettingsError },
    /// Keys of the policy that do not apply to a rule of the code.
    UnusedKeys { rule: Arc<str>, keys: String },
    /// A limiter was not left to the rule that has it.
    ConcurrentChange { rule: Arc<str>, error: BuildError },
    /// New keys find no room in memory.
    TableFull { rule: Arc<str>, size: TableSize },
}

impl Notice {
    pub(crate) fn log(self) {
        match self {
            Self::NoQuota { rule } => {
                tracing::warn!(%rule, "rule without a quota limits nothing; give it one in the policy file");
            }
            Self::UnknownStore { rule, store } => {
                tracing::warn!(%rule, store, "unknown store; using the default one");
            }
            Self::Conflict { rule, error } => {
                tracing::error!(%rule, %error, "conflicting rule declarations, calls are refused");
            }
            Self::InvalidSettings { rule, error } => {
                tracing::error!(%rule, %error, "invalid settings for the rule; using those declared in code");
            }
            Self::UnusedKeys { rule, keys } => {
                tracing::warn!(%rule, keys, "keys of the policy do not apply to this rule of the code");
            }
            Self::ConcurrentChange { rule, error } => {
                tracing::error!(%rule, %error, "somebody changed the limiter of this rule meanwhile");
            }
            Self::TableFull { rule, size } => {
                let TableSize { capacity, replaced, overflowed, .. } = size;
                tracing::warn!(
                    %rule, capacity, replaced, overflowed,
                    "no room for new keys in memory: some replaced keys that had used least (replaced), or shared a counter or \
                     were denied (overflowed); give the rule a larger capacity"
                );
            }
        }
    }
}
