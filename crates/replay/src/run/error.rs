//! Why a log was not replayed.

use crate::log::LogError;
use std::{error, fmt};
use tidegate_policy::compile::PolicyError;

/// Why a log was not replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// The log could not be read.
    Log(LogError),
    /// The policy cannot be put in force.
    Policy(PolicyError),
    /// No line of the log has what a rule counts by.
    NoKey {
        /// The rule.
        rule: String,
        /// What it counts by, as a policy says it.
        key: String,
    },
    /// What is suggested cannot be said in a policy.
    Suggestion(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => error.fmt(f),
            Self::Policy(error) => error.fmt(f),
            Self::Suggestion(problem) => write!(f, "what was found cannot be said in a policy: {problem}"),
            Self::NoKey { rule, key } => write!(
                f,
                "no request of the log has what rule `{rule}` counts by ({key}); have it logged, or say where it is with \
                 --format or --field"
            ),
        }
    }
}

impl error::Error for ReplayError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Log(error) => Some(error),
            Self::Policy(error) => Some(error),
            Self::NoKey { .. } | Self::Suggestion(_) => None,
        }
    }
}

impl From<LogError> for ReplayError {
    fn from(error: LogError) -> Self {
        Self::Log(error)
    }
}

impl From<PolicyError> for ReplayError {
    fn from(error: PolicyError) -> Self {
        Self::Policy(error)
    }
}
