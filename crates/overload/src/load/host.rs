//! Where the kernel tells of itself, and the plain reading of what it tells.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

/// Where the kernel's files are. Those of another place are for tests, and for a container that shows its host's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPaths {
    proc: PathBuf,
    cgroup: PathBuf,
}

/// More than any file that is read here, even on a machine of a thousand processors.
const MAX_FILE_BYTES: u64 = 4 << 20;

impl HostPaths {
    /// This machine: `/proc` and `/sys/fs/cgroup`.
    pub fn local() -> Self {
        Self::new("/proc", "/sys/fs/cgroup")
    }

    /// A machine whose files are mounted elsewhere.
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

/// The text of a file; `None` if there is none that can be read.
pub(super) fn read_text(path: impl AsRef<Path>) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(MAX_FILE_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// A file that holds a number and nothing else.
pub(super) fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read_text(path)?.trim().parse().ok()
}

/// The number behind a name, in lines such as `usage_usec 123` or `MemTotal: 123 kB`.
pub(super) fn parse_field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| {
        let rest = line.strip_prefix(name)?;
        rest.starts_with([' ', '\t', ':']).then_some(rest)
    })?;
    rest.trim_start_matches(':').split_whitespace().next()?.parse().ok()
}
