//! The share of the available CPU time that is used.
//!
//! In a cgroup with a CPU quota, its own or that of an ancestor: the usage of the cgroup divided by its
//! quota; the fullest one counts. Without a quota: the utilization of the CPUs that this process may run on,
//! by all processes. Stolen time counts as busy; I/O wait does not.

use super::{
    LoadSource,
    cgroup::{self, CgroupDir, CgroupVersion},
    host::{self, HostPaths},
};
use std::path::PathBuf;
use tidegate_core::{Micros, Percent};

/// Measures the share of CPU time in use. The first reading only sets the baseline.
#[derive(Debug, Default)]
pub struct CpuLoad {
    host: HostPaths,
    cgroups: Vec<CgroupUsage>,
    machine_ticks: Option<Ticks>,
}

/// A cgroup with a quota, and its usage at the last reading.
#[derive(Debug)]
struct CgroupUsage {
    path: PathBuf,
    read_at: Micros,
    used: Micros,
}

/// CPU time in kernel ticks, over the allowed CPUs.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    busy: u64,
    total: u64,
}

impl CpuLoad {
    /// Creates a source for this machine, or for the cgroup of this process.
    pub fn new() -> Self {
        Self::with_host(HostPaths::local())
    }

    /// Creates a source that reads the files of `host`.
    pub fn with_host(host: HostPaths) -> Self {
        Self { host, ..Self::default() }
    }

    fn read_cgroups(&mut self, now: Micros, limited: Vec<(CgroupDir, CpuQuota)>) -> Option<Percent> {
        let before = std::mem::take(&mut self.cgroups);
        let mut fullest = None;
        for (folder, quota) in limited {
            let Some(used) = read_usage(&self.host, &folder) else { continue };
            let last = before.iter().find(|group| group.path == folder.path && used >= group.used);
            if let Some(last) = last.filter(|last| now > last.read_at) {
                let allowance = quota.allowance(now.saturating_sub(last.read_at), self.cpu_count());
                fullest =
                    fullest.max(Some(Percent::from_ratio(used.saturating_sub(last.used).get(), allowance)));
            }
            self.cgroups.push(CgroupUsage { path: folder.path, read_at: now, used });
        }
        fullest
    }

    fn read_machine(&mut self) -> Option<Percent> {
        let now = self.read_ticks()?;
        let last = self.machine_ticks.replace(now)?;
        let (busy, all) = (now.busy.checked_sub(last.busy)?, now.total.checked_sub(last.total)?);
        (all > 0).then(|| Percent::from_ratio(busy, all))
    }

    fn read_ticks(&self) -> Option<Ticks> {
        let stat = host::read_text(self.host.proc("stat"))?;
        let allowed = self.allowed_cpus();
        let is_allowed = |name: &str| {
            let number = name.strip_prefix("cpu").and_then(|number| number.parse().ok());
            number.is_some_and(|number: u64| allowed.iter().any(|(from, to)| (*from..=*to).contains(&number)))
        };
        let mut sum = Ticks::default();
        let mut whole = None;
        for line in stat.lines().filter(|line| line.starts_with("cpu")) {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            let ticks = Ticks::parse(words)?;
            if name == "cpu" {
                whole = Some(ticks);
            } else if is_allowed(name) {
                sum = Ticks {
                    busy: sum.busy.saturating_add(ticks.busy),
                    total: sum.total.saturating_add(ticks.total),
                };
            }
        }
        if sum.total > 0 { Some(sum) } else { whole }
    }

    /// The CPUs that this process may run on, as ranges: `0-1,4`.
    fn allowed_cpus(&self) -> Vec<(u64, u64)> {
        let Some(status) = host::read_text(self.host.proc("self/status")) else { return Vec::new() };
        let list =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        let range = |range: &str| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        };
        list.split(',').filter_map(range).collect()
    }

    /// The number of CPUs that this process may run on, if known.
    fn cpu_count(&self) -> Option<u64> {
        let processors = self
            .allowed_cpus()
            .iter()
            .fold(0_u64, |sum, (from, to)| sum.saturating_add(to.saturating_sub(*from).saturating_add(1)));
        (processors > 0).then_some(processors)
    }
}

impl LoadSource for CpuLoad {
    fn read(&mut self, now: Micros) -> Option<Percent> {
        let folders = cgroup::find_dirs(&self.host, "cpu");
        let limited: Vec<_> =
            folders.into_iter().filter_map(|it| Some((it.clone(), CpuQuota::read(&it)?))).collect();
        match limited.is_empty() {
            true => self.read_machine(),
            false => self.read_cgroups(now, limited),
        }
    }
}

impl Ticks {
    /// Parses `user nice system idle iowait irq softirq steal`. The fields after these are already part of
    /// `user` and `nice`.
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let numbers: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let all = numbers.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
        let idle = numbers.get(3)?.saturating_add(numbers.get(4).copied().unwrap_or(0));
        Some(Self { busy: all.saturating_sub(idle), total: all })
    }
}

/// CPU time per period.
#[derive(Clone, Copy, Debug)]
struct CpuQuota {
    time: u64,
    period: u64,
}

impl CpuQuota {
    /// `None` for a cgroup without a quota.
    fn read(folder: &CgroupDir) -> Option<Self> {
        let (time, period) = match folder.version {
            CgroupVersion::V2 => {
                let text = host::read_text(folder.path.join("cpu.max"))?;
                let mut words = text.split_whitespace();
                (words.next()?.parse().ok()?, words.next()?.parse().ok()?)
            }
            // Without a quota the file contains -1, which does not parse as a `u64`.
            CgroupVersion::V1 => (
                host::read_number(folder.path.join("cpu.cfs_quota_us"))?,
                host::read_number(folder.path.join("cpu.cfs_period_us"))?,
            ),
        };
        (time > 0 && period > 0).then_some(Self { time, period })
    }

    /// The CPU time available in `elapsed`, limited by the number of CPUs.
    fn allowance(self, elapsed: Micros, processors: Option<u64>) -> u64 {
        let allowance = u128::from(elapsed.get()) * u128::from(self.time) / u128::from(self.period);
        let allowance = u64::try_from(allowance).unwrap_or(u64::MAX);
        processors.map_or(allowance, |processors| allowance.min(elapsed.get().saturating_mul(processors)))
    }
}

/// The CPU time that a cgroup has used since it was created.
fn read_usage(host: &HostPaths, folder: &CgroupDir) -> Option<Micros> {
    let micros = match folder.version {
        CgroupVersion::V2 => {
            host::parse_field(&host::read_text(folder.path.join("cpu.stat"))?, "usage_usec")?
        }
        CgroupVersion::V1 => {
            let here = host::read_number(folder.path.join("cpuacct.usage"));
            let nanos = here.or_else(|| {
                host::read_number(cgroup::find_sibling_dir(host, folder, "cpuacct")?.join("cpuacct.usage"))
            });
            nanos? / 1_000
        }
    };
    Some(Micros::new(micros))
}
