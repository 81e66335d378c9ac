//! `listen`, and the certificates of those who speak TLS.

use super::{Importer, lexer::Directive};
use crate::model::{Listener, Tls};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};

/// `ssl_certificate` and `ssl_certificate_key`
#[derive(Clone, Debug, Default)]
pub(super) struct Certificate {
    pub(super) chain: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

impl Importer<'_> {
    /// Takes in where a server listens.
    pub(super) fn listen(
        &mut self,
        server: &Directive,
        listens: &[&Directive],
        certificate: &Certificate,
    ) -> Vec<(SocketAddr, bool)> {
        let mut found = Vec::new();
        if listens.is_empty() {
            let usual = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80));
            self.listener(server, Listener { address: usual, tls: None });
            found.push((usual, false));
        }
        for directive in listens {
            let Some(address) = directive.arg(0).and_then(address) else {
                self.lose(directive, "a gateway listens on addresses and ports; write one of those");
                continue;
            };
            // It is another port than the same one of TCP, which is often said beside it.
            if directive.has("quic") {
                self.lose(directive, "`quic` is not spoken; only what comes by TCP is carried over");
                continue;
            }
            if directive.has("proxy_protocol") {
                self.lose(
                    directive,
                    "`proxy_protocol` is not spoken; the address is carried over without it",
                );
            }
            let tls = match (directive.has("ssl"), certificate) {
                (false, _) => None,
                (true, Certificate { chain: Some(certificate), key: Some(key) }) => {
                    Some(Tls { certificate: certificate.clone(), key: key.clone(), clients: None })
                }
                (true, _) => {
                    self.lose(directive, "there is no certificate for it; write `ssl_certificate` and `ssl_certificate_key`, and import again");
                    continue;
                }
            };
            self.listener(server, Listener { address, tls });
            found.push((address, directive.has("default_server") || directive.has("default")));
        }
        found
    }

    fn listener(&mut self, server: &Directive, listener: Listener) {
        let address = listener.address;
        let known = self.policy.listen.iter().find(|known| known.address == address);
        match known.map(|known| known.tls == listener.tls) {
            None => self.policy.listen.push(listener),
            Some(true) => {}
            Some(false) => {
                self.lose(
                    server,
                    format!("{address} has one certificate or none, as its first server has it"),
                );
            }
        }
    }

    /// The path of a file, from the folder of the first one.
    pub(super) fn file(&self, directive: &Directive) -> Option<PathBuf> {
        directive.arg(0).filter(|name| is_file_name(name)).map(|name| self.folder.join(name))
    }
}

/// Names that nobody has to escape.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains("://") && !name.contains(|c: char| c.is_control() || c == '$')
}

/// `80`, `127.0.0.1:80`, `[::]:80`, `*:80`, `localhost:80`, `127.0.0.1`
fn address(text: &str) -> Option<SocketAddr> {
    if let Ok(port) = text.parse::<u16>() {
        return (port > 0).then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return (address.port() > 0).then_some(address);
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok().filter(|port| *port > 0)?),
        _ => (text, 80),
    };
    match host {
        "*" => Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))),
        "localhost" => Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))),
        host => match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(host) => Some(SocketAddr::from((host.parse::<Ipv6Addr>().ok()?, port))),
            None => Some(SocketAddr::from((host.parse::<Ipv4Addr>().ok()?, port))),
        },
    }
}
