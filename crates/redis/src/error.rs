//! Connection errors and their advice.

use redis::RedisError;

/// Why a store cannot connect, with a fix. The text never contains a password.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}; {fix}")]
pub struct ConnectError {
    problem: String,
    fix: String,
}

impl ConnectError {
    pub(crate) fn new(problem: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { problem: problem.into(), fix: fix.into() }
    }

    pub(crate) fn invalid_url(url: &str, problem: &str) -> Self {
        let fix = "write redis://host:6379, rediss://…, redis+unix:///path, redis+sentinel://h1,h2/master or redis+cluster://h1,h2";
        Self::new(format!("invalid Redis address `{}`: {problem}", redact_password(url)), fix)
    }

    /// The server is reachable but rejects the commands that a store needs.
    pub(crate) fn unusable(server: &str, error: &RedisError) -> Self {
        let text = one_line(error);
        Self::new(format!("{server} is not usable as a store: {text}"), advice(&text))
    }

    pub(crate) fn connection_failed(server: &str, error: &RedisError) -> Self {
        let text = one_line(error);
        Self::new(format!("cannot connect to {server}: {text}"), advice(&text))
    }

    /// An error of a connected server; the advice is derived from its text.
    pub(crate) fn from_message(error: &str) -> Self {
        Self::new(error, advice(error))
    }

    /// The problem, without the advice.
    pub(crate) fn problem(&self) -> &str {
        &self.problem
    }

    /// The fix.
    pub(crate) fn advice(&self) -> &str {
        &self.fix
    }
}

/// The fix for an error text of the server, the network or this crate.
pub(crate) fn advice(text: &str) -> &'static str {
    let text = text.to_ascii_lowercase();
    let is_about = |words: &[&str]| words.iter().any(|word| text.contains(word));
    ADVICE.iter().find(|(words, _)| is_about(words)).map_or(DEFAULT_ADVICE, |(_, advice)| *advice)
}

const DEFAULT_ADVICE: &str = "check that a server is running and listening on that address";

/// Substrings of error texts, in lower case, and the fix. The first match wins.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &["wrongpass", "noauth", "authentication", "invalid password"],
        "check user and password: redis://user:password@host:6379",
    ),
    (&["noperm", "user executing the script", "no permissions"], PERMISSIONS_ADVICE),
    (&["wrongtype"], "another program uses this key: delete it, or set another `prefix`"),
    (&["maxmemory", "oom command"], "raise maxmemory"),
    (&["read-only replica", "readonly"], "connect to its primary, or use redis+sentinel://"),
    (&["not a node of a cluster", "cluster support disabled"], "use redis:// instead of redis+cluster://"),
    (&["is a node of a cluster", "part of a cluster", "moved "], "use redis+cluster:// instead of redis://"),
    (&["cluster of", "clusterdown", "no node"], "assign every slot to a node: run redis-cli --cluster check"),
    (
        &["certificate", "unknownissuer"],
        "set the CA that signed it: rediss://host:6380?ca=FILE, or RedisStore::builder().tls_authority(pem)",
    ),
    (
        &["invalidcontenttype", "corrupt message", "invalid message", "tls", "handshake"],
        "check that the server uses TLS on this port; if not, use redis://",
    ),
    (
        &["switch database", "db index", "select is not allowed"],
        "check the database number: it exceeds the number of databases of the server",
    ),
    (
        &["master name", "mastername", "given name not found"],
        "check the name after the last slash: the sentinels have no primary with this name",
    ),
    (&["unknown command"], "allow EVALSHA and SCRIPT LOAD: the store runs scripts"),
    (&["loading"], "wait until the server has loaded its data; the store reconnects by itself"),
    (&["failed to lookup", "name or service not known", "no such host"], "check the host name"),
    (
        &["took longer than", "no reply within"],
        "check the load of the server (SLOWLOG GET, LATENCY DOCTOR) and the network, or raise `deadline`",
    ),
    (
        &["timed out"],
        "check the address and the network; a rediss:// address needs a server that uses TLS on this port",
    ),
    (&["not usable as a store"], "allow the user to run scripts and to write keys"),
    (
        &["malformed script reply", "unknown quota tag"],
        "another version of Tidegate may use the same keys: set another `prefix`",
    ),
];

const PERMISSIONS_ADVICE: &str =
    "grant the user +@read +@write +@scripting +time and the keys under the prefix";

fn one_line(error: &RedisError) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The address without the login before the last `@` and without the query.
fn redact_password(url: &str) -> String {
    // Without a scheme the whole text may be a password.
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    let (hidden, host) = rest.rsplit_once('@').map_or(("", rest), |(_, host)| ("…@", host));
    let (host, query) = host.split_once('?').map_or((host, ""), |(host, _)| (host, "?…"));
    // Without a host the text may be a password.
    let host = if host.starts_with(':') { "…" } else { host };
    format!("{scheme}://{hidden}{host}{query}")
}
