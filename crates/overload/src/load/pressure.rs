//! For which part of the time some task of this process's cgroup stood still for want of something.
//!
//! The kernel's pressure stall information: that of the cgroup where the kernel keeps it (version 2), else that of the
//! machine. It tells what use cannot: a processor can be fully used without anyone waiting for it.
//!
//! Its surprise: the kernel's own averages are renewed only every two seconds. The share is taken from the running total
//! of time instead, which is exact at every reading.

use super::{
    Probe, cgroup,
    host::{self, HostPaths},
};
use tidegate_core::{Micros, Percent};

/// The share of time in which some task waited for a resource. The first reading only starts the count.
#[derive(Debug)]
pub struct PressureProbe {
    host: HostPaths,
    resource: &'static str,
    last: Option<(Micros, u64)>,
}

impl PressureProbe {
    /// Waiting for a processor.
    pub fn cpu() -> Self {
        Self { host: HostPaths::local(), resource: "cpu", last: None }
    }

    /// Waiting for memory: for pages that were given up and are needed after all.
    pub fn memory() -> Self {
        Self { resource: "memory", ..Self::cpu() }
    }

    /// Waiting for disks.
    pub fn io() -> Self {
        Self { resource: "io", ..Self::cpu() }
    }

    /// The same of another place.
    #[must_use]
    pub fn with_host(self, host: HostPaths) -> Self {
        Self { host, last: None, ..self }
    }

    /// The time in which some task stood still, since the kernel or the cgroup began.
    fn read_stall_time(&self) -> Option<u64> {
        let own = cgroup::find_unified_dirs(&self.host).into_iter().next();
        let own =
            own.and_then(|folder| host::read_text(folder.path.join(format!("{}.pressure", self.resource))));
        let text = own.or_else(|| host::read_text(self.host.proc("pressure").join(self.resource)))?;
        let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
        some.split_whitespace().find_map(|word| word.strip_prefix("total="))?.parse().ok()
    }
}

impl Probe for PressureProbe {
    fn read(&mut self, now: Micros) -> Option<Percent> {
        let total = self.read_stall_time()?;
        let (at, before) = self.last.replace((now, total))?;
        let elapsed = now.since(at).get();
        (elapsed > 0).then(|| Percent::from_ratio(total.saturating_sub(before), elapsed))
    }
}
