//! Where a policy comes from.

use super::GatewayError;
use crate::ReadFiles;
use std::path::{Path, PathBuf};
use tidegate_policy::{Files as _, Policy, compile::PolicyError};

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// From a file, which may include others. It is read again when one of them changes, or somebody asks for it.
    File(PathBuf),
    /// From the program.
    Given(Box<Policy>),
}

impl PolicySource {
    /// From this file.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(path.into())
    }

    /// This one.
    pub fn given(policy: Policy) -> Self {
        Self::Given(Box::new(policy))
    }

    /// Reads it, and notes down in `files` what was read, those of its lists too.
    pub(super) fn read(&self, files: &ReadFiles) -> Result<Policy, GatewayError> {
        let file = match self {
            Self::Given(policy) => return Ok(Policy::clone(policy)),
            Self::File(file) => file,
        };
        let policy = Policy::read(file, files).map_err(GatewayError::Text)?;
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
            Self::Given(_) => None,
        }
    }

    /// The same error, with the name of the file.
    pub(super) fn error(&self, source: PolicyError) -> GatewayError {
        GatewayError::Rules { file: self.path().map(Into::into), source }
    }
}
