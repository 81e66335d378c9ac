//! Reads circuit breakers, priorities, wait queues and modes.

use super::{
    PolicyReader, ValueError,
    key::{self, write_key},
    values::{unknown_word_error, write_duration, write_number},
};
use crate::{
    compile::{CLASSES, DEFAULT_MAX_OPEN_DURATION, DEFAULT_MAX_WAITERS, DEFAULT_RESERVE},
    map_schema::{
        MapSchema, OutputValue, TextKind, ValueSchema, duration, field, percentage, with_default,
        with_example, without,
    },
    model::{BreakerSpec, BreakerWindow, KeySpec, PrioritySpec, QueueOrder, QueueSpec, RuleEnforcement},
    source::{SyntaxNode, SyntaxValue},
};
use tidegate_core::Percent;
use tidegate_overload::BreakerSettings;
use tidegate_rule::Mode;

const QUEUE_ORDERS: [(&str, QueueOrder); 2] =
    [("fifo", QueueOrder::Fifo), ("priority", QueueOrder::Priority)];
pub(super) const CLASS_SHAPE: ValueSchema = ValueSchema::Keyword(&["critical", "high", "normal", "low"]);
/// The maximum length of a wait queue.
const MAX_QUEUE_LEN: u64 = 1_000_000;

pub(super) static BREAKER: MapSchema<BreakerSpec> = MapSchema {
    name: "breaker",
    required: &[],
    keys: &[
        with_default(
            field!("failure-rate": percentage(&["20%"]), failure_rate = percent => OutputValue::text,
            "The share of failed calls at which the breaker opens."),
            || OutputValue::text(BreakerSettings::DEFAULT_FAILURE_RATE),
        ),
        without(
            field!("slow-call-rate": percentage(&["80%"]), slow_call_rate = percent => OutputValue::text,
            "The share of slow calls at which the breaker opens. It needs `slow-call-duration`."),
            "Slow calls do not count.",
        ),
        without(
            field!("slow-call-duration": duration(&["2s"]), slow_call_duration = positive_duration => write_duration, "The duration from which a call is slow. It needs `slow-call-rate`."),
            "Slow calls do not count.",
        ),
        with_default(
            field!("window-size": ValueSchema::AnyOf(&[ValueSchema::Integer("calls", 20), duration(&["60s"])]), window_size = breaker_window => write_breaker_window,
            "The recent calls that the shares are computed of: a number of calls, or a time."),
            || OutputValue::Number(BreakerSettings::DEFAULT_WINDOW_CALLS.into()),
        ),
        with_default(
            field!("min-calls": ValueSchema::Integer("calls", 20), min_calls = integer(1..=1_000_000) => write_number,
            "The minimum number of calls before the breaker can open. It is at most `window-size`, if that is a number."),
            || OutputValue::Number(BreakerSettings::DEFAULT_MIN_CALLS),
        ),
        with_default(
            field!("open-duration": duration(&["5s"]), open_duration = positive_duration => write_duration, "The time that the breaker stays open before it admits probes."),
            || OutputValue::text(BreakerSettings::DEFAULT_OPEN_DURATION),
        ),
        without(
            field!("backoff": ValueSchema::Text(TextKind::Factor, &["x2", "x1.5"]), backoff = parse => OutputValue::text,
            "The factor that multiplies the open duration each time that the probes fail."),
            "The open duration does not grow.",
        ),
        with_default(
            field!("max-open-duration": duration(&["5min"]), max_open_duration = positive_duration => write_duration,
            "The upper bound of the open duration with `backoff`."),
            || write_duration(&DEFAULT_MAX_OPEN_DURATION),
        ),
        with_default(
            field!("jitter": percentage(&["10%"]), jitter = percent => OutputValue::text,
            "The share by which each open duration varies at random, so that several gateways do not probe at the same time."),
            || OutputValue::text(BreakerSettings::DEFAULT_JITTER),
        ),
        with_default(
            field!("half-open-calls": ValueSchema::Integer("calls", 3), half_open_calls = integer(1..=1_000_000) => write_number, "The number of calls that are admitted as probes while the breaker is half-open."),
            || OutputValue::Number(BreakerSettings::DEFAULT_HALF_OPEN_CALLS.into()),
        ),
        with_default(
            field!("half-open-timeout": duration(&["30s"]), half_open_timeout = positive_duration => write_duration,
            "The time after which a half-open breaker counts probes without an outcome as failed."),
            || OutputValue::text(BreakerSettings::DEFAULT_HALF_OPEN_TIMEOUT),
        ),
    ],
};

#[derive(Default)]
pub(super) struct PriorityMap {
    key: Option<KeySpec>,
    default: Option<String>,
    reserve: Option<[Option<Percent>; 4]>,
}

pub(super) static PRIORITY: MapSchema<PriorityMap> = MapSchema {
    name: "priority",
    required: &["key", "default"],
    keys: &[
        with_example(
            field!("key": key::KEY_SHAPE, key = key => write_key, "The part of the request that names its priority."),
            || OutputValue::text("header x-priority"),
        ),
        field!("default": CLASS_SHAPE, default = class => OutputValue::text, "The priority of requests that name none."),
        with_default(
            field!("reserve": ValueSchema::NamedMap("critical", &percentage(&["20%"])), reserve = reserve => write_class_percents,
            "The share of each quota that only requests of this priority and higher ones can use. The default does not apply if `shed`, `adaptive` or `order: priority` use the priority."),
            || {
                write_class_percents(&[
                    Some(DEFAULT_RESERVE),
                    Some(DEFAULT_RESERVE),
                    Some(DEFAULT_RESERVE),
                    None,
                ])
            },
        ),
    ],
};

pub(super) static QUEUE: MapSchema<QueueSpec> = MapSchema {
    name: "queue",
    required: &["max"],
    keys: &[
        field!("max": ValueSchema::Integer("requests", 20), max = integer(1..=MAX_QUEUE_LEN) => write_number, always,
            "The maximum number of waiting requests for one key."),
        with_default(
            field!("max-total": ValueSchema::Integer("requests", 500), max_total = integer(1..=MAX_QUEUE_LEN) => write_number,
            "The maximum number of waiting requests over all keys. The default is `max`, if that is larger."),
            || OutputValue::Number(DEFAULT_MAX_WAITERS),
        ),
        field!("order": order in QUEUE_ORDERS,
            "The order in which waiting requests are admitted."),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn breaker(&mut self, node: &SyntaxNode) -> Option<BreakerSpec> {
        let mut spec = BreakerSpec::default();
        let before = self.errors.len();
        self.read_map(node, &BREAKER, &mut spec);
        if spec.slow_call_rate.is_some() != spec.slow_call_duration.is_some() && self.errors.len() == before {
            self.report_error(
                node.span,
                "only one of `slow-call-duration` and `slow-call-rate`",
                "write both, or none",
            );
        }
        if spec.max_open_duration.is_some() && spec.backoff.is_none() && self.errors.len() == before {
            self.report_error(
                node.span,
                "`max-open-duration` without `backoff`",
                "add a factor, as in `backoff: x2`, or remove `max-open-duration`",
            );
        }
        Some(spec)
    }

    /// Reads `20` (calls) or `60s`.
    fn breaker_window(&mut self, node: &SyntaxNode) -> Option<BreakerWindow> {
        match &node.value {
            SyntaxValue::Number(_) => self.integer(node, 1..=1_000_000).map(BreakerWindow::Calls),
            _ => self.positive_duration(node).map(BreakerWindow::Time),
        }
    }

    pub(super) fn priority(&mut self, node: &SyntaxNode) -> Option<PrioritySpec> {
        match &node.value {
            SyntaxValue::Map(_) => {
                let mut map = PriorityMap::default();
                self.read_map(node, &PRIORITY, &mut map);
                Some(PrioritySpec::FromRequest { key: map.key?, default: map.default?, reserve: map.reserve })
            }
            _ => self.class(node).map(PrioritySpec::Fixed),
        }
    }

    /// Reads the share of each class but the lowest.
    fn reserve(&mut self, node: &SyntaxNode) -> Option<[Option<Percent>; 4]> {
        let (before, shares) = (self.errors.len(), self.class_percents(node, "reserve"));
        let total: u64 = shares.iter().flatten().map(|share| u64::from(share.millionths())).sum();
        if total >= u64::from(Percent::FULL.millionths()) && self.errors.len() == before {
            let problem = format!("the reserves add up to {}%", total / 10_000);
            self.report_error(node.span, problem, "use shares of less than 100% in total");
        }
        Some(shares)
    }

    /// Reads a percentage for each priority class.
    pub(super) fn class_percents(&mut self, node: &SyntaxNode, what: &'static str) -> [Option<Percent>; 4] {
        let mut percents = [None; CLASSES.len()];
        self.named_entries(node, what, |reader, name, node| {
            let percent = reader.percent(node);
            match percents.iter_mut().zip(CLASSES).find(|(_, (class, _))| *class == name.text) {
                Some((slot, _)) => *slot = percent,
                None => {
                    let (problem, fix) = unknown_word_error(&name.text, &CLASSES.map(|(name, _)| name));
                    reader.report_error(name.span, problem.replacen("value", "priority", 1), fix);
                }
            }
        });
        percents
    }

    /// Reads a priority class.
    fn class(&mut self, node: &SyntaxNode) -> Option<String> {
        self.keyword(node, &CLASSES.map(|(name, _)| (name, name))).map(str::to_owned)
    }

    pub(super) fn queue(&mut self, node: &SyntaxNode) -> Option<QueueSpec> {
        let mut queue = QueueSpec { max: 1, max_total: None, order: QueueOrder::default() };
        match &node.value {
            SyntaxValue::Map(_) => {
                let before = self.errors.len();
                self.read_map(node, &QUEUE, &mut queue);
                if let Some(max_total) = queue.max_total.filter(|max_total| *max_total < queue.max)
                    && self.errors.len() == before
                {
                    let problem =
                        format!("`max-total` is {max_total}, less than `max`, which is {}", queue.max);
                    self.report_error(node.span, problem, "use a `max-total` of at least `max`");
                }
            }
            _ => queue.max = self.integer(node, 1..=MAX_QUEUE_LEN)?,
        }
        Some(queue)
    }
}

/// Writes the percentages of those classes that have one.
pub(super) fn write_class_percents(percents: &[Option<Percent>; 4]) -> OutputValue {
    let classes = CLASSES.iter().zip(percents).filter_map(|((name, _), at)| Some((*name, (*at)?)));
    OutputValue::named_map(classes, OutputValue::text).unwrap_or(OutputValue::Map(Vec::new()))
}

fn write_breaker_window(window: &BreakerWindow) -> OutputValue {
    match window {
        BreakerWindow::Calls(calls) => OutputValue::Number(*calls),
        BreakerWindow::Time(time) => write_duration(time),
    }
}

pub(super) fn write_priority(priority: &PrioritySpec) -> OutputValue {
    match priority.clone() {
        PrioritySpec::Fixed(name) => OutputValue::Text(name),
        PrioritySpec::FromRequest { key, default, reserve } => {
            PRIORITY.write(&PriorityMap { key: Some(key), default: Some(default), reserve })
        }
    }
}

/// Parses `enforce`, `shadow`, `off` or `enforce 10%`.
pub(super) fn parse_mode(text: &str) -> Result<RuleEnforcement, ValueError> {
    if let Some(share) = text.strip_prefix("enforce ") {
        let share = share
            .trim()
            .parse::<Percent>()
            .map_err(|error| ValueError::from(error).with_span("enforce ".len()..text.len()))?;
        return Ok(RuleEnforcement::Percent(share));
    }
    text.parse::<Mode>().map(RuleEnforcement::All).map_err(|_| {
        let (problem, fix) = unknown_word_error(text, &["enforce", "shadow", "off"]);
        ValueError::new(problem.replacen("value", "mode", 1), fix)
    })
}
