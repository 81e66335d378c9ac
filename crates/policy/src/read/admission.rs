//! Breakers, priorities, lines, and whether a rule is enforced.

use super::{
    PolicyReader, ValueError,
    key::{self, write_key},
    rule::TIME,
    values::{unknown_word_error, write_duration, write_number},
};
use crate::{
    compile::CLASSES,
    map_schema::{MapSchema, OutputValue, ValueSchema, field},
    model::{BreakerSpec, KeySpec, PrioritySpec, QueueOrder, QueueSpec, RuleEnforcement},
    source::{SyntaxNode, SyntaxValue},
};
use tidegate_core::Percent;
use tidegate_rule::Mode;

const QUEUE_ORDERS: [(&str, QueueOrder); 2] =
    [("fifo", QueueOrder::Fifo), ("priority", QueueOrder::Priority)];
pub(super) const CLASS_SHAPE: ValueSchema = ValueSchema::Keyword(&["critical", "high", "normal", "low"]);
/// More would wait longer than anybody wants to.
const MAX_QUEUE_LEN: u64 = 1_000_000;

pub(super) static BREAKER: MapSchema<BreakerSpec> = MapSchema {
    name: "breaker",
    required: &[],
    keys: &[
        field!("failure-rate": ValueSchema::Text(&["50%"]), failure_rate = percent => OutputValue::text,
            "From which share of failures it opens."),
        field!("slow-rate": ValueSchema::Text(&["50%"]), slow_call_rate = percent => OutputValue::text,
            "From which share of slow answers it opens."),
        field!("slow": TIME, slow_call_duration = positive_duration => write_duration, "From when an answer is slow."),
        field!("over": ValueSchema::Integer, window_size = integer(1..=1_000_000) => write_number, "Of so many calls."),
        field!("least": ValueSchema::Integer, min_calls = integer(1..=1_000_000) => write_number,
            "Not before so many calls."),
        field!("open": TIME, open_duration = positive_duration => write_duration, "How long before it is tried again."),
        field!("probes": ValueSchema::Integer, half_open_calls = integer(1..=1_000_000) => write_number, "With so many calls."),
    ],
};

#[derive(Default)]
pub(super) struct PriorityMap {
    key: Option<KeySpec>,
    default: Option<String>,
}

pub(super) static PRIORITY: MapSchema<PriorityMap> = MapSchema {
    name: "priority",
    required: &["by", "else"],
    keys: &[
        field!("by": key::KEY_SHAPE, key = key => write_key, "What of a request names its priority."),
        field!("else": CLASS_SHAPE, default = class => OutputValue::text, "That of requests that name none."),
    ],
};

pub(super) static QUEUE: MapSchema<QueueSpec> = MapSchema {
    name: "queue",
    required: &["most"],
    keys: &[
        field!("most": ValueSchema::Integer, max = integer(1..=MAX_QUEUE_LEN) => write_number, always,
            "How many may wait for one key."),
        field!("in-all": ValueSchema::Integer, max_total = integer(1..=MAX_QUEUE_LEN) => write_number,
            "How many may wait over all keys; 10,000 where it is left out, or `most` if that is more."),
        field!("order": order in QUEUE_ORDERS,
            "Whose turn is next, where a number at once or an adaptive limit is waited for."),
    ],
};

impl PolicyReader<'_> {
    pub(super) fn breaker(&mut self, node: &SyntaxNode) -> Option<BreakerSpec> {
        let mut terms = BreakerSpec::default();
        let before = self.errors.len();
        self.read_map(node, &BREAKER, &mut terms);
        if terms.slow_call_rate.is_some() != terms.slow_call_duration.is_some() && self.errors.len() == before
        {
            self.report_error(
                node.span,
                "one of `slow` and `slow-rate` without the other",
                "say both, or none",
            );
        }
        Some(terms)
    }

    pub(super) fn priority(&mut self, node: &SyntaxNode) -> Option<PrioritySpec> {
        match &node.value {
            SyntaxValue::Map(_) => {
                let mut map = PriorityMap::default();
                self.read_map(node, &PRIORITY, &mut map);
                Some(PrioritySpec::FromRequest { key: map.key?, default: map.default? })
            }
            _ => self.class(node).map(PrioritySpec::Fixed),
        }
    }

    /// One of the classes of requests.
    fn class(&mut self, node: &SyntaxNode) -> Option<String> {
        self.keyword(node, &CLASSES.map(|(name, _)| (name, name))).map(str::to_owned)
    }

    pub(super) fn queue(&mut self, node: &SyntaxNode) -> Option<QueueSpec> {
        let mut queue = QueueSpec { max: 1, max_total: None, order: QueueOrder::default() };
        match &node.value {
            SyntaxValue::Map(_) => {
                let before = self.errors.len();
                self.read_map(node, &QUEUE, &mut queue);
                if let Some(in_all) = queue.max_total.filter(|in_all| *in_all < queue.max)
                    && self.errors.len() == before
                {
                    let problem = format!("{} in line for one key, but {in_all} for all of them", queue.max);
                    self.report_error(node.span, problem, "give `in-all` at least as many as `most`");
                }
            }
            _ => queue.max = self.integer(node, 1..=MAX_QUEUE_LEN)?,
        }
        Some(queue)
    }
}

pub(super) fn write_priority(priority: &PrioritySpec) -> OutputValue {
    match priority.clone() {
        PrioritySpec::Fixed(name) => OutputValue::Text(name),
        PrioritySpec::FromRequest { key: by, default: otherwise } => {
            PRIORITY.write(&PriorityMap { key: Some(by), default: Some(otherwise) })
        }
    }
}

/// `enforce`, `shadow`, `off`, `enforce 10%`
pub(super) fn parse_mode(text: &str) -> Result<RuleEnforcement, ValueError> {
    if let Some(share) = text.strip_prefix("enforce ") {
        let share = share
            .trim()
            .parse::<Percent>()
            .map_err(|error| ValueError::from(error).with_span("enforce ".len()..text.len()))?;
        return Ok(RuleEnforcement::Percent(share));
    }
    text.parse::<Mode>().map(RuleEnforcement::All).map_err(|_| {
        let (problem, fix) = unknown_word_error(text, ["enforce", "shadow", "off"].into_iter());
        ValueError::new(problem.replace("word", "mode"), fix)
    })
}
