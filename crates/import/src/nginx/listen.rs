//! `listen`, and the certificates of those who speak TLS.

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
    /// The authorities that clients need a certificate of; an error where that cannot be carried over.
    fn required_client_ca(&self) -> Result<Option<PathBuf>, &'static str> {
        match (self.verify.as_ref().and_then(|verify| verify.arg(0)), &self.client_ca) {
            (None | Some("off"), _) => Ok(None),
            (Some("on"), Some(clients)) => Ok(Some(clients.clone())),
            (Some("on"), None) => {
                Err("there is no `ssl_client_certificate` for it; write one, and import again")
            }
            _ => Err(
                "clients need a certificate or none; write `ssl_verify_client on`, or let the server behind check",
            ),
        }
    }
}

impl Importer<'_> {
    /// Takes in where a server listens.
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
                self.record_loss(directive, "a gateway listens on addresses and ports; write one of those");
                continue;
            };
            // It is another port than the same one of TCP, which is often said beside it.
            if directive.has_arg("quic") {
                self.record_loss(directive, "`quic` is not spoken; only what comes by TCP is carried over");
                continue;
            }
            if directive.has_arg("proxy_protocol") {
                self.record_loss(
                    directive,
                    "`proxy_protocol` is not spoken; the address is carried over without it",
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
                    self.record_loss(directive, "there is no certificate for it; write `ssl_certificate` and `ssl_certificate_key`, and import again");
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
            // One server that says `ssl` says it for the address.
            (None, Some(tls)) => known.tls = Some(tls),
            (Some(known), Some(tls)) if *known != tls => {
                let is_weaker = known.client_ca != tls.client_ca;
                let reason = format!("{address} has one certificate, that of its first server");
                self.record_loss(server, reason);
                if is_weaker {
                    let verify = certificate.verify.clone().unwrap_or_else(|| server.clone());
                    let reason = format!(
                        "servers at {address} ask clients for different certificates; all get what the first one says"
                    );
                    self.record_protection_loss(&verify, reason);
                }
            }
            _ => {}
        }
    }

    /// Both `0.0.0.0:80` and `127.0.0.1:80` cannot be listened on: the address that is more is kept.
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
                self.record_loss(&head, "an address at which another server listens on all addresses of the machine; requests to it are those of that one");
            }
        }
    }

    /// The path of a file, from the folder of the first one.
    pub(super) fn certificate_path(&self, directive: &Directive) -> Option<PathBuf> {
        directive.arg(0).filter(|name| is_file_name(name)).map(|name| self.folder.join(name))
    }
}

/// Names that nobody has to escape.
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
