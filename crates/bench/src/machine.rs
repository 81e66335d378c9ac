//! Information from Linux about this machine and this process.

use crate::BenchResult;
use std::{fs, path::Path, thread};

/// The root of the checkout.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The resident memory of this process in bytes. `smaps_rollup` is exact, while `statm` may lag behind.
pub fn resident_memory() -> BenchResult<u64> {
    let kib = read_field("/proc/self/smaps_rollup", "Rss:")?.trim_end_matches("kB").trim().parse::<u64>()?;
    Ok(kib * 1_024)
}

/// The accumulated times of all CPUs, in ticks.
#[derive(Clone, Copy)]
pub struct CpuTimes {
    total: u64,
    idle: u64,
    stolen: u64,
    own: u64,
}

impl CpuTimes {
    /// Reads the current times.
    pub fn now() -> BenchResult<Self> {
        // user nice system idle iowait irq softirq steal; the first two include the remaining fields
        let times = parse_numbers(&read_field("/proc/stat", "cpu ")?);
        let at = |index: usize| times.get(index).copied().unwrap_or(0);
        // The process name may contain any characters but ends with the last `)`; utime and stime are fields 14 and 15.
        let process = fs::read_to_string("/proc/self/stat")?;
        let own = process.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(2);
        Ok(Self {
            total: times.iter().take(8).sum(),
            idle: at(3) + at(4),
            stolen: at(7),
            own: own.filter_map(|ticks| ticks.parse::<u64>().ok()).sum(),
        })
    }

    /// Returns a warning if other processes or the hypervisor disturbed the measurement since `before`.
    pub fn disturbance_since(self, before: Self) -> Option<String> {
        // Some kernel counters can decrease.
        let total = self.total.saturating_sub(before.total).max(1);
        let percent = |ticks: u64| ticks as f64 / total as f64 * 100.0;
        let stolen = self.stolen.saturating_sub(before.stolen);
        let ours = self.idle.saturating_sub(before.idle) + self.own.saturating_sub(before.own) + stolen;
        let (stolen, others) = (percent(stolen), percent(total.saturating_sub(ours)));
        (stolen > 2.0 || others > 5.0).then(|| {
            format!(
                "noisy: the hypervisor stole {stolen:.1} % of the time, other processes took {others:.1} %"
            )
        })
    }
}

/// Describes the machine in one line.
pub fn describe() -> String {
    let cpu = read_field("/proc/cpuinfo", "model name").unwrap_or_default();
    let cpu = cpu.trim_start_matches([':', '\t', ' ']);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let kib: f64 = read_field("/proc/meminfo", "MemTotal:")
        .unwrap_or_default()
        .trim_end_matches("kB")
        .trim()
        .parse()
        .unwrap_or(0.0);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{cores} × {cpu}, {:.0} GiB, Linux {}", kib / 1_048_576.0, kernel.trim())
}

/// Returns the version of a crate in `Cargo.lock`.
pub fn locked_version(name: &str) -> BenchResult<String> {
    let lock = fs::read_to_string(Path::new(ROOT).join("Cargo.lock"))?;
    let package = format!("name = \"{name}\"\nversion = \"");
    let (_, rest) = lock.split_once(&package).ok_or_else(|| format!("Cargo.lock has no {name}"))?;
    Ok(rest.split('"').next().unwrap_or_default().to_owned())
}

fn read_field(path: &str, name: &str) -> BenchResult<String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(line.ok_or_else(|| format!("{path} has no {name}"))?.trim().to_owned())
}

fn parse_numbers(text: &str) -> Vec<u64> {
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
