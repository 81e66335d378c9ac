//! What keeps a policy from being served, found before anything is bound. `tidegate check` and a gateway that starts ask the same.

use super::listeners::declared;
use crate::{Config, metrics::Sending, traces::Tracer, upstream::ServerPlan};
use std::{
    net::{SocketAddr, ToSocketAddrs as _},
    path::Path,
};
use tidegate_http_server::{Certificate, Fault, HTTP1, Roots, Secret};
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
    pub fn of(policy: &Policy, connects: &dyn Fn(&str) -> Result<(), String>) -> Self {
        let mut found = Self::default();
        found.listeners(policy);
        found.tokens(policy);
        found.upstreams(policy);
        found.outputs(policy);
        if let Err(error) = check_with_stores(policy, connects) {
            found.errors.extend(error.diagnostics(policy));
        }
        found.purpose(policy);
        found
    }

    /// Looks up the names of servers, which a gateway refuses to start without. They may be known elsewhere only.
    #[must_use]
    pub fn resolved(mut self, policy: &Policy) -> Self {
        for (at, upstream, server) in servers(policy) {
            let Ok(plan) = ServerPlan::of(server, upstream) else { continue };
            if plan.address().is_none() && (plan.host.as_str(), plan.port).to_socket_addrs().is_err() {
                let problem = format!("`{}` does not resolve on this machine", plan.host);
                let fix = "correct the name; a gateway does not start where it does not resolve";
                self.warnings.push(Diagnostic::new(at, problem, fix));
            }
        }
        self
    }

    /// The errors, as those of a policy that comes from no file.
    pub(super) fn error(self) -> Option<PolicyError> {
        (!self.errors.is_empty()).then(|| PolicyError::from_diagnostics(self.errors))
    }

    fn listeners(&mut self, policy: &Policy) {
        let mut known: Vec<(String, SocketAddr)> = Vec::new();
        let mut all = Vec::new();
        for (place, listener) in declared(policy).iter().enumerate() {
            let at = vec!["listen".to_owned(), place.to_string()];
            all.push((at.clone(), "listen", listener.address));
            if let Some(tls) = &listener.tls {
                self.certificate(&at, tls);
            }
        }
        if let Some(address) = policy.admin.listen {
            all.push((keys(["admin", "listen"]), "admin", address));
        }
        if let Some(decisions) = &policy.decisions {
            all.push((keys(["decisions", "listen"]), "decisions", decisions.listen));
            if let Some(tls) = &decisions.tls {
                self.certificate(&keys(["decisions"]), tls);
            }
        }
        for (at, key, address) in all {
            if let Some((other, taken)) = known.iter().find(|(_, taken)| overlap(*taken, address)) {
                let problem = format!("`{address}` is taken: `{other}` listens on {taken}");
                self.errors.push(Diagnostic::new(at, problem, "listen on another port"));
            } else {
                known.push((key.to_owned(), address));
            }
        }
    }

    fn certificate(&mut self, at: &[String], files: &Tls) {
        let Err(fault) = Certificate::load(files) else { return };
        let file = match &fault {
            Fault::Certificate { file, .. } => file.as_path(),
            _ => Path::new(""),
        };
        let key = match file {
            file if file == files.key => "key",
            file if Some(file) == files.client_ca.as_deref() => "clients",
            _ => "certificate",
        };
        let at = at.iter().cloned().chain(keys(["tls", key]));
        self.errors.push(Diagnostic::new(at, fault.to_string(), "name a file in PEM that can be read"));
    }

    fn tokens(&mut self, policy: &Policy) {
        let mut check = |at: Vec<String>, variable: &EnvVariable| {
            if let Err(fault) = Secret::read(variable) {
                self.errors.push(Diagnostic::new(at, fault.to_string(), "set it, or leave the token out"));
            }
        };
        if let Some(token) = &policy.admin.token {
            check(keys(["admin", "token"]), token);
        }
        for (place, token) in policy.decisions.iter().flat_map(|decisions| &decisions.tokens).enumerate() {
            check(keys(["decisions", "tokens", &place.to_string(), "token"]), &token.token);
        }
    }

    fn upstreams(&mut self, policy: &Policy) {
        let listeners = declared(policy);
        for (at, upstream, server) in servers(policy) {
            let plan = match ServerPlan::of(server, upstream) {
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
                if let Err(fault) = Roots::default().connector(HTTP1) {
                    self.errors.push(Diagnostic::new(
                        at.clone(),
                        fault.to_string(),
                        "install CA certificates",
                    ));
                }
            }
            let is_here = |address: SocketAddr| {
                listeners
                    .iter()
                    .any(|listener| overlap(listener.address, address) && is_own(listener.address, address))
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

    fn outputs(&mut self, policy: &Policy) {
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
        let config = Config::of(policy);
        let traces = config.traces.as_ref().map(|traces| Tracer::check(traces, &config.roots));
        let metrics = policy.metrics.as_ref().map(Sending::check);
        for (key, checked) in [("traces", traces), ("metrics", metrics)] {
            if let Some(Err(fault)) = checked {
                let at = [key, "endpoint"];
                self.errors.push(Diagnostic::new(at, fault.to_string(), "write it as `http://host:port`"));
            }
        }
    }

    /// A policy that limits or forwards nothing.
    fn purpose(&mut self, policy: &Policy) {
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

fn keys<const N: usize>(keys: [&str; N]) -> Vec<String> {
    keys.map(str::to_owned).to_vec()
}

/// All servers of upstreams, each with its place.
fn servers(policy: &Policy) -> impl Iterator<Item = (Vec<String>, &Upstream, &UpstreamServer)> {
    policy.upstreams.iter().flat_map(|(name, upstream)| {
        let place = move |place: usize| keys(["upstreams", name, "servers", &place.to_string(), "url"]);
        upstream.servers.iter().enumerate().map(move |(at, server)| (place(at), upstream, server))
    })
}

/// Whether one listener keeps the other from being bound. A port 0 becomes a free one.
fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let is_any = one.ip().is_unspecified() || other.ip().is_unspecified();
    one.port() == other.port()
        && one.port() != 0
        && one.is_ipv4() == other.is_ipv4()
        && (one.ip() == other.ip() || is_any)
}

/// Whether this address of a server is that of the listener: one that listens everywhere does so on loopback, and what else the
/// machine is called is not known.
fn is_own(listener: SocketAddr, server: SocketAddr) -> bool {
    listener.ip() == server.ip() || server.ip().is_loopback() || server.ip().is_unspecified()
}
