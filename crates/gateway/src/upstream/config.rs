//! The configuration of an upstream, shared by all workers.

use super::{ServerHealth, UpstreamTimeouts, echo::EchoServer};
use crate::worker::as_millis;
use http::{Uri, uri::Authority};
use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tidegate_http_server::{ALPN_HTTP1, ALPN_HTTP2, Roots, StartupError};
use tidegate_policy::{
    compile::breaker_settings,
    model::{Balance, HealthCheck, Protocol, Retries, Upstream, UpstreamServer},
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// A parsed and resolved upstream.
pub(crate) struct UpstreamConfig {
    pub(crate) servers: Vec<UpstreamServerConfig>,
    pub(crate) balance: Balance,
    pub(crate) protocol: Protocol,
    pub(crate) timeouts: UpstreamTimeouts,
    pub(crate) max_idle_connections: usize,
    pub(crate) retries: Retries,
    pub(crate) health_check: Option<HealthCheck>,
}

/// A parsed server of an upstream.
#[derive(Clone)]
pub(crate) struct UpstreamServerConfig {
    /// A host name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) authority: Authority,
    pub(crate) tls: Option<(TlsConnector, ServerName<'static>)>,
    pub(crate) weight: u64,
    /// The health, shared by all workers.
    pub(crate) health: Arc<ServerHealth>,
    /// The built-in server, which runs as long as a worker uses it.
    echo: Option<Arc<EchoServer>>,
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
            let mut server_config = UpstreamServerConfig::parse(server, upstream).map_err(fault)?;
            match server.url == UpstreamServer::ECHO {
                true => server_config.start_echo()?,
                false => server_config.resolve().await.map_err(fault)?,
            }
            if server.url.starts_with("https:") {
                let protocol = match upstream.protocol {
                    Protocol::Http1 => ALPN_HTTP1,
                    Protocol::Http2 => ALPN_HTTP2,
                };
                let server_name = ServerName::try_from(server_config.host.clone());
                let server_name =
                    server_name.map_err(|error| fault(format!("invalid host name: {error}")))?;
                server_config.tls = Some((roots.connector(protocol)?, server_name));
            }
            servers.push(server_config);
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

/// The timeout of a DNS lookup at startup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

impl UpstreamServerConfig {
    pub(crate) fn parse(server: &UpstreamServer, upstream: &Upstream) -> Result<Self, String> {
        let settings =
            upstream.breaker.as_ref().map(breaker_settings).transpose().map_err(|error| error.to_string())?;
        let health =
            Arc::new(ServerHealth::new(settings, upstream.max_fails, as_millis(upstream.fail_timeout)));
        if server.url == UpstreamServer::ECHO {
            return Ok(Self {
                host: Ipv4Addr::LOCALHOST.to_string(),
                port: 0,
                authority: Authority::from_static(UpstreamServer::ECHO),
                tls: None,
                weight: server.weight.max(1),
                health,
                echo: None,
            });
        }
        let uri: Uri = server.url.parse().map_err(|_| "invalid URL: use `http://host:port`".to_owned())?;
        let port = match uri.scheme_str() {
            Some("http") => 80,
            Some("https") => 443,
            _ => return Err("scheme must be http or https: use `http://host:port`".to_owned()),
        };
        let authority = uri.authority().ok_or("missing host: use `http://host:port`")?;
        if authority.as_str().contains('@') {
            return Err("user name and password are not supported: remove them".to_owned());
        }
        if uri.query().is_some() || uri.path() != "/" {
            return Err("path is not supported: remove it, requests keep their own".to_owned());
        }
        Ok(Self {
            host: authority.host().trim_start_matches('[').trim_end_matches(']').to_owned(),
            port: authority.port_u16().unwrap_or(port),
            authority: authority.clone(),
            tls: None,
            weight: server.weight.max(1),
            health,
            echo: None,
        })
    }

    fn start_echo(&mut self) -> Result<(), StartupError> {
        let echo = EchoServer::start()?;
        self.port = echo.address().port();
        self.echo = Some(Arc::new(echo));
        Ok(())
    }

    /// Resolves the host name, so that a wrong name is reported at startup.
    async fn resolve(&self) -> Result<(), String> {
        if self.address().is_some() {
            return Ok(());
        }
        let found = tokio::net::lookup_host((self.host.as_str(), self.port));
        match tokio::time::timeout(LOOKUP_TIMEOUT, found).await {
            Ok(Ok(addresses)) => match addresses.count() {
                0 => Err("host name has no address".to_owned()),
                _ => Ok(()),
            },
            Ok(Err(error)) => Err(format!("cannot resolve the host name: {error}")),
            _ => Err("cannot resolve the host name: timed out".to_owned()),
        }
    }

    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.host.parse::<IpAddr>().ok().map(|address| (address, self.port).into())
    }
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
            let server = parse_server(url).unwrap();
            assert_eq!((server.host.as_str(), server.port), (host, port));
        }
        for (url, part) in [
            ("127.0.0.1:9000", "http://host:port"),
            ("ftp://a", "scheme must be http or https"),
            ("http://a/b", "path is not supported"),
            ("http://me:pw@a", "user name and password"),
        ] {
            let error = parse_server(url).err().unwrap();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
