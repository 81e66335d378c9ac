//! One rule.

use super::{
    Reader, Voice,
    action::{self, ON_LIMIT},
    amount::{ADAPTIVE, BANDWIDTH, BYTES, CHARGE, TIERS, write_charge, write_tiers},
    key::{self, write_cost, write_key},
    matching::MATCH,
    references::Target,
    terms::{BREAKER, CLASS, PRIORITY, QUEUE, mode, write_priority},
    values::{write_outage, write_size, write_time},
};
use crate::{
    model::{Enforcement, Key, Quotas, Rule},
    source::{Name, Node, Value, short},
    table::{Shape, Table, Written, field, key, key_with_default},
};
use tidegate_core::CarryOver;
use tidegate_limiter::{Capacity, Overflow};
use tidegate_rule::{
    Mode,
    request::{Duplicates, Missing},
};

pub(super) const QUOTA: Shape =
    Shape::Text(&["100/min burst 20", "5/min", "3 at once", "1000/h sliding-window"]);
pub(super) const TIME: Shape = Shape::Text(&["50ms", "10s"]);
const NETWORKS: Shape = Shape::Several(&Shape::Text(&["10.0.0.0/8", "office", "all"]));
const MISSING: [(&str, Missing); 4] = [
    ("ip", Missing::Address),
    ("share", Missing::Share),
    ("skip", Missing::Skip),
    ("refuse", Missing::Refuse),
];
const DUPLICATES: [(&str, Duplicates); 3] =
    [("refuse", Duplicates::Refuse), ("first", Duplicates::First), ("last", Duplicates::Last)];
const OVERFLOW: [(&str, Overflow); 3] =
    [("replace", Overflow::Replace), ("share", Overflow::Share), ("deny", Overflow::Deny)];
const INHERIT: [(&str, CarryOver); 2] = [("keep", CarryOver::Keep), ("reset", CarryOver::Reset)];

pub(crate) static RULE: Table<Rule> = Table {
    what: "rule",
    required: &[],
    keys: &[
        field!("name": Shape::Text(&["login"]), name = name => Written::text, always,
            "What headers, logs and counters call it; no two rules have the same."),
        key(
            "use",
            "The template that says what this rule does not say itself.",
            Shape::Text(&["api"]),
            |_, _, _| {},
            |_| None,
        ),
        key(
            "match",
            "Which requests; all where it is left out.",
            Shape::Keys(|| MATCH.outline()),
            |reader, node, it| it.matching = reader.matching(node),
            |it| MATCH.write_some(&it.matching),
        ),
        key_with_default(
            "key",
            "For whom it counts; `all` where it is left out.",
            key::SHAPE,
            |reader, node, it| it.key = reader.key(node).unwrap_or_default(),
            |it| (it.key != Key::All).then(|| write_key(&it.key)),
            || write_key(&Key::All),
        ),
        field!("missing": missing in MISSING,
            "How requests without the key are counted: by the address of the client (the default), all in one bucket, not at all, or refused."),
        field!("duplicates": duplicates in DUPLICATES,
            "What becomes of requests with several values of a header, a cookie or a parameter that the rule takes one of: they are refused, or the first or the last one counts."),
        key(
            "quota",
            "How much.",
            Shape::Several(&QUOTA),
            |reader, node, it| it.quotas = Quotas::All(reader.several(node, Reader::quota)),
            |it| match &it.quotas {
                Quotas::All(quotas) if quotas.len() == 1 => Written::texts(quotas),
                _ => None,
            },
        ),
        key(
            "quotas",
            "How much, of which all hold.",
            Shape::Several(&QUOTA),
            |reader, node, it| it.quotas = Quotas::All(reader.several(node, Reader::quota)),
            |it| match &it.quotas {
                Quotas::All(quotas) if quotas.len() > 1 => Written::texts(quotas),
                _ => None,
            },
        ),
        key(
            "tiers",
            "How much, by what a request says.",
            Shape::Keys(|| TIERS.outline()),
            |reader, node, it| {
                if let Some(tiers) = reader.tiers(node) {
                    it.quotas = Quotas::Tiers(tiers);
                }
            },
            |it| match &it.quotas {
                Quotas::Tiers(tiers) => Some(write_tiers(tiers)),
                Quotas::All(_) => None,
            },
        ),
        key(
            "cost",
            "What a request takes; 1 where it is left out.",
            key::COST_SHAPE,
            |reader, node, it| {
                if let Some(cost) = reader.cost(node) {
                    it.cost = cost;
                }
            },
            |it| write_cost(&it.cost),
        ),
        field!("charge": Shape::Keys(|| CHARGE.outline()), charge = charge => write_charge,
            "What a request pays, knowing how it was answered."),
        field!("adaptive": Shape::Keys(|| ADAPTIVE.outline()),
            adaptive = adaptive => |adaptive| ADAPTIVE.write(adaptive),
            "As many in flight as the upstream can take."),
        field!("bandwidth": Shape::Either(&[BYTES, Shape::Keys(|| BANDWIDTH.outline())]),
            bandwidth = bandwidth => |bandwidth| BANDWIDTH.write(bandwidth),
            "Bytes per second for each key: of what is sent, or of both ways."),
        key(
            "deny",
            "Nobody from these networks or lists; `all` is everywhere.",
            NETWORKS,
            |reader, node, it| it.access.get_or_insert_default().deny = reader.networks(node),
            |it| Written::texts(&it.access.as_ref()?.deny),
        ),
        key(
            "allow",
            "From these networks or lists, past all other limits of this rule.",
            NETWORKS,
            |reader, node, it| it.access.get_or_insert_default().allow = reader.networks(node),
            |it| Written::texts(&it.access.as_ref()?.allow),
        ),
        key(
            "ban",
            "Bans who is denied this often, for this long: the key of the rule, or the address where the key names no client.",
            Shape::Text(&["10/min for 1h", "10/min for 1h growing 2 up to 1d"]),
            |reader, node, it| it.access.get_or_insert_default().ban = reader.ban(node),
            |it| it.access.as_ref()?.ban.as_ref().map(Written::text),
        ),
        field!("breaker": Shape::Keys(|| BREAKER.outline()),
            breaker = breaker => |breaker| BREAKER.write(breaker),
            "Keeps requests from an upstream that fails."),
        field!("priority": Shape::Either(&[CLASS, Shape::Keys(|| PRIORITY.outline())]),
            priority = priority => write_priority,
            "Who is shed first where a limit is full."),
        field!("schedule": Shape::Text(&["+08:00; mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5"]),
            schedule = parse => Written::text,
            "Factors of all quotas by time of day."),
        key_with_default(
            "mode",
            "Whether it is enforced; `enforce 10%` for so many of a hundred keys, the others in shadow.",
            Shape::Text(&["enforce", "shadow", "off", "enforce 10%"]),
            |reader, node, it| {
                if let Some(mode) = reader.read(node, mode) {
                    it.enforcement = mode;
                }
            },
            |it| match &it.enforcement {
                Enforcement::All(Mode::Enforce) => None,
                other => Some(Written::text(other)),
            },
            || Written::text(Rule::new("").enforcement),
        ),
        key(
            "store",
            "The store it is counted in, by its name.",
            Shape::Text(&["sessions"]),
            |reader, node, it| {
                it.store = reader.name(node);
                if let Some(store) = it.store.clone() {
                    reader.refer(Target::Store, &store, node.at);
                }
            },
            |it| it.store.as_ref().map(Written::text),
        ),
        field!("on-outage": Shape::Text(&["open", "closed", "local 4"]), on_outage = outage => write_outage,
            "What is decided when the store is away: `open`, `closed`, or `local N` where N processes share the quota."),
        key_with_default(
            "wait",
            "How long a request may wait for its turn.",
            TIME,
            |reader, node, it| it.wait = reader.time(node).unwrap_or_default(),
            |it| (!it.wait.is_zero()).then(|| write_time(&it.wait)),
            || write_time(&Rule::new("").wait),
        ),
        field!("queue": Shape::Either(&[Shape::Whole, Shape::Keys(|| QUEUE.outline())]),
            queue = queue => |queue| QUEUE.write(queue),
            "Who waits, and in which order."),
        field!("message": Shape::Scalar, message = filled => Written::text,
            "What to tell whoever is refused."),
        key(
            "on-limit",
            "What becomes of a request over the limit.",
            Shape::Either(&[Shape::Word(&["drop"]), Shape::Keys(|| ON_LIMIT.outline())]),
            |reader, node, it| {
                if let Some(on_limit) = reader.on_limit(node) {
                    it.on_limit = on_limit;
                }
            },
            |it| action::write(&it.on_limit),
        ),
        field!("inherit": inherit in INHERIT, "Whether what was counted is kept when the quota changes."),
        key(
            "capacity",
            "How many keys it has room for in memory, or how many bytes they may take; 64MiB where it is left out, less with many rules.",
            Shape::Either(&[Shape::Whole, Shape::Text(&["16MB"])]),
            |reader, node, it| it.capacity = reader.capacity(node),
            |it| {
                it.capacity.map(|capacity| match capacity {
                    Capacity::Keys(keys) => Written::Number(keys),
                    // A number would be one of keys.
                    Capacity::Bytes(bytes) => match write_size(&bytes) {
                        Written::Number(bytes) => Written::text(format!("{bytes}B")),
                        size => size,
                    },
                })
            },
        ),
        field!("overflow": overflow in OVERFLOW,
            "What becomes of new keys when there is no room: they replace keys that have used least, share a counter, or are denied."),
    ],
};

/// The most keys that a rule may have room for.
const MOST_KEYS: u64 = 1 << 32;

impl Reader<'_> {
    /// `100000` keys, or `16MB`.
    fn capacity(&mut self, node: &Node) -> Option<Capacity> {
        match &node.value {
            Value::Number(_) => self.whole(node, 1..=MOST_KEYS).map(Capacity::Keys),
            _ => self.size(node).map(Capacity::Bytes),
        }
    }

    /// One of `rules`.
    pub(super) fn rule(&mut self, node: &Node) -> Option<Rule> {
        let entries = self.entries(node, "rule")?;
        let name_node = entries.iter().find(|(key, _)| key.text == "name").map(|(_, node)| node);
        let scope = match name_node.map(|node| &node.value) {
            Some(Value::Text(name) | Value::Number(name)) => format!("rule `{}`", short(name)),
            _ => "a rule".to_owned(),
        };
        self.within(scope, |reader| {
            let mut rule = Rule::new("");
            let since = reader.references_so_far();
            let more = reader.template_of(entries);
            reader.refuse_both(entries);
            let all = entries.iter().map(|(name, node)| (name, node));
            let strays = reader.fill_from(all, node.at, &RULE, &mut rule);
            let before = reader.voice;
            reader.voice = Voice::Muted;
            reader.fill_from(more.iter().copied(), node.at, &RULE, &mut rule);
            reader.voice = before;
            match name_node {
                Some(at) if !rule.name.is_empty() => reader.define_rule(&rule.name, at.at),
                Some(_) => {}
                None if strays.meant.contains(&"name") => {}
                None => reader.blame(node.at, "a rule without a name", "give it one, as in `name: login`"),
            }
            let says = |key: &str| {
                entries.iter().any(|(name, _)| name.text == key)
                    || more.iter().any(|(name, _)| name.text == key)
            };
            // A template that is not there may have said it, and so may a mistyped key.
            let may_say = says("use") && more.is_empty() || strays.is_any;
            // The mode of a rule whose quota is declared in code, which says nothing of requests.
            let is_for_code =
                says("mode") && !["match", "key", "cost", "on-limit"].iter().any(|key| says(key));
            let may_say = may_say || is_for_code;
            if !may_say && !LIMITS.iter().any(|key| says(key)) {
                let place = reader.here("rule");
                reader.blame(
                    node.at,
                    format!("{place} limits nothing"),
                    format!("give it one of {}", LIMITS.join(", ")),
                );
            }
            reader.check_captures(since, &rule.matching);
            Some(rule)
        })
    }

    /// Of what says the same, one.
    fn refuse_both(&mut self, entries: &[(Name, Node)]) {
        let mut said =
            entries.iter().filter(|(key, _)| matches!(key.text.as_str(), "quota" | "quotas" | "tiers"));
        let Some((first, _)) = said.next() else { return };
        for (second, _) in said {
            let place = self.here("rule");
            let problem = format!("both `{}` and `{}` in {place}", first.text, second.text);
            self.blame(second.at, problem, "put all quotas into `quotas`, or all into `tiers`");
        }
    }
}

/// What makes a rule one.
const LIMITS: [&str; 9] =
    ["quota", "quotas", "tiers", "adaptive", "bandwidth", "deny", "allow", "ban", "breaker"];
