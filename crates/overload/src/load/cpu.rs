//! How much of the processor time is used that this process may use.
//!
//! In a cgroup with a quota, of itself or of one around it: what all in that cgroup used, of what they may; the fullest
//! counts. Without one: how busy the processors are that this process may run on, whoever keeps them busy. Time that a
//! hypervisor took away counts as busy; waiting for a disk does not.

use super::{
    Probe,
    cgroup::{self, CgroupDir, CgroupVersion},
    host::{self, HostPaths},
};
use std::path::PathBuf;
use tidegate_core::{Micros, Percent};

/// The share of processor time that is used. The first reading only starts the count.
#[derive(Debug, Default)]
pub struct CpuProbe {
    host: HostPaths,
    cgroups: Vec<CgroupUsage>,
    machine_ticks: Option<Ticks>,
}

/// A cgroup with a quota, and what it had used when last seen.
#[derive(Debug)]
struct CgroupUsage {
    path: PathBuf,
    read_at: Micros,
    used: Micros,
}

/// Processor time in the kernel's ticks, over the processors that may be used.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    busy: u64,
    total: u64,
}

impl CpuProbe {
    /// The processor time of this machine, or of this process's cgroup.
    pub fn new() -> Self {
        Self::with_host(HostPaths::local())
    }

    /// The same of another place.
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
                let may = quota.allowance(now.since(last.read_at), self.cpu_count());
                fullest = fullest.max(Some(Percent::from_ratio(used.since(last.used).get(), may)));
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

    /// The processors that this process may run on, as ranges: `0-1,4`.
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

    /// How many processors this process may run on, where that is known.
    fn cpu_count(&self) -> Option<u64> {
        let processors = self
            .allowed_cpus()
            .iter()
            .fold(0_u64, |sum, (from, to)| sum.saturating_add(to.saturating_sub(*from).saturating_add(1)));
        (processors > 0).then_some(processors)
    }
}

impl Probe for CpuProbe {
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
    /// `user nice system idle iowait irq softirq steal guest guest_nice`, where guests are counted in user already.
    fn parse<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let numbers: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let all = numbers.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
        let idle = numbers.get(3)?.saturating_add(numbers.get(4).copied().unwrap_or(0));
        Some(Self { busy: all.saturating_sub(idle), total: all })
    }
}

/// So much processor time in every period.
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
            // Without a quota it says -1, which is no number for us.
            CgroupVersion::V1 => (
                host::read_number(folder.path.join("cpu.cfs_quota_us"))?,
                host::read_number(folder.path.join("cpu.cfs_period_us"))?,
            ),
        };
        (time > 0 && period > 0).then_some(Self { time, period })
    }

    /// What may be used in `elapsed`: no more than there are processors.
    fn allowance(self, elapsed: Micros, processors: Option<u64>) -> u64 {
        let may = u128::from(elapsed.get()) * u128::from(self.time) / u128::from(self.period);
        let may = u64::try_from(may).unwrap_or(u64::MAX);
        processors.map_or(may, |processors| may.min(elapsed.get().saturating_mul(processors)))
    }
}

/// The processor time that a cgroup has used since it was made.
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
