//! The version of a server.

use std::{fmt, path::Path, process::Command};

/// The version of a server; the versions of Valkey continue those of Redis 7.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// The major version.
    pub major: u32,
    /// The minor version.
    pub minor: u32,
    /// The patch version.
    pub patch: u32,
}

impl ServerVersion {
    /// The first version with `enable-debug-command`.
    pub(super) const REDIS_7: Self = Self { major: 7, minor: 0, patch: 0 };

    /// Returns the version of a program, by its name or path; `None` if it is not installed.
    pub fn detect(binary: impl AsRef<Path>) -> Option<Self> {
        let output = Command::new(binary.as_ref()).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout);
        Self::parse(text.split_whitespace().find_map(|word| word.strip_prefix("v="))?)
    }

    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split('.').map(|number| number.parse().ok());
        Some(Self { major: numbers.next()??, minor: numbers.next()??, patch: numbers.next()?? })
    }
}

impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}
