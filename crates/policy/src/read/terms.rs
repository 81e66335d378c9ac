//! Breakers, priorities, lines, and whether a rule is enforced.

use super::{
    Mistake, Reader,
    key::{self, write_key},
    rule::TIME,
    values::{unknown_word, usual_word, write_time, write_word},
};
use crate::{
    compile::CLASSES,
    model::{BreakerTerms, Enforcement, Key, Priority, Queue, QueueOrder},
    source::{Node, Value},
    table::{Shape, Table, Written, key, key_with_default},
};
use tidegate_core::Share;
use tidegate_rule::Mode;

const ORDERS: [(&str, QueueOrder); 2] = [("fifo", QueueOrder::Fifo), ("priority", QueueOrder::Priority)];
pub(super) const CLASS: Shape = Shape::Word(&["critical", "high", "normal", "low"]);
/// More would wait longer than anybody wants to.
const MOST_IN_LINE: u64 = 1_000_000;

pub(super) static BREAKER: Table<BreakerTerms> = Table {
    what: "breaker",
    required: &[],
    keys: &[
        key(
            "failure-rate",
            "From which share of failures it opens.",
            Shape::Text(&["50%"]),
            |reader, node, it| it.failure_rate = reader.share(node),
            |it| it.failure_rate.map(Written::text),
        ),
        key(
            "slow-rate",
            "From which share of slow answers it opens.",
            Shape::Text(&["50%"]),
            |reader, node, it| it.slow_rate = reader.share(node),
            |it| it.slow_rate.map(Written::text),
        ),
        key(
            "slow",
            "From when an answer is slow.",
            TIME,
            |reader, node, it| it.slow = reader.length(node),
            |it| it.slow.map(write_time),
        ),
        key(
            "over",
            "Of so many calls.",
            Shape::Whole,
            |reader, node, it| it.over = reader.whole(node, 1..=1_000_000),
            |it| it.over.map(Written::Number),
        ),
        key(
            "least",
            "Not before so many calls.",
            Shape::Whole,
            |reader, node, it| it.least = reader.whole(node, 1..=1_000_000),
            |it| it.least.map(Written::Number),
        ),
        key(
            "open",
            "How long before it is tried again.",
            TIME,
            |reader, node, it| it.open = reader.length(node),
            |it| it.open.map(write_time),
        ),
        key(
            "probes",
            "With so many calls.",
            Shape::Whole,
            |reader, node, it| it.probes = reader.whole(node, 1..=1_000_000),
            |it| it.probes.map(Written::Number),
        ),
    ],
};

#[derive(Default)]
pub(super) struct PriorityMap {
    by: Option<Key>,
    otherwise: Option<String>,
}

pub(super) static PRIORITY: Table<PriorityMap> = Table {
    what: "priority",
    required: &["by", "else"],
    keys: &[
        key(
            "by",
            "What of a request names its priority.",
            key::SHAPE,
            |reader, node, it| it.by = reader.key(node),
            |it| it.by.as_ref().map(write_key),
        ),
        key(
            "else",
            "That of requests that name none.",
            CLASS,
            |reader, node, it| it.otherwise = reader.class(node),
            |it| it.otherwise.as_ref().map(Written::text),
        ),
    ],
};

pub(super) static QUEUE: Table<Queue> = Table {
    what: "queue",
    required: &["most"],
    keys: &[
        key(
            "most",
            "How many may wait for one key.",
            Shape::Whole,
            |reader, node, it| it.most = reader.whole(node, 1..=MOST_IN_LINE).unwrap_or(1),
            |it| Some(Written::Number(it.most)),
        ),
        key(
            "in-all",
            "How many may wait over all keys; 10,000 where it is left out, or `most` if that is more.",
            Shape::Whole,
            |reader, node, it| it.in_all = reader.whole(node, 1..=MOST_IN_LINE),
            |it| it.in_all.map(Written::Number),
        ),
        key_with_default(
            "order",
            "Whose turn is next, where a number at once or an adaptive limit is waited for.",
            Shape::Word(&["fifo", "priority"]),
            |reader, node, it| it.order = reader.word(node, &ORDERS).unwrap_or_default(),
            |it| write_word(&it.order, &ORDERS),
            || usual_word(&ORDERS),
        ),
    ],
};

impl Reader<'_> {
    pub(super) fn breaker(&mut self, node: &Node) -> Option<BreakerTerms> {
        let mut terms = BreakerTerms::default();
        let before = self.faults.len();
        self.fill(node, &BREAKER, &mut terms);
        if terms.slow_rate.is_some() != terms.slow.is_some() && self.faults.len() == before {
            self.blame(node.at, "one of `slow` and `slow-rate` without the other", "say both, or none");
        }
        Some(terms)
    }

    pub(super) fn priority(&mut self, node: &Node) -> Option<Priority> {
        match &node.value {
            Value::Map(_) => {
                let mut map = PriorityMap::default();
                self.fill(node, &PRIORITY, &mut map);
                Some(Priority::Found { by: map.by?, otherwise: map.otherwise? })
            }
            _ => self.class(node).map(Priority::Always),
        }
    }

    /// One of the classes of requests.
    fn class(&mut self, node: &Node) -> Option<String> {
        self.word(node, &CLASSES.map(|(name, _)| (name, name))).map(str::to_owned)
    }

    pub(super) fn queue(&mut self, node: &Node) -> Option<Queue> {
        let mut queue = Queue { most: 1, in_all: None, order: QueueOrder::default() };
        match &node.value {
            Value::Map(_) => {
                let before = self.faults.len();
                self.fill(node, &QUEUE, &mut queue);
                if let Some(in_all) = queue.in_all.filter(|in_all| *in_all < queue.most)
                    && self.faults.len() == before
                {
                    let problem = format!("{} in line for one key, but {in_all} for all of them", queue.most);
                    self.blame(node.at, problem, "give `in-all` at least as many as `most`");
                }
            }
            _ => queue.most = self.whole(node, 1..=MOST_IN_LINE)?,
        }
        Some(queue)
    }
}

pub(super) fn write_priority(priority: &Priority) -> Written {
    match priority.clone() {
        Priority::Always(name) => Written::Text(name),
        Priority::Found { by, otherwise } => {
            PRIORITY.write(&PriorityMap { by: Some(by), otherwise: Some(otherwise) })
        }
    }
}

/// `enforce`, `shadow`, `off`, `enforce 10%`
pub(super) fn mode(text: &str) -> Result<Enforcement, Mistake> {
    if let Some(share) = text.strip_prefix("enforce ") {
        let share = share
            .trim()
            .parse::<Share>()
            .map_err(|error| Mistake::from(error).at("enforce ".len()..text.len()))?;
        return Ok(Enforcement::Part(share));
    }
    text.parse::<Mode>().map(Enforcement::All).map_err(|_| {
        let (problem, fix) = unknown_word(text, ["enforce", "shadow", "off"].into_iter());
        Mistake::new(problem.replace("word", "mode"), fix)
    })
}
