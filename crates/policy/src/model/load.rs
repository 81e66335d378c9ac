//! The load of the machine, and features that are disabled by it.

use std::{path::PathBuf, time::Duration};
use tidegate_core::{Percent, Ratio};
use tidegate_overload::{
    LoadLevel,
    load::{MachineSignal, TimeWindows},
};

/// `load`: how the load of the machine is measured.
///
/// ```yaml
/// load: [cpu, memory]
/// load: { signals: { cpu: 80%, network: 125MB/s }, busy: 70%, critical: 85%, cooldown: 10s }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadSpec {
    /// `signals`; all that this machine provides if it is empty. The load is that of the fullest one.
    pub signals: Vec<LoadSignalSpec>,
    /// `normal`: the load from which the level is normal.
    pub normal: Option<Percent>,
    /// `busy`: the load from which the level is busy.
    pub busy: Option<Percent>,
    /// `critical`: the load from which the level is critical.
    pub critical: Option<Percent>,
    /// `hysteresis`: how far the load must fall below a threshold.
    pub hysteresis: Option<Percent>,
    /// `cooldown`: for how long.
    pub cooldown: Option<Duration>,
    /// `interval` of the readings.
    pub interval: Option<Duration>,
    /// `proc`: the directory of the kernel's files, if it is not `/proc`.
    pub proc: Option<PathBuf>,
    /// `cgroup`: the directory of the control groups, if it is not `/sys/fs/cgroup`.
    pub cgroup: Option<PathBuf>,
}

/// A signal of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadSignalSpec {
    /// The signal.
    pub signal: MachineSignal,
    /// The value that counts as 100 %.
    pub full_at: Percent,
}

/// An item of `features`: a part of the service that can be disabled.
///
/// ```yaml
/// features:                                     # the most important first
///   search: critical                            # the load level from which it is off
///   reports: { off-at: busy, off-during: "mon-fri 18:00-22:00" }
///   beta: manual
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeatureSpec {
    /// The name.
    pub name: String,
    /// `off-at`: the load level from which it is off.
    pub off_at: Option<LoadLevel>,
    /// `off-during`: the times at which it is off.
    pub off_during: Option<TimeWindows>,
}

/// `scale: { high: 80%, low: 50%, min: x0.1, interval: 5s }`: a quota that shrinks while the load is high.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScaleSpec {
    /// `high`: the load from which the quota shrinks.
    pub high: Option<Percent>,
    /// `low`: the load up to which it grows back.
    pub low: Option<Percent>,
    /// `min`: the minimum factor.
    pub min: Option<Ratio>,
    /// `interval` between two steps.
    pub interval: Option<Duration>,
}

/// `shed: 90%`, or `shed: { low: 80%, normal: 90% }`: the load from which requests are rejected, by priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShedSpec {
    /// The same threshold for all requests.
    All(Percent),
    /// The threshold of each priority class, the highest class first; `None` for a class that is never shed.
    Classes([Option<Percent>; 4]),
}

/// `while-failing: { min-calls: 100, failure-rate: 20%, window-size: 10s }`: the quota applies only while the rule's calls
/// fail.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FailingSpec {
    /// `min-calls`: the number of calls of a key in the window that must be exceeded.
    pub min_calls: Option<u64>,
    /// `failure-rate`: the share of failed calls that must be exceeded.
    pub failure_rate: Option<Percent>,
    /// `window-size`.
    pub window_size: Option<Duration>,
}
