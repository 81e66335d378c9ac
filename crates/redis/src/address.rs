//! Where the store is, as one line of configuration.
//!
//! ```text
//!   redis://[user:password@]host:port[/database]            one server
//!   rediss://…[?ca=FILE]                                    over TLS; FILE has the CA that signed the certificate
//!   redis+unix:///path/to/socket[?db=1&pass=…]              through a socket of this machine
//!   redis+sentinel://[user:password@]host:port,host:port/master-name[/database]
//!   redis+cluster://[user:password@]host:port,host:port     and rediss+cluster:// over TLS
//! ```

use crate::error::ConnectError;
#[cfg(feature = "tls")]
use redis::{Client, ClientTlsConfig, TlsCertificates};
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};
#[cfg(feature = "tls")]
use std::fmt;

/// Where the store is.
#[derive(Debug)]
pub(crate) enum Address {
    /// One server.
    Server(ConnectionInfo),
    /// Whatever server the sentinels name.
    Sentinels { sentinels: Vec<ConnectionAddr>, master: String, login: Login },
    /// Any nodes of a cluster.
    Cluster(Vec<ConnectionInfo>),
}

/// Who we are to the servers behind sentinels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
}

impl Address {
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| ConnectError::url(url, "it has no scheme"))?;
        match scheme {
            "redis" | "rediss" | "valkey" | "valkeys" | "redis+unix" | "unix" if rest.contains(',') => {
                Err(ConnectError::url(
                    url,
                    "several servers are a cluster or sentinels: write redis+cluster:// or redis+sentinel://",
                ))
            }
            "redis" | "rediss" | "redis+unix" | "unix" => server(url, url).map(Self::Server),
            "valkey" => server(url, &format!("redis://{rest}")).map(Self::Server),
            "valkeys" => server(url, &format!("rediss://{rest}")).map(Self::Server),
            "redis+sentinel" => sentinels(url, rest),
            "redis+cluster" => cluster(url, "redis", rest),
            "rediss+cluster" => cluster(url, "rediss", rest),
            _ => Err(ConnectError::url(
                url,
                "its scheme is none of redis, rediss, redis+unix, redis+sentinel, redis+cluster, rediss+cluster",
            )),
        }
    }
}

/// What TLS to a server needs besides its address, in PEM.
#[cfg(feature = "tls")]
#[derive(Clone, Default)]
pub(crate) struct TlsFiles {
    /// Whose signature counts.
    pub(crate) authority: Option<Vec<u8>>,
    /// Our certificate, and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// An address without `ca=FILE`, and what is in that file.
#[cfg(feature = "tls")]
pub(crate) fn split_authority(url: &str) -> Result<(String, Option<Vec<u8>>), ConnectError> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (files, rest): (Vec<_>, Vec<_>) = query.split('&').partition(|part| part.starts_with("ca="));
    let Some(file) = files.first().and_then(|part| part.strip_prefix("ca=")) else {
        return Ok((url.to_owned(), None));
    };
    if !(address.starts_with("rediss") || address.starts_with("valkeys")) {
        return Err(ConnectError::new("`ca` has no meaning without TLS", "write rediss://, or leave it out"));
    }
    let pem = std::fs::read(file).map_err(|error| {
        ConnectError::new(
            format!("the CA file `{file}` cannot be read: {error}"),
            "check its path and its rights",
        )
    })?;
    let rest = rest.join("&");
    Ok((if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") }, Some(pem)))
}

#[cfg(feature = "tls")]
impl fmt::Debug for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TlsFiles(…)")
    }
}

#[cfg(feature = "tls")]
impl Address {
    /// The same address, where only the signature of this authority counts, and where we are this one.
    pub(crate) fn secured(self, files: &TlsFiles) -> Result<Self, ConnectError> {
        let TlsFiles { authority, identity } = files;
        if authority.is_none() && identity.is_none() {
            return Ok(self);
        }
        // The driver takes a text without any for an authority that signed nothing.
        if authority.as_ref().is_some_and(|pem| !has(pem, "CERTIFICATE")) {
            return Err(unreadable_authority("it has no certificate"));
        }
        if let Some((certificate, key)) = identity
            && !(has(certificate, "CERTIFICATE") && has(key, "PRIVATE KEY"))
        {
            return Err(ConnectError::new(
                "the certificate for TLS cannot be read: it or its key is missing",
                "give both in PEM: -----BEGIN CERTIFICATE-----… and -----BEGIN PRIVATE KEY-----…",
            ));
        }
        let secured = |info: ConnectionInfo| match info.addr() {
            ConnectionAddr::TcpTls { .. } => {
                let client_tls = identity
                    .clone()
                    .map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
                let certificates = TlsCertificates { client_tls, root_cert: authority.clone() };
                let client = Client::build_with_tls(info, certificates)
                    .map_err(|error| unreadable_authority(&error.to_string()))?;
                Ok(client.get_connection_info().clone())
            }
            _ => Ok(info),
        };
        Ok(match self {
            Self::Server(info) => Self::Server(secured(info)?),
            Self::Cluster(seeds) => Self::Cluster(seeds.into_iter().map(secured).collect::<Result<_, _>>()?),
            sentinels @ Self::Sentinels { .. } => sentinels,
        })
    }
}

#[cfg(feature = "tls")]
fn unreadable_authority(why: &str) -> ConnectError {
    ConnectError::new(
        format!("the authority for TLS cannot be read: {why}"),
        "give its certificate in PEM: -----BEGIN CERTIFICATE-----…",
    )
}

/// Whether a text in PEM has a part of this kind.
#[cfg(feature = "tls")]
fn has(pem: &[u8], kind: &str) -> bool {
    String::from_utf8_lossy(pem).lines().any(|line| line.starts_with("-----BEGIN ") && line.contains(kind))
}

fn server(url: &str, plain: &str) -> Result<ConnectionInfo, ConnectError> {
    plain.into_connection_info().map_err(|error| ConnectError::url(url, &error.to_string()))
}

fn cluster(url: &str, scheme: &str, rest: &str) -> Result<Address, ConnectError> {
    let (login, hosts) = rest.rsplit_once('@').map_or(("", rest), |(login, hosts)| (login, hosts));
    let hosts = hosts.trim_end_matches('/');
    if hosts.contains('/') {
        return Err(ConnectError::url(
            url,
            "a cluster has only one database: leave out what follows the hosts",
        ));
    }
    let at = if login.is_empty() { "" } else { "@" };
    let nodes = hosts.split(',').map(|host| server(url, &format!("{scheme}://{login}{at}{host}")));
    nodes.collect::<Result<_, _>>().map(Address::Cluster)
}

fn sentinels(url: &str, rest: &str) -> Result<Address, ConnectError> {
    let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
    let mut parts = rest.splitn(3, '/');
    let hosts = parts.next().unwrap_or_default();
    let Some(master) = parts.next().filter(|master| !master.is_empty()) else {
        return Err(ConnectError::url(
            url,
            "the name that the sentinels know the primary by is missing: …:26379/mymaster",
        ));
    };
    let database = match parts.next() {
        None | Some("") => 0,
        Some(number) => number.parse().map_err(|_| ConnectError::url(url, "its database is not a number"))?,
    };
    let nodes: Result<Vec<_>, _> =
        hosts.split(',').map(|host| server(url, &format!("redis://{host}"))).collect();
    // A login is written as in any other address, and read in the same way.
    let at = if login.is_empty() { "" } else { "@" };
    let login = server(url, &format!("redis://{login}{at}localhost"))?;
    let login = login.redis_settings();
    Ok(Address::Sentinels {
        sentinels: nodes?.into_iter().map(|node| node.addr().clone()).collect(),
        master: master.to_owned(),
        login: Login {
            user: login.username().map(str::to_owned),
            password: login.password().map(str::to_owned),
            database,
        },
    })
}
