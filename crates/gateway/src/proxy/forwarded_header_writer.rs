//! The forwarding headers: `X-Forwarded-For`, `-Proto`, `-Host`, and `Forwarded` of RFC 7239.
//!
//! Headers of untrusted clients are replaced; those of trusted proxies are extended. Most values are the same for all requests
//! of a connection, and are built once.

use crate::client::ClientConnection;
use std::net::IpAddr;
use tidegate_http_server::Scheme;
use tidegate_policy::{head::HeaderFields, model::ForwardedHeaders};

/// Writes the forwarding headers of one connection.
pub(crate) struct ForwardedHeaderWriter {
    address: String,
    scheme: &'static str,
    peer: PeerTrust,
    settings: ForwardedHeaders,
    /// The last requested host, and its `Forwarded` value.
    last_forwarded: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerTrust {
    Trusted,
    Untrusted,
}

const X_FORWARDED_FOR: &[u8] = b"x-forwarded-for";
const X_FORWARDED_PROTO: &[u8] = b"x-forwarded-proto";
const X_FORWARDED_HOST: &[u8] = b"x-forwarded-host";
const FORWARDED: &[u8] = b"forwarded";

impl ForwardedHeaderWriter {
    pub(crate) fn new(client: &ClientConnection) -> Self {
        let address = client.connection_info.peer.ip().to_canonical();
        Self {
            address: address.to_string(),
            scheme: match client.connection_info.scheme {
                Scheme::Http => "http",
                Scheme::Https => "https",
            },
            peer: if client.worker.is_trusted(address) { PeerTrust::Trusted } else { PeerTrust::Untrusted },
            settings: client.worker.forwarded_headers,
            last_forwarded: None,
        }
    }

    /// Writes the headers into the head of a request. Those of an untrusted client were removed before the rules.
    pub(crate) fn write(&mut self, fields: &mut HeaderFields) {
        let (address, scheme) = (self.address.as_bytes(), self.scheme.as_bytes());
        match self.peer {
            PeerTrust::Untrusted => {
                fields.push(X_FORWARDED_FOR, address);
                fields.push(X_FORWARDED_PROTO, scheme);
            }
            PeerTrust::Trusted => {
                append_value(fields, X_FORWARDED_FOR, address);
                if !fields.contains(X_FORWARDED_PROTO) {
                    fields.push(X_FORWARDED_PROTO, scheme);
                }
            }
        }
        let host = fields.get(b"host").map(<[u8]>::to_vec);
        if self.settings == ForwardedHeaders::All {
            let peer = self.peer;
            let forwarded = self.forwarded_value(host.as_deref().unwrap_or_default());
            match peer {
                PeerTrust::Untrusted => fields.push(FORWARDED, forwarded),
                PeerTrust::Trusted => append_value(fields, FORWARDED, forwarded),
            }
        }
        if let Some(host) = host
            && (self.peer == PeerTrust::Untrusted || !fields.contains(X_FORWARDED_HOST))
        {
            fields.push(X_FORWARDED_HOST, &host);
        }
    }

    fn forwarded_value(&mut self, host: &[u8]) -> &[u8] {
        if self.last_forwarded.as_ref().is_none_or(|(known, _)| known != host) {
            let address = match self.address.parse::<IpAddr>() {
                Ok(IpAddr::V6(address)) => format!(r#""[{address}]""#),
                _ => self.address.clone(),
            };
            let scheme = self.scheme;
            // The host was checked, so it is text without a quote.
            let text = match str::from_utf8(host) {
                Ok(host) if !host.is_empty() => format!(r#"for={address};host="{host}";proto={scheme}"#),
                _ => format!("for={address};proto={scheme}"),
            };
            self.last_forwarded = Some((host.to_vec(), text.into_bytes()));
        }
        self.last_forwarded.as_ref().map_or(&[], |(_, text)| text)
    }
}

/// Replaces all values of a header by a list of them, with one more value.
fn append_value(fields: &mut HeaderFields, name: &[u8], last: &[u8]) {
    let values = fields.get_all(name).filter(|value| !value.is_empty());
    let list = values.chain([last]).collect::<Vec<_>>().join(&b", "[..]);
    fields.set(name, &list);
}
