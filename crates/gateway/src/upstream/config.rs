//! What is known of an upstream before there is a worker.

use super::{ServerHealth, UpstreamTimeouts};
use crate::worker::as_millis;
use http::{HeaderValue, Uri, uri::Authority};
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tidegate_core::SettingError;
use tidegate_http_server::{ALPN_HTTP1, ALPN_HTTP2, Roots, StartupError};
use tidegate_overload::BreakerSettings;
use tidegate_policy::model::{
    Balance, BreakerSpec, HealthCheck, Protocol, Retries, Upstream, UpstreamServer,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// An upstream, read and checked.
pub(crate) struct UpstreamConfig {
    pub(crate) servers: Vec<UpstreamServerConfig>,
    pub(crate) balance: Balance,
    pub(crate) protocol: Protocol,
    pub(crate) timeouts: UpstreamTimeouts,
    pub(crate) max_idle_connections: usize,
    pub(crate) retries: Retries,
    pub(crate) health_check: Option<HealthCheck>,
}

/// A server, read and checked.
#[derive(Clone)]
pub(crate) struct UpstreamServerConfig {
    /// A name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authority: Authority,
    pub(crate) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(crate) weight: u64,
    /// What all workers know of it.
    pub(crate) health: Arc<ServerHealth>,
}

impl UpstreamConfig {
    pub(crate) async fn resolve(
        name: &str,
        upstream: &Upstream,
        roots: &Roots,
    ) -> Result<Self, StartupError> {
        let mut servers = Vec::new();
        for server in &upstream.servers {
            let fault = |reason: String| StartupError::Upstream {
                upstream: name.to_owned(),
                url: server.url.clone(),
                reason,
            };
            let mut plan = UpstreamServerConfig::parse(server, upstream).map_err(fault)?;
            plan.resolve().await.map_err(fault)?;
            if server.url.starts_with("https:") {
                let protocol = match upstream.protocol {
                    Protocol::Http1 => ALPN_HTTP1,
                    Protocol::Http2 => ALPN_HTTP2,
                };
                let known_as = ServerName::try_from(plan.host.clone());
                let known_as = known_as.map_err(|error| fault(format!("its name is none: {error}")))?;
                plan.tls = Some((roots.connector(protocol)?, known_as));
            }
            servers.push(plan);
        }
        Ok(Self {
            servers,
            balance: upstream.balance,
            protocol: upstream.protocol,
            timeouts: UpstreamTimeouts {
                connect: upstream.timeouts.connect,
                response: as_millis(upstream.timeouts.response),
                idle: as_millis(upstream.timeouts.idle),
            },
            max_idle_connections: usize::try_from(upstream.keep_alive).unwrap_or(usize::MAX),
            retries: upstream.retries.clone(),
            health_check: upstream.health.clone(),
        })
    }
}

/// How long a name may take to be found when the gateway starts.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

impl UpstreamServerConfig {
    pub(crate) fn parse(server: &UpstreamServer, upstream: &Upstream) -> Result<Self, String> {
        let uri: Uri = server.url.parse().map_err(|_| "write it as `http://host:port`".to_owned())?;
        let port = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err("its scheme has to be http or https: write `http://host:port`".to_owned()),
        };
        let authority = uri.authority().ok_or("it names no host: write `http://host:port`")?;
        if authority.as_str().contains('@') {
            return Err("it may not have a name and a password".to_owned());
        }
        if uri.query().is_some() || uri.path() != "/" {
            return Err("it may not have a path: requests are forwarded with their own".to_owned());
        }
        let settings =
            upstream.breaker.as_ref().map(breaker_settings).transpose().map_err(|error| error.to_string())?;
        Ok(Self {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(port),
            authority: authority.clone(),
            tls: None,
            weight: server.weight.max(1),
            health: Arc::new(ServerHealth::new(
                settings,
                upstream.max_fails,
                as_millis(upstream.fail_timeout),
            )),
        })
    }

    /// Finds its addresses, so that a wrong name is known before anybody asks for it.
    async fn resolve(&self) -> Result<(), String> {
        if self.address().is_some() {
            return Ok(());
        }
        let found = tokio::net::lookup_host((self.host.as_str(), self.port));
        match tokio::time::timeout(LOOKUP_TIMEOUT, found).await {
            Ok(Ok(addresses)) => match addresses.count() {
                0 => Err("its name has no address".to_owned()),
                _ => Ok(()),
            },
            Ok(Err(error)) => Err(format!("its name does not resolve: {error}")),
            _ => Err("its name does not resolve".to_owned()),
        }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.host.parse::<IpAddr>().ok().map(|address| (address, self.port).into())
    }

    pub(crate) fn host_header(&self) -> HeaderValue {
        HeaderValue::from_str(self.authority.as_str()).unwrap_or(HeaderValue::from_static("localhost"))
    }
}

fn breaker_settings(terms: &BreakerSpec) -> Result<BreakerSettings, SettingError> {
    let few = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
    let mut settings = BreakerSettings::builder();
    if let Some(rate) = terms.failure_rate {
        settings = settings.failure_rate(rate);
    }
    if let (Some(rate), Some(slow)) = (terms.slow_call_rate, terms.slow_call_duration) {
        settings = settings.slow_calls(rate, slow);
    }
    if let Some(calls) = terms.window_size {
        settings = settings.count_window(few(calls));
    }
    if let Some(calls) = terms.min_calls {
        settings = settings.min_calls(calls);
    }
    if let Some(time) = terms.open_duration {
        settings = settings.open_for(time);
    }
    if let Some(probes) = terms.half_open_calls {
        settings = settings.probes(few(probes));
    }
    settings.build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_server(url: &str) -> Result<UpstreamServerConfig, String> {
        let server = UpstreamServer { url: url.to_owned(), weight: 1 };
        UpstreamServerConfig::parse(&server, &Upstream::new(vec![server.clone()]))
    }

    #[test]
    fn server_url_is_scheme_host_and_port() {
        for (url, host, port) in [
            ("http://127.0.0.1:9000", "127.0.0.1", 9000),
            ("http://app.internal", "app.internal", 80),
            ("https://app.internal", "app.internal", 443),
            ("http://[::1]:9000/", "::1", 9000),
        ] {
            let plan = parse_server(url).unwrap();
            assert_eq!((plan.host.as_str(), plan.port), (host, port));
        }
        for (url, part) in [
            ("127.0.0.1:9000", "http://host:port"),
            ("ftp://a", "its scheme has to be http or https"),
            ("http://a/b", "may not have a path"),
            ("http://me:pw@a", "a name and a password"),
        ] {
            let error = parse_server(url).err().unwrap();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
