//! The source of a policy.

use super::{GatewayError, Preflight};
use std::path::{Path, PathBuf};
use tidegate_http_server::ReadFiles;
use tidegate_policy::{Document, FileSource as _, Policy, compile::PolicyError};

/// The source of a policy.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// A file, which may include others. It is reloaded when one of them changes, or on request.
    File(PathBuf),
    /// A policy that the program built.
    Inline(Box<Policy>),
}

impl PolicySource {
    /// A policy file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    /// A policy that the program built.
    pub fn inline(policy: Policy) -> Self {
        Self::Inline(Box::new(policy))
    }

    /// Reads and checks the policy, and records the files that were read in `files`, including those of lists.
    pub(super) fn read(&self, files: &ReadFiles) -> Result<Policy, GatewayError> {
        // Addresses of stores are checked when the policy is put in force.
        let preflight = |policy: &Policy| Preflight::check(policy, &|_| Ok(()));
        let file = match self {
            Self::Inline(policy) => {
                return match preflight(policy).into_error() {
                    None => Ok(Policy::clone(policy)),
                    Some(error) => Err(self.gateway_error(error)),
                };
            }
            Self::File(file) => file,
        };
        let document = Document::read(file, files).map_err(GatewayError::Text)?;
        let errors = preflight(document.policy()).errors;
        if !errors.is_empty() {
            return Err(GatewayError::Text(document.to_problems(errors)));
        }
        let policy = document.into_policy();
        for file in policy.files() {
            // Only recorded here; the compiler reports their errors.
            let _ = files.read(file);
        }
        Ok(policy)
    }

    /// The file of the policy, if it has one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file),
            Self::Inline(_) => None,
        }
    }

    /// Adds the file to an error.
    pub(super) fn gateway_error(&self, source: PolicyError) -> GatewayError {
        GatewayError::Rules { file: self.path().map(Into::into), source }
    }
}
