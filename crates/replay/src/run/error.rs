//! Errors of a replay.

use crate::log::LogError;
use std::{error, fmt};
use tidegate_policy::compile::PolicyError;

/// An error of a replay.
#[derive(Debug)]
pub enum ReplayError {
    /// The log could not be read.
    Log(LogError),
    /// The policy cannot be compiled.
    Policy(PolicyError),
    /// No request of the log has the key of a rule.
    NoKey {
        /// The rule.
        rule: String,
        /// Its key, in the syntax of a policy.
        key: String,
    },
    /// The suggestion cannot be written as a policy.
    Suggestion(String),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Log(error) => error.fmt(f),
            Self::Policy(error) => error.fmt(f),
            Self::Suggestion(problem) => write!(f, "cannot write the suggestion as a policy: {problem}"),
            Self::NoKey { rule, key } => write!(
                f,
                "no request in the log has the key of rule `{rule}` ({key}); log it, or name its field with --format or --field"
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
