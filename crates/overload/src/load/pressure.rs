//! The share of time in which some task of this process's cgroup was stalled on a resource.
//!
//! It reads the kernel's pressure stall information: that of the cgroup if available (version 2), otherwise
//! that of the machine. It shows what utilization cannot: a CPU can be fully used while no task waits for it.
//!
//! The kernel updates its averages only every two seconds. The share is computed from the total stall time
//! instead, which is exact at each reading.

use super::{
    LoadSource, cgroup,
    host::{self, HostPaths},
};
use tidegate_core::{Micros, Percent};

/// Measures the share of time in which some task waited for a resource. The first reading only sets the
/// baseline.
#[derive(Debug)]
pub struct PressureLoad {
    host: HostPaths,
    resource: &'static str,
    last: Option<(Micros, u64)>,
}

impl PressureLoad {
    /// Creates a source for stalls on CPU.
    pub fn cpu() -> Self {
        Self { host: HostPaths::local(), resource: "cpu", last: None }
    }

    /// Creates a source for stalls on memory: on pages that were reclaimed and are needed again.
    pub fn memory() -> Self {
        Self { resource: "memory", ..Self::cpu() }
    }

    /// Creates a source for stalls on I/O.
    pub fn io() -> Self {
        Self { resource: "io", ..Self::cpu() }
    }

    /// Reads the files of `host` instead.
    #[must_use]
    pub fn with_host(self, host: HostPaths) -> Self {
        Self { host, last: None, ..self }
    }

    /// The total stall time since the kernel or the cgroup started.
    fn read_stall_time(&self) -> Option<u64> {
        let own = cgroup::find_unified_dirs(&self.host).into_iter().next();
        let own =
            own.and_then(|folder| host::read_text(folder.path.join(format!("{}.pressure", self.resource))));
        let text = own.or_else(|| host::read_text(self.host.proc("pressure").join(self.resource)))?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
    }
}

impl LoadSource for PressureLoad {
    fn read(&mut self, now: Micros) -> Option<Percent> {
        let total = self.read_stall_time()?;
        let (at, before) = self.last.replace((now, total))?;
        let elapsed = now.saturating_sub(at).get();
        (elapsed > 0).then(|| Percent::from_ratio(total.saturating_sub(before), elapsed))
    }
}
