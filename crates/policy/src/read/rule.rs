//! Reads a rule.

use super::{
    ErrorReporting, PolicyReader,
    action::{self, ON_LIMIT},
    admission::{BREAKER, CLASS_SHAPE, PRIORITY, QUEUE, parse_mode, write_priority},
    key::{self, write_cost, write_key},
    limits::{ADAPTIVE, BANDWIDTH, BYTE_RATE, CHARGE, TIERS, write_charge, write_tiers},
    load::{FAILING, SCALE, SHED_SHAPE, write_shed},
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
    ValueSchema::Text(&["100/min burst 20", "5/min", "3 at once", "1000 total", "1000/h sliding-window"]);
pub(super) const TIME: ValueSchema = ValueSchema::Text(&["50ms", "10s"]);
const NETWORKS: ValueSchema = ValueSchema::OneOrMany(&ValueSchema::Text(&["10.0.0.0/8", "internal", "all"]));
const MISSING: [(&str, MissingKey); 4] = [
    ("ip", MissingKey::Ip),
    ("share", MissingKey::Shared),
    ("skip", MissingKey::Skip),
    ("reject", MissingKey::Reject),
];
const DUPLICATES: [(&str, DuplicateKeys); 3] =
    [("reject", DuplicateKeys::Reject), ("first", DuplicateKeys::First), ("last", DuplicateKeys::Last)];
const OVERFLOW: [(&str, Overflow); 3] =
    [("replace", Overflow::Replace), ("share", Overflow::Share), ("deny", Overflow::Deny)];
const CARRY_OVERS: [(&str, CarryOver); 2] = [("keep", CarryOver::Keep), ("reset", CarryOver::Reset)];

pub(crate) static RULE: MapSchema<RuleSpec> = MapSchema {
    name: "rule",
    required: &[],
    keys: &[
        field!("name": ValueSchema::Text(&["login"]), name = name => OutputValue::text, always,
            "The name in headers, logs and metrics. It is unique."),
        key(
            "use",
            "The template that provides the keys that this rule does not set.",
            ValueSchema::Text(&["api"]),
            |_, _, _| {},
            |_| None,
        ),
        key(
            "match",
            "Which requests the rule applies to; all by default.",
            ValueSchema::Map(|| MATCH.outline()),
            |reader, node, it| it.matching = reader.matching(node),
            |it| MATCH.write_non_empty(&it.matching),
        ),
        key_with_default(
            "key",
            "What requests are counted by; `all` counts all of them together.",
            key::KEY_SHAPE,
            |reader, node, it| it.key = reader.key(node).unwrap_or_default(),
            |it| (it.key != KeySpec::All).then(|| write_key(&it.key)),
            || write_key(&KeySpec::All),
        ),
        field!("missing": missing in MISSING,
            "What happens to requests without the key: `ip` counts them by client address (the default), `share` all together, `skip` not at all, and `reject` rejects them."),
        field!("duplicates": duplicates in DUPLICATES,
            "What happens to requests that repeat a header, cookie or query parameter that the rule reads: `reject` rejects them, `first` and `last` select the value that counts."),
        key(
            "quota",
            "The quota.",
            ValueSchema::OneOrMany(&QUOTA),
            |reader, node, it| it.quotas = Quotas::All(reader.one_or_many(node, PolicyReader::quota)),
            |it| match &it.quotas {
                Quotas::All(quotas) if quotas.len() == 1 => OutputValue::text_list(quotas),
                _ => None,
            },
        ),
        key(
            "quotas",
            "Several quotas. A request must satisfy all of them.",
            ValueSchema::OneOrMany(&QUOTA),
            |reader, node, it| it.quotas = Quotas::All(reader.one_or_many(node, PolicyReader::quota)),
            |it| match &it.quotas {
                Quotas::All(quotas) if quotas.len() > 1 => OutputValue::text_list(quotas),
                _ => None,
            },
        ),
        key(
            "tiers",
            "Quotas by tier, which a part of the request selects.",
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
            "The number of tokens that a request takes; 1 by default.",
            key::COST_SHAPE,
            |reader, node, it| {
                if let Some(cost) = reader.cost(node) {
                    it.cost = cost;
                }
            },
            |it| write_cost(&it.cost),
        ),
        field!("charge": ValueSchema::Map(|| CHARGE.outline()), charge = charge => write_charge,
            "Adjusts the cost of a request by its response."),
        field!("adaptive": ValueSchema::Map(|| ADAPTIVE.outline()),
            adaptive = adaptive => |adaptive| ADAPTIVE.write(adaptive),
            "A concurrency limit that adapts to the latency of the upstream."),
        field!("bandwidth": ValueSchema::AnyOf(&[BYTE_RATE, ValueSchema::Map(|| BANDWIDTH.outline())]),
            bandwidth = bandwidth => |bandwidth| BANDWIDTH.write(bandwidth),
            "Bytes per second for each key: a rate for downloads, or a map for both directions."),
        key(
            "deny",
            "Denies clients from these networks or lists; `all` matches every address.",
            NETWORKS,
            |reader, node, it| it.access.get_or_insert_default().deny = reader.networks(node),
            |it| OutputValue::text_list(&it.access.as_ref()?.deny),
        ),
        key(
            "allow",
            "Exempts clients from these networks or lists from all other limits of this rule.",
            NETWORKS,
            |reader, node, it| it.access.get_or_insert_default().allow = reader.networks(node),
            |it| OutputValue::text_list(&it.access.as_ref()?.allow),
        ),
        key(
            "ban",
            "Bans clients that are denied this often, for this time. Bans apply to the key of the rule, or to the address if the key does not identify a client.",
            ValueSchema::Text(&["10/min for 1h", "10/min for 1h growing 2 up to 1d"]),
            |reader, node, it| it.access.get_or_insert_default().ban = reader.ban(node),
            |it| it.access.as_ref()?.ban.as_ref().map(OutputValue::text),
        ),
        field!("breaker": ValueSchema::Map(|| BREAKER.outline()),
            breaker = breaker => |breaker| BREAKER.write(breaker),
            "A circuit breaker: rejects requests while the upstream fails."),
        field!("priority": ValueSchema::AnyOf(&[CLASS_SHAPE, ValueSchema::Map(|| PRIORITY.outline())]),
            priority = priority => write_priority,
            "The priority of requests. The lowest priority is shed first."),
        field!("schedule": ValueSchema::Text(&["+08:00; mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5"]),
            schedule = parse => OutputValue::text,
            "Factors that multiply all quotas and bandwidths, by time of day."),
        field!("scale": ValueSchema::Map(|| SCALE.outline()), scale = scale => |scale| SCALE.write(scale),
            "Shrinks all quotas while the load of the machine is high."),
        field!("shed": SHED_SHAPE, shed = shed => write_shed,
            "The load of the machine from which requests are rejected: a percentage, or one for each priority class."),
        key(
            "feature",
            "The feature that these requests use. They are rejected while it is off.",
            ValueSchema::Text(&["search"]),
            |reader, node, it| {
                it.feature = reader.name(node);
                if let Some(feature) = it.feature.clone() {
                    reader.add_reference(ReferenceTarget::Feature, &feature, node.span);
                }
            },
            |it| it.feature.as_ref().map(OutputValue::text),
        ),
        field!("while-failing": ValueSchema::Map(|| FAILING.outline()),
            while_failing = while_failing => |failing| FAILING.write(failing),
            "The quotas apply to a key only while it has many calls and too many of them fail."),
        key_with_default(
            "mode",
            "Whether the rule is enforced; `enforce 10%` enforces it for 10 % of the keys, with the others in shadow mode.",
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
            "The name of the store for the counters of this rule.",
            ValueSchema::Text(&["sessions"]),
            |reader, node, it| {
                it.store = reader.name(node);
                if let Some(store) = it.store.clone() {
                    reader.add_reference(ReferenceTarget::Store, &store, node.span);
                }
            },
            |it| it.store.as_ref().map(OutputValue::text),
        ),
        field!("failure-mode": ValueSchema::Text(&["open", "closed", "local 4"]), failure_mode = failure_mode => write_failure_mode,
            "The decision while the store is unavailable: `open` allows, `closed` denies, `local N` counts in memory, for N processes that share the quota."),
        field!("prefetch": TIME, prefetch = positive_duration => write_duration,
            "Takes tokens of busy keys from the store in advance, and uses them without a call for this time."),
        key_with_default(
            "wait",
            "The maximum time that a request waits for capacity.",
            TIME,
            |reader, node, it| it.wait = reader.duration(node).unwrap_or_default(),
            |it| (!it.wait.is_zero()).then(|| write_duration(&it.wait)),
            || write_duration(&RuleSpec::new("").wait),
        ),
        field!("queue": ValueSchema::AnyOf(&[ValueSchema::Integer, ValueSchema::Map(|| QUEUE.outline())]),
            queue = queue => |queue| QUEUE.write(queue),
            "The length and the order of the wait queue."),
        field!("message": ValueSchema::Scalar, message = non_empty_text => OutputValue::text,
            "The message to rejected clients."),
        key(
            "on-limit",
            "What happens to a request over the limit.",
            ValueSchema::AnyOf(&[ValueSchema::Keyword(&["drop"]), ValueSchema::Map(|| ON_LIMIT.outline())]),
            |reader, node, it| {
                if let Some(on_limit) = reader.on_limit(node) {
                    it.on_limit = on_limit;
                }
            },
            |it| action::write_on_limit(&it.on_limit),
        ),
        field!("inherit": carry_over in CARRY_OVERS, "Whether counters are retained when the quota changes."),
        key(
            "capacity",
            "The maximum number of keys in memory, or their maximum size in bytes; 64MiB by default, less with many rules.",
            ValueSchema::AnyOf(&[ValueSchema::Integer, ValueSchema::Text(&["16MB"])]),
            |reader, node, it| it.capacity = reader.capacity(node),
            |it| {
                it.capacity.map(|capacity| match capacity {
                    Capacity::Keys(keys) => OutputValue::Number(keys),
                    // A plain number is a number of keys.
                    Capacity::Bytes(bytes) => match write_size(&bytes) {
                        OutputValue::Number(bytes) => OutputValue::text(format!("{bytes}B")),
                        size => size,
                    },
                })
            },
        ),
        field!("overflow": overflow in OVERFLOW,
            "What happens to new keys when the memory is full: they replace the keys with the lowest usage, share a counter, or are denied."),
    ],
};

/// The maximum `capacity` of a rule, in keys.
const MAX_KEYS: u64 = 1 << 32;

impl PolicyReader<'_> {
    /// Reads `100000` (keys) or `16MB`.
    fn capacity(&mut self, node: &SyntaxNode) -> Option<Capacity> {
        match &node.value {
            SyntaxValue::Number(_) => self.integer(node, 1..=MAX_KEYS).map(Capacity::Keys),
            _ => self.size(node).map(Capacity::Bytes),
        }
    }

    /// Reads an item of `rules`.
    pub(super) fn rule(&mut self, node: &SyntaxNode) -> Option<RuleSpec> {
        let entries = self.entries(node, "rule")?;
        let name_node = entries.iter().find(|(key, _)| key.text == "name").map(|(_, node)| node);
        let scope = match name_node.map(|node| &node.value) {
            Some(SyntaxValue::Text(name) | SyntaxValue::Number(name)) => format!("rule `{}`", truncate(name)),
            _ => "a rule".to_owned(),
        };
        self.with_scope(scope, |reader| {
            let mut rule = RuleSpec::new("");
            let first_reference = reader.reference_count();
            let more = reader.template_entries(entries);
            reader.reject_conflicting_quotas(entries);
            let all = entries.iter().map(|(name, node)| (name, node));
            let unknown = reader.read_entries(all, node.span, &RULE, &mut rule);
            let before = reader.reporting;
            reader.reporting = ErrorReporting::Suppressed;
            reader.read_entries(more.iter().copied(), node.span, &RULE, &mut rule);
            reader.reporting = before;
            match name_node {
                Some(at) if !rule.name.is_empty() => reader.define_rule(&rule.name, at.span),
                Some(_) => {}
                None if unknown.suggested.contains(&"name") => {}
                None => reader.report_error(node.span, "rule without a name", "add one, as in `name: login`"),
            }
            let has_key = |key: &str| {
                entries.iter().any(|(name, _)| name.text == key)
                    || more.iter().any(|(name, _)| name.text == key)
            };
            // An undefined template or a mistyped key may have been meant to define the limit.
            let may_have_limit = has_key("use") && more.is_empty() || unknown.has_any;
            // A rule that only sets the mode refers to a rule declared in code, which has the quota.
            let is_for_code =
                has_key("mode") && !["match", "key", "cost", "on-limit"].iter().any(|key| has_key(key));
            if !may_have_limit && !is_for_code && !LIMIT_KEYS.iter().any(|key| has_key(key)) {
                let location = reader.describe_location("rule");
                reader.report_error(
                    node.span,
                    format!("{location} has no limit"),
                    format!("add one of {}", LIMIT_KEYS.join(", ")),
                );
            }
            reader.check_captures(first_reference, &rule.matching);
            let find_node = |name: &str| {
                let mut nodes = entries.iter().map(|(key, node)| (key, node)).chain(more.iter().copied());
                nodes.find(|(key, _)| key.text == name)
            };
            if let (Some((_, at)), Err(error)) = (find_node("schedule"), rule.check_bandwidth()) {
                reader.report_error(at.span, error.problem(), error.fix());
            }
            if let Err((key, error)) = rule.check_scaled_totals()
                && let Some((_, at)) = find_node(key)
            {
                reader.report_error(at.span, error.problem(), error.fix());
            }
            Some(rule)
        })
    }

    /// Reports a rule with more than one of `quota`, `quotas` and `tiers`.
    fn reject_conflicting_quotas(&mut self, entries: &[(SyntaxKey, SyntaxNode)]) {
        let mut quota_keys =
            entries.iter().filter(|(key, _)| matches!(key.text.as_str(), "quota" | "quotas" | "tiers"));
        let Some((first, _)) = quota_keys.next() else { return };
        for (second, _) in quota_keys {
            let location = self.describe_location("rule");
            let problem = format!("both `{}` and `{}` in {location}", first.text, second.text);
            self.report_error(second.span, problem, "move all quotas into `quotas`, or all into `tiers`");
        }
    }
}

/// The keys that define a limit. A rule has at least one of them.
const LIMIT_KEYS: [&str; 11] = [
    "quota",
    "quotas",
    "tiers",
    "adaptive",
    "bandwidth",
    "deny",
    "allow",
    "ban",
    "breaker",
    "shed",
    "feature",
];
