//! The error of a server that cannot start.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

/// A server cannot start. The text is one line with the location and the fix.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartupError {
    /// An address cannot be bound.
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
    /// A certificate file or key file cannot be used.
    Certificate {
        /// The file.
        file: PathBuf,
        /// The cause and the fix.
        reason: String,
    },
    /// A server of an upstream cannot be used.
    Upstream {
        /// The upstream.
        upstream: String,
        /// The URL of the server.
        url: String,
        /// The cause and the fix.
        reason: String,
    },
    /// The access log cannot be written.
    Log {
        /// The log file.
        file: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Traces cannot be exported.
    Traces {
        /// The URL of the collector.
        endpoint: String,
        /// The cause and the fix.
        reason: String,
    },
    /// Metrics cannot be exported.
    Metrics {
        /// The URL of the collector.
        endpoint: String,
        /// The cause and the fix.
        reason: String,
    },
    /// A key set cannot be fetched.
    KeySet {
        /// Its URL.
        url: String,
        /// The cause and the fix.
        reason: String,
    },
    /// The file of the overrides cannot be used.
    Overrides {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The environment variable of a token is not set.
    Token {
        /// The name of the variable.
        variable: String,
    },
    /// The system cannot create a thread, socket or runtime.
    System(io::Error),
}

impl fmt::Display for StartupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, source } if source.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "{address} is in use: stop the other process, or listen on another port")
            }
            Self::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Certificate { file, reason } => write!(f, "{}: {reason}", file.display()),
            Self::Upstream { upstream, url, reason } => {
                write!(f, "upstream `{upstream}`, server `{url}`: {reason}")
            }
            Self::Log { file, source } => write!(f, "cannot write the log to {}: {source}", file.display()),
            Self::Traces { endpoint, reason } => write!(f, "traces to `{endpoint}`: {reason}"),
            Self::Metrics { endpoint, reason } => write!(f, "metrics to `{endpoint}`: {reason}"),
            Self::KeySet { url, reason } => write!(f, "key set `{url}`: {reason}"),
            Self::Overrides { file, reason } => write!(f, "overrides in {}: {reason}", file.display()),
            Self::Token { variable } => {
                write!(f, "environment variable {variable} is not set: set it to a token")
            }
            Self::System(source) => write!(f, "cannot create a thread, socket or runtime: {source}"),
        }
    }
}

impl std::error::Error for StartupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { source, .. } | Self::Log { source, .. } | Self::System(source) => Some(source),
            Self::Certificate { .. }
            | Self::Overrides { .. }
            | Self::Upstream { .. }
            | Self::Traces { .. }
            | Self::Metrics { .. }
            | Self::KeySet { .. }
            | Self::Token { .. } => None,
        }
    }
}
