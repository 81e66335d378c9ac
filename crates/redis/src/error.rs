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

    /// What the server or the network said.
    pub(crate) fn refused(server: &str, error: &RedisError) -> Self {
        let text = error.to_string();
        let problem = format!("no connection to {server}: {text}");
        let says = |word: &str| text.contains(word) || error.code() == Some(word);
        let fix = if error.kind() == ErrorKind::AuthenticationFailed || says("WRONGPASS") || says("NOAUTH") {
            "check user and password: redis://user:password@host:6379"
        } else if says("NOPERM") {
            "the user may not run this: grant it +@read +@write +@scripting and the keys under the prefix"
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

/// The address as it may be shown: what stands before the last `@` is left out.
fn without_password(url: &str) -> String {
    match (url.split_once("://"), url.rsplit_once('@')) {
        (Some((scheme, _)), Some((_, host))) => format!("{scheme}://…@{host}"),
        (None, Some((_, host))) => format!("…@{host}"),
        (_, None) => url.to_owned(),
    }
}
