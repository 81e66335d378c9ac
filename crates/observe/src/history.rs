//! One request of the history.

use super::who::Who;
use serde_json::json;
use tidegate_core::{Micros, Utc};

/// A request whose exchange has ended.
#[derive(Debug)]
pub struct HistoryEntry {
    /// When the request came.
    pub at: Micros,
    pub(crate) client: Option<Who>,
    /// Its user, if the policy says who that is.
    pub user: Option<Who>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) host: Option<String>,
    /// 0 where there was none.
    pub(crate) status: u16,
}

impl HistoryEntry {
    /// It as a line, with its end.
    pub fn line(&self) -> String {
        let line = json!({
            "time": Utc::from(self.at).to_string(),
            "ip": self.client.as_ref().map(Who::shown),
            "method": self.method,
            "path": self.path,
            "host": self.host,
            "status": self.status,
            "user": self.user.as_ref().map(Who::shown),
        });
        format!("{line}\n")
    }
}
