//! Reports the addresses of the listeners.

use crate::terminal::{Paint, Tone};
use serde_json::{Map, Value};
use tidegate_gateway::Gateway;

/// The addresses of the listeners, each with its purpose.
pub(crate) fn addresses(gateway: &Gateway) -> Vec<(&'static str, String)> {
    let scheme = |has_tls: bool| if has_tls { "https" } else { "http" };
    let tls = gateway.policy().listen.iter().map(|listener| listener.tls.is_some());
    let listeners = gateway.addresses().into_iter().zip(tls.chain(std::iter::repeat(false)));
    let mut addresses: Vec<_> =
        listeners.map(|(address, has_tls)| ("gateway", format!("{}://{address}", scheme(has_tls)))).collect();
    if let Some(address) = gateway.decisions_address() {
        let has_tls = gateway.policy().decisions.as_ref().is_some_and(|decisions| decisions.tls.is_some());
        addresses.push(("decide", format!("{}://{address}", scheme(has_tls))));
    }
    if let Some(address) = gateway.envoy_address() {
        addresses.push(("envoy", address.to_string()));
    }
    if let Some(address) = gateway.admin_address() {
        addresses.push(("admin", format!("http://{address}")));
    }
    addresses
}

/// Formats one line per listener.
pub(crate) fn address_lines(addresses: &[(&str, String)], paint: Paint) -> String {
    let line = |(name, address): &(&str, String)| format!("{name:8} {}\n", paint.tone(Tone::Strong, address));
    addresses.iter().map(line).collect()
}

/// Formats all addresses as one line of JSON: a list per purpose.
pub(crate) fn address_json(addresses: &[(&str, String)]) -> String {
    let mut all: Map<String, Value> = Map::new();
    for (name, address) in addresses {
        let list = all.entry(*name).or_insert_with(|| Value::Array(Vec::new()));
        if let Value::Array(list) = list {
            list.push(address.as_str().into());
        }
    }
    format!("{}\n", Value::Object(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_printed_as_text_and_json() {
        let addresses = [
            ("gateway", "http://a:1".to_owned()),
            ("gateway", "https://a:2".to_owned()),
            ("admin", "http://a:3".to_owned()),
        ];
        assert_eq!(
            address_lines(&addresses[1..], Paint::Plain),
            "gateway  https://a:2\nadmin    http://a:3\n"
        );
        let parsed: Value = serde_json::from_str(&address_json(&addresses)).unwrap();
        assert_eq!(
            parsed,
            serde_json::json!({ "gateway": ["http://a:1", "https://a:2"], "admin": ["http://a:3"] })
        );
    }
}
