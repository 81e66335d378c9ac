//! One request of the history.

use super::key_label::KeyLabel;
use serde_json::json;
use tidegate_core::{Micros, Utc};

/// A request whose exchange has ended.
#[derive(Debug)]
pub struct HistoryEntry {
    /// When the request came.
    pub at: Micros,
    pub(crate) client: Option<KeyLabel>,
    /// Its user, if the policy says who that is.
    pub user: Option<KeyLabel>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) host: Option<String>,
    /// 0 where there was none.
    pub(crate) status: u16,
}

impl HistoryEntry {
    /// It as a line, with its end.
    pub fn to_line(&self) -> String {
        let line = json!({
            "time": Utc::from(self.at).to_string(),
            "ip": self.client.as_ref().map(KeyLabel::text),
            "method": self.method,
            "path": self.path,
            "host": self.host,
            "status": self.status,
            "user": self.user.as_ref().map(KeyLabel::text),
        });
        format!("{line}\n")
    }
}
