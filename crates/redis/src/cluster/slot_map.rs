//! The slot map: which node serves which slot.

use crate::node::RedisNode;
use redis::{ConnectionAddr, ConnectionInfo, Value};
use std::{collections::HashMap, sync::Arc};

const SLOT_COUNT: usize = 16_384;

/// A host and a port.
pub(super) type HostPort = (String, u16);

/// The nodes and the slots that each serves.
#[derive(Clone, Default)]
pub(super) struct SlotMap {
    pub(super) nodes: HashMap<HostPort, Arc<RedisNode>>,
    /// The node of each slot.
    slots: Vec<Option<Arc<RedisNode>>>,
    /// The outages of nodes that are no longer in the map.
    pub(super) past_outages: u64,
}

/// A range of slots and its primary.
pub(super) struct SlotRange {
    pub(super) first: usize,
    pub(super) last: usize,
    /// The host is empty if the node that replied does not know its own address.
    pub(super) primary: HostPort,
}

impl SlotMap {
    pub(super) fn node_for_key(&self, key: &str) -> Option<&Arc<RedisNode>> {
        self.slots.get(key_slot(key))?.as_ref()
    }

    pub(super) fn assign(&mut self, range: &SlotRange, node: &Arc<RedisNode>) {
        self.slots.resize(SLOT_COUNT, None);
        let last = range.last.min(SLOT_COUNT - 1);
        if let Some(slots) = self.slots.get_mut(range.first..=last) {
            slots.fill(Some(node.clone()));
        }
    }

    pub(super) fn unassigned_slots(&self) -> usize {
        SLOT_COUNT - self.slots.iter().flatten().count()
    }

    /// The address of one of these nodes.
    pub(super) fn host_port_of(&self, node: &Arc<RedisNode>) -> Option<&HostPort> {
        self.nodes.iter().find(|(_, known)| Arc::ptr_eq(known, node)).map(|(address, _)| address)
    }
}

/// The slot of a key: a checksum of its hash tag, which is the part in braces, or of the whole key.
fn key_slot(key: &str) -> usize {
    let tag = key.split_once('{').and_then(|(_, rest)| rest.split_once('}')).map(|(tag, _)| tag);
    let tag = tag.filter(|tag| !tag.is_empty()).unwrap_or(key);
    usize::from(crc16::State::<crc16::XMODEM>::calculate(tag.as_bytes())) % SLOT_COUNT
}

pub(super) fn host_port(info: &ConnectionInfo) -> Option<HostPort> {
    match info.addr() {
        ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
            Some((host.clone(), *port))
        }
        _ => None,
    }
}

/// The connection info of a server at another address, with the same login and TLS settings.
pub(super) fn with_host_port(like: &ConnectionInfo, (host, port): &HostPort) -> ConnectionInfo {
    let address = match like.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => ConnectionAddr::TcpTls {
            host: host.clone(),
            port: *port,
            insecure: *insecure,
            tls_params: tls_params.clone(),
        },
        _ => ConnectionAddr::Tcp(host.clone(), *port),
    };
    like.clone().set_addr(address)
}

/// Parses the address in `MOVED` and `ASK`: a host, which may be empty or contain colons, and a port.
pub(super) fn parse_redirect(text: &str) -> Option<HostPort> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    Some((host.to_owned(), port.parse().ok()?))
}

/// Parses the reply of `CLUSTER SLOTS`.
pub(super) fn parse_slots(reply: &Value) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else { return None };
    let range = |range: &Value| {
        let Value::Array(fields) = range else { return None };
        let [Value::Int(first), Value::Int(last), Value::Array(primary), ..] = fields.as_slice() else {
            return None;
        };
        let [host, Value::Int(port), ..] = primary.as_slice() else { return None };
        let host = match host {
            Value::BulkString(host) => String::from_utf8(host.clone()).ok()?,
            Value::SimpleString(host) => host.clone(),
            _ => String::new(),
        };
        let number = |slot: i64| usize::try_from(slot).ok();
        let primary = (host, u16::try_from(*port).ok()?);
        Some(SlotRange { first: number(*first)?, last: number(*last)?, primary })
    };
    ranges.iter().map(range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_slots_match_specification() {
        for (key, number) in [("123456789", 0x31c3), ("foo", 12_182), ("{user1000}.following", 3_443)] {
            assert_eq!(key_slot(key), number);
        }
        for (key, like) in [("a{foo}b{c}", "foo"), ("a{{foo}}", "{foo"), ("{}foo", "{}foo")] {
            assert_eq!(
                key_slot(key),
                usize::from(crc16::State::<crc16::XMODEM>::calculate(like.as_bytes())) % SLOT_COUNT
            );
        }
    }

    #[test]
    fn redirect_addresses_are_parsed() {
        for (text, host) in [
            ("127.0.0.1:6381", "127.0.0.1"),
            ("redis-1.example:6381", "redis-1.example"),
            ("2001:db8::1:6381", "2001:db8::1"),
            ("[::1]:6381", "::1"),
            (":6381", ""),
        ] {
            assert_eq!(parse_redirect(text), Some((host.to_owned(), 6381)), "{text}");
        }
        assert_eq!(parse_redirect("nowhere"), None);
        assert_eq!(parse_redirect("host:99999"), None);
    }

    #[test]
    fn with_host_port_keeps_login_and_tls() {
        let seed = |url: &str| redis::IntoConnectionInfo::into_connection_info(url).unwrap();
        let there = ("2001:db8::1".to_owned(), 7_000);
        let plain = with_host_port(&seed("redis://user:secret@[::1]:6379"), &there);
        assert_eq!(host_port(&plain), Some(there.clone()));
        assert_eq!(plain.redis_settings().password(), Some("secret"));
        #[cfg(feature = "tls")]
        {
            let info = with_host_port(&seed("rediss://[::1]:6379/#insecure"), &there);
            assert!(matches!(info.addr(), ConnectionAddr::TcpTls { insecure: true, .. }));
            assert_eq!(host_port(&info), Some(there));
        }
    }

    #[test]
    fn slots_reply_may_omit_host() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let range = |host: Value| {
            let primary = Value::Array(vec![host, Value::Int(6379), text("id"), Value::Array(Vec::new())]);
            Value::Array(vec![Value::Int(0), Value::Int(16_383), primary])
        };
        for (host, read) in [(Value::Nil, ""), (text(""), ""), (text("::1"), "::1")] {
            let ranges = parse_slots(&Value::Array(vec![range(host)])).unwrap();
            assert_eq!(ranges[0].primary, (read.to_owned(), 6379));
            assert_eq!((ranges[0].first, ranges[0].last), (0, 16_383));
        }
        assert!(parse_slots(&Value::Array(vec![Value::Int(1)])).is_none());
        assert!(parse_slots(&Value::Okay).is_none());
    }
}
