//! What keeps a gateway from starting.

use std::{fmt, io, net::SocketAddr, path::PathBuf};

/// Why a gateway does not start. One line, with the place and the fix.
#[derive(Debug)]
#[non_exhaustive]
pub enum StartupError {
    /// An address cannot be listened on.
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A file of a certificate or a key cannot be used.
    Certificate {
        /// Which.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// A server of an upstream cannot be used.
    Upstream {
        /// Its upstream.
        upstream: String,
        /// Its URL.
        url: String,
        /// Why.
        reason: String,
    },
    /// The log cannot be written.
    Log {
        /// Where to.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Traces cannot be sent.
    Traces {
        /// Where to.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// Metrics cannot be sent.
    Metrics {
        /// Where to.
        endpoint: String,
        /// Why.
        reason: String,
    },
    /// A token that a policy asks for is not there.
    Token {
        /// The variable that should hold it.
        variable: String,
    },
    /// The machine refused a thread, a socket or a runtime.
    System(io::Error),
}

impl fmt::Display for StartupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, source } if source.kind() == io::ErrorKind::AddrInUse => {
                write!(f, "{address} is in use: stop what listens there, or listen on another port")
            }
            Self::Listen { address, source } => write!(f, "cannot listen on {address}: {source}"),
            Self::Certificate { file, reason } => write!(f, "{}: {reason}", file.display()),
            Self::Upstream { upstream, url, reason } => {
                write!(f, "upstream `{upstream}`, server `{url}`: {reason}")
            }
            Self::Log { file, source } => write!(f, "cannot write the log to {}: {source}", file.display()),
            Self::Traces { endpoint, reason } => write!(f, "traces to `{endpoint}`: {reason}"),
            Self::Metrics { endpoint, reason } => write!(f, "metrics to `{endpoint}`: {reason}"),
            Self::Token { variable } => {
                write!(
                    f,
                    "the variable {variable} is to hold a token and holds none: set it in the environment"
                )
            }
            Self::System(source) => write!(f, "the machine refused what a worker needs: {source}"),
        }
    }
}

impl std::error::Error for StartupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Listen { source, .. } | Self::Log { source, .. } | Self::System(source) => Some(source),
            Self::Certificate { .. }
            | Self::Upstream { .. }
            | Self::Traces { .. }
            | Self::Metrics { .. }
            | Self::Token { .. } => None,
        }
    }
}
