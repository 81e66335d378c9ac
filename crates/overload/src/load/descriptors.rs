//! How many of the file descriptors are open that this process may open.

use super::{
    Probe,
    host::{self, Host},
};
use std::{fs, path::PathBuf};
use tidegate_core::{Micros, Percent};

/// The share of this process's file descriptors that are open.
#[derive(Debug)]
pub struct Descriptors {
    host: Host,
    folder: PathBuf,
    count: Count,
}

/// How the open ones are counted.
#[derive(Clone, Copy, Debug)]
enum Count {
    /// Newer kernels (6.2) tell it as the size of the folder, whatever the number.
    BySize,
    /// One by one, which takes longer the more there are.
    OneByOne,
}

impl Default for Descriptors {
    fn default() -> Self {
        Self::new()
    }
}

impl Descriptors {
    /// Those of this process.
    pub fn new() -> Self {
        Self::of(Host::local())
    }

    /// The same of another place.
    pub fn of(host: Host) -> Self {
        let folder = host.proc("self/fd");
        let mut it = Self { host, folder, count: Count::BySize };
        // Believe the size only where it agrees with a count; counting opens one itself.
        let agree = |size: u64, counted: u64| size.abs_diff(counted) <= 1;
        if !it.open().is_some_and(|size| it.one_by_one().is_some_and(|counted| agree(size, counted))) {
            it.count = Count::OneByOne;
        }
        it
    }

    fn open(&self) -> Option<u64> {
        match self.count {
            Count::BySize => fs::metadata(&self.folder).ok().map(|folder| folder.len()),
            Count::OneByOne => self.one_by_one(),
        }
    }

    fn one_by_one(&self) -> Option<u64> {
        fs::read_dir(&self.folder).ok().map(|entries| entries.count() as u64)
    }

    /// The soft limit; `None` if there is none.
    fn limit(&self) -> Option<u64> {
        let limits = host::text(self.host.proc("self/limits"))?;
        host::field(&limits, "Max open files")
    }
}

impl Probe for Descriptors {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        let limit = self.limit().filter(|limit| *limit > 0)?;
        Some(Percent::from_ratio(self.open()?, limit))
    }
}
