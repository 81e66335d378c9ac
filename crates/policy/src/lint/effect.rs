//! Finds policy keys without effect.

use crate::{
    compile::{CLASSES, follows_load, is_always_present},
    explain::{CounterLocation, counter_location},
    model::{
        ApiKeyMatch, CostSpec, FeatureSpec, JwtSpec, KeyPart, KeySetLocation, KeySpec, Match, OnLimit,
        Policy, PrioritySpec, QueueOrder, Quotas, RuleEnforcement, RuleSpec, SettleSource, ShedSpec, Stores,
    },
};
use tidegate_core::{AlgorithmKind, CarryOver, Quota};
use tidegate_limiter::Overflow;
use tidegate_rule::{Mode, request::MissingKey};

/// Finds the keys of `identity` that have no effect, each with its path, the reason and the fix.
pub(super) fn find_unused_identity_keys(policy: &Policy) -> Vec<(Vec<String>, &'static str, &'static str)> {
    let identity = &policy.identity;
    let mut found = Vec::new();
    let mut add = |path: &[&str], reason, fix| {
        found.push((path.iter().map(|key| (*key).to_owned()).collect(), reason, fix));
    };
    let matches_jwt = || uses_match(policy, |matching| !matching.claims.is_empty());
    if identity.jwt.is_some() && !uses_key(policy, |part| matches!(part, KeyPart::Jwt(_))) && !matches_jwt() {
        let reason = "`jwt` has no effect: no key and no match reads a token";
        add(&["identity", "jwt"], reason, "remove it, or use a claim, as in `key: jwt sub`");
    }
    let matches_api_key = || uses_match(policy, |matching| matching.api_key != ApiKeyMatch::default());
    if identity.api_keys.is_some()
        && !uses_key(policy, |part| matches!(part, KeyPart::ApiKey(_)))
        && !matches_api_key()
    {
        let reason = "`api-keys` has no effect: no key and no match reads an API key";
        add(&["identity", "api-keys"], reason, "remove it, or use it, as in `key: api-key`");
    }
    if identity.invalid_quota.is_some() && identity.jwt.is_none() && identity.api_keys.is_none() {
        let reason = "`invalid-quota` has no effect without `jwt` and `api-keys`";
        add(&["identity", "invalid-quota"], reason, "remove it");
    }
    if let Some(JwtSpec { keys: KeySetLocation::File(_), refresh, .. }) = &identity.jwt
        && *refresh != JwtSpec::default().refresh
    {
        let reason = "`refresh` has no effect on a file, which is reloaded when it changes";
        add(&["identity", "jwt", "refresh"], reason, "remove it");
    }
    found
}

/// Whether the match of a rule or of a route has such a condition.
fn uses_match(policy: &Policy, is_such: fn(&Match) -> bool) -> bool {
    let mut all = policy
        .rules
        .iter()
        .map(|rule| &rule.matching)
        .chain(policy.routes.iter().map(|route| &route.matching));
    all.any(|matching| matching.contains(is_such))
}

/// Whether `overrides` has no effect, because no rule supports them.
pub(super) fn has_unused_overrides(policy: &Policy) -> bool {
    policy.overrides.is_some() && policy.rules.iter().all(|rule| rule.check_overridable().is_err())
}

/// Whether a key of a rule, or of its cost, tiers and priority, has such a part.
fn uses_key(policy: &Policy, is_such: fn(&KeyPart) -> bool) -> bool {
    fn has(key: &KeySpec, is_such: fn(&KeyPart) -> bool) -> bool {
        match key {
            KeySpec::All => false,
            KeySpec::Part(part) => is_such(part),
            KeySpec::Composite(parts) | KeySpec::First(parts) => parts.iter().any(|part| has(part, is_such)),
        }
    }
    let of_rule = |rule: &RuleSpec| {
        let tiers = matches!(&rule.quotas, Quotas::Tiers(tiers) if has(&tiers.key, is_such));
        let cost = matches!(&rule.cost, CostSpec::FromRequest { from, .. } if has(from, is_such));
        let priority =
            matches!(&rule.priority, Some(PrioritySpec::FromRequest { key, .. }) if has(key, is_such));
        has(&rule.key, is_such) || tiers || cost || priority
    };
    policy.user.as_ref().is_some_and(|user| has(user, is_such)) || policy.rules.iter().any(of_rule)
}

/// A key without effect, with the reason and the fix.
pub(super) struct IneffectiveKey {
    /// The path of the key, separated by dots.
    pub(super) key: &'static str,
    pub(super) reason: String,
    pub(super) fix: String,
}

/// Finds the keys of a rule that have no effect.
pub(super) fn find_ineffective_keys(policy: &Policy, rule: &RuleSpec) -> Vec<IneffectiveKey> {
    let quotas = rule.all_quotas();
    let mut found = Vec::new();
    let mut add = |key: &'static str, reason: String, fix: &str| {
        found.push(IneffectiveKey { key, reason, fix: fix.to_owned() });
    };
    let is_concurrency = Quota::is_concurrency;
    let has_tiers = matches!(rule.quotas, Quotas::Tiers(_));

    if let Some(key) = limit_behind_deny_all(rule) {
        let reason = format!(
            "`{key}` has no effect with `deny: all`: clients are either denied, or exempt from all limits"
        );
        add(key, reason, "remove one of them, or move it to another rule");
        return found;
    }
    if let Some(queue) = &rule.queue {
        if rule.effective_wait().is_zero() {
            add(
                "queue",
                "`queue` has no effect without `wait`".to_owned(),
                "set the maximum wait, as in `wait: 1s`",
            );
        } else if queue.order == QueueOrder::Priority && rule.priority.is_none() {
            let reason = "`order: priority` has no effect without `priority`".to_owned();
            add("queue.order", reason, "add it, as in `priority: { key: header x-priority, default: low }`");
        } else if queue.order == QueueOrder::Priority && has_tiers && rule.adaptive.is_none() {
            let reason =
                "`order: priority` has no effect on `tiers`, whose requests wait in order of arrival";
            add("queue.order", reason.to_owned(), "remove it, or use one `quota`");
        }
    }
    let is_ordered = rule.queue.as_ref().is_some_and(|queue| queue.order == QueueOrder::Priority);
    let has_queue = is_ordered && !rule.effective_wait().is_zero();
    let sheds_by_class = matches!(rule.shed, Some(ShedSpec::Classes(_)));
    let has_plain_quota = !quotas.is_empty() && !has_tiers;
    let is_fixed = matches!(rule.priority, Some(PrioritySpec::Fixed(_)));
    let is_unused = rule.adaptive.is_none() && !sheds_by_class && !has_queue && !has_plain_quota;
    if is_fixed && rule.adaptive.is_none() && !sheds_by_class {
        let reason = "`priority` has no effect: all requests of the rule have the same one".to_owned();
        let fix = "take it from the request, as in `{ key: header x-priority, default: low }`";
        add("priority", reason, fix);
    } else if rule.priority.is_some() && is_unused {
        let reason = "`priority` has no effect without a quota, `adaptive` or `shed`".to_owned();
        add("priority", reason, "remove it, or add a quota");
    }
    if let Some(PrioritySpec::FromRequest { reserve: Some(_), .. }) = &rule.priority
        && !has_plain_quota
    {
        let reason = "`reserve` has no effect without a `quota`".to_owned();
        add("priority.reserve", reason, "remove it, or use `quota` instead of `tiers`");
    }
    if let (Some(ShedSpec::Classes(thresholds)), None) = (&rule.shed, &rule.priority) {
        let normal = CLASSES.iter().position(|(name, _)| *name == "normal");
        if normal.and_then(|normal| thresholds.get(normal)).is_none_or(Option::is_none) {
            let reason = "`shed` has no effect: without `priority`, all requests are normal".to_owned();
            add("shed", reason, "add a `priority`, or a threshold for `normal`");
        }
    }
    if has_tiers
        && rule.wait.is_zero()
        && let Some(queue) = quotas.iter().find_map(queue_beyond_delay)
    {
        let reason = format!("`queue {queue}` of its leaky bucket has no effect in `tiers` without `wait`");
        add("tiers", reason, "set the maximum wait, as in `wait: 1s`, or use `queue 0`");
    }
    let has_bandwidth = rule.bandwidth.is_some();
    let has_table = !quotas.is_empty() || has_bandwidth;
    let of_keys = [("capacity", rule.capacity.is_some()), ("overflow", rule.overflow != Overflow::default())];
    for (key, _) in of_keys.into_iter().filter(|(_, is_set)| *is_set && has_table) {
        if rule.key == KeySpec::All {
            let reason = format!("`{key}` has no effect without a key: all requests are counted together");
            add(key, reason, "remove it, or add a key, as in `key: ip`");
        } else if rule.key.is_per_request() {
            let reason =
                format!("`{key}` has no effect with the key `request`: each request has its own rate");
            add(key, reason, "remove it");
        }
    }
    if rule.overflow == Overflow::Deny && has_bandwidth {
        let reason = "`overflow: deny` has no effect on `bandwidth`, which rejects no requests: new keys share one rate";
        add(
            "overflow",
            reason.to_owned(),
            "use `overflow: share` or `replace`, or move the bandwidth to another rule",
        );
    }
    for (key, _) in [("schedule", rule.schedule.is_some()), of_keys[0], of_keys[1]]
        .into_iter()
        .filter(|(_, is_set)| *is_set && !has_table)
    {
        let reason = format!("`{key}` has no effect without a quota or bandwidth");
        add(key, reason, "remove it, or add a quota");
    }
    if rule.overflow == Overflow::Share && quotas.iter().any(is_concurrency) {
        let reason = "`overflow: share` has no effect on a concurrency limit: new keys are denied".to_owned();
        add("overflow", reason, "use `overflow: deny`, or remove it");
    } else if rule.overflow == Overflow::Share && quotas.iter().any(Quota::is_total) {
        let reason = "`overflow: share` has no effect on a total: new keys are denied".to_owned();
        add("overflow", reason, "use `overflow: deny`, or remove it");
    }
    if policy.envoy.is_none() && rule.matching.contains(|matching| !matching.descriptor.is_empty()) {
        let reason = "`descriptor` has no effect without `envoy`".to_owned();
        add("match.descriptor", reason, super::ENVOY_FIX);
    }
    if !rule.matching.descriptor.is_empty() {
        let has_concurrency = quotas.iter().any(is_concurrency);
        let need_the_end = [
            ("while-failing", rule.while_failing.is_some()),
            ("breaker", rule.breaker.is_some()),
            ("adaptive", rule.adaptive.is_some()),
            ("charge", rule.charge.is_some()),
            ("settle", rule.settle.is_some()),
            ("bandwidth", rule.bandwidth.is_some()),
            (if has_tiers { "tiers" } else { "quota" }, has_concurrency),
        ];
        for (key, _) in need_the_end.into_iter().filter(|(_, is_set)| *is_set) {
            let subject =
                if key == "quota" || key == "tiers" { "a concurrency limit" } else { &format!("`{key}`") };
            let reason =
                format!("{subject} has no effect on descriptors: Envoy does not report the end of a request");
            add(key, reason, "remove it, or match requests of the gateway");
        }
    }
    // A descriptor may lack an address.
    if rule.missing != MissingKey::default() && is_always_present(&rule.key) && policy.envoy.is_none() {
        let reason = "`missing` has no effect: every request has this key".to_owned();
        add("missing", reason, "remove it");
    }
    if rule.failure_mode.is_some()
        && !quotas.is_empty()
        && counter_location(policy, rule) == CounterLocation::Memory
    {
        let reason = "`failure-mode` has no effect in memory".to_owned();
        add("failure-mode", reason, "remove it, or add a store, as in `store: redis://127.0.0.1:6379`");
    }
    if rule.prefetch.is_some() && !quotas.is_empty() {
        let reason = if counter_location(policy, rule) == CounterLocation::Memory {
            Some("`prefetch` has no effect in memory")
        } else if !rule.effective_wait().is_zero() {
            Some("`prefetch` has no effect with `wait`")
        } else if has_tiers {
            Some("`prefetch` has no effect on `tiers`")
        } else if quotas.iter().all(is_concurrency) {
            Some("`prefetch` has no effect on a concurrency limit")
        } else if quotas.iter().any(Quota::is_total) {
            Some("`prefetch` has no effect on a total")
        } else {
            None
        };
        if let Some(reason) = reason {
            add("prefetch", reason.to_owned(), "remove it, or use a rate in a store");
        }
    }
    let can_reject = !quotas.is_empty()
        || rule.adaptive.is_some()
        || rule.breaker.is_some()
        || rule.access.is_some()
        || rule.shed.is_some()
        || rule.feature.is_some();
    for (key, is_set) in
        [("on-limit", rule.on_limit != OnLimit::default()), ("message", rule.message.is_some())]
    {
        if is_set && !can_reject {
            add(key, format!("`{key}` has no effect: `bandwidth` rejects no requests"), "remove it");
        }
    }
    if rule.on_limit.fallback_cache().is_some() {
        let methods = &rule.matching.methods;
        if policy.routes.is_empty() {
            let reason = "`cache` has no effect without `routes`: only a gateway stores responses".to_owned();
            add("on-limit.fallback.cache", reason, "remove it, or add a route");
        } else if !methods.is_empty() && !methods.iter().any(|method| method == "GET") {
            let reason = "`cache` has no effect: only responses to GET are stored".to_owned();
            add("on-limit.fallback.cache", reason, "remove it, or add GET to `method`");
        }
    }
    let settles_by_body =
        rule.settle.as_ref().is_some_and(|settle| !matches!(settle.source, SettleSource::Header(_)));
    if settles_by_body && policy.routes.is_empty() {
        let reason = "`settle` has no effect without `routes`: only a gateway reads the bodies of responses";
        add("settle", reason.to_owned(), "use `header NAME`, or add a route");
    }
    let needs_quota = [
        ("cost", rule.cost != CostSpec::Fixed(1)),
        ("charge", rule.charge.is_some()),
        ("settle", rule.settle.is_some()),
        ("store", rule.store.is_some()),
        ("prefetch", rule.prefetch.is_some()),
        ("inherit", rule.carry_over != CarryOver::default()),
        ("ban", rule.access.as_ref().is_some_and(|access| access.ban.is_some())),
        ("wait", !rule.wait.is_zero() && rule.adaptive.is_none()),
        ("scale", rule.scale.is_some()),
        ("while-failing", rule.while_failing.is_some()),
    ];
    for (key, _) in needs_quota.into_iter().filter(|(_, is_set)| *is_set && quotas.is_empty()) {
        add(key, format!("`{key}` has no effect without a quota"), "remove it, or add a quota");
    }
    found
}

/// Finds settings of load and features that nothing uses: the path, the reason and the fix.
pub(super) fn find_unused_load_keys(policy: &Policy) -> Vec<(Vec<String>, String, &'static str)> {
    let mut found = Vec::new();
    if policy.load.is_some() && !follows_load(policy) {
        let reason = "`load` has no effect: nothing follows the load".to_owned();
        let fix = "remove it, or add `shed` or `scale` to a rule, or `off-at` to a feature";
        found.push((vec!["load".to_owned()], reason, fix));
    }
    let is_automatic = |feature: &FeatureSpec| feature.off_at.is_some() || feature.off_during.is_some();
    if policy.feature_recovery.is_some() && !policy.features.iter().any(is_automatic) {
        let reason =
            "`feature-recovery` has no effect: no feature is disabled by load or by schedule".to_owned();
        found.push((vec!["feature-recovery".to_owned()], reason, "remove it"));
    }
    for feature in &policy.features {
        if !policy.rules.iter().any(|rule| rule.feature.as_ref() == Some(&feature.name)) {
            let reason = format!("feature `{}` has no effect: no rule uses it", feature.name);
            let fix = "remove it, or add `feature` to the rule of its requests";
            found.push((vec!["features".to_owned(), feature.name.clone()], reason, fix));
        }
    }
    found
}

/// Finds settings of stores in a policy without stores.
pub(super) fn find_unused_store_keys(policy: &Policy) -> Vec<&'static str> {
    let Stores { default, named, prefix, deadline, failure_mode } = &policy.stores;
    if default.iter().chain(named.values()).any(|address| address != "memory") {
        return Vec::new();
    }
    let settings = [
        ("prefix", prefix.is_some()),
        ("deadline", deadline.is_some()),
        ("failure-mode", failure_mode.is_some()),
    ];
    settings.into_iter().filter(|(_, is_set)| *is_set).map(|(key, _)| key).collect()
}

/// Whether a match can match only descriptors.
pub(super) fn requires_descriptor(matching: &Match) -> bool {
    let any = &matching.any;
    !matching.descriptor.is_empty() || !any.is_empty() && any.iter().all(requires_descriptor)
}

/// The queue length of a leaky bucket, if it exceeds the requests that pass without delay. These need `wait`.
fn queue_beyond_delay(quota: &Quota) -> Option<u64> {
    match quota.kind() {
        AlgorithmKind::LeakyBucket(bucket) if bucket.queue() > bucket.delay() => Some(bucket.queue()),
        _ => None,
    }
}

/// Returns the key of a limit that `deny: all` makes unreachable.
fn limit_behind_deny_all(rule: &RuleSpec) -> Option<&'static str> {
    let access = rule.access.as_ref()?;
    if !access.denies_all() || rule.enforcement != RuleEnforcement::All(Mode::Enforce) {
        return None;
    }
    match &rule.quotas {
        Quotas::Tiers(_) => Some("tiers"),
        Quotas::All(quotas) if quotas.len() > 1 => Some("quotas"),
        Quotas::All(quotas) if !quotas.is_empty() => Some("quota"),
        Quotas::All(_) if rule.adaptive.is_some() => Some("adaptive"),
        Quotas::All(_) if rule.breaker.is_some() => Some("breaker"),
        Quotas::All(_) if rule.bandwidth.is_some() => Some("bandwidth"),
        Quotas::All(_) => access.ban.as_ref().map(|_| "ban"),
    }
}
