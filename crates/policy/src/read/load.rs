//! Reads the load of the machine, features, and what follows the load.

use super::{
    PolicyReader,
    admission::write_class_percents,
    rule::TIME,
    values::{parse_bandwidth_rate, unknown_word_error, write_duration, write_number, write_path},
};
use crate::{
    map_schema::{MapSchema, OutputValue, ValueSchema, field, key},
    model::{FailingSpec, FeatureSpec, LoadSignalSpec, LoadSpec, ScaleSpec, ShedSpec},
    source::{SyntaxKey, SyntaxNode, SyntaxValue},
};
use tidegate_core::Percent;
use tidegate_overload::{LoadLevel, load::MachineSignal};

const PERCENT: ValueSchema = ValueSchema::Text(&["80%"]);
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
        key(
            "signals",
            "The signals to measure: names, or a map with the value of each that counts as 100 %; all that this machine provides by default.",
            ValueSchema::AnyOf(&[
                ValueSchema::OneOrMany(&ValueSchema::Keyword(&SIGNAL_NAMES)),
                ValueSchema::NamedMap(&PERCENT),
            ]),
            |reader, node, it| it.signals = reader.signals(node),
            |it| write_signals(&it.signals),
        ),
        field!("normal": PERCENT, normal = percent => OutputValue::text,
            "The load from which the level is normal; 50% by default."),
        field!("busy": PERCENT, busy = percent => OutputValue::text,
            "The load from which the level is busy; 75% by default."),
        field!("critical": PERCENT, critical = percent => OutputValue::text,
            "The load from which the level is critical; 90% by default."),
        field!("hysteresis": PERCENT, hysteresis = percent => OutputValue::text,
            "How far the load must fall below a threshold before the level falls or requests are admitted again; 10% by default."),
        field!("cooldown": TIME, cooldown = positive_duration => write_duration,
            "For how long the load must stay that low; `5s` by default."),
        field!("interval": TIME, interval = positive_duration => write_duration,
            "The interval of the readings; `250ms` by default."),
        field!("proc": ValueSchema::Text(&["/host/proc"]), proc = path => write_path,
            "The directory of the kernel's files; `/proc` by default."),
        field!("cgroup": ValueSchema::Text(&["/host/sys/fs/cgroup"]), cgroup = path => write_path,
            "The directory of the control groups; `/sys/fs/cgroup` by default."),
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
        field!("off-at": ValueSchema::Keyword(&["normal", "busy", "critical"]), off_at = keyword(&LEVELS) => OutputValue::text,
            "The load level from which the feature is off."),
        field!("off-during": ValueSchema::Text(&["mon-fri 18:00-22:00"]), off_during = parse => OutputValue::text,
            "The times at which the feature is off."),
    ],
};

pub(super) static SCALE: MapSchema<ScaleSpec> = MapSchema {
    name: "scale",
    required: &[],
    keys: &[
        field!("high": PERCENT, high = percent => OutputValue::text,
            "The load from which the quota shrinks; 80% by default."),
        field!("low": PERCENT, low = percent => OutputValue::text,
            "The load up to which the quota grows back; 50% by default."),
        field!("min": ValueSchema::Text(&["x0.1"]), min = parse => OutputValue::text,
            "The minimum factor; x0.1 by default."),
        field!("interval": TIME, interval = positive_duration => write_duration,
            "The minimum time between two steps; `5s` by default."),
    ],
};

pub(super) const SHED_SHAPE: ValueSchema = ValueSchema::AnyOf(&[PERCENT, ValueSchema::NamedMap(&PERCENT)]);

pub(super) static FAILING: MapSchema<FailingSpec> = MapSchema {
    name: "while-failing",
    required: &[],
    keys: &[
        field!("min-calls": ValueSchema::Integer, min_calls = integer(0..=1_000_000_000) => write_number,
            "The quota applies only if a key has more calls than this in the window; 100 by default."),
        field!("failure-rate": PERCENT, failure_rate = percent => OutputValue::text,
            "The quota applies only if more than this share of the calls failed; 50% by default."),
        field!("window-size": TIME, window_size = positive_duration => write_duration,
            "The window of the calls; `10s` by default."),
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
