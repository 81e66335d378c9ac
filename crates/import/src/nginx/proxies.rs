//! Trusted proxies: `set_real_ip_from`, `real_ip_header` and `real_ip_recursive`.

use super::{Importer, level::DirectiveHandling, lexer::Directive};
use tidegate_access::Prefix;

/// The directives about trusted proxies.
#[derive(Debug, Default)]
pub(super) struct RealIp {
    first: Option<Directive>,
    header: Option<Directive>,
    is_recursive: bool,
}

impl Importer<'_> {
    /// Reads a directive about trusted proxies.
    pub(super) fn read_real_ip(&mut self, directive: &Directive, real_ip: &mut RealIp) -> DirectiveHandling {
        let value = directive.arg(0).unwrap_or_default();
        match directive.name.as_str() {
            "set_real_ip_from" => match value.parse() {
                Ok(network) => {
                    real_ip.first.get_or_insert_with(|| directive.clone());
                    if !self.policy.trusted_proxies.contains(&network)
                        && self.policy.trusted_proxies.len() < 10_000
                    {
                        self.policy.trusted_proxies.push(network);
                    }
                }
                Err(_) if value == "unix:" => {
                    self.record_loss(directive, "listeners on Unix sockets are not supported");
                }
                Err(_) => {
                    self.record_protection_loss(directive, "a trusted proxy is an IP address or a network");
                }
            },
            "real_ip_header" => real_ip.header = Some(directive.clone()),
            "real_ip_recursive" => real_ip.is_recursive = value == "on",
            _ => return DirectiveHandling::Unhandled,
        }
        DirectiveHandling::Handled
    }

    pub(super) fn finish_real_ip(&mut self, real_ip: &RealIp) {
        let Some(first) = &real_ip.first else { return };
        // nginx reads X-Real-IP by default.
        let header = real_ip.header.as_ref().and_then(|header| header.arg(0)).unwrap_or("X-Real-IP");
        match header.eq_ignore_ascii_case("x-forwarded-for") {
            true if real_ip.is_recursive => {}
            true => {
                let reason = "`real_ip_recursive` is off: nginx uses the last address of X-Forwarded-For, a policy the last one that is not a trusted proxy";
                let is_address = |network: &Prefix| {
                    network.prefix_len() == if network.network_address().is_ipv4() { 32 } else { 128 }
                };
                match self.policy.trusted_proxies.iter().all(is_address) {
                    true => self.record_loss(first, reason),
                    // Clients in a trusted network could forge their address.
                    false => self.record_protection_loss(
                        first,
                        format!("{reason}; write `real_ip_recursive on`, or list single addresses"),
                    ),
                }
            }
            false => {
                // A proxy that does not set X-Forwarded-For may forward the value of the client.
                self.policy.trusted_proxies.clear();
                let directive = real_ip.header.clone().unwrap_or_else(|| first.clone());
                let reason =
                    "client addresses are read from X-Forwarded-For or Forwarded only; no proxy is trusted";
                // Access lists then see the address of the proxy instead of the address of the client.
                self.record_protection_loss(&directive, reason);
            }
        }
    }
}
