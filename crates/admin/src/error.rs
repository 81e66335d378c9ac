//! The error of a policy that cannot be put in force.

use std::{error::Error, fmt, path::PathBuf};
use tidegate_http_server::StartupError;
use tidegate_policy::{Problems, compile::PolicyError};

/// A policy cannot be put in force. The text lists all errors, each with its location and fix.
#[derive(Debug)]
#[non_exhaustive]
pub enum GatewayError {
    /// The text is invalid.
    Text(Problems),
    /// The rules cannot be compiled.
    Rules {
        /// The file; `None` for a policy without a file.
        file: Option<PathBuf>,
        /// The cause.
        source: PolicyError,
    },
    /// A listener, upstream, log or exporter cannot start.
    Startup(StartupError),
    /// The gateway has stopped.
    Stopped,
}

impl From<StartupError> for GatewayError {
    fn from(error: StartupError) -> Self {
        Self::Startup(error)
    }
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(problems) => problems.fmt(f),
            Self::Rules { file: Some(file), source } => write!(f, "{}: {source}", file.display()),
            Self::Rules { file: None, source } => source.fmt(f),
            Self::Startup(error) => error.fmt(f),
            Self::Stopped => f.write_str("gateway stopped"),
        }
    }
}

impl Error for GatewayError {}
