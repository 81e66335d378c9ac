//! The recorded requests of a gateway as a log: clients that are shown as hashes become addresses.

use std::{
    collections::HashSet,
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
};

/// The lines of a history, with an address for each hash, and the hashes.
#[derive(Clone, Debug)]
pub struct HistoryLines {
    /// JSON lines.
    pub lines: Arc<[u8]>,
    hashes: HashSet<u64>,
}

impl HistoryLines {
    /// Replaces the hashes of clients by addresses, in lines that end with a line feed.
    pub fn new(body: impl IntoIterator<Item: AsRef<[u8]>>) -> Self {
        let (mut lines, mut hashes) = (Vec::new(), HashSet::new());
        for line in body {
            match find_hash(line.as_ref()) {
                Some((before, hash, after)) => {
                    hashes.insert(hash);
                    lines.extend_from_slice(before);
                    lines.extend_from_slice(hash_to_address(hash).to_string().as_bytes());
                    lines.extend_from_slice(after);
                }
                None => lines.extend_from_slice(line.as_ref()),
            }
        }
        Self { lines: lines.into(), hashes }
    }

    /// The same for a whole body.
    pub fn parse(body: &[u8]) -> Self {
        Self::new(body.split_inclusive(|byte| *byte == b'\n'))
    }

    /// Converts addresses in a key back to the hashes that they represent.
    pub fn restore_hashes(&self, key: &str) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn line(ip: &str, path: &str) -> String {
        format!("{{\"host\":null,\"ip\":{ip},\"method\":\"GET\",\"path\":\"{path}\"}}\n")
    }

    #[test]
    fn hashed_clients_round_trip_as_addresses() {
        let body = line("\"00ff00ff00ff00ff\"", "/") + &line("\"192.0.2.7\"", "/x") + &line("null", "/y");
        let history = HistoryLines::parse(body.as_bytes());
        let lines = String::from_utf8(history.lines.to_vec()).unwrap();
        assert_eq!(
            lines,
            line("\"ff:ff:ff:ff::\"", "/") + &line("\"192.0.2.7\"", "/x") + &line("null", "/y")
        );
        assert_eq!(history.restore_hashes("ff:ff:ff:ff::"), "00ff00ff00ff00ff");
        assert_eq!(history.restore_hashes("ff:ff:ff:ff::\u{1f}/login"), "00ff00ff00ff00ff\u{1f}/login");
        assert_eq!(history.restore_hashes("2001:db8::"), "2001:db8::");
        let odd = line("\"2001:db8:1:2::aa\"", "/\\\"ip\\\":\\\"00ff00ff00ff00ff\\\"");
        assert_eq!(*HistoryLines::parse(odd.as_bytes()).lines, *odd.as_bytes());
    }
}
