//! The request history of a running gateway, as a log.

use crate::{admin::AdminClient, error::CliError};
use bytes::Bytes;
use std::{
    collections::HashSet,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};
use tidegate_policy::model::{KeyPart, KeySpec};

/// The last requests of a gateway.
#[derive(Debug)]
pub(crate) struct History {
    /// The name in reports.
    pub(crate) name: String,
    /// JSON lines, ordered by time.
    pub(crate) lines: Arc<[u8]>,
    /// The share of the clients whose requests are recorded.
    share: f64,
    /// The hashes that replace client addresses.
    hashes: HashSet<u64>,
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
        let mut lines = Vec::with_capacity(body.len());
        let mut hashes = HashSet::new();
        for line in body.split_inclusive(|byte| *byte == b'\n') {
            match find_hash(line) {
                Some((before, hash, after)) => {
                    hashes.insert(hash);
                    lines.extend_from_slice(before);
                    lines.extend_from_slice(hash_to_address(hash).to_string().as_bytes());
                    lines.extend_from_slice(after);
                }
                None => lines.extend_from_slice(line),
            }
        }
        let scope = match share < 1.0 {
            true => format!(" of {} % of its clients", (share * 1e6).round() / 1e4),
            false => String::new(),
        };
        Ok(Self { name: format!("the history of {url}{scope}"), lines: lines.into(), share, hashes })
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

    /// Converts addresses in a key back to the hashes that they represent.
    pub(crate) fn restore_hashes(&self, key: &str) -> String {
        let mut restored = key.to_owned();
        let is_of_address = |c: char| c.is_ascii_hexdigit() || c == ':';
        for part in key.split(|c| !is_of_address(c)) {
            let hash = part.parse().ok().map(|address: Ipv6Addr| (address.to_bits() >> 64) as u64);
            if let Some(hash) = hash.filter(|hash| self.hashes.contains(hash)) {
                restored = restored.replace(part, &format!("{hash:016x}"));
            }
        }
        restored
    }
}

/// Converts a hash to an IPv6 address. An IPv6 client is identified by its first 64 bits, which hold the hash.
fn hash_to_address(hash: u64) -> IpAddr {
    IpAddr::V6(Ipv6Addr::from_bits(u128::from(hash) << 64))
}

/// Finds the hashed client of a line. Returns the text before it, the hash, and the text after it.
fn find_hash(line: &[u8]) -> Option<(&[u8], u64, &[u8])> {
    let text = str::from_utf8(line).ok()?;
    let start = text.find(IP_MEMBER_PREFIX)? + IP_MEMBER_PREFIX.len();
    let digits = text.get(start..start + 16).filter(|_| text.as_bytes().get(start + 16) == Some(&b'"'))?;
    let is_hash = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    let hash = is_hash.then(|| u64::from_str_radix(digits, 16).ok()).flatten()?;
    Some((&line[..start], hash, &line[start + 16..]))
}

/// The start of the client member. Inside a JSON string the quotes would be escaped.
const IP_MEMBER_PREFIX: &str = "\"ip\":\"";

fn is_per_client(key: &KeySpec) -> bool {
    match key {
        KeySpec::Part(KeyPart::Ip { .. }) => true,
        KeySpec::Composite(keys) => keys.iter().any(is_per_client),
        KeySpec::First(keys) => !keys.is_empty() && keys.iter().all(is_per_client),
        KeySpec::All | KeySpec::Part(_) => false,
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
    fn hashed_clients_round_trip_as_addresses() {
        let body = line("\"00ff00ff00ff00ff\"", "/") + &line("\"192.0.2.7\"", "/x") + &line("null", "/y");
        let history = History::parse("http://a", 1.0, &body.into()).unwrap();
        let lines = String::from_utf8(history.lines.to_vec()).unwrap();
        assert_eq!(
            lines,
            line("\"ff:ff:ff:ff::\"", "/") + &line("\"192.0.2.7\"", "/x") + &line("null", "/y")
        );
        assert_eq!(history.restore_hashes("ff:ff:ff:ff::"), "00ff00ff00ff00ff");
        assert_eq!(history.restore_hashes("ff:ff:ff:ff::\u{1f}/login"), "00ff00ff00ff00ff\u{1f}/login");
        assert_eq!(history.restore_hashes("2001:db8::"), "2001:db8::");
        let odd = line("\"2001:db8:1:2::aa\"", "/\\\"ip\\\":\\\"00ff00ff00ff00ff\\\"");
        assert_eq!(History::parse("http://a", 1.0, &odd.clone().into()).unwrap().lines[..], *odd.as_bytes());
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
