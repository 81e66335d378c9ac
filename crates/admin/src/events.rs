//! Log events of changes by operators. Those of the policy file and of features are events of the gateway, and those of keys of
//! the decision API.

use serde_json::Value;

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
