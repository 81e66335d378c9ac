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
    settle::{SETTLE_SHAPE, write_settle},
    values::{write_duration, write_failure_mode, write_size},
};
use crate::{
    compile::{DEFAULT_MAX_WAITERS, MAX_RULE_BYTES},
    map_schema::{
        MapSchema, OutputValue, TextKind, ValueSchema, duration, field, key, key_with_default, with_default,
        with_example, without,
    },
    model::{DEFAULT_COST, KeySpec, Quotas, RuleEnforcement, RuleSpec},
    source::{SyntaxKey, SyntaxNode, SyntaxValue, truncate},
};
use tidegate_core::CarryOver;
use tidegate_limiter::{Capacity, Overflow};
use tidegate_rule::{
    Mode,
    request::{DuplicateKeys, MissingKey},
};

pub(super) const QUOTA: ValueSchema = ValueSchema::Text(
    TextKind::Quota,
    &["100/min burst 20", "5/min", "3 at once", "1000 total", "1000/h sliding-window"],
);
const NETWORKS: ValueSchema =
    ValueSchema::OneOrMany(&ValueSchema::Text(TextKind::Client, &["10.0.0.0/8", "internal", "all"]));
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
        without(
            field!("name": ValueSchema::Text(TextKind::Name, &["login"]), name = name => OutputValue::text, always,
            "The name in headers, logs and metrics. It is unique."),
            "Error: a rule needs a name.",
        ),
        without(
            key(
                "use",
                "The template that provides the keys that this rule does not set.",
                ValueSchema::Text(TextKind::Name, &["api"]),
                |_, _, _| {},
                |_| None,
            ),
            "The rule has only its own keys.",
        ),
        without(
            key(
                "match",
                "Which requests the rule applies to.",
                ValueSchema::Map(|| MATCH.outline()),
                |reader, node, it| it.matching = reader.matching(node),
                |it| MATCH.write_non_empty(&it.matching),
            ),
            "The rule applies to all requests.",
        ),
        with_example(
            key_with_default(
                "key",
                "What requests are counted by; `all` counts all of them together.",
                key::KEY_SHAPE,
                |reader, node, it| it.key = reader.key(node).unwrap_or_default(),
                |it| (it.key != KeySpec::All).then(|| write_key(&it.key)),
                || write_key(&KeySpec::All),
            ),
            || OutputValue::text("ip"),
        ),
        field!("missing": missing in MISSING,
            "What happens to requests without the key: `ip` counts them by client address, `share` all together, `skip` not at all, and `reject` rejects them."),
        field!("duplicates": duplicates in DUPLICATES,
            "What happens to requests that repeat a header, cookie or query parameter that the rule reads: `reject` rejects them, `first` and `last` select the value that counts."),
        without(
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
            "No quota limits the requests, unless there are `quotas` or `tiers`.",
        ),
        with_example(
            without(
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
                "No quota limits the requests, unless there is a `quota` or `tiers`.",
            ),
            || OutputValue::List(vec![OutputValue::text("5/min"), OutputValue::text("20/h sliding-window")]),
        ),
        without(
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
            "All requests have the same quotas.",
        ),
        with_default(
            key(
                "cost",
                "The number of tokens that a request takes.",
                key::COST_SHAPE,
                |reader, node, it| {
                    if let Some(cost) = reader.cost(node) {
                        it.cost = cost;
                    }
                },
                |it| write_cost(&it.cost),
            ),
            || OutputValue::Number(DEFAULT_COST),
        ),
        without(
            field!("charge": ValueSchema::Map(|| CHARGE.outline()), charge = charge => write_charge,
            "Whether a request is charged, by the status of its response."),
            "Every admitted request is charged its cost.",
        ),
        without(
            field!("settle": SETTLE_SHAPE, settle = settle => write_settle,
            "The final cost of a request, which its response states. The cost before the call is charged until then, and also if the response states none."),
            "The cost before the call is final.",
        ),
        without(
            field!("adaptive": ValueSchema::Map(|| ADAPTIVE.outline()),
            adaptive = adaptive => |adaptive| ADAPTIVE.write(adaptive),
            "A concurrency limit that adapts to the latency of the upstream."),
            "There is no adaptive limit.",
        ),
        without(
            field!("bandwidth": ValueSchema::AnyOf(&[BYTE_RATE, ValueSchema::Map(|| BANDWIDTH.outline())]),
            bandwidth = bandwidth => |bandwidth| BANDWIDTH.write(bandwidth),
            "Bytes per second for each key: a rate for downloads, or a map for both directions."),
            "The rate of bytes is not limited.",
        ),
        without(
            key(
                "deny",
                "Denies clients from these networks or lists; `all` matches every address.",
                NETWORKS,
                |reader, node, it| it.access.get_or_insert_default().deny = reader.networks(node),
                |it| OutputValue::text_list(&it.access.as_ref()?.deny),
            ),
            "No address is denied.",
        ),
        without(
            key(
                "allow",
                "Exempts clients from these networks or lists from all other limits of this rule.",
                NETWORKS,
                |reader, node, it| it.access.get_or_insert_default().allow = reader.networks(node),
                |it| OutputValue::text_list(&it.access.as_ref()?.allow),
            ),
            "No address is exempt.",
        ),
        without(
            key(
                "ban",
                "Bans clients that are denied this often, for this time. Bans apply to the key of the rule, or to the address if the key does not identify a client.",
                ValueSchema::Text(TextKind::Ban, &["10/min for 1h", "10/min for 1h growing 2 up to 1d"]),
                |reader, node, it| it.access.get_or_insert_default().ban = reader.ban(node),
                |it| it.access.as_ref()?.ban.as_ref().map(OutputValue::text),
            ),
            "No client is banned.",
        ),
        without(
            field!("breaker": ValueSchema::Map(|| BREAKER.outline()),
            breaker = breaker => |breaker| BREAKER.write(breaker),
            "A circuit breaker: rejects requests while the upstream fails."),
            "There is no circuit breaker.",
        ),
        without(
            field!("priority": ValueSchema::AnyOf(&[CLASS_SHAPE, ValueSchema::Map(|| PRIORITY.outline())]),
            priority = priority => write_priority,
            "The priority of requests. The lowest priority is shed first."),
            "All requests have the priority `normal`.",
        ),
        without(
            field!("schedule": ValueSchema::Text(TextKind::Schedule, &["+08:00; mon-fri 09:00-18:00 x2; 22:00-06:00 x0.5"]),
            schedule = parse => OutputValue::text,
            "Factors that multiply all quotas and bandwidths, by time of day."),
            "The quotas are the same at all times.",
        ),
        without(
            field!("scale": ValueSchema::Map(|| SCALE.outline()), scale = scale => |scale| SCALE.write(scale),
            "Shrinks all quotas while the load of the machine is high."),
            "The quotas do not follow the load.",
        ),
        without(
            field!("shed": SHED_SHAPE, shed = shed => write_shed,
            "The load of the machine from which requests are rejected: a percentage, or one for each priority class."),
            "No requests are rejected by load.",
        ),
        without(
            key(
                "feature",
                "The feature that these requests use. They are rejected while it is off.",
                ValueSchema::Text(TextKind::Name, &["search"]),
                |reader, node, it| {
                    it.feature = reader.name(node);
                    if let Some(feature) = it.feature.clone() {
                        reader.add_reference(ReferenceTarget::Feature, &feature, node.span);
                    }
                },
                |it| it.feature.as_ref().map(OutputValue::text),
            ),
            "The requests belong to no feature.",
        ),
        without(
            field!("while-failing": ValueSchema::Map(|| FAILING.outline()),
            while_failing = while_failing => |failing| FAILING.write(failing),
            "The quotas apply to a key only while it has many calls and too many of them fail."),
            "The quotas always apply.",
        ),
        with_example(
            key_with_default(
                "mode",
                "Whether the rule is enforced; `enforce 10%` enforces it for 10 % of the keys, with the others in shadow mode.",
                ValueSchema::Text(TextKind::Mode, &["enforce", "shadow", "off", "enforce 10%"]),
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
            || OutputValue::text("shadow"),
        ),
        without(
            key(
                "store",
                "The name of the store for the counters of this rule.",
                ValueSchema::Text(TextKind::Name, &["sessions"]),
                |reader, node, it| {
                    it.store = reader.name(node);
                    if let Some(store) = it.store.clone() {
                        reader.add_reference(ReferenceTarget::Store, &store, node.span);
                    }
                },
                |it| it.store.as_ref().map(OutputValue::text),
            ),
            "The counters are in the store of `store` at the top level.",
        ),
        without(
            field!("failure-mode": ValueSchema::Text(TextKind::FailureMode, &["open", "closed", "local 4"]), failure_mode = failure_mode => write_failure_mode,
            "The decision while the store is unavailable: `open` allows, `closed` denies, `local N` counts in memory, for N processes that share the quota."),
            "The `failure-mode` at the top level applies.",
        ),
        without(
            field!("prefetch": duration(&["200ms"]), prefetch = positive_duration => write_duration,
            "Takes tokens of busy keys from the store in advance, and uses them without a call for this time."),
            "Each decision calls the store.",
        ),
        key_with_default(
            "wait",
            "The maximum time that a request waits for capacity.",
            duration(&["500ms"]),
            |reader, node, it| it.wait = reader.duration(node).unwrap_or_default(),
            |it| (!it.wait.is_zero()).then(|| write_duration(&it.wait)),
            || write_duration(&RuleSpec::new("").wait),
        ),
        with_default(
            field!("queue": ValueSchema::AnyOf(&[ValueSchema::Integer("requests", 20), ValueSchema::Map(|| QUEUE.outline())]),
            queue = queue => |queue| QUEUE.write(queue),
            "The length and the order of the wait queue."),
            || OutputValue::Number(DEFAULT_MAX_WAITERS),
        ),
        without(
            field!("message": ValueSchema::Scalar("Too many attempts."), message = non_empty_text => OutputValue::text,
            "The message to rejected clients."),
            "The message states that the quota is used up.",
        ),
        without(
            key(
                "on-limit",
                "What happens to a request over the limit.",
                ValueSchema::AnyOf(&[
                    ValueSchema::Keyword(&["drop"]),
                    ValueSchema::Map(|| ON_LIMIT.outline()),
                ]),
                |reader, node, it| {
                    if let Some(on_limit) = reader.on_limit(node) {
                        it.on_limit = on_limit;
                    }
                },
                |it| action::write_on_limit(&it.on_limit),
            ),
            "An exceeded quota is 429, a list or a ban 403, a missing or repeated key 400, everything else 503, with a problem document.",
        ),
        field!("inherit": carry_over in CARRY_OVERS, "Whether counters are retained when the quota changes."),
        with_default(
            key(
                "capacity",
                "The maximum number of keys in memory, or their maximum size in bytes. The default is lower with many rules.",
                ValueSchema::AnyOf(&[
                    ValueSchema::Integer("keys", 100_000),
                    ValueSchema::Text(TextKind::Size, &["16MB"]),
                ]),
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
            || write_size(&MAX_RULE_BYTES),
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
