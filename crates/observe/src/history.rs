//! One request of the history.

use super::{RecordedCost, key_label::KeyLabel};
use serde_json::json;
use tidegate_core::{Micros, Utc};

/// A finished request.
#[derive(Debug)]
pub struct HistoryEntry {
    /// The time at which the request was received.
    pub at: Micros,
    pub(crate) client: Option<KeyLabel>,
    /// The user, if the policy declares one.
    pub user: Option<KeyLabel>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) host: Option<String>,
    /// The status of the response; 0 without a response.
    pub(crate) status: u16,
    /// Its costs by the rules that count tokens.
    pub costs: Vec<RecordedCost>,
}

impl HistoryEntry {
    /// The entry as a line of JSON, with a line feed.
    pub fn to_line(&self) -> String {
        let line = json!({
            "time": Utc::from(self.at).to_string(),
            "ip": self.client.as_ref().map(KeyLabel::text),
            "method": self.method,
            "path": self.path,
            "host": self.host,
            "status": self.status,
            "user": self.user.as_ref().map(KeyLabel::text),
            "costs": RecordedCost::to_json(&self.costs),
        });
        format!("{line}\n")
    }
}
