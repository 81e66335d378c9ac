//! What keeps a policy from being served, found before anything is bound. `tidegate check` and a gateway that starts ask the same.

use super::listeners::declared_listeners;
use crate::{Config, metrics::MetricsExporter, traces::Tracer, upstream::UpstreamServerConfig};
use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    path::Path,
};
use tidegate_http_server::{ALPN_HTTP1, Certificate, Roots, Secret, StartupError};
use tidegate_policy::{
    Diagnostic, Policy,
    compile::{PolicyError, check_with_stores},
    model::{EnvVariable, Tls, Upstream, UpstreamServer},
};
use tokio_rustls::rustls::pki_types::ServerName;

/// What keeps a policy from being served, and what does not and is likely a mistake.
#[derive(Clone, Debug, Default)]
pub struct Preflight {
    /// What a gateway refuses.
    pub errors: Vec<Diagnostic>,
    /// What it serves all the same.
    pub warnings: Vec<Diagnostic>,
}

impl Preflight {
    /// Looks at what a policy needs: files, variables of the environment, addresses. `connects` says whether an address of a
    /// store can be one. Nothing is bound, and no store and no server is asked.
    pub fn check(policy: &Policy, connects: &dyn Fn(&str) -> Result<(), String>) -> Self {
        let mut found = Self::default();
        found.check_listeners(policy);
        found.check_tokens(policy);
        found.check_upstreams(policy);
        found.check_exporters(policy);
        if let Err(error) = check_with_stores(policy, connects) {
            found.errors.extend(error.diagnostics(policy));
        }
        found.check_purpose(policy);
        found
    }

    /// Looks up the names of servers, which a gateway refuses to start without. They may be known elsewhere only.
    #[must_use]
    pub fn resolve_names(mut self, policy: &Policy) -> Self {
        for (at, upstream, server) in upstream_servers(policy) {
            let Ok(plan) = UpstreamServerConfig::parse(server, upstream) else { continue };
            if plan.address().is_none() && (plan.host.as_str(), plan.port).to_socket_addrs().is_err() {
                let problem = format!("`{}` does not resolve on this machine", plan.host);
                let fix = "correct the name; a gateway does not start where it does not resolve";
                self.warnings.push(Diagnostic::new(at, problem, fix));
            }
        }
        self
    }

    /// The errors, as those of a policy that comes from no file.
    pub(super) fn into_error(self) -> Option<PolicyError> {
        (!self.errors.is_empty()).then(|| PolicyError::from_diagnostics(self.errors))
    }

    fn check_listeners(&mut self, policy: &Policy) {
        let mut known: Vec<(String, SocketAddr)> = Vec::new();
        let mut all = Vec::new();
        for (place, listener) in declared_listeners(policy).iter().enumerate() {
            let at = vec!["listen".to_owned(), place.to_string()];
            all.push((at.clone(), "listen", listener.address));
            if let Some(tls) = &listener.tls {
                self.check_certificate(&at, tls);
            }
        }
        if let Some(address) = policy.admin.listen {
            all.push((key_path(["admin", "listen"]), "admin", address));
        }
        if let Some(decisions) = &policy.decisions {
            all.push((key_path(["decisions", "listen"]), "decisions", decisions.listen));
            if let Some(tls) = &decisions.tls {
                self.check_certificate(&key_path(["decisions"]), tls);
            }
        }
        for (at, key, address) in all {
            if let Some((other, taken)) = known.iter().find(|(_, taken)| has_overlap(*taken, address)) {
                let problem = format!("`{address}` is taken: `{other}` listens on {taken}");
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
            file if Some(file) == files.client_ca.as_deref() => "clients",
            _ => "certificate",
        };
        let at = at.iter().cloned().chain(key_path(["tls", key]));
        self.errors.push(Diagnostic::new(at, fault.to_string(), "name a file in PEM that can be read"));
    }

    fn check_tokens(&mut self, policy: &Policy) {
        let mut check = |at: Vec<String>, variable: &EnvVariable| {
            if let Err(fault) = Secret::from_env(variable) {
                self.errors.push(Diagnostic::new(at, fault.to_string(), "set it, or leave the token out"));
            }
        };
        if let Some(token) = &policy.admin.token {
            check(key_path(["admin", "token"]), token);
        }
        for (place, token) in policy.decisions.iter().flat_map(|decisions| &decisions.tokens).enumerate() {
            check(key_path(["decisions", "tokens", &place.to_string(), "token"]), &token.token);
        }
    }

    fn check_upstreams(&mut self, policy: &Policy) {
        let listeners = declared_listeners(policy);
        for (at, upstream, server) in upstream_servers(policy) {
            let plan = match UpstreamServerConfig::parse(server, upstream) {
                Ok(plan) => plan,
                Err(reason) => {
                    self.errors.push(Diagnostic::new(at, reason, "write it as `http://host:port`"));
                    continue;
                }
            };
            if server.url.starts_with("https:") {
                let is_name = ServerName::try_from(plan.host.clone()).is_ok();
                if !is_name {
                    let problem = format!("`{}` is not a name that a certificate can have", plan.host);
                    self.errors.push(Diagnostic::new(at.clone(), problem, "write it as `https://host:port`"));
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
            let address = plan.address().or_else(|| match plan.host.as_str() {
                "localhost" => Some(([127, 0, 0, 1], plan.port).into()),
                _ => None,
            });
            if let Some(address) = address.filter(|address| is_here(*address)) {
                let problem = format!("{address} is this gateway itself: requests would go round for ever");
                self.warnings.push(Diagnostic::new(
                    at,
                    problem,
                    "name the server behind it, or listen on another port",
                ));
            }
        }
    }

    fn check_exporters(&mut self, policy: &Policy) {
        if let Some(file) = &policy.log.file {
            let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty());
            let reason = match folder {
                _ if file.is_dir() => Some("it is a folder".to_owned()),
                Some(folder) if !folder.is_dir() => Some(format!("there is no folder {}", folder.display())),
                _ => None,
            };
            if let Some(reason) = reason {
                let problem = format!("cannot write the log to {}: {reason}", file.display());
                let fix = "name a file in a folder that exists";
                self.errors.push(Diagnostic::new(["log", "file"], problem, fix));
            }
        }
        let config = Config::from_policy(policy);
        let traces = config.traces.as_ref().map(|traces| Tracer::check(traces, &config.roots));
        let metrics = policy.metrics.as_ref().map(MetricsExporter::check);
        for (key, checked) in [("traces", traces), ("metrics", metrics)] {
            if let Some(Err(fault)) = checked {
                let at = [key, "endpoint"];
                self.errors.push(Diagnostic::new(at, fault.to_string(), "write it as `http://host:port`"));
            }
        }
    }

    /// A policy that limits or forwards nothing.
    fn check_purpose(&mut self, policy: &Policy) {
        let nothing: [&str; 0] = [];
        if *policy == Policy::default() {
            let problem = "the policy is empty: nothing is limited, and every request is answered with 404";
            self.warnings.push(Diagnostic::new(nothing, problem, "add `upstreams`, `routes` and `rules`"));
        } else if policy.routes.is_empty() && policy.decisions.is_none() {
            let (at, problem) = match policy.upstreams.is_empty() {
                true => ("rules", "no route: a gateway answers every request with 404"),
                false => ("upstreams", "no route to any upstream: a gateway answers every request with 404"),
            };
            let fix = "add `upstreams` and `routes`; `replay` and a service of your own need neither";
            self.warnings.push(Diagnostic::new([at], problem, fix));
        }
    }
}

fn key_path<const N: usize>(keys: [&str; N]) -> Vec<String> {
    keys.map(str::to_owned).to_vec()
}

/// All servers of upstreams, each with its place.
fn upstream_servers(policy: &Policy) -> impl Iterator<Item = (Vec<String>, &Upstream, &UpstreamServer)> {
    policy.upstreams.iter().flat_map(|(name, upstream)| {
        let place = move |place: usize| key_path(["upstreams", name, "servers", &place.to_string(), "url"]);
        upstream.servers.iter().enumerate().map(move |(at, server)| (place(at), upstream, server))
    })
}

/// Whether one listener keeps the other from being bound. A port 0 becomes a free one.
fn has_overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || is_any)
}

/// Whether this address of a server is that of the listener: one that listens everywhere does so on loopback, and what else the
/// machine is called is not known.
fn is_own_address(listener: SocketAddr, server: SocketAddr) -> bool {
    listener.ip() == server.ip() || server.ip().is_loopback() || server.ip().is_unspecified()
}
