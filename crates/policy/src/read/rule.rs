//! One rule.

use super::{
    ErrorReporting, PolicyReader,
    action::{self, ON_LIMIT},
    admission::{BREAKER, CLASS_SHAPE, PRIORITY, QUEUE, parse_mode, write_priority},
    key::{self, write_cost, write_key},
    limits::{ADAPTIVE, BANDWIDTH, BYTE_RATE, CHARGE, TIERS, write_charge, write_tiers},
    matching::MATCH,
    references::ReferenceTarget,
    values::{write_duration, write_failure_mode, write_size},
};
use crate::{
    map_schema::{MapSchema, OutputValue, ValueSchema, field, key, key_with_default},
    model::{KeySpec, Quotas, RuleEnforcement, RuleSpec},
    source::{SyntaxKey, SyntaxNode, SyntaxValue, truncate},
};
use tidegate_core::CarryOver;
use tidegate_limiter::{Capacity, Overflow};
use tidegate_rule::{
    Mode,
    request::{DuplicateKeys, MissingKey},
};

pub(super) const QUOTA: ValueSchema =
    ValueSchema::Text(&["100/min burst 20", "5/min", "3 at once", "1000/h sliding-window"]);
pub(super) const TIME: ValueSchema = ValueSchema::Text(&["50ms", "10s"]);
const NETWORKS: ValueSchema = ValueSchema::OneOrMany(&ValueSchema::Text(&["10.0.0.0/8", "office", "all"]));
const MISSING: [(&str, MissingKey); 4] = [
    ("ip", MissingKey::Address),
    ("share", MissingKey::Shared),
    ("skip", MissingKey::Skip),
    ("refuse", MissingKey::Reject),
];
const DUPLICATES: [(&str, DuplicateKeys); 3] =
    [("refuse", DuplicateKeys::Reject), ("first", DuplicateKeys::First), ("last", DuplicateKeys::Last)];
const OVERFLOW: [(&str, Overflow); 3] =
    [("replace", Overflow::Replace), ("share", Overflow::Share), ("deny", Overflow::Deny)];
const CARRY_OVERS: [(&str, CarryOver); 2] = [("keep", CarryOver::Keep), ("reset", CarryOver::Reset)];

pub(crate) static RULE: MapSchema<RuleSpec> = MapSchema {
    name: "rule",
    required: &[],
    keys: &[
        field!("name": ValueSchema::Text(&["login"]), name = name => OutputValue::text, always,
            "What headers, logs and counters call it; no two rules have the same."),
        key(
            "use",
            "The template that says what this rule does not say itself.",
            ValueSchema::Text(&["api"]),
            |_, _, _| {},
            |_| None,
        ),
        key(
            "match",
            "Which requests; all where it is left out.",
            ValueSchema::Map(|| MATCH.outline()),
            |reader, node, it| it.matching = reader.matching(node),
            |it| MATCH.write_non_empty(&it.matching),
        ),
        key_with_default(
            "key",
            "For whom it counts; `all` where it is left out.",
            key::KEY_SHAPE,
            |reader, node, it| it.key = reader.key(node).unwrap_or_default(),
            |it| (it.key != KeySpec::All).then(|| write_key(&it.key)),
            || write_key(&KeySpec::All),
        ),
        field!("missing": missing in MISSING,
            "How requests without the key are counted: by the address of the client (the default), all in one bucket, not at all, or refused."),
        field!("duplicates": duplicates in DUPLICATES,
            "What becomes of requests with several values of a header, a cookie or a parameter that the rule takes one of: they are refused, or the first or the last one counts."),
        key(
            "quota",
            "How much.",
            ValueSchema::OneOrMany(&QUOTA),
            |reader, node, it| it.quotas = Quotas::All(reader.one_or_many(node, PolicyReader::quota)),
            |it| match &it.quotas {
                Quotas::All(quotas) if quotas.len() == 1 => OutputValue::text_list(quotas),
                _ => None,
            },
        ),
        key(
            "quotas",
            "How much, of which all hold.",
            ValueSchema::OneOrMany(&QUOTA),
            |reader, node, it| it.quotas = Quotas::All(reader.one_or_many(node, PolicyReader::quota)),
            |it| match &it.quotas {
                Quotas::All(quotas) if quotas.len() > 1 => OutputValue::text_list(quotas),
                _ => None,
            },
        ),
        key(
            "tiers",
            "How much, by what a request says.",
            ValueSchema::Map(|| TIERS.outline()),
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
        field!("charge": ValueSchema::Map(|| CHARGE.outline()), charge = charge => write_charge,
            "What a request pays, knowing how it was answered."),
        field!("adaptive": ValueSchema::Map(|| ADAPTIVE.outline()),
            adaptive = adaptive => |adaptive| ADAPTIVE.write(adaptive),
            "As many in flight as the upstream can take."),
        field!("bandwidth": ValueSchema::AnyOf(&[BYTE_RATE, ValueSchema::Map(|| BANDWIDTH.outline())]),
            bandwidth = bandwidth => |bandwidth| BANDWIDTH.write(bandwidth),
            "Bytes per second for each key: of what is sent, or of both ways."),
        key(
            "deny",
            "Nobody from these networks or lists; `all` is everywhere.",
            NETWORKS,
            |reader, node, it| it.access.get_or_insert_default().deny = reader.networks(node),
            |it| OutputValue::text_list(&it.access.as_ref()?.deny),
        ),
        key(
            "allow",
            "From these networks or lists, past all other limits of this rule.",
            NETWORKS,
            |reader, node, it| it.access.get_or_insert_default().allow = reader.networks(node),
            |it| OutputValue::text_list(&it.access.as_ref()?.allow),
        ),
        key(
            "ban",
            "Bans who is denied this often, for this long: the key of the rule, or the address where the key names no client.",
            ValueSchema::Text(&["10/min for 1h", "10/min for 1h growing 2 up to 1d"]),
            |reader, node, it| it.access.get_or_insert_default().ban = reader.ban(node),
            |it| it.access.as_ref()?.ban.as_ref().map(OutputValue::text),
        ),
        field!("breaker": ValueSchema::Map(|| BREAKER.outline()),
            breaker = breaker => |breaker| BREAKER.write(breaker),
            "Keeps requests from an upstream that fails."),
        field!("priority": ValueSchema::AnyOf(&[CLASS_SHAPE, ValueSchema::Map(|| PRIORITY.outline())]),
            priority = priority => write_priority,
            "Who is shed first where a limit is full."),
        field!("schedule": ValueSchema::Text(&["+08:00; mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5"]),
            schedule = parse => OutputValue::text,
            "Factors of all quotas by time of day."),
        key_with_default(
            "mode",
            "Whether it is enforced; `enforce 10%` for so many of a hundred keys, the others in shadow.",
            ValueSchema::Text(&["enforce", "shadow", "off", "enforce 10%"]),
            |reader, node, it| {
                if let Some(mode) = reader.read(node, parse_mode) {
                    it.enforcement = mode;
                }
            },
            |it| match &it.enforcement {
                RuleEnforcement::All(Mode::Enforce) => None,
                other => Some(OutputValue::text(other)),
            },
            || OutputValue::text(RuleSpec::new("").enforcement),
        ),
        key(
            "store",
            "The store it is counted in, by its name.",
            ValueSchema::Text(&["sessions"]),
            |reader, node, it| {
                it.store = reader.name(node);
                if let Some(store) = it.store.clone() {
                    reader.add_reference(ReferenceTarget::Store, &store, node.span);
                }
            },
            |it| it.store.as_ref().map(OutputValue::text),
        ),
        field!("on-outage": ValueSchema::Text(&["open", "closed", "local 4"]), on_outage = failure_mode => write_failure_mode,
            "What is decided when the store is away: `open`, `closed`, or `local N` where N processes share the quota."),
        key_with_default(
            "wait",
            "How long a request may wait for its turn.",
            TIME,
            |reader, node, it| it.wait = reader.duration(node).unwrap_or_default(),
            |it| (!it.wait.is_zero()).then(|| write_duration(&it.wait)),
            || write_duration(&RuleSpec::new("").wait),
        ),
        field!("queue": ValueSchema::AnyOf(&[ValueSchema::Integer, ValueSchema::Map(|| QUEUE.outline())]),
            queue = queue => |queue| QUEUE.write(queue),
            "Who waits, and in which order."),
        field!("message": ValueSchema::Scalar, message = non_empty_text => OutputValue::text,
            "What to tell whoever is refused."),
        key(
            "on-limit",
            "What becomes of a request over the limit.",
            ValueSchema::AnyOf(&[ValueSchema::Keyword(&["drop"]), ValueSchema::Map(|| ON_LIMIT.outline())]),
            |reader, node, it| {
                if let Some(on_limit) = reader.on_limit(node) {
                    it.on_limit = on_limit;
                }
            },
            |it| action::write_on_limit(&it.on_limit),
        ),
        field!("inherit": carry_over in CARRY_OVERS, "Whether what was counted is kept when the quota changes."),
        key(
            "capacity",
            "How many keys it has room for in memory, or how many bytes they may take; 64MiB where it is left out, less with many rules.",
            ValueSchema::AnyOf(&[ValueSchema::Integer, ValueSchema::Text(&["16MB"])]),
            |reader, node, it| it.capacity = reader.capacity(node),
            |it| {
                it.capacity.map(|capacity| match capacity {
                    Capacity::Keys(keys) => OutputValue::Number(keys),
                    // A number would be one of keys.
                    Capacity::Bytes(bytes) => match write_size(&bytes) {
                        OutputValue::Number(bytes) => OutputValue::text(format!("{bytes}B")),
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
const MAX_KEYS: u64 = 1 << 32;

impl PolicyReader<'_> {
    /// `100000` keys, or `16MB`.
    fn capacity(&mut self, node: &SyntaxNode) -> Option<Capacity> {
        match &node.value {
            SyntaxValue::Number(_) => self.integer(node, 1..=MAX_KEYS).map(Capacity::Keys),
            _ => self.size(node).map(Capacity::Bytes),
        }
    }

    /// One of `rules`.
    pub(super) fn rule(&mut self, node: &SyntaxNode) -> Option<RuleSpec> {
        let entries = self.entries(node, "rule")?;
        let name_node = entries.iter().find(|(key, _)| key.text == "name").map(|(_, node)| node);
        let scope = match name_node.map(|node| &node.value) {
            Some(SyntaxValue::Text(name) | SyntaxValue::Number(name)) => format!("rule `{}`", truncate(name)),
            _ => "a rule".to_owned(),
        };
        self.with_scope(scope, |reader| {
            let mut rule = RuleSpec::new("");
            let since = reader.reference_count();
            let more = reader.template_entries(entries);
            reader.reject_conflicting_quotas(entries);
            let all = entries.iter().map(|(name, node)| (name, node));
            let strays = reader.read_entries(all, node.span, &RULE, &mut rule);
            let before = reader.reporting;
            reader.reporting = ErrorReporting::Suppressed;
            reader.read_entries(more.iter().copied(), node.span, &RULE, &mut rule);
            reader.reporting = before;
            match name_node {
                Some(at) if !rule.name.is_empty() => reader.define_rule(&rule.name, at.span),
                Some(_) => {}
                None if strays.suggested.contains(&"name") => {}
                None => reader.report_error(
                    node.span,
                    "a rule without a name",
                    "give it one, as in `name: login`",
                ),
            }
            let says = |key: &str| {
                entries.iter().any(|(name, _)| name.text == key)
                    || more.iter().any(|(name, _)| name.text == key)
            };
            // A template that is not there may have said it, and so may a mistyped key.
            let may_say = says("use") && more.is_empty() || strays.has_any;
            // The mode of a rule whose quota is declared in code, which says nothing of requests.
            let is_for_code =
                says("mode") && !["match", "key", "cost", "on-limit"].iter().any(|key| says(key));
            let may_say = may_say || is_for_code;
            if !may_say && !LIMIT_KEYS.iter().any(|key| says(key)) {
                let place = reader.describe_location("rule");
                reader.report_error(
                    node.span,
                    format!("{place} limits nothing"),
                    format!("give it one of {}", LIMIT_KEYS.join(", ")),
                );
            }
            reader.check_captures(since, &rule.matching);
            Some(rule)
        })
    }

    /// Of what says the same, one.
    fn reject_conflicting_quotas(&mut self, entries: &[(SyntaxKey, SyntaxNode)]) {
        let mut quota_keys =
            entries.iter().filter(|(key, _)| matches!(key.text.as_str(), "quota" | "quotas" | "tiers"));
        let Some((first, _)) = quota_keys.next() else { return };
        for (second, _) in quota_keys {
            let place = self.describe_location("rule");
            let problem = format!("both `{}` and `{}` in {place}", first.text, second.text);
            self.report_error(second.span, problem, "put all quotas into `quotas`, or all into `tiers`");
        }
    }
}

/// What makes a rule one.
const LIMIT_KEYS: [&str; 9] =
    ["quota", "quotas", "tiers", "adaptive", "bandwidth", "deny", "allow", "ban", "breaker"];
