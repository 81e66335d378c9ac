//! The share of the file descriptor limit that is in use.

use super::{
    LoadSource,
    host::{self, HostPaths},
};
use std::{fs, path::PathBuf};
use tidegate_core::{Micros, Percent};

/// Measures the share of this process's file descriptor limit that is open.
#[derive(Debug)]
pub struct FileDescriptorLoad {
    host: HostPaths,
    fd_dir: PathBuf,
    method: CountMethod,
}

/// How open file descriptors are counted.
#[derive(Clone, Copy, Debug)]
enum CountMethod {
    /// From Linux 6.2 on, the size of the directory is the count.
    DirSize,
    /// Lists the directory, which takes longer with more entries.
    Iterate,
}

impl Default for FileDescriptorLoad {
    fn default() -> Self {
        Self::new()
    }
}

impl FileDescriptorLoad {
    /// Creates a source for this process.
    pub fn new() -> Self {
        Self::with_host(HostPaths::local())
    }

    /// Creates a source that reads the files of `host`.
    pub fn with_host(host: HostPaths) -> Self {
        let folder = host.proc("self/fd");
        let mut it = Self { host, fd_dir: folder, method: CountMethod::DirSize };
        // Use the size only if it matches a count; listing opens one descriptor itself.
        let agree = |size: u64, counted: u64| size.abs_diff(counted) <= 1;
        if !it.open_count().is_some_and(|size| it.count_entries().is_some_and(|counted| agree(size, counted)))
        {
            it.method = CountMethod::Iterate;
        }
        it
    }

    fn open_count(&self) -> Option<u64> {
        match self.method {
            CountMethod::DirSize => fs::metadata(&self.fd_dir).ok().map(|folder| folder.len()),
            CountMethod::Iterate => self.count_entries(),
        }
    }

    fn count_entries(&self) -> Option<u64> {
        fs::read_dir(&self.fd_dir).ok().map(|entries| entries.count() as u64)
    }

    /// The soft limit; `None` if it is unlimited.
    fn limit(&self) -> Option<u64> {
        let limits = host::read_text(self.host.proc("self/limits"))?;
        host::parse_field(&limits, "Max open files")
    }
}

impl LoadSource for FileDescriptorLoad {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        let limit = self.limit().filter(|limit| *limit > 0)?;
        Some(Percent::from_ratio(self.open_count()?, limit))
    }
}
