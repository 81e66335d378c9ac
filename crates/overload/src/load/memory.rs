//! The share of the available memory that is used.
//!
//! In a cgroup with a memory limit, its own or that of an ancestor: the usage divided by the limit; the
//! fullest one counts. Without a limit: the memory of the machine that the kernel does not call available.
//! The page cache counts as free, as in the kernel: it is reclaimable, and a busy file cache is no reason to
//! reject requests.

use super::{
    LoadSource,
    cgroup::{self, CgroupDir, CgroupVersion},
    host::{self, HostPaths},
};
use tidegate_core::{Micros, Percent};

/// Measures the share of memory that is used and not reclaimable.
#[derive(Debug, Default)]
pub struct MemoryLoad {
    host: HostPaths,
}

impl MemoryLoad {
    /// Creates a source for this machine, or for the cgroup of this process.
    pub fn new() -> Self {
        Self::with_host(HostPaths::local())
    }

    /// Creates a source that reads the files of `host`.
    pub fn with_host(host: HostPaths) -> Self {
        Self { host }
    }
}

impl LoadSource for MemoryLoad {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        let machine = host::read_text(self.host.proc("meminfo"));
        let total = machine.as_deref().and_then(|text| host::parse_field(text, "MemTotal"));
        // In version 1 "no limit" is a number larger than any machine.
        let max = total.map_or(u64::MAX / 4, |kilobytes| kilobytes.saturating_mul(1_024));
        let of_folder = |folder: CgroupDir| {
            let limit = read_limit(&folder).filter(|limit| *limit < max)?;
            Some(Percent::from_ratio(read_usage(&folder)?, limit))
        };
        let fullest = cgroup::find_dirs(&self.host, "memory").into_iter().filter_map(of_folder).max();
        fullest.or_else(|| {
            let (total, available) = (total?, host::parse_field(machine.as_deref()?, "MemAvailable")?);
            (total > 0).then(|| Percent::from_ratio(total.saturating_sub(available), total))
        })
    }
}

/// The limit at which a cgroup is throttled or killed, whichever is lower; `None` without a limit.
fn read_limit(folder: &CgroupDir) -> Option<u64> {
    let number = |name: &str| host::read_number(folder.path.join(name)).filter(|limit| *limit > 0);
    match folder.version {
        CgroupVersion::V1 => number("memory.limit_in_bytes"),
        CgroupVersion::V2 => [number("memory.max"), number("memory.high")].into_iter().flatten().min(),
    }
}

/// The memory of a cgroup that is used and not reclaimable.
fn read_usage(folder: &CgroupDir) -> Option<u64> {
    let (usage, cached) = match folder.version {
        CgroupVersion::V1 => {
            ("memory.usage_in_bytes", ["total_inactive_file", "total_active_file", "slab_reclaimable"])
        }
        CgroupVersion::V2 => ("memory.current", ["inactive_file", "active_file", "slab_reclaimable"]),
    };
    let usage = host::read_number(folder.path.join(usage))?;
    let stat = host::read_text(folder.path.join("memory.stat")).unwrap_or_default();
    let cached = cached.into_iter().filter_map(|name| host::parse_field(&stat, name));
    Some(cached.fold(usage, u64::saturating_sub))
}
