//! Log events of changes by operators. Those of the policy file and of features are events of the gateway.

use serde_json::Value;

/// A call of the admin API created a ban.
pub(crate) struct BanCreated<'a> {
    /// The ban, as in the response.
    pub(crate) ban: &'a Value,
    pub(crate) author: &'a str,
}

impl BanCreated<'_> {
    pub(crate) fn emit(self) {
        let text = |member: &str| self.ban[member].as_str();
        let (id, value, until, reason) = (text("id"), text("value"), text("until"), text("reason"));
        tracing::info!(id, value, until, reason, by = self.author, "ban created");
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

/// A call of the admin API reset the state of keys.
pub(crate) struct KeysReset<'a> {
    pub(crate) keys: usize,
    pub(crate) author: &'a str,
}

impl KeysReset<'_> {
    pub(crate) fn emit(self) {
        tracing::info!(keys = self.keys, by = self.author, "keys reset");
    }
}
