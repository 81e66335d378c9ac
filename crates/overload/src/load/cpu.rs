//! How much of the processor time is used that this process may use.
//!
//! In a cgroup with a quota, of itself or of one around it: what all in that cgroup used, of what they may; the fullest
//! counts. Without one: how busy the processors are that this process may run on, whoever keeps them busy. Time that a
//! hypervisor took away counts as busy; waiting for a disk does not.

use super::{
    Probe,
    cgroup::{self, Folder, Version},
    host::{self, Host},
};
use std::path::PathBuf;
use tidegate_core::{Micros, Percent};

/// The share of processor time that is used. The first reading only starts the count.
#[derive(Debug, Default)]
pub struct Cpu {
    host: Host,
    groups: Vec<Group>,
    machine: Option<Ticks>,
}

/// A cgroup with a quota, and what it had used when last seen.
#[derive(Debug)]
struct Group {
    path: PathBuf,
    at: Micros,
    used: Micros,
}

/// Processor time in the kernel's ticks, over the processors that may be used.
#[derive(Clone, Copy, Debug, Default)]
struct Ticks {
    busy: u64,
    all: u64,
}

impl Cpu {
    /// The processor time of this machine, or of this process's cgroup.
    pub fn new() -> Self {
        Self::of(Host::local())
    }

    /// The same of another place.
    pub fn of(host: Host) -> Self {
        Self { host, ..Self::default() }
    }

    fn read_groups(&mut self, now: Micros, limited: Vec<(Folder, Quota)>) -> Option<Percent> {
        let before = std::mem::take(&mut self.groups);
        let mut fullest = None;
        for (folder, quota) in limited {
            let Some(used) = used(&self.host, &folder) else { continue };
            let last = before.iter().find(|group| group.path == folder.path && used >= group.used);
            if let Some(last) = last.filter(|last| now > last.at) {
                let may = quota.of(now.since(last.at), self.processors());
                fullest = fullest.max(Some(Percent::from_ratio(used.since(last.used).get(), may)));
            }
            self.groups.push(Group { path: folder.path, at: now, used });
        }
        fullest
    }

    fn read_machine(&mut self) -> Option<Percent> {
        let now = self.ticks()?;
        let last = self.machine.replace(now)?;
        let (busy, all) = (now.busy.checked_sub(last.busy)?, now.all.checked_sub(last.all)?);
        (all > 0).then(|| Percent::from_ratio(busy, all))
    }

    fn ticks(&self) -> Option<Ticks> {
        let stat = host::text(self.host.proc("stat"))?;
        let allowed = self.allowed();
        let is_allowed = |name: &str| {
            let number = name.strip_prefix("cpu").and_then(|number| number.parse().ok());
            number.is_some_and(|number: u64| allowed.iter().any(|(from, to)| (*from..=*to).contains(&number)))
        };
        let mut sum = Ticks::default();
        let mut whole = None;
        for line in stat.lines().filter(|line| line.starts_with("cpu")) {
            let mut words = line.split_whitespace();
            let name = words.next()?;
            let ticks = Ticks::of(words)?;
            if name == "cpu" {
                whole = Some(ticks);
            } else if is_allowed(name) {
                sum = Ticks {
                    busy: sum.busy.saturating_add(ticks.busy),
                    all: sum.all.saturating_add(ticks.all),
                };
            }
        }
        if sum.all > 0 { Some(sum) } else { whole }
    }

    /// The processors that this process may run on, as ranges: `0-1,4`.
    fn allowed(&self) -> Vec<(u64, u64)> {
        let Some(status) = host::text(self.host.proc("self/status")) else { return Vec::new() };
        let list =
            status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
        let range = |range: &str| {
            let (from, to) = range.split_once('-').unwrap_or((range, range));
            Some((from.trim().parse().ok()?, to.trim().parse().ok()?))
        };
        list.split(',').filter_map(range).collect()
    }

    /// How many processors this process may run on, where that is known.
    fn processors(&self) -> Option<u64> {
        let processors = self
            .allowed()
            .iter()
            .fold(0_u64, |sum, (from, to)| sum.saturating_add(to.saturating_sub(*from).saturating_add(1)));
        (processors > 0).then_some(processors)
    }
}

impl Probe for Cpu {
    fn read(&mut self, now: Micros) -> Option<Percent> {
        let folders = cgroup::folders(&self.host, "cpu");
        let limited: Vec<_> =
            folders.into_iter().filter_map(|it| Some((it.clone(), Quota::of_folder(&it)?))).collect();
        match limited.is_empty() {
            true => self.read_machine(),
            false => self.read_groups(now, limited),
        }
    }
}

impl Ticks {
    /// `user nice system idle iowait irq softirq steal guest guest_nice`, where guests are counted in user already.
    fn of<'a>(words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let numbers: Vec<u64> = words.take(8).map(str::parse).collect::<Result<_, _>>().ok()?;
        let all = numbers.iter().fold(0, |sum: u64, ticks| sum.saturating_add(*ticks));
        let idle = numbers.get(3)?.saturating_add(numbers.get(4).copied().unwrap_or(0));
        Some(Self { busy: all.saturating_sub(idle), all })
    }
}

/// So much processor time in every period.
#[derive(Clone, Copy, Debug)]
struct Quota {
    time: u64,
    period: u64,
}

impl Quota {
    /// `None` for a cgroup without a quota.
    fn of_folder(folder: &Folder) -> Option<Self> {
        let (time, period) = match folder.version {
            Version::Two => {
                let text = host::text(folder.path.join("cpu.max"))?;
                let mut words = text.split_whitespace();
                (words.next()?.parse().ok()?, words.next()?.parse().ok()?)
            }
            // Without a quota it says -1, which is no number for us.
            Version::One => (
                host::number(folder.path.join("cpu.cfs_quota_us"))?,
                host::number(folder.path.join("cpu.cfs_period_us"))?,
            ),
        };
        (time > 0 && period > 0).then_some(Self { time, period })
    }

    /// What may be used in `elapsed`: no more than there are processors.
    fn of(self, elapsed: Micros, processors: Option<u64>) -> u64 {
        let may = u128::from(elapsed.get()) * u128::from(self.time) / u128::from(self.period);
        let may = u64::try_from(may).unwrap_or(u64::MAX);
        processors.map_or(may, |processors| may.min(elapsed.get().saturating_mul(processors)))
    }
}

/// The processor time that a cgroup has used since it was made.
fn used(host: &Host, folder: &Folder) -> Option<Micros> {
    let micros = match folder.version {
        Version::Two => host::field(&host::text(folder.path.join("cpu.stat"))?, "usage_usec")?,
        Version::One => {
            let here = host::number(folder.path.join("cpuacct.usage"));
            let nanos =
                here.or_else(|| host::number(cgroup::beside(host, folder, "cpuacct")?.join("cpuacct.usage")));
            nanos? / 1_000
        }
    };
    Some(Micros::new(micros))
}
