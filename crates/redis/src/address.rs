//! Parses the address of a store.
//!
//! ```text
//!   redis://[user:password@]host:port[/database]            one server
//!   rediss://…[?ca=FILE]                                    over TLS; FILE has the CA that signed the certificate
//!   redis+unix:///path/to/socket[?db=1&pass=…]              over a Unix socket
//!   redis+sentinel://[user:password@]host:port,host:port/master-name[/database][?sentinel-password=…&sentinel-user=…]
//!   redis+cluster://[user:password@]host:port,host:port     and rediss+cluster:// over TLS
//! ```

use crate::error::ConnectError;
use redis::{ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _};

/// The parsed address of a store.
#[derive(Debug)]
pub(crate) enum RedisAddress {
    /// One server.
    Server(ConnectionInfo),
    /// The server that the sentinels report as the primary.
    Sentinels { sentinels: Vec<ConnectionAddr>, master: String, login: Login, sentinel_login: Login },
    /// Seed nodes of a cluster.
    Cluster(Vec<ConnectionInfo>),
}

/// The credentials for the servers behind sentinels, or for the sentinels.
#[derive(Clone, Debug, Default)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: i64,
}

impl RedisAddress {
    pub(crate) fn parse(url: &str) -> Result<Self, ConnectError> {
        let (scheme, rest) =
            url.split_once("://").ok_or_else(|| ConnectError::invalid_url(url, "missing scheme"))?;
        match scheme {
            "redis" | "rediss" | "valkey" | "valkeys" | "redis+unix" | "unix" if rest.contains(',') => Err(
                ConnectError::invalid_url(url, "several hosts require redis+cluster:// or redis+sentinel://"),
            ),
            "redis" | "rediss" | "redis+unix" | "unix" => parse_server(url, url).map(Self::Server),
            "valkey" => parse_server(url, &format!("redis://{rest}")).map(Self::Server),
            "valkeys" => parse_server(url, &format!("rediss://{rest}")).map(Self::Server),
            "redis+sentinel" => parse_sentinels(url, rest),
            "redis+cluster" => parse_cluster(url, "redis", rest),
            "rediss+cluster" => parse_cluster(url, "rediss", rest),
            _ => Err(ConnectError::invalid_url(
                url,
                "unknown scheme; use redis, rediss, redis+unix, redis+sentinel, redis+cluster or rediss+cluster",
            )),
        }
    }
}

/// Splits `ca=FILE` off an address; returns the remaining address and the content of the file.
#[cfg(feature = "tls")]
pub(crate) fn split_ca_file(url: &str) -> Result<(String, Option<Vec<u8>>), ConnectError> {
    let (address, query) = url.split_once('?').unwrap_or((url, ""));
    let (files, rest): (Vec<_>, Vec<_>) = query.split('&').partition(|part| part.starts_with("ca="));
    let Some(file) = files.first().and_then(|part| part.strip_prefix("ca=")) else {
        return Ok((url.to_owned(), None));
    };
    if !(address.starts_with("rediss") || address.starts_with("valkeys")) {
        return Err(ConnectError::new("`ca` requires TLS", "use rediss://, or remove `ca`"));
    }
    let pem = std::fs::read(file).map_err(|error| {
        ConnectError::new(
            format!("cannot read the CA file `{file}`: {error}"),
            "check its path and permissions",
        )
    })?;
    let rest = rest.join("&");
    Ok((if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") }, Some(pem)))
}

fn parse_server(url: &str, plain: &str) -> Result<ConnectionInfo, ConnectError> {
    plain.into_connection_info().map_err(|error| ConnectError::invalid_url(url, &error.to_string()))
}

fn parse_cluster(url: &str, scheme: &str, rest: &str) -> Result<RedisAddress, ConnectError> {
    let (login, hosts) = rest.rsplit_once('@').map_or(("", rest), |(login, hosts)| (login, hosts));
    let hosts = hosts.trim_end_matches('/');
    if hosts.contains('/') {
        return Err(ConnectError::invalid_url(
            url,
            "a cluster has only one database; remove the path after the hosts",
        ));
    }
    let at = if login.is_empty() { "" } else { "@" };
    let nodes = hosts.split(',').map(|host| parse_server(url, &format!("{scheme}://{login}{at}{host}")));
    nodes.collect::<Result<_, _>>().map(RedisAddress::Cluster)
}

fn parse_sentinels(url: &str, rest: &str) -> Result<RedisAddress, ConnectError> {
    let (login, rest) = rest.rsplit_once('@').map_or(("", rest), |(login, rest)| (login, rest));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let sentinel_login = parse_sentinel_login(url, query)?;
    let mut parts = rest.splitn(3, '/');
    let hosts = parts.next().unwrap_or_default();
    let Some(master) = parts.next().filter(|master| !master.is_empty()) else {
        return Err(ConnectError::invalid_url(
            url,
            "missing name of the primary; add it after the hosts: …:26379/mymaster",
        ));
    };
    let database = match parts.next() {
        None | Some("") => 0,
        Some(number) => {
            number.parse().map_err(|_| ConnectError::invalid_url(url, "the database is not a number"))?
        }
    };
    let nodes: Result<Vec<_>, _> =
        hosts.split(',').map(|host| parse_server(url, &format!("redis://{host}"))).collect();
    Ok(RedisAddress::Sentinels {
        sentinels: nodes?.into_iter().map(|node| node.addr().clone()).collect(),
        master: master.to_owned(),
        login: Login { database, ..parse_login(url, login)? },
        sentinel_login,
    })
}

/// Parses a login with the driver's parser, which also decodes percent escapes.
fn parse_login(url: &str, login: &str) -> Result<Login, ConnectError> {
    let at = if login.is_empty() { "" } else { "@" };
    let login = parse_server(url, &format!("redis://{login}{at}localhost"))?;
    let login = login.redis_settings();
    Ok(Login {
        user: login.username().map(str::to_owned),
        password: login.password().map(str::to_owned),
        database: 0,
    })
}

fn parse_sentinel_login(url: &str, query: &str) -> Result<Login, ConnectError> {
    let (mut user, mut password) = ("", None);
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=') {
            Some(("sentinel-user", value)) => user = value,
            Some(("sentinel-password", value)) => password = Some(value),
            _ => {
                let problem = "unknown parameter after `?`; use sentinel-user=… and sentinel-password=…";
                return Err(ConnectError::invalid_url(url, problem));
            }
        }
    }
    match (user, password) {
        ("", None) => Ok(Login::default()),
        (_, None) => Err(ConnectError::invalid_url(url, "sentinel-user requires sentinel-password")),
        (user, Some(password)) => parse_login(url, &format!("{user}:{password}")),
    }
}
