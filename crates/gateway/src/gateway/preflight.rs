//! Checks of a policy before anything is bound, for `tidegate check` and for the start of a gateway.

use super::listeners::declared_listeners;
use crate::{
    Config, key_set_fetcher::KeySetFetcher, metrics::MetricsExporter, traces::Tracer,
    upstream::UpstreamServerConfig,
};
use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    path::Path,
};
use tidegate_http_server::{ALPN_HTTP1, Certificate, Roots, Secret, StartupError};
use tidegate_policy::{
    Diagnostic, Policy,
    compile::{PolicyError, check_with_stores},
    model::{DecisionListener, EnvVariable, Tls, Upstream, UpstreamServer},
};
use tokio_rustls::rustls::pki_types::ServerName;

/// The errors and warnings of a policy that is about to be served.
#[derive(Clone, Debug, Default)]
pub struct Preflight {
    /// Problems that prevent a gateway from starting.
    pub errors: Vec<Diagnostic>,
    /// Likely mistakes that do not.
    pub warnings: Vec<Diagnostic>,
}

impl Preflight {
    /// Checks the files, environment variables and addresses of a policy. `connects` checks the address of a store. It binds
    /// nothing, and connects to no store or server.
    pub fn check(policy: &Policy, connects: &dyn Fn(&str) -> Result<(), String>) -> Self {
        let mut found = Self::default();
        found.check_listeners(policy);
        found.check_tokens(policy);
        found.check_upstreams(policy);
        found.check_exporters(policy);
        if let Err(fault) = KeySetFetcher::check(policy) {
            let fix = "use the form `https://host/path`";
            found.errors.push(Diagnostic::new(key_path(["identity", "jwt", "keys"]), fault.to_string(), fix));
        }
        if let Err(error) = check_with_stores(policy, connects) {
            found.errors.extend(error.diagnostics(policy));
        }
        found.check_purpose(policy);
        found
    }

    /// Also resolves the host names of servers, as a gateway does at its start. They may resolve only on another machine.
    #[must_use]
    pub fn resolve_names(mut self, policy: &Policy) -> Self {
        for (at, upstream, server) in upstream_servers(policy) {
            let Ok(server_config) = UpstreamServerConfig::parse(server, upstream) else { continue };
            if server_config.address().is_none()
                && (server_config.host.as_str(), server_config.port).to_socket_addrs().is_err()
            {
                let problem = format!("cannot resolve `{}` on this machine", server_config.host);
                let fix = "correct the name; a gateway does not start if it cannot resolve it";
                self.warnings.push(Diagnostic::new(at, problem, fix));
            }
        }
        self
    }

    /// The errors, in the form of a policy without a file.
    pub(super) fn into_error(self) -> Option<PolicyError> {
        (!self.errors.is_empty()).then(|| PolicyError::from_diagnostics(self.errors))
    }

    fn check_listeners(&mut self, policy: &Policy) {
        let mut known: Vec<(String, SocketAddr)> = Vec::new();
        let mut all = Vec::new();
        for (index, listener) in declared_listeners(policy).iter().enumerate() {
            let at = vec!["listen".to_owned(), index.to_string()];
            all.push((at.clone(), "listen", listener.address));
            if let Some(tls) = &listener.tls {
                self.check_certificate(&at, tls);
            }
        }
        if let Some(address) = policy.admin.listen {
            all.push((key_path(["admin", "listen"]), "admin", address));
        }
        for (key, listener) in decision_listeners(policy) {
            all.push((key_path([key, "listen"]), key, listener.listen));
            if let Some(tls) = &listener.tls {
                self.check_certificate(&key_path([key]), tls);
            }
        }
        for (at, key, address) in all {
            if let Some((other, taken)) = known.iter().find(|(_, taken)| has_overlap(*taken, address)) {
                let problem = format!("`{address}` is in use: `{other}` listens on {taken}");
                self.errors.push(Diagnostic::new(at, problem, "listen on another port"));
            } else {
                known.push((key.to_owned(), address));
            }
        }
    }

    fn check_certificate(&mut self, at: &[String], files: &Tls) {
        let Err(fault) = Certificate::load(files) else { return };
        let file = match &fault {
            StartupError::Certificate { file, .. } => file.as_path(),
            _ => Path::new(""),
        };
        let key = match file {
            file if file == files.key => "key",
            file if Some(file) == files.client_ca.as_deref() => "client-ca",
            _ => "certificate",
        };
        let at = at.iter().cloned().chain(key_path(["tls", key]));
        self.errors.push(Diagnostic::new(at, fault.to_string(), "use a readable PEM file"));
    }

    fn check_tokens(&mut self, policy: &Policy) {
        let mut check = |at: Vec<String>, variable: &EnvVariable| {
            if let Err(fault) = Secret::from_env(variable) {
                self.errors.push(Diagnostic::new(at, fault.to_string(), "set it, or remove the token"));
            }
        };
        if let Some(token) = &policy.admin.token {
            check(key_path(["admin", "token"]), token);
        }
        for (index, token) in policy.admin.tokens.iter().enumerate() {
            check(key_path(["admin", "tokens", &index.to_string(), "token"]), &token.token);
        }
        for (key, listener) in decision_listeners(policy) {
            for (index, token) in listener.tokens.iter().enumerate() {
                check(key_path([key, "tokens", &index.to_string(), "token"]), &token.token);
            }
        }
    }

    fn check_upstreams(&mut self, policy: &Policy) {
        let listeners = declared_listeners(policy);
        for (at, upstream, server) in upstream_servers(policy) {
            let server_config = match UpstreamServerConfig::parse(server, upstream) {
                Ok(server_config) => server_config,
                Err(reason) => {
                    self.errors.push(Diagnostic::new(at, reason, "use the form `http://host:port`"));
                    continue;
                }
            };
            if server.url.starts_with("https:") {
                let is_name = ServerName::try_from(server_config.host.clone()).is_ok();
                if !is_name {
                    let problem = format!("`{}` is not a valid name for a certificate", server_config.host);
                    self.errors.push(Diagnostic::new(
                        at.clone(),
                        problem,
                        "use the form `https://host:port`",
                    ));
                }
                if let Err(fault) = Roots::default().connector(ALPN_HTTP1) {
                    self.errors.push(Diagnostic::new(
                        at.clone(),
                        fault.to_string(),
                        "install CA certificates",
                    ));
                }
            }
            let is_here = |address: SocketAddr| {
                listeners.iter().any(|listener| {
                    has_overlap(listener.address, address) && is_own_address(listener.address, address)
                })
            };
            let address = server_config.address().or_else(|| match server_config.host.as_str() {
                "localhost" => Some(([127, 0, 0, 1], server_config.port).into()),
                _ => None,
            });
            if let Some(address) = address.filter(|address| is_here(*address)) {
                let problem = format!("{address} is this gateway: requests would loop");
                self.warnings.push(Diagnostic::new(
                    at,
                    problem,
                    "use the address of a server, or listen on another port",
                ));
            }
        }
    }

    fn check_exporters(&mut self, policy: &Policy) {
        if let Some(file) = &policy.log.file {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            let reason = match folder {
                _ if file.is_dir() => Some("it is a directory".to_owned()),
                Some(folder) if !folder.is_dir() => Some(format!("no such directory: {}", folder.display())),
                _ => None,
            };
            if let Some(reason) = reason {
                let problem = format!("cannot write the log to {}: {reason}", file.display());
                let fix = "use a file in an existing directory";
                self.errors.push(Diagnostic::new(["log", "file"], problem, fix));
            }
        }
        let config = Config::from_policy(policy);
        let traces = config.traces.as_ref().map(|traces| Tracer::check(traces, &config.roots));
        let metrics = policy.metrics.as_ref().map(MetricsExporter::check);
        for (key, checked) in [("traces", traces), ("metrics", metrics)] {
            if let Some(Err(fault)) = checked {
                let at = [key, "endpoint"];
                self.errors.push(Diagnostic::new(at, fault.to_string(), "use the form `http://host:port`"));
            }
        }
    }

    /// Warns of a policy that limits or forwards nothing.
    fn check_purpose(&mut self, policy: &Policy) {
        let nothing: [&str; 0] = [];
        if *policy == Policy::default() {
            let problem = "the policy is empty: it limits nothing, and every request gets a 404";
            self.warnings.push(Diagnostic::new(nothing, problem, "add `upstreams`, `routes` and `rules`"));
        } else if policy.routes.is_empty() && decision_listeners(policy).next().is_none() {
            let (at, problem) = match policy.upstreams.is_empty() {
                true => ("rules", "no route: every request gets a 404"),
                false => ("upstreams", "no route to any upstream: every request gets a 404"),
            };
            let fix = "add `upstreams` and `routes`; `tidegate replay` and your own service do not need them";
            self.warnings.push(Diagnostic::new([at], problem, fix));
        }
    }
}

/// The listeners for decisions, each with its key.
fn decision_listeners(policy: &Policy) -> impl Iterator<Item = (&'static str, &DecisionListener)> {
    let listeners = [("decisions", &policy.decisions), ("envoy", &policy.envoy)];
    listeners.into_iter().filter_map(|(key, listener)| Some((key, listener.as_ref()?)))
}

fn key_path<const N: usize>(keys: [&str; N]) -> Vec<String> {
    keys.map(str::to_owned).to_vec()
}

/// All servers of upstreams, each with its path in the policy.
fn upstream_servers(policy: &Policy) -> impl Iterator<Item = (Vec<String>, &Upstream, &UpstreamServer)> {
    policy.upstreams.iter().flat_map(|(name, upstream)| {
        let path = move |index: usize| key_path(["upstreams", name, "servers", &index.to_string(), "url"]);
        upstream.servers.iter().enumerate().map(move |(index, server)| (path(index), upstream, server))
    })
}

/// Whether two listeners conflict. Port 0 becomes a free port, so it never conflicts.
fn has_overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || is_any)
}

/// Whether this server address is that of the listener. A listener on all addresses includes loopback; other names of the
/// machine are unknown.
fn is_own_address(listener: SocketAddr, server: SocketAddr) -> bool {
    listener.ip() == server.ip() || server.ip().is_loopback() || server.ip().is_unspecified()
}
