//! Log events of changes by operators. Those of the policy file and of features are events of the gateway, and those of keys of
//! the decision API.

use serde_json::Value;
use std::{io, path::Path};
use tidegate_limiter::StoreError;

/// A call of the admin API created a ban.
pub(crate) struct BanCreated<'a> {
    /// The ban, as in the response.
    pub(crate) ban: &'a Value,
}

impl BanCreated<'_> {
    pub(crate) fn emit(self) {
        let text = |member: &str| self.ban[member].as_str();
        let (id, rule, value) = (text("id"), text("rule"), text("value"));
        let (until, reason, by) = (text("until"), text("reason"), text("author"));
        tracing::info!(id, rule, value, until, reason, by, "ban created");
    }
}

/// A call of the admin API lifted a ban.
pub(crate) struct BanLifted<'a> {
    pub(crate) id: &'a str,
    pub(crate) author: &'a str,
}

impl BanLifted<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(id = self.id, by = self.author, "ban lifted");
    }
}

/// A call of the admin API requests a reload of the policy.
pub(crate) struct ReloadRequested<'a> {
    pub(crate) author: &'a str,
}

impl ReloadRequested<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(by = self.author, "policy reload requested");
    }
}

/// A call of the admin API set an override.
pub(crate) struct OverrideSet<'a> {
    /// The override, as in the response.
    pub(crate) json: &'a Value,
    /// The override before, or null.
    pub(crate) replaced: &'a Value,
}

impl OverrideSet<'_> {
    pub(crate) fn emit(self) {
        let text = |member: &str| self.json[member].as_str();
        let (rule, key, quota, until) = (text("rule"), text("key"), text("quota"), text("until"));
        let (reason, by, change) = (text("reason"), text("by"), self.json["change"].as_u64());
        let before = self.replaced["quota"].as_str();
        tracing::info!(rule, key, quota, before, until, reason, by, change, "override set");
    }
}

/// A call of the admin API removed an override.
pub(crate) struct OverrideRemoved<'a> {
    /// The removal, as in the list of changes.
    pub(crate) json: &'a Value,
    /// The override before, as in the response.
    pub(crate) replaced: &'a Value,
}

impl OverrideRemoved<'_> {
    pub(crate) fn emit(self) {
        let text = |member: &str| self.json[member].as_str();
        let (rule, key, by, change) = (text("rule"), text("key"), text("by"), self.json["change"].as_u64());
        let before = self.replaced["quota"].as_str();
        tracing::info!(rule, key, before, by, change, "override removed");
    }
}

/// Overrides have ended.
pub(crate) struct OverridesEnded {
    pub(crate) count: usize,
}

impl OverridesEnded {
    pub(crate) fn emit(self) {
        tracing::info!(count = self.count, "overrides ended");
    }
}

/// The file of the overrides ended with a part of a change, which was not confirmed.
pub(crate) struct OverrideFileRepaired<'a> {
    pub(crate) file: &'a Path,
    /// The removed bytes.
    pub(crate) removed: usize,
}

impl OverrideFileRepaired<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(file = %self.file.display(), removed = self.removed, "incomplete change removed from the override file");
    }
}

/// The file of the overrides is longer than needed, because it cannot be rewritten.
pub(crate) struct OverrideFileNotRewritten<'a> {
    pub(crate) file: &'a Path,
    pub(crate) error: &'a io::Error,
}

impl OverrideFileNotRewritten<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(file = %self.file.display(), error = %self.error, "cannot rewrite the override file; it stays valid");
    }
}

/// A change of an override in the store cannot be read.
pub(crate) struct OverrideInvalid {
    pub(crate) problem: &'static str,
}

impl OverrideInvalid {
    pub(crate) fn emit(self) {
        tracing::warn!(problem = self.problem, "invalid override in the store");
    }
}

/// The store of the overrides is unavailable. Logged once for each outage.
pub(crate) struct OverrideStoreUnavailable<'a> {
    pub(crate) error: &'a StoreError,
}

impl OverrideStoreUnavailable<'_> {
    pub(crate) fn emit(self) {
        tracing::warn!(error = %self.error, "override store unavailable; the last known overrides apply");
    }
}

/// The store of the overrides is available again.
pub(crate) struct OverrideStoreRecovered;

impl OverrideStoreRecovered {
    #[allow(clippy::unused_self, reason = "the form of all events")]
    pub(crate) fn emit(self) {
        tracing::info!("override store available");
    }
}
