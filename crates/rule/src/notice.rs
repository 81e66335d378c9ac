//! Events about rules and settings, logged after all locks are released: a log subscriber may call a limited
//! function itself.

use crate::{events, settings::SettingsError};
use std::sync::Arc;
use tidegate_core::SettingError;
use tidegate_limiter::{BuildError, TableSize};

pub(crate) enum Notice {
    /// A rule without a quota.
    NoQuota { rule: Arc<str> },
    /// Code names a store that the settings do not define.
    UnknownStore { rule: Arc<str>, store: String },
    /// An attribute declares a rule differently from an earlier declaration.
    Conflict { rule: Arc<str>, error: SettingError },
    /// The settings of a rule are incompatible with its declaration.
    InvalidSettings { rule: Arc<str>, error: SettingsError },
    /// Keys of the policy that do not apply to a rule of the code.
    UnusedKeys { rule: Arc<str>, keys: String },
    /// The limiter of a rule was changed concurrently.
    ConcurrentChange { rule: Arc<str>, error: BuildError },
    /// There is no room for new keys in memory.
    TableFull { rule: Arc<str>, size: TableSize },
}

impl Notice {
    pub(crate) fn log(self) {
        match self {
            Self::NoQuota { rule } => events::RuleWithoutQuota { rule: &rule }.emit(),
            Self::UnknownStore { rule, store } => {
                events::RuleStoreUnknown { rule: &rule, store: &store }.emit();
            }
            Self::Conflict { rule, error } => events::RuleConflict { rule: &rule, error: &error }.emit(),
            Self::InvalidSettings { rule, error } => {
                events::RuleSettingsInvalid { rule: &rule, error: &error }.emit();
            }
            Self::UnusedKeys { rule, keys } => {
                events::PolicyKeysUnused { rule: &rule, keys: &keys }.emit();
            }
            Self::ConcurrentChange { rule, error } => {
                events::LimiterChangeFailed { rule: &rule, error: &error }.emit();
            }
            Self::TableFull { rule, size } => {
                let TableSize { capacity, replaced, overflowed, .. } = size;
                events::KeyTableFull { rule: &rule, capacity, replaced, overflowed }.emit();
            }
        }
    }
}
