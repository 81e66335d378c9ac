//! The load monitor of a policy, its features, and what follows them.

use super::{
    Compiler, PolicyGateInner,
    error::{PolicyError, ProblemCollector},
    keys::CLASSES,
};
use crate::model::{FeatureSpec, LoadSignalSpec, LoadSpec, Policy, ScaleSpec, ShedSpec};
use std::{sync::Arc, time::Duration};
use tidegate_core::{Micros, Percent, Ratio, SettingError};
use tidegate_overload::{
    FeatureConfig, Features, LoadLevels, LoadMonitor, ScalePolicy,
    load::{HostPaths, LoadMonitorBuilder, LoadShedder, MachineSignal},
};

/// A monitor that applies schedules, and the load if the policy uses it.
pub(crate) struct PolicyMonitor {
    pub(crate) monitor: LoadMonitor,
    /// What it measures; `None` if it only applies schedules.
    pub(crate) spec: Option<LoadSpec>,
    /// Whether it has its own thread.
    pub(crate) is_started: bool,
}

/// A monitor that is not started yet.
pub(crate) enum PreparedMonitor {
    /// That of the previous policy.
    Existing(Arc<PolicyMonitor>),
    New {
        builder: Box<LoadMonitorBuilder>,
        spec: Option<LoadSpec>,
        is_threaded: bool,
    },
}

/// The default of `feature-recovery`.
pub(crate) const DEFAULT_RECOVERY: Duration = Duration::from_secs(10);

impl PreparedMonitor {
    /// Prepares the monitor of a policy; `None` if nothing follows it.
    pub(crate) fn new(
        policy: &Policy,
        compiler: &Compiler,
        before: Option<&PolicyGateInner>,
        problems: &mut ProblemCollector,
    ) -> Option<Self> {
        let follows_load = follows_load(policy) && !compiler.ignores_load;
        let has_schedule = policy.rules.iter().any(|rule| rule.schedule.is_some())
            || policy.features.iter().any(|feature| feature.off_during.is_some());
        if !follows_load && !has_schedule {
            return None;
        }
        let spec = follows_load.then(|| policy.load.clone().unwrap_or_default());
        if let Some(known) = before.and_then(|before| before.monitor.as_ref())
            && spec.is_some()
            && known.spec == spec
        {
            return Some(Self::Existing(known.clone()));
        }
        let mut builder = LoadMonitor::builder();
        if let Some(clock) = &compiler.clock {
            builder = builder.clock(clock.clone());
        }
        if let Some(spec) = &spec {
            builder = add_signals(builder, spec, problems);
            match levels(spec) {
                Ok(levels) => builder = builder.levels(levels),
                Err(error) => problems.add_at(&["load"], &error),
            }
            if let Some(interval) = spec.interval {
                builder = builder.interval(interval);
            }
        }
        let is_threaded = spec.is_some() && compiler.clock.is_none();
        Some(Self::New { builder: Box::new(builder), spec, is_threaded })
    }

    /// Starts the monitor, if there is one, with a thread of its own if it measures the load.
    pub(crate) fn start(prepared: Option<Self>) -> Result<Option<Arc<PolicyMonitor>>, PolicyError> {
        let started = match prepared {
            None => return Ok(None),
            Some(Self::Existing(monitor)) => return Ok(Some(monitor)),
            Some(Self::New { builder, spec, is_threaded }) => {
                let monitor = if is_threaded { builder.start() } else { builder.build() };
                monitor.map(|monitor| Arc::new(PolicyMonitor { monitor, spec, is_started: is_threaded }))
            }
        };
        let mut problems = ProblemCollector::default();
        let monitor = problems.ok_or_record(None, started);
        problems.into_result().map(|()| monitor)
    }
}

/// Whether something in the policy follows the load.
pub(crate) fn follows_load(policy: &Policy) -> bool {
    policy.rules.iter().any(|rule| rule.scale.is_some() || rule.shed.is_some())
        || policy.features.iter().any(|feature| feature.off_at.is_some())
}

fn add_signals(
    mut builder: LoadMonitorBuilder,
    spec: &LoadSpec,
    problems: &mut ProblemCollector,
) -> LoadMonitorBuilder {
    let host = host_paths(spec);
    if spec.signals.is_empty() {
        let available: Vec<_> =
            MachineSignal::ALL.into_iter().filter(|signal| signal.is_available(&host)).collect();
        if available.is_empty() {
            let fix = "remove what follows the load, or set `load: { proc: DIRECTORY }` if `/proc` is mounted elsewhere";
            problems.add_at(&["load"], &SettingError::new("this machine provides no load signal", fix));
        }
        return available.into_iter().fold(builder, |builder, signal| {
            builder.machine_signal(signal, signal.default_saturation(), &host)
        });
    }
    for LoadSignalSpec { signal, full_at } in &spec.signals {
        if !signal.is_available(&host) {
            let available = MachineSignal::ALL.into_iter().filter(|signal| signal.is_available(&host));
            let available: Vec<_> = available.map(MachineSignal::name).collect();
            let fix = match available.as_slice() {
                [] => "remove it, or set `proc` to the directory of the kernel's files".to_owned(),
                available => format!("use one of {}", available.join(", ")),
            };
            let problem = format!("this machine does not provide the load signal `{signal}`");
            problems.add_at(&["load", "signals", signal.name()], &SettingError::new(problem, fix));
        }
        builder = builder.machine_signal(*signal, *full_at, &host);
    }
    builder
}

pub(super) fn host_paths(spec: &LoadSpec) -> HostPaths {
    match (&spec.proc, &spec.cgroup) {
        (None, None) => HostPaths::local(),
        (proc, cgroup) => HostPaths::new(
            proc.clone().unwrap_or(HostPaths::PROC.into()),
            cgroup.clone().unwrap_or(HostPaths::CGROUP.into()),
        ),
    }
}

pub(super) fn levels(spec: &LoadSpec) -> Result<LoadLevels, SettingError> {
    let hysteresis = spec.hysteresis.unwrap_or(LoadLevels::DEFAULT_HYSTERESIS);
    let [normal, busy, critical] = LoadLevels::DEFAULT_THRESHOLDS;
    let declared = [(spec.normal, normal), (spec.busy, busy), (spec.critical, critical)];
    let thresholds = declared.map(|(declared, default)| {
        let enter = declared.unwrap_or(default);
        (enter, Percent::from_millionths(enter.millionths().saturating_sub(hysteresis.millionths())))
    });
    Ok(LoadLevels::from_thresholds(thresholds)?.dwell(cooldown(Some(spec)).into()))
}

fn cooldown(spec: Option<&LoadSpec>) -> Duration {
    spec.and_then(|spec| spec.cooldown).unwrap_or(LoadLevels::DEFAULT_DWELL.into())
}

/// Builds the features of a policy, with the overrides and states of the previous ones.
pub(crate) fn build_features(policy: &Policy, before: &Features) -> Result<Features, SettingError> {
    let configs = policy.features.iter().map(|FeatureSpec { name, off_at, off_during }| {
        let config = match off_at {
            Some(level) => FeatureConfig::disabled_at(name, *level),
            None => FeatureConfig::manual(name),
        };
        match off_during {
            Some(windows) => config.off_during(windows.clone()),
            None => config,
        }
    });
    let recovery = policy.feature_recovery.unwrap_or(DEFAULT_RECOVERY);
    Features::restore(configs, recovery, before)
}

/// How a quota follows the load. It never exceeds the declared one.
pub(crate) fn scale_policy(spec: &ScaleSpec) -> Result<ScalePolicy, SettingError> {
    let default = ScalePolicy::default();
    let low = spec.low.unwrap_or(default.low_load());
    let high = spec.high.unwrap_or(default.high_load());
    let mut scale = default.load_thresholds(low, high)?;
    scale = scale.factor_range(spec.min.unwrap_or(default.floor()), Ratio::ONE)?;
    match spec.interval {
        Some(interval) => scale.interval(Micros::from(interval)),
        None => Ok(scale),
    }
}

/// Builds what sheds the requests of a rule.
pub(crate) fn build_shedder(
    spec: &ShedSpec,
    load: Option<&LoadSpec>,
    before: Option<&LoadShedder>,
) -> Result<Arc<LoadShedder>, SettingError> {
    let thresholds = match spec {
        ShedSpec::All(threshold) => [Some(*threshold); CLASSES.len()],
        ShedSpec::Classes(thresholds) => *thresholds,
    };
    let hysteresis = load.and_then(|load| load.hysteresis).unwrap_or(LoadLevels::DEFAULT_HYSTERESIS);
    let shedder = LoadShedder::new(thresholds)?.hysteresis(hysteresis, cooldown(load).into());
    if let Some(before) = before {
        shedder.restore(before);
    }
    Ok(Arc::new(shedder))
}

/// Applies all later readings to a shedder.
pub(crate) fn follow(shedder: &Arc<LoadShedder>, monitor: &LoadMonitor) {
    monitor.subscribe(shedder);
}
