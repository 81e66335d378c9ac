//! How much of the memory is used that this process may use.
//!
//! In a cgroup with a limit, of itself or of one around it: what is used of it; the fullest counts. Without one: what
//! the kernel calls available, of the whole machine. Files that are only cached count as free, as the kernel counts
//! them: it gives them up when memory is needed, and a busy file cache is no reason to turn callers away.

use super::{
    Probe,
    cgroup::{self, CgroupDir, CgroupVersion},
    host::{self, HostPaths},
};
use tidegate_core::{Micros, Percent};

/// The share of memory that is used and cannot be given up.
#[derive(Debug, Default)]
pub struct MemoryProbe {
    host: HostPaths,
}

impl MemoryProbe {
    /// The memory of this machine, or of this process's cgroup.
    pub fn new() -> Self {
        Self::with_host(HostPaths::local())
    }

    /// The same of another place.
    pub fn with_host(host: HostPaths) -> Self {
        Self { host }
    }
}

impl Probe for MemoryProbe {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        let machine = host::read_text(self.host.proc("meminfo"));
        let total = machine.as_deref().and_then(|text| host::parse_field(text, "MemTotal"));
        // In version 1 "no limit" is a number too, larger than any machine.
        let most = total.map_or(u64::MAX / 4, |kilobytes| kilobytes.saturating_mul(1_024));
        let of_folder = |folder: CgroupDir| {
            let limit = read_limit(&folder).filter(|limit| *limit < most)?;
            Some(Percent::from_ratio(read_usage(&folder)?, limit))
        };
        let fullest = cgroup::find_dirs(&self.host, "memory").into_iter().filter_map(of_folder).max();
        fullest.or_else(|| {
            let (total, available) = (total?, host::parse_field(machine.as_deref()?, "MemAvailable")?);
            (total > 0).then(|| Percent::from_ratio(total.saturating_sub(available), total))
        })
    }
}

/// Where a cgroup is throttled or stopped, whichever is first; `None` without a limit.
fn read_limit(folder: &CgroupDir) -> Option<u64> {
    let number = |name: &str| host::read_number(folder.path.join(name)).filter(|limit| *limit > 0);
    match folder.version {
        CgroupVersion::V1 => number("memory.limit_in_bytes"),
        CgroupVersion::V2 => [number("memory.max"), number("memory.high")].into_iter().flatten().min(),
    }
}

/// What a cgroup uses and cannot give up.
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
