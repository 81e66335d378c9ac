//! What the history of a gateway cannot show about a rule: it has no headers, no bodies and no durations, and it is bounded.

use tidegate_core::{Micros, Quota};
use tidegate_policy::{
    Policy,
    model::{
        KeyDisplay, KeyPart, KeySpec, Match, Network, Observe, OverrideLocation, PrioritySpec, Quotas,
        RuleSpec,
    },
};

/// The requests that a gateway has recorded.
#[derive(Clone, Copy, Debug)]
pub struct RecordedRequests<'a> {
    /// What the gateway records.
    pub observe: &'a Observe,
    /// The time that the requests cover.
    pub span: Micros,
}

/// The keys of a rule that a replay of recorded requests cannot evaluate.
const UNEVALUATED_KEYS: [&str; 7] =
    ["settle", "bandwidth", "adaptive", "scale", "shed", "while-failing", "prefetch"];

/// How to find out what a replay cannot.
const FIX: &str = "set it, compare the counters of the rule, and roll it back if necessary";

/// Whether all requests that a key counts together are from one client, so that a history of some clients has all of them.
pub fn is_per_client(key: &KeySpec) -> bool {
    match key {
        KeySpec::Part(KeyPart::Ip { .. }) => true,
        KeySpec::Composite(keys) => keys.iter().any(is_per_client),
        KeySpec::First(keys) => !keys.is_empty() && keys.iter().all(is_per_client),
        KeySpec::All | KeySpec::Part(_) => false,
    }
}

impl RecordedRequests<'_> {
    /// Returns an error, with its fix, if a replay cannot show the effect of this key of a rule.
    pub fn check(self, policy: &Policy, rule: &RuleSpec, key: &str) -> Result<(), String> {
        let name = &rule.name;
        let share = self.observe.share.as_f64();
        if share < 1.0 && !is_per_client(&rule.key) {
            return Err(format!(
                "the history has {} % of the clients, and rule `{name}` does not count by client, so the requests of its keys are \
                 incomplete; remove `share` from `observe`",
                (share * 1e6).round() / 1e4
            ));
        }
        if rule.while_failing.is_some() {
            return Err(format!("a replay cannot evaluate `while-failing` of rule `{name}`; {FIX}"));
        }
        let first = key.split('.').next().unwrap_or_default();
        if UNEVALUATED_KEYS.contains(&first) {
            return Err(format!("a replay cannot evaluate `{first}`; {FIX}"));
        }
        if let Quotas::Tiers(tiers) = &rule.quotas
            && key.starts_with("tiers.quotas.")
            && let Some(part) = unrecorded_parts(&tiers.key, policy.user.as_ref()).first()
        {
            return Err(format!("the history has no {part}, which selects the tier of a request; {FIX}"));
        }
        let is_quota = matches!(first, "quota" | "quotas" | "tiers");
        match rule.all_quotas().iter().find(|quota| is_quota && quota.is_concurrency()) {
            Some(quota) => Err(format!(
                "the history has no durations, so a replay cannot evaluate `{quota}` of rule `{name}`; {FIX}"
            )),
            None => Ok(()),
        }
    }

    /// Limits of the accuracy of a replay through a rule, one sentence each.
    pub fn notes(self, policy: &Policy, rule: &RuleSpec) -> Vec<String> {
        let mut notes = Vec::new();
        let mut add_parts = |place: &str, parts: Vec<String>| {
            notes.extend(parts.into_iter().map(|part| {
                format!("the history has no {part}: `{place}` is evaluated as for requests without it")
            }));
        };
        add_parts("key", unrecorded_parts(&rule.key, policy.user.as_ref()));
        if let Quotas::Tiers(tiers) = &rule.quotas {
            add_parts("tiers", unrecorded_parts(&tiers.key, policy.user.as_ref()));
        }
        if let Some(PrioritySpec::FromRequest { key, .. }) = &rule.priority {
            add_parts("priority", unrecorded_parts(key, policy.user.as_ref()));
        }
        let mut conditions = Vec::new();
        add_unrecorded_conditions(&rule.matching, &mut conditions);
        add_parts("match", conditions);
        let is_set = [
            ("bandwidth", rule.bandwidth.is_some()),
            ("adaptive", rule.adaptive.is_some()),
            ("scale", rule.scale.is_some()),
            ("shed", rule.shed.is_some()),
        ];
        let unevaluated = is_set.into_iter().filter(|(_, is_set)| *is_set);
        notes.extend(unevaluated.map(|(key, _)| format!("the replay does not evaluate `{key}` of the rule")));
        if rule.breaker.is_some() {
            notes.push("`breaker` is evaluated by the recorded statuses, without slow calls".to_owned());
        }
        if self.observe.keys == KeyDisplay::Hashed && has_networks(rule) {
            notes.push("the history has hashed addresses: networks and lists contain no client".to_owned());
        }
        if policy.check_overrides(rule).is_ok() {
            let is_hashed = self.observe.keys == KeyDisplay::Hashed && rule.key != KeySpec::All;
            match policy.overrides {
                Some(OverrideLocation::Store) => {
                    notes.push("the replay does not evaluate overrides that are in the store".to_owned());
                }
                _ if is_hashed => {
                    notes.push(
                        "the history has hashed clients: overrides of their keys have no effect".to_owned(),
                    );
                }
                _ => {}
            }
        }
        let quotas = rule.all_quotas();
        notes.extend(
            quotas
                .iter()
                .filter(|quota| quota.is_concurrency())
                .map(|quota| format!("the history has no durations: the replay does not evaluate `{quota}`")),
        );
        let is_longer = |quota: &&Quota| quota.rate().is_none_or(|rate| rate.period() > self.span);
        let longer = quotas.iter().filter(|quota| !quota.is_concurrency()).filter(is_longer);
        notes.extend(longer.map(|quota| {
            format!(
                "`{quota}` is longer than the history: its counters start empty, so there are too few denials"
            )
        }));
        notes
    }
}

/// The parts of a key that the history does not have.
fn unrecorded_parts(key: &KeySpec, user: Option<&KeySpec>) -> Vec<String> {
    match key {
        KeySpec::All => Vec::new(),
        KeySpec::Composite(parts) | KeySpec::First(parts) => {
            parts.iter().flat_map(|part| unrecorded_parts(part, user)).collect()
        }
        KeySpec::Part(KeyPart::User) => match user {
            None => Vec::new(),
            Some(user) if can_be_user(user) => Vec::new(),
            Some(user) => unrecorded_parts(user, None),
        },
        KeySpec::Part(_) if user == Some(key) && can_be_user(key) => Vec::new(),
        KeySpec::Part(part) => match part {
            KeyPart::Header(_)
            | KeyPart::Cookie(_)
            | KeyPart::Query(_)
            | KeyPart::Descriptor(_)
            | KeyPart::Body(_)
            | KeyPart::Jwt(_)
            | KeyPart::ApiKey(_)
            | KeyPart::ClientCertificate(_) => vec![part.to_string()],
            _ => Vec::new(),
        },
    }
}

/// Whether a replay uses the recorded user as the value of this key.
fn can_be_user(key: &KeySpec) -> bool {
    let KeySpec::Part(part) = key else { return false };
    matches!(part, KeyPart::Header(_) | KeyPart::Jwt(_) | KeyPart::ApiKey(_) | KeyPart::ClientCertificate(_))
}

/// Adds the parts of requests that conditions need and the history does not have.
fn add_unrecorded_conditions(matching: &Match, parts: &mut Vec<String>) {
    let named = [
        ("header", &matching.headers),
        ("query", &matching.queries),
        ("cookie", &matching.cookies),
        ("descriptor", &matching.descriptor),
    ];
    for (kind, values) in named {
        parts.extend(values.keys().map(|name| format!("{kind} {name}")));
    }
    if !matching.listeners.is_empty() {
        parts.push("listener".to_owned());
    }
    matching.not.iter().for_each(|not| add_unrecorded_conditions(not, parts));
    matching.any.iter().for_each(|any| add_unrecorded_conditions(any, parts));
}

/// Whether a rule distinguishes clients by their network.
fn has_networks(rule: &RuleSpec) -> bool {
    fn of_match(matching: &Match) -> bool {
        !matching.clients.is_empty()
            || matching.not.as_deref().is_some_and(of_match)
            || matching.any.iter().any(of_match)
    }
    let is_list = |network: &Network| !matches!(network, Network::List(name) if name == "all");
    let lists = rule.access.iter().flat_map(|access| [&access.deny, &access.allow]);
    of_match(&rule.matching) || lists.flatten().any(is_list)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The notes about a rule, or the error.
    fn check(settings: &str, rule: &str, key: &str) -> String {
        let policy: Policy = format!("{settings}\nrules: [{{ name: a, {rule} }}]").parse().unwrap();
        let recorded = RecordedRequests { observe: &policy.observe, span: Micros::from_secs(3_600) };
        match recorded.check(&policy, &policy.rules[0], key) {
            Ok(()) => recorded.notes(&policy, &policy.rules[0]).join("\n"),
            Err(error) => format!("error: {error}"),
        }
    }

    #[test]
    fn limits_of_the_history_are_reported() {
        let share = "observe: { history: 10, share: 10% }";
        let hashed = "observe: { history: 10, keys: hashed }";
        let user = "user: header x-user";
        let tiers = "tiers: { key: header x-plan, quotas: { gold: 9/s }, default: 1/s }";
        for (settings, rule, key, expected) in [
            ("", "key: ip, quota: 5/min", "quota", ""),
            (share, "key: ip, quota: 5/min", "quota", ""),
            (
                share,
                "quota: 1000/s",
                "quota",
                "error: the history has 10 % of the clients, and rule `a` does not",
            ),
            (
                share,
                "key: method, quota: 9/s",
                "quota",
                "error: the history has 10 % of the clients, and rule `a`",
            ),
            (user, "key: user, quota: 9/s", "quota", ""),
            (user, "key: header x-user, quota: 9/s", "quota", ""),
            (
                "",
                "key: header x-user, quota: 9/s",
                "quota",
                "the history has no header x-user: `key` is evaluated as",
            ),
            (
                "",
                tiers,
                "tiers.quotas.gold",
                "error: the history has no header x-plan, which selects the tier",
            ),
            (
                "",
                tiers,
                "tiers.default",
                "the history has no header x-plan: `tiers` is evaluated as for requests",
            ),
            (
                "",
                "match: { header: { x-a: b } }, quota: 9/s",
                "quota",
                "the history has no header x-a: `match` is",
            ),
            (
                "",
                "match: { not: { query: { a: b } } }, quota: 9/s",
                "quota",
                "the history has no query a: `match` is",
            ),
            (
                "",
                "quota: 9/s, settle: header x-cost",
                "settle",
                "error: a replay cannot evaluate `settle`; set it,",
            ),
            (
                "",
                "quota: 9/s, bandwidth: 1MB/s",
                "bandwidth",
                "error: a replay cannot evaluate `bandwidth`; set it,",
            ),
            (
                "",
                "adaptive: { target: 1s }",
                "adaptive.target",
                "error: a replay cannot evaluate `adaptive`; set it,",
            ),
            (
                "",
                "quota: 9/s, breaker: { failure-rate: 50% }",
                "quota",
                "`breaker` is evaluated by the recorded status",
            ),
            (
                "",
                "quota: 3 at once",
                "quota",
                "error: the history has no durations, so a replay cannot evaluate `3 at",
            ),
            (
                "",
                "quota: 3 at once, wait: 1s",
                "wait",
                "the history has no durations: the replay does not evaluate `3",
            ),
            (
                hashed,
                "key: ip, quota: 5/min, allow: 10.0.0.0/8",
                "quota",
                "the history has hashed addresses: networks",
            ),
            (
                hashed,
                "match: { client: 10.0.0.0/8 }, quota: 5/min",
                "quota",
                "the history has hashed addresses: networks",
            ),
            (hashed, "key: ip, quota: 5/min", "quota", ""),
            ("overrides: { file: o.jsonl }", "key: ip, quota: 5/min", "quota", ""),
            ("overrides: store", "key: ip, quotas: [5/min, 9/h]", "quotas.0", ""),
            (
                "overrides: store",
                "key: ip, quota: 5/min",
                "quota",
                "the replay does not evaluate overrides that are in the store",
            ),
            (
                "overrides: { file: o.jsonl }\nobserve: { history: 10, keys: hashed }",
                "key: ip, quota: 5/min",
                "quota",
                "the history has hashed clients: overrides of their",
            ),
            (
                "",
                "key: ip, quota: 1000/day",
                "quota",
                "`1000/d` is longer than the history: its counters start empty",
            ),
            (
                user,
                "key: user, quota: 1000 total",
                "quota",
                "`1000 total` is longer than the history: its counters start",
            ),
        ] {
            let found = check(settings, rule, key);
            assert!(
                found.starts_with(expected) && found.is_empty() == expected.is_empty(),
                "{rule} {key}\n{found}"
            );
        }
    }
}
