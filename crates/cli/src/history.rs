//! The request history of a running gateway, as a log.

use crate::{admin::AdminClient, error::CliError};
use bytes::Bytes;
use tidegate_policy::model::KeySpec;
use tidegate_replay::log::{HistoryLines, is_per_client};

/// The last requests of a gateway.
#[derive(Debug)]
pub(crate) struct History {
    /// The name in reports.
    pub(crate) name: String,
    /// JSON lines, ordered by time, and the hashes that replace client addresses.
    pub(crate) requests: HistoryLines,
    /// The share of the clients whose requests are recorded.
    share: f64,
}

/// The maximum that a gateway returns.
const HISTORY_PATH: &str = "/api/v1/history?limit=1000000";
const SHARE_HEADER: &str = "tidegate-share";

impl History {
    /// Fetches the whole history of a gateway.
    pub(crate) async fn fetch(client: &AdminClient) -> Result<Self, CliError> {
        let (headers, body) = client.get_text(HISTORY_PATH).await?;
        let share =
            headers.get(SHARE_HEADER).and_then(|share| share.to_str().ok()?.parse().ok()).unwrap_or(1.0);
        Self::parse(client.url(), share, &body)
    }

    fn parse(url: &str, share: f64, body: &Bytes) -> Result<Self, CliError> {
        if body.is_empty() {
            return Err(CliError::input(format!(
                "{url} has no recorded requests; add `observe: {{ history: 100000 }}` to its policy, and retry after some \
                 requests"
            )));
        }
        let requests = HistoryLines::parse(body);
        let scope = match share < 1.0 {
            true => format!(" of {} % of its clients", (share * 1e6).round() / 1e4),
            false => String::new(),
        };
        Ok(Self { name: format!("the history of {url}{scope}"), requests, share })
    }

    /// Checks that the key is per client if the history is sampled by client: other keys would miss requests.
    pub(crate) fn check_key(&self, key: &KeySpec, key_text: &str) -> Result<(), CliError> {
        if self.share >= 1.0 || is_per_client(key) {
            return Ok(());
        }
        Err(CliError::input(format!(
            "--key {key_text}: {} is incomplete for this key; count by ip, or remove `share` from `observe`",
            self.name
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::Percent;
    use tidegate_replay::suggest::{SuggestRequest, SuggestTarget};

    fn line(ip: &str, path: &str) -> String {
        format!("{{\"host\":null,\"ip\":{ip},\"method\":\"GET\",\"path\":\"{path}\"}}\n")
    }

    #[test]
    fn empty_history_error_names_the_setting() {
        let error = History::parse("http://a", 1.0, &Bytes::new()).unwrap_err().to_string();
        assert!(error.contains("observe: { history: 100000 }"), "{error}");
    }

    #[test]
    fn sampled_history_allows_only_client_keys() {
        let history = History::parse("http://a", 0.1, &line("\"192.0.2.7\"", "/").into()).unwrap();
        assert_eq!(history.name, "the history of http://a of 10 % of its clients");
        for (key, is_fine) in
            [("ip", true), ("[ip, path]", true), ("user", false), ("path", false), ("all", false)]
        {
            let request =
                SuggestRequest::parse(key, SuggestTarget::Keys(Percent::FULL), Percent::ZERO).unwrap();
            assert_eq!(history.check_key(&request.key, key).is_ok(), is_fine, "{key}");
        }
    }
}
