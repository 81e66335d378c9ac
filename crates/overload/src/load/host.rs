//! The paths of the kernel's files, and functions to read them.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

/// The paths of the kernel's files. Other paths are for tests, and for containers that mount those of the
/// host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    proc: PathBuf,
    cgroup: PathBuf,
}

/// More than any of these files, even on a machine with a thousand CPUs.
const MAX_FILE_BYTES: u64 = 4 << 20;

impl HostPaths {
    /// The directory of the kernel's files.
    pub const PROC: &str = "/proc";
    /// The directory of the control groups.
    pub const CGROUP: &str = "/sys/fs/cgroup";

    /// This machine: `/proc` and `/sys/fs/cgroup`.
    pub fn local() -> Self {
        Self::new(Self::PROC, Self::CGROUP)
    }

    /// Uses files that are mounted elsewhere.
    pub fn new(proc: impl Into<PathBuf>, cgroup: impl Into<PathBuf>) -> Self {
        Self { proc: proc.into(), cgroup: cgroup.into() }
    }

    pub(super) fn proc(&self, path: &str) -> PathBuf {
        self.proc.join(path)
    }

    pub(super) fn cgroup(&self) -> &Path {
        &self.cgroup
    }
}

impl Default for HostPaths {
    fn default() -> Self {
        Self::local()
    }
}

/// The text of a file; `None` if it cannot be read.
pub(super) fn read_text(path: impl AsRef<Path>) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// Reads a file that contains only a number.
pub(super) fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read_text(path)?.trim().parse().ok()
}

/// The number after a name, in lines such as `usage_usec 123` or `MemTotal: 123 kB`.
pub(super) fn parse_field(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let value = line.strip_prefix(name)?;
        value.starts_with([' ', '\t', ':']).then_some(value)
    })?;
    value.trim_start_matches(':').split_whitespace().next()?.parse().ok()
}
