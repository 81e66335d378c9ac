//! How much of the memory is used that this process may use.
//!
//! In a cgroup with a limit, of itself or of one around it: what is used of it; the fullest counts. Without one: what
//! the kernel calls available, of the whole machine. Files that are only cached count as free, as the kernel counts
//! them: it gives them up when memory is needed, and a busy file cache is no reason to turn callers away.

use super::{
    Probe,
    cgroup::{self, Folder, Version},
    host::{self, Host},
};
use tidegate_core::{Micros, Percent};

/// The share of memory that is used and cannot be given up.
#[derive(Debug, Default)]
pub struct Memory {
    host: Host,
}

impl Memory {
    /// The memory of this machine, or of this process's cgroup.
    pub fn new() -> Self {
        Self::of(Host::local())
    }

    /// The same of another place.
    pub fn of(host: Host) -> Self {
        Self { host }
    }
}

impl Probe for Memory {
    fn read(&mut self, _now: Micros) -> Option<Percent> {
        let machine = host::text(self.host.proc("meminfo"));
        let total = machine.as_deref().and_then(|text| host::field(text, "MemTotal"));
        // In version 1 "no limit" is a number too, larger than any machine.
        let most = total.map_or(u64::MAX / 4, |kilobytes| kilobytes.saturating_mul(1_024));
        let of_folder = |folder: Folder| {
            let limit = limit(&folder).filter(|limit| *limit < most)?;
            Some(Percent::from_ratio(used(&folder)?, limit))
        };
        let fullest = cgroup::folders(&self.host, "memory").into_iter().filter_map(of_folder).max();
        fullest.or_else(|| {
            let (total, available) = (total?, host::field(machine.as_deref()?, "MemAvailable")?);
            (total > 0).then(|| Percent::from_ratio(total.saturating_sub(available), total))
        })
    }
}

/// Where a cgroup is throttled or stopped, whichever is first; `None` without a limit.
fn limit(folder: &Folder) -> Option<u64> {
    let number = |name: &str| host::number(folder.path.join(name)).filter(|limit| *limit > 0);
    match folder.version {
        Version::One => number("memory.limit_in_bytes"),
        Version::Two => [number("memory.max"), number("memory.high")].into_iter().flatten().min(),
    }
}

/// What a cgroup uses and cannot give up.
fn used(folder: &Folder) -> Option<u64> {
    let (usage, cached) = match folder.version {
        Version::One => {
            ("memory.usage_in_bytes", ["total_inactive_file", "total_active_file", "slab_reclaimable"])
        }
        Version::Two => ("memory.current", ["inactive_file", "active_file", "slab_reclaimable"]),
    };
    let usage = host::number(folder.path.join(usage))?;
    let stat = host::text(folder.path.join("memory.stat")).unwrap_or_default();
    let cached = cached.into_iter().filter_map(|name| host::field(&stat, name));
    Some(cached.fold(usage, u64::saturating_sub))
}
