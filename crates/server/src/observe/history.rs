//! One request of the history.

use super::who::Who;
use crate::log::utc;
use serde_json::json;
use tidegate_core::Micros;

/// A request whose exchange has ended.
#[derive(Debug)]
pub(crate) struct HistoryEntry {
    pub(crate) at: Micros,
    pub(crate) client: Option<Who>,
    pub(crate) user: Option<Who>,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) host: Option<String>,
    /// 0 where there was none.
    pub(crate) status: u16,
}

impl HistoryEntry {
    /// It as a line, with its end.
    pub(crate) fn line(&self) -> String {
        let line = json!({
            "time": utc(self.at),
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
