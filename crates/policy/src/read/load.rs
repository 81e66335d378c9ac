//! Reads the load of the machine, features, and what follows the load.

use super::{
    PolicyReader,
    admission::write_class_percents,
    values::{parse_bandwidth_rate, unknown_word_error, write_duration, write_number, write_path},
};
use crate::{
    map_schema::{
        MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, percentage, with_default,
        without,
    },
    model::{FailingSpec, FeatureSpec, LoadSignalSpec, LoadSpec, ScaleSpec, ShedSpec},
    source::{SyntaxKey, SyntaxNode, SyntaxValue},
};
use tidegate_core::Percent;
use tidegate_overload::{
    ErrorRateSettings, LoadLevel, LoadLevels, LoadMonitor, ScalePolicy,
    load::{HostPaths, MachineSignal},
};

const PERCENT: ValueSchema = percentage(&["80%"]);
const SIGNAL_NAMES: [&str; 6] = ["cpu", "memory", "descriptors", "cpu-stall", "memory-stall", "io-stall"];
const LEVELS: [(&str, LoadLevel); 3] =
    [("normal", LoadLevel::Normal), ("busy", LoadLevel::Busy), ("critical", LoadLevel::Critical)];

pub(super) const LOAD_SHAPE: ValueSchema = ValueSchema::AnyOf(&[
    ValueSchema::OneOrMany(&ValueSchema::Keyword(&SIGNAL_NAMES)),
    ValueSchema::Map(|| LOAD.outline()),
]);

pub(super) static LOAD: MapSchema<LoadSpec> = MapSchema {
    name: "load",
    required: &[],
    keys: &[
        without(
            key(
                "signals",
                "The signals to measure: names, or a map with the value of each that counts as 100 %.",
                ValueSchema::AnyOf(&[
                    ValueSchema::OneOrMany(&ValueSchema::Keyword(&SIGNAL_NAMES)),
                    ValueSchema::NamedMap("cpu", &PERCENT),
                ]),
                |reader, node, it| it.signals = reader.signals(node),
                |it| write_signals(&it.signals),
            ),
            "All signals that this machine provides are measured.",
        ),
        with_default(
            field!("normal": percentage(&["40%"]), normal = percent => OutputValue::text,
            "The load from which the level is normal."),
            || OutputValue::text(LoadLevels::DEFAULT_THRESHOLDS[0]),
        ),
        with_default(
            field!("busy": percentage(&["70%"]), busy = percent => OutputValue::text,
            "The load from which the level is busy."),
            || OutputValue::text(LoadLevels::DEFAULT_THRESHOLDS[1]),
        ),
        with_default(
            field!("critical": percentage(&["85%"]), critical = percent => OutputValue::text,
            "The load from which the level is critical."),
            || OutputValue::text(LoadLevels::DEFAULT_THRESHOLDS[2]),
        ),
        with_default(
            field!("hysteresis": percentage(&["5%"]), hysteresis = percent => OutputValue::text,
            "How far the load must fall below a threshold before the level falls or requests are admitted again."),
            || OutputValue::text(LoadLevels::DEFAULT_HYSTERESIS),
        ),
        with_default(
            field!("cooldown": duration(&["10s"]), cooldown = positive_duration => write_duration,
            "For how long the load must stay that low."),
            || OutputValue::text(LoadLevels::DEFAULT_DWELL),
        ),
        with_default(
            field!("interval": duration(&["1s"]), interval = positive_duration => write_duration,
            "The interval of the readings."),
            || OutputValue::text(LoadMonitor::DEFAULT_INTERVAL),
        ),
        with_default(
            field!("proc": ValueSchema::Text(TextKind::File, &["/host/proc"]), proc = path => write_path,
            "The directory of the kernel's files."),
            || OutputValue::text(HostPaths::PROC),
        ),
        with_default(
            field!("cgroup": ValueSchema::Text(TextKind::File, &["/host/sys/fs/cgroup"]), cgroup = path => write_path,
            "The directory of the control groups."),
            || OutputValue::text(HostPaths::CGROUP),
        ),
    ],
};

pub(super) const FEATURE_SHAPE: ValueSchema = ValueSchema::AnyOf(&[
    ValueSchema::Keyword(&["manual", "normal", "busy", "critical"]),
    ValueSchema::Map(|| FEATURE.outline()),
]);

pub(super) static FEATURE: MapSchema<FeatureSpec> = MapSchema {
    name: "feature",
    required: &[],
    keys: &[
        without(
            field!("off-at": ValueSchema::Keyword(&["normal", "busy", "critical"]), off_at = keyword(&LEVELS) => OutputValue::text,
            "The load level from which the feature is off."),
            "The load does not disable the feature.",
        ),
        without(
            field!("off-during": ValueSchema::Text(TextKind::TimeWindows, &["mon-fri 18:00-22:00"]), off_during = parse => OutputValue::text,
            "The times at which the feature is off."),
            "The time of day does not disable the feature.",
        ),
    ],
};

pub(super) static SCALE: MapSchema<ScaleSpec> = MapSchema {
    name: "scale",
    required: &[],
    keys: &[
        with_default(
            field!("high": percentage(&["90%"]), high = percent => OutputValue::text,
            "The load from which the quota shrinks."),
            || OutputValue::text(ScalePolicy::default().high_load()),
        ),
        with_default(
            field!("low": percentage(&["40%"]), low = percent => OutputValue::text,
            "The load up to which the quota grows back."),
            || OutputValue::text(ScalePolicy::default().low_load()),
        ),
        with_default(
            field!("min": ValueSchema::Text(TextKind::Factor, &["x0.25"]), min = parse => OutputValue::text,
            "The minimum factor."),
            || OutputValue::text(ScalePolicy::default().floor()),
        ),
        with_default(
            field!("interval": duration(&["10s"]), interval = positive_duration => write_duration,
            "The minimum time between two steps."),
            || OutputValue::text(ScalePolicy::default().step_interval()),
        ),
    ],
};

pub(super) const SHED_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[PERCENT, ValueSchema::NamedMap("low", &PERCENT)]);

pub(super) static FAILING: MapSchema<FailingSpec> = MapSchema {
    name: "while-failing",
    required: &[],
    keys: &[
        with_default(
            field!("min-calls": ValueSchema::Integer("calls", 50), min_calls = integer(0..=1_000_000_000) => write_number,
            "The quota applies only if a key has more calls than this in the window."),
            || OutputValue::Number(ErrorRateSettings::DEFAULT_REQUEST_THRESHOLD),
        ),
        with_default(
            field!("failure-rate": percentage(&["20%"]), failure_rate = percent => OutputValue::text,
            "The quota applies only if more than this share of the calls failed."),
            || OutputValue::text(ErrorRateSettings::DEFAULT_ERROR_THRESHOLD),
        ),
        with_default(
            field!("window-size": duration(&["30s"]), window_size = positive_duration => write_duration,
            "The window of the calls."),
            || OutputValue::text(ErrorRateSettings::DEFAULT_WINDOW),
        ),
    ],
};

impl PolicyReader<'_> {
    /// Reads `[cpu, memory]`, or a map.
    pub(super) fn load(&mut self, node: &SyntaxNode) -> Option<LoadSpec> {
        let mut load = LoadSpec::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &LOAD, &mut load),
            _ => load.signals = self.signals(node),
        }
        Some(load)
    }

    fn signals(&mut self, node: &SyntaxNode) -> Vec<LoadSignalSpec> {
        let SyntaxValue::Map(_) = &node.value else {
            let names = MachineSignal::ALL.map(|signal| (signal.name(), signal));
            return self.one_or_many(node, |reader, node| {
                if matches!(&node.value, SyntaxValue::Text(text) if text == "network") {
                    let fix = "write a map with its capacity, as in `signals: { network: 125MB/s }`";
                    reader.report_error(node.span, "signal `network` without a capacity", fix);
                    return None;
                }
                let signal = reader.keyword(node, &names)?;
                Some(LoadSignalSpec { signal, full_at: signal.default_saturation() })
            });
        };
        let mut signals = Vec::new();
        self.named_entries(node, "signals", |reader, name, node| signals.extend(reader.signal(name, node)));
        signals
    }

    /// Reads `cpu: 80%` or `network: 125MB/s`.
    fn signal(&mut self, name: &SyntaxKey, node: &SyntaxNode) -> Option<LoadSignalSpec> {
        if name.text == "network" {
            let rate = self.read(node, parse_bandwidth_rate)?.quota.rate()?;
            let bytes_per_second =
                u128::from(rate.amount()) * 1_000_000 / u128::from(rate.period().get().max(1));
            let bytes_per_second = u64::try_from(bytes_per_second).unwrap_or(u64::MAX);
            let signal = MachineSignal::Network { bytes_per_second };
            return Some(LoadSignalSpec { signal, full_at: Percent::FULL });
        }
        let Some(signal) = MachineSignal::ALL.into_iter().find(|signal| signal.name() == name.text) else {
            let names: Vec<_> =
                MachineSignal::ALL.map(MachineSignal::name).into_iter().chain(["network"]).collect();
            let (problem, fix) = unknown_word_error(&name.text, &names);
            self.report_error(name.span, problem.replacen("value", "signal", 1), fix);
            return None;
        };
        let full_at = self.percent(node)?;
        if full_at == Percent::ZERO {
            self.report_error(node.span, "0% counts as full", "write a percentage above zero, as in `80%`");
            return None;
        }
        Some(LoadSignalSpec { signal, full_at })
    }

    /// Reads an item of `features`.
    pub(super) fn feature(&mut self, name: &SyntaxKey, node: &SyntaxNode) -> FeatureSpec {
        let mut feature = FeatureSpec { name: name.text.clone(), off_at: None, off_during: None };
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &FEATURE, &mut feature),
            _ => {
                let manual = [("manual", None)];
                let levels = LEVELS.map(|(name, level)| (name, Some(level)));
                let words: Vec<_> = manual.into_iter().chain(levels).collect();
                feature.off_at = self.keyword(node, &words).flatten();
            }
        }
        feature
    }

    pub(super) fn scale(&mut self, node: &SyntaxNode) -> Option<ScaleSpec> {
        let mut scale = ScaleSpec::default();
        self.read_map(node, &SCALE, &mut scale);
        Some(scale)
    }

    /// Reads `90%`, or a percentage for each priority class.
    pub(super) fn shed(&mut self, node: &SyntaxNode) -> Option<ShedSpec> {
        let SyntaxValue::Map(_) = &node.value else { return self.percent(node).map(ShedSpec::All) };
        let thresholds = self.class_percents(node, "shed");
        Some(ShedSpec::Classes(thresholds))
    }

    pub(super) fn while_failing(&mut self, node: &SyntaxNode) -> Option<FailingSpec> {
        let mut failing = FailingSpec::default();
        self.read_map(node, &FAILING, &mut failing);
        Some(failing)
    }
}

pub(super) fn write_feature(feature: &FeatureSpec) -> OutputValue {
    match (feature.off_at, &feature.off_during) {
        (None, None) => OutputValue::text("manual"),
        (Some(level), None) => OutputValue::text(level),
        _ => FEATURE.write(feature),
    }
}

fn write_signals(signals: &[LoadSignalSpec]) -> Option<OutputValue> {
    OutputValue::named_map(signals.iter().map(|it| (it.signal.name(), it)), |it| match it.signal {
        MachineSignal::Network { bytes_per_second } => OutputValue::text(format!("{bytes_per_second}B/s")),
        _ => OutputValue::text(it.full_at),
    })
}

pub(super) fn write_shed(shed: &ShedSpec) -> OutputValue {
    match shed {
        ShedSpec::All(threshold) => OutputValue::text(threshold),
        ShedSpec::Classes(thresholds) => write_class_percents(thresholds),
    }
}
