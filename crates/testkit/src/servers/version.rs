//! Which server this is.

use std::{fmt, path::Path, process::Command};

/// The version of a server; those of Valkey go on where Redis 7 was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ServerVersion {
    /// What changes when things break.
    pub major: u32,
    /// What changes with features.
    pub minor: u32,
    /// What changes with repairs.
    pub patch: u32,
}

impl ServerVersion {
    /// The first that can be told to allow `DEBUG`.
    pub(super) const REDIS_7: Self = Self { major: 7, minor: 0, patch: 0 };

    /// Asks a program, by its name or path, for its version; `None` when it is not installed.
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
