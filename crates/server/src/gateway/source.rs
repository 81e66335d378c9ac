//! Where a policy comes from.

use super::GatewayError;
use std::{
    cell::RefCell,
    path::{Path, PathBuf},
};
use tidegate_policy::{Disk, Files as _, Policy, compile::PolicyError};

/// Where a policy comes from.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// From a file, which may include others. It is read again when it is asked for.
    File(PathBuf),
    /// From the program.
    Given(Box<Policy>),
}

/// A policy, and the files that it was read from.
pub(super) struct Read {
    pub(super) policy: Policy,
    /// Those that it includes and those of its lists, too.
    pub(super) files: Vec<PathBuf>,
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

    pub(super) fn read(&self) -> Result<Read, GatewayError> {
        let files = RefCell::default();
        let policy = match self {
            Self::Given(policy) => Policy::clone(policy),
            Self::File(file) => {
                let read = |path: &Path| {
                    RefCell::<Vec<_>>::borrow_mut(&files).push(path.to_owned());
                    Disk.read(path)
                };
                Policy::read(file, &read).map_err(GatewayError::Text)?
            }
        };
        let mut files = files.into_inner();
        files.extend(policy.lists.values().flat_map(|list| list.files.iter().cloned()));
        Ok(Read { policy, files })
    }

    /// The same error, with the name of the file.
    pub(super) fn error(&self, source: PolicyError) -> GatewayError {
        let file = match self {
            Self::File(file) => Some(file.clone()),
            Self::Given(_) => None,
        };
        GatewayError::Rules { file, source }
    }
}
