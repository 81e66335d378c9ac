//! Proxies that are trusted to say who a client is.

use super::{Importer, level::Taken, lexer::Directive};

/// What is said of proxies.
#[derive(Debug, Default)]
pub(super) struct RealIp {
    first: Option<Directive>,
    header: Option<Directive>,
    is_recursive: bool,
}

impl Importer<'_> {
    /// Trusted proxies.
    pub(super) fn real_ip(&mut self, directive: &Directive, real_ip: &mut RealIp) -> Taken {
        let said = directive.arg(0).unwrap_or_default();
        match directive.name.as_str() {
            "set_real_ip_from" => match said.parse() {
                Ok(network) => {
                    real_ip.first.get_or_insert_with(|| directive.clone());
                    if !self.policy.trusted_proxies.contains(&network)
                        && self.policy.trusted_proxies.len() < 10_000
                    {
                        self.policy.trusted_proxies.push(network);
                    }
                }
                Err(_) => {
                    self.lose(directive, "trusted proxies are addresses and networks; write one of those");
                }
            },
            "real_ip_header" => real_ip.header = Some(directive.clone()),
            "real_ip_recursive" => real_ip.is_recursive = said == "on",
            _ => return Taken::No,
        }
        Taken::Yes
    }

    pub(super) fn finish_real_ip(&mut self, real_ip: &RealIp) {
        let Some(first) = &real_ip.first else { return };
        // nginx takes X-Real-IP where nothing is said.
        let header = real_ip.header.as_ref().and_then(|header| header.arg(0)).unwrap_or("X-Real-IP");
        match header.eq_ignore_ascii_case("x-forwarded-for") {
            true if real_ip.is_recursive => {}
            true => self.lose(first, "`real_ip_recursive` is off: nginx takes the last address of X-Forwarded-For, a policy the last that is no trusted proxy"),
            false => {
                // Whoever does not write X-Forwarded-For may pass on what a client wrote there.
                self.policy.trusted_proxies.clear();
                let said = real_ip.header.clone().unwrap_or_else(|| first.clone());
                let reason = "addresses are taken from X-Forwarded-For or Forwarded only; so nobody is trusted";
                self.lose(&said, reason);
            }
        }
    }
}
