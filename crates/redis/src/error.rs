//! Why there is no connection, and what to do about it.

use redis::RedisError;

/// Why a store could not be opened. Says what to do, and never a password.
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

    /// An address that cannot be read.
    pub(crate) fn invalid_url(url: &str, problem: &str) -> Self {
        let fix = "write redis://host:6379, rediss://…, redis+unix:///path, redis+sentinel://h1,h2/master or redis+cluster://h1,h2";
        Self::new(format!("`{}` is not the address of a Redis: {problem}", redact_password(url)), fix)
    }

    /// A server that is there, and cannot count.
    pub(crate) fn unusable(server: &str, error: &RedisError) -> Self {
        let text = one_line(error);
        Self::new(format!("{server} cannot be a store: {text}"), advice(&text))
    }

    /// What the server or the network said.
    pub(crate) fn connection_failed(server: &str, error: &RedisError) -> Self {
        let text = one_line(error);
        Self::new(format!("no connection to {server}: {text}"), advice(&text))
    }

    /// An error of a server in use.
    pub(crate) fn from_message(error: &str) -> Self {
        Self::new(error, advice(error))
    }

    /// What is wrong, without the advice.
    pub(crate) fn problem(&self) -> &str {
        &self.problem
    }

    /// What to do about it.
    pub(crate) fn advice(&self) -> &str {
        &self.fix
    }
}

/// What to do about an error, whoever reports it: a connection that fails, a check of the store, or the log.
pub(crate) fn advice(text: &str) -> &'static str {
    let text = text.to_ascii_lowercase();
    let is_about = |words: &[&str]| words.iter().any(|word| text.contains(word));
    ADVICE.iter().find(|(words, _)| is_about(words)).map_or(DEFAULT_ADVICE, |(_, advice)| *advice)
}

const DEFAULT_ADVICE: &str = "is a server running there, and does it listen on that address?";

/// Words of an error, in lower case, and what to do about it; the first that fits.
const ADVICE: &[(&[&str], &str)] = &[
    (
        &["wrongpass", "noauth", "authentication", "invalid password"],
        "check user and password: redis://user:password@host:6379",
    ),
    (&["noperm", "user executing the script", "no permissions"], PERMISSIONS_ADVICE),
    (&["wrongtype"], "another program uses this key: delete it, or set another `prefix`"),
    (&["maxmemory", "oom command"], "give the server more memory, or a maxmemory-policy that evicts keys"),
    (&["read-only replica", "readonly"], "connect to its primary, or through redis+sentinel://"),
    (&["not a node of a cluster", "cluster support disabled"], "write redis:// instead of redis+cluster://"),
    (
        &["is a node of a cluster", "part of a cluster", "moved "],
        "write redis+cluster:// instead of redis://",
    ),
    (&["cluster of", "clusterdown", "no node"], "every slot needs a node: see redis-cli --cluster check"),
    (
        &["certificate", "unknownissuer"],
        "name the CA that signed it: rediss://host:6380?ca=FILE, or RedisStore::builder().tls_authority(pem)",
    ),
    (
        &["invalidcontenttype", "corrupt message", "invalid message", "tls", "handshake"],
        "does the server speak TLS on this port? write redis:// if it does not",
    ),
    (
        &["switch database", "db index", "select is not allowed"],
        "check the number of the database: the server does not have that many",
    ),
    (
        &["master name", "mastername", "given name not found"],
        "check the name after the last slash: the sentinels know no primary by it",
    ),
    (&["unknown command"], "allow EVALSHA and SCRIPT LOAD: a store cannot decide without scripts"),
    (&["loading"], "the server is loading its data; it will be used when it has"),
    (&["failed to lookup", "name or service not known", "no such host"], "check the name of the host"),
    (
        &["took longer than", "no answer within"],
        "check the load of the server (SLOWLOG GET, LATENCY DOCTOR) and the network, or raise `deadline`",
    ),
    (
        &["timed out"],
        "check the address and the network; a rediss:// address needs a server that speaks TLS on this port",
    ),
    (&["cannot be a store"], "a store must be able to run scripts and write keys there"),
    (
        &["cannot be read", "nobody knows"],
        "is another version of Tidegate using the same keys? set another `prefix`",
    ),
];

const PERMISSIONS_ADVICE: &str =
    "grant the user +@read +@write +@scripting +time and the keys under the prefix";

fn one_line(error: &RedisError) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

/// The address as it may be shown: what stands before the last `@` or behind a `?` is left out.
fn redact_password(url: &str) -> String {
    // Without a scheme it may be anything, and also nothing but a password.
    let Some((scheme, rest)) = url.split_once("://") else { return "…".to_owned() };
    let (hidden, host) = rest.rsplit_once('@').map_or(("", rest), |(_, host)| ("…@", host));
    let (host, query) = host.split_once('?').map_or((host, ""), |(host, _)| (host, "?…"));
    // Without a host, what stands there may be a password.
    let host = if host.starts_with(':') { "…" } else { host };
    format!("{scheme}://{hidden}{host}{query}")
}
