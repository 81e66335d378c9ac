//! The forwarding headers: `X-Forwarded-For`, `-Proto`, `-Host`, and `Forwarded` of RFC 7239.
//!
//! Headers of untrusted clients are replaced; those of trusted proxies are extended. Most values are the same for all requests
//! of a connection, and are built once.

use crate::client::ClientConnection;
use http::{HeaderMap, HeaderName, HeaderValue, header};
use std::net::IpAddr;
use tidegate_http_server::Scheme;
use tidegate_policy::{
    head::{X_FORWARDED_FOR, X_FORWARDED_HOST, X_FORWARDED_PROTO},
    model::ForwardedHeaders,
};

/// Writes the forwarding headers of one connection.
pub(crate) struct ForwardedHeaderWriter {
    address: HeaderValue,
    scheme: HeaderValue,
    peer: PeerTrust,
    settings: ForwardedHeaders,
    /// The last requested host, and its `Forwarded` value.
    last_forwarded: Option<(HeaderValue, HeaderValue)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PeerTrust {
    Trusted,
    Untrusted,
}

impl ForwardedHeaderWriter {
    pub(crate) fn new(client: &ClientConnection) -> Self {
        let address = client.connection_info.peer.ip().to_canonical();
        Self {
            address: header_value(&address.to_string()),
            scheme: HeaderValue::from_static(match client.connection_info.scheme {
                Scheme::Http => "http",
                Scheme::Https => "https",
            }),
            peer: if client.worker.is_trusted(address) { PeerTrust::Trusted } else { PeerTrust::Untrusted },
            settings: client.worker.forwarded_headers,
            last_forwarded: None,
        }
    }

    /// Writes the headers into the head of a request. Those of an untrusted client were removed before the rules.
    pub(crate) fn write(&mut self, headers: &mut HeaderMap) {
        let host = headers.get(header::HOST).cloned();
        let forwarded = (self.settings == ForwardedHeaders::All).then(|| self.forwarded_value(host.as_ref()));
        match self.peer {
            PeerTrust::Untrusted => {
                headers.insert(X_FORWARDED_FOR, self.address.clone());
                headers.insert(X_FORWARDED_PROTO, self.scheme.clone());
                if let Some(forwarded) = forwarded {
                    headers.insert(header::FORWARDED, forwarded);
                }
                if let Some(host) = host {
                    headers.insert(X_FORWARDED_HOST, host);
                }
            }
            PeerTrust::Trusted => {
                let list = append_value(headers, &X_FORWARDED_FOR, &self.address);
                headers.insert(X_FORWARDED_FOR, list);
                if let Some(forwarded) = forwarded {
                    let list = append_value(headers, &header::FORWARDED, &forwarded);
                    headers.insert(header::FORWARDED, list);
                }
                headers.entry(X_FORWARDED_PROTO).or_insert_with(|| self.scheme.clone());
                if let Some(host) = host {
                    headers.entry(X_FORWARDED_HOST).or_insert(host);
                }
            }
        }
    }

    fn forwarded_value(&mut self, host: Option<&HeaderValue>) -> HeaderValue {
        let empty = HeaderValue::from_static("");
        let host = host.unwrap_or(&empty);
        if let Some((known, text)) = &self.last_forwarded
            && known == host
        {
            return text.clone();
        }
        let address = self.address.to_str().unwrap_or("unknown");
        let address = match address.parse::<IpAddr>() {
            Ok(IpAddr::V6(address)) => format!(r#""[{address}]""#),
            _ => address.to_owned(),
        };
        let scheme = self.scheme.to_str().unwrap_or_default();
        // The host was checked, so it contains no quote.
        let text = match host.to_str() {
            Ok(host) if !host.is_empty() => format!(r#"for={address};host="{host}";proto={scheme}"#),
            _ => format!("for={address};proto={scheme}"),
        };
        let text = header_value(&text);
        // A copy, because the host is a slice of the request buffer.
        self.last_forwarded = Some((header_value(host.to_str().unwrap_or_default()), text.clone()));
        text
    }
}

/// The values of a header, joined, with one more value.
fn append_value(headers: &HeaderMap, name: &HeaderName, last: &HeaderValue) -> HeaderValue {
    let mut list = Vec::new();
    for value in headers.get_all(name).iter().filter(|value| !value.is_empty()) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(last.as_bytes());
    HeaderValue::from_maybe_shared(bytes::Bytes::from(list)).unwrap_or_else(|_| last.clone())
}

fn header_value(text: &str) -> HeaderValue {
    // From a slice, so that clones share it without another allocation.
    HeaderValue::from_maybe_shared(bytes::Bytes::copy_from_slice(text.as_bytes()))
        .unwrap_or(HeaderValue::from_static("unknown"))
}
