//! `listen` and TLS certificates.

use super::{Importer, lexer::Directive, servers::ServerBlock, sites::ListenAddress};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
};
use tidegate_policy::model::{ListenerSpec, Tls};

/// `ssl_certificate` and `ssl_certificate_key`
#[derive(Clone, Debug, Default)]
pub(super) struct TlsCertificate {
    pub(super) chain: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
    /// `ssl_client_certificate`
    pub(super) client_ca: Option<PathBuf>,
    /// `ssl_verify_client`
    pub(super) verify: Option<Directive>,
}

impl TlsCertificate {
    /// Returns the CA file for client certificates; an error if a policy cannot express the setting.
    fn required_client_ca(&self) -> Result<Option<PathBuf>, &'static str> {
        match (self.verify.as_ref().and_then(|verify| verify.arg(0)), &self.client_ca) {
            (None | Some("off"), _) => Ok(None),
            (Some("on"), Some(clients)) => Ok(Some(clients.clone())),
            (Some("on"), None) => Err("`ssl_client_certificate` is missing; add it and import again"),
            _ => Err(
                "optional client certificates are not supported; write `ssl_verify_client on`, or check them in the upstream",
            ),
        }
    }
}

impl Importer<'_> {
    /// Reads the listeners of a server.
    pub(super) fn read_listeners(
        &mut self,
        server: &Directive,
        listens: &[&Directive],
        certificate: &TlsCertificate,
    ) -> Vec<ListenAddress> {
        let mut found = Vec::new();
        if listens.is_empty() {
            let usual = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80));
            self.add_listener(server, ListenerSpec { name: None, address: usual, tls: None }, certificate);
            found.push(ListenAddress { address: usual, is_default: false, scheme: "http" });
        }
        let clients = match (certificate.required_client_ca(), &certificate.verify) {
            (Ok(clients), _) => clients,
            (Err(reason), Some(verify)) => {
                self.record_protection_loss(verify, reason);
                None
            }
            (Err(_), None) => None,
        };
        for directive in listens {
            let Some(address) = directive.arg(0).and_then(parse_address) else {
                self.record_loss(directive, "a listener needs an IP address and a port");
                continue;
            };
            // A UDP port; the TCP listener on the same port usually has its own `listen`.
            if directive.has_arg("quic") {
                self.record_loss(directive, "`quic` is not supported; only TCP listeners are imported");
                continue;
            }
            if directive.has_arg("proxy_protocol") {
                self.record_loss(
                    directive,
                    "`proxy_protocol` is not supported; the listener is imported without it",
                );
            }
            let tls = match (directive.has_arg("ssl"), certificate) {
                (false, _) => None,
                (true, TlsCertificate { chain: Some(certificate), key: Some(key), .. }) => Some(Tls {
                    certificate: certificate.clone(),
                    key: key.clone(),
                    client_ca: clients.clone(),
                }),
                (true, _) => {
                    self.record_loss(directive, "the listener has no certificate; add `ssl_certificate` and `ssl_certificate_key`, and import again");
                    continue;
                }
            };
            let is_default = directive.has_arg("default_server") || directive.has_arg("default");
            let scheme = if tls.is_some() { "https" } else { "http" };
            self.add_listener(server, ListenerSpec { name: None, address, tls }, certificate);
            found.push(ListenAddress { address, is_default, scheme });
        }
        found
    }

    fn add_listener(&mut self, server: &Directive, listener: ListenerSpec, certificate: &TlsCertificate) {
        let address = listener.address;
        let Some(known) = self.policy.listen.iter_mut().find(|known| known.address == address) else {
            return self.policy.listen.push(listener);
        };
        match (&known.tls, listener.tls) {
            // `ssl` of one server applies to the address.
            (None, Some(tls)) => known.tls = Some(tls),
            (Some(known), Some(tls)) if *known != tls => {
                let is_weaker = known.client_ca != tls.client_ca;
                let reason = format!("{address} uses one certificate: that of its first server");
                self.record_loss(server, reason);
                if is_weaker {
                    let verify = certificate.verify.clone().unwrap_or_else(|| server.clone());
                    let reason = format!(
                        "servers at {address} verify client certificates differently; the settings of the first one apply"
                    );
                    self.record_protection_loss(&verify, reason);
                }
            }
            _ => {}
        }
    }

    /// Removes `127.0.0.1:80` if there is `0.0.0.0:80`, because a process cannot listen on both.
    pub(super) fn drop_covered(&mut self, servers: &mut [ServerBlock]) {
        let all: Vec<SocketAddr> = self.policy.listen.iter().map(|listener| listener.address).collect();
        let is_covered = |address: &SocketAddr| {
            let is_wider = |other: &SocketAddr| {
                other.ip().is_unspecified()
                    && other.port() == address.port()
                    && other.is_ipv4() == address.is_ipv4()
            };
            !address.ip().is_unspecified() && all.iter().any(is_wider)
        };
        self.policy.listen.retain(|listener| !is_covered(&listener.address));
        for server in servers {
            let before = server.listeners.len();
            server.listeners.retain(|listen| !is_covered(&listen.address));
            if server.listeners.len() < before {
                let head = server.directive.clone();
                self.record_loss(
                    &head,
                    "another server listens on all addresses at this port and receives these requests",
                );
            }
        }
    }

    /// Returns a path relative to the folder of the first file.
    pub(super) fn certificate_path(&self, directive: &Directive) -> Option<PathBuf> {
        directive.arg(0).filter(|name| is_file_name(name)).map(|name| self.folder.join(name))
    }
}

/// Whether a file name has no variable, no scheme and no control characters.
fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains("://") && !name.contains(|c: char| c.is_control() || c == '$')
}

/// `80`, `127.0.0.1:80`, `[::]:80`, `*:80`, `localhost:80`, `127.0.0.1`
fn parse_address(text: &str) -> Option<SocketAddr> {
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
