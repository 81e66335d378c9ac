//! What is known of an upstream before there is a worker.

use super::Times;
use crate::{Fault, worker::milliseconds};
use http::Uri;
use std::net::IpAddr;
use tidegate_policy::model::{Upstream, UpstreamServer};

/// An upstream, read and checked.
pub(crate) struct Plan {
    pub(crate) servers: Vec<ServerPlan>,
    pub(crate) times: Times,
    pub(crate) keep_alive: usize,
}

/// A server, read and checked.
pub(crate) struct ServerPlan {
    /// A name or an address, without brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl Plan {
    pub(crate) fn of(name: &str, upstream: &Upstream) -> Result<Self, Fault> {
        let read = |server: &UpstreamServer| {
            ServerPlan::of(&server.url).map_err(|reason| Fault::Upstream {
                upstream: name.to_owned(),
                url: server.url.clone(),
                reason,
            })
        };
        Ok(Self {
            servers: upstream.servers.iter().map(read).collect::<Result<_, _>>()?,
            times: Times {
                connect: milliseconds(upstream.timeouts.connect),
                response: milliseconds(upstream.timeouts.response),
                idle: milliseconds(upstream.timeouts.idle),
            },
            keep_alive: usize::try_from(upstream.keep_alive).unwrap_or(usize::MAX),
        })
    }
}

impl ServerPlan {
    fn of(url: &str) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "write it as `http://host:port`".to_owned())?;
        let port = match uri.scheme_str() {
            Some("http") => 80,
            _ => return Err("its scheme has to be http: write `http://host:port`".to_owned()),
        };
        let authority = uri.authority().ok_or("it names no host: write `http://host:port`")?;
        if authority.as_str().contains('@') {
            return Err("it may not have a name and a password".to_owned());
        }
        if uri.query().is_some() || uri.path() != "/" {
            return Err("it may not have a path: requests are forwarded with their own".to_owned());
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { host, port: authority.port_u16().unwrap_or(port) })
    }

    pub(crate) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_a_scheme_a_host_and_a_port() {
        for (url, host, port) in [
            ("http://127.0.0.1:9000", "127.0.0.1", 9000),
            ("http://app.internal", "app.internal", 80),
            ("http://[::1]:9000/", "::1", 9000),
        ] {
            let plan = ServerPlan::of(url).unwrap();
            assert_eq!((plan.host.as_str(), plan.port), (host, port));
        }
        for (url, part) in [
            ("127.0.0.1:9000", "http://host:port"),
            ("ftp://a", "its scheme has to be http"),
            ("http://a/b", "may not have a path"),
            ("http://me:pw@a", "a name and a password"),
        ] {
            let error = ServerPlan::of(url).err().unwrap();
            assert!(error.contains(part), "{url}: {error}");
        }
    }
}
