//! Why there is no connection, and what to do about it.

use redis::{ErrorKind, RedisError};
use std::{error, fmt};

/// Why a store could not be opened. Says what to do, and never a password.
#[derive(Debug)]
pub struct ConnectError {
    problem: String,
    fix: String,
}

impl ConnectError {
    pub(crate) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into() }
    }

    /// An address that cannot be read.
    pub(crate) fn url(url: &str, problem: &str) -> Self {
        let fix = "write redis://host:6379, rediss://…, redis+unix:///path, redis+sentinel://h1,h2/master or redis+cluster://h1,h2";
        Self::new(format!("`{}` is not the address of a Redis: {problem}", without_password(url)), fix)
    }

    /// A server that is there, and cannot count.
    pub(crate) fn useless(server: &str, error: &RedisError) -> Self {
        let text = one_line(error);
        let says = |word: &str| text.contains(word) || error.code() == Some(word);
        let fix = if says("READONLY") {
            "connect to its primary, or through redis+sentinel://"
        } else if may_not(error) {
            RIGHTS
        } else if says("unknown command") {
            "allow EVALSHA and SCRIPT LOAD: a store cannot decide without scripts"
        } else {
            "a store must be able to run scripts and write keys there"
        };
        Self::new(format!("{server} cannot be a store: {text}"), fix)
    }

    /// What the server or the network said.
    pub(crate) fn refused(server: &str, error: &RedisError) -> Self {
        let text = one_line(error);
        let problem = format!("no connection to {server}: {text}");
        let says = |word: &str| text.contains(word) || error.code() == Some(word);
        let fix = if error.kind() == ErrorKind::AuthenticationFailed || says("WRONGPASS") || says("NOAUTH") {
            "check user and password: redis://user:password@host:6379"
        } else if may_not(error) {
            RIGHTS
        } else if says("certificate") {
            "say whose signature counts: RedisStore::builder().tls_authority(pem)"
        } else if says("switch database") {
            "check the number of the database: the server does not have that many"
        } else if error.kind() == ErrorKind::MasterNameNotFoundBySentinel {
            "check the name after the last slash: the sentinels know no primary by it"
        } else {
            "is a server running there, and does it listen on that address?"
        };
        Self::new(problem, fix)
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { problem, fix } = self;
        write!(f, "{problem}; {fix}")
    }
}

impl error::Error for ConnectError {}

const RIGHTS: &str = "grant the user +@read +@write +@scripting +time and the keys under the prefix";

/// Whether the user has not the rights, for a command or for one within a script.
fn may_not(error: &RedisError) -> bool {
    let text = error.to_string();
    error.code() == Some("NOPERM") || text.contains("NOPERM") || text.contains("user executing the script")
}

fn one_line(error: &RedisError) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The address as it may be shown: what stands before the last `@` or behind a `?` is left out.
fn without_password(url: &str) -> String {
    // Without a scheme it may be anything, and also nothing but a password.
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    let (hidden, host) = rest.rsplit_once('@').map_or(("", rest), |(_, host)| ("…@", host));
    let (host, query) = host.split_once('?').map_or((host, ""), |(host, _)| (host, "?…"));
    // Without a host, what stands there may be a password.
    let host = if host.starts_with(':') { "…" } else { host };
    format!("{scheme}://{hidden}{host}{query}")
}
