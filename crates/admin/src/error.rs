//! What keeps a policy from being in force.

use std::{error::Error, fmt, path::PathBuf};
use tidegate_http_server::StartupError;
use tidegate_policy::{Problems, compile::PolicyError};

/// What keeps a policy from being in force: all that is wrong, each with its place and the fix.
#[derive(Debug)]
#[non_exhaustive]
pub enum GatewayError {
    /// Its text is wrong.
    Text(Problems),
    /// What it says cannot be done.
    Rules {
        /// The file; `None` where it came from none.
        file: Option<PathBuf>,
        /// Why.
        source: PolicyError,
    },
    /// The machine does not give what it asks for.
    Startup(StartupError),
    /// The gateway that was asked has ended.
    Stopped,
}

impl From<StartupError> for GatewayError {
    fn from(fault: StartupError) -> Self {
        Self::Startup(fault)
    }
}

impl fmt::Display for GatewayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(problems) => problems.fmt(f),
            Self::Rules { file: Some(file), source } => write!(f, "{}: {source}", file.display()),
            Self::Rules { file: None, source } => source.fmt(f),
            Self::Startup(fault) => fault.fmt(f),
            Self::Stopped => f.write_str("the gateway has ended"),
        }
    }
}

impl Error for GatewayError {}
