//! Breakers, priorities, lines, and whether a rule is enforced.

use super::{
    Mistake, Reader,
    key::{self, write_key},
    rule::TIME,
    values::{unknown_word, write_number, write_time},
};
use crate::{
    compile::CLASSES,
    model::{BreakerTerms, Enforcement, Key, Priority, Queue, QueueOrder},
    source::{Node, Value},
    table::{Shape, Table, Written, field},
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
        field!("failure-rate": Shape::Text(&["50%"]), failure_rate = share => Written::text,
            "From which share of failures it opens."),
        field!("slow-rate": Shape::Text(&["50%"]), slow_rate = share => Written::text,
            "From which share of slow answers it opens."),
        field!("slow": TIME, slow = length => write_time, "From when an answer is slow."),
        field!("over": Shape::Whole, over = whole(1..=1_000_000) => write_number, "Of so many calls."),
        field!("least": Shape::Whole, least = whole(1..=1_000_000) => write_number,
            "Not before so many calls."),
        field!("open": TIME, open = length => write_time, "How long before it is tried again."),
        field!("probes": Shape::Whole, probes = whole(1..=1_000_000) => write_number, "With so many calls."),
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
        field!("by": key::SHAPE, by = key => write_key, "What of a request names its priority."),
        field!("else": CLASS, otherwise = class => Written::text, "That of requests that name none."),
    ],
};

pub(super) static QUEUE: Table<Queue> = Table {
    what: "queue",
    required: &["most"],
    keys: &[
        field!("most": Shape::Whole, most = whole(1..=MOST_IN_LINE) => write_number, always,
            "How many may wait for one key."),
        field!("in-all": Shape::Whole, in_all = whole(1..=MOST_IN_LINE) => write_number,
            "How many may wait over all keys; 10,000 where it is left out, or `most` if that is more."),
        field!("order": order in ORDERS,
            "Whose turn is next, where a number at once or an adaptive limit is waited for."),
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
