//! Where a policy comes from.

use super::{GatewayError, Preflight};
use std::path::{Path, PathBuf};
use tidegate_http_server::ReadFiles;
use tidegate_policy::{Document, FileSource as _, Policy, compile::PolicyError};

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// From a file, which may include others. It is read again when one of them changes, or somebody asks for it.
    File(PathBuf),
    /// From the program.
    Inline(Box<Policy>),
}

impl PolicySource {
    /// From this file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    /// This one.
    pub fn inline(policy: Policy) -> Self {
        Self::Inline(Box::new(policy))
    }

    /// Reads it, and notes down in `files` what was read, those of its lists too. What a gateway cannot serve is an error.
    pub(super) fn read(&self, files: &ReadFiles) -> Result<Policy, GatewayError> {
        // Addresses of stores are tried when the policy is put in force.
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
        for list in policy.lists.values().flat_map(|list| &list.files) {
            // Whoever needs it says what is wrong with it.
            let _ = files.read(list);
        }
        Ok(policy)
    }

    /// The file that it comes from, if it comes from one.
    pub(super) fn path(&self) -> Option<&Path> {
        match self {
            Self::File(file) => Some(file),
            Self::Inline(_) => None,
        }
    }

    /// The same error, with the name of the file.
    pub(super) fn gateway_error(&self, source: PolicyError) -> GatewayError {
        GatewayError::Rules { file: self.path().map(Into::into), source }
    }
}
