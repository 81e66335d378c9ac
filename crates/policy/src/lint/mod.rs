//! Lints: warnings about likely mistakes in a policy.

mod cover;
mod effect;

use crate::{
    compile::is_always_present,
    explain::{CounterLocation, counter_location, is_shared_key},
    matching::{CompiledExpression, ExpressionPurpose},
    model::{
        AdminSpec, ClientCertificateMatch, CostSpec, EnvVariable, KeyPart, KeySpec, ListenerSpec, Match,
        Policy, Quotas, RuleEnforcement, RuleSpec, Segment, Underscores,
    },
};
use cover::{are_disjoint, covers};
use std::{collections::BTreeMap, fmt, mem};
use tidegate_core::{AlgorithmKind, Demand, Micros, Outcome, Quota, Retry, suggest};
use tidegate_limiter::{Capacity, FailureMode};
use tidegate_rule::{Mode, request::MissingKey};

/// A warning about a likely mistake, with its position, reason and fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LintWarning {
    /// The lint.
    pub lint: Lint,
    /// The rule; empty for a warning about the whole policy.
    pub rule: String,
    /// The path of keys in the policy: `rules`, `0`, `quota`.
    pub path: Vec<String>,
    /// The problem, in one line.
    pub reason: String,
    /// The fix, in one line.
    pub fix: String,
}

/// The kinds of warnings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lint {
    /// `unreachable`: another limit is always reached first.
    Unreachable,
    /// `cost-over-burst`: a request costs more than the quota ever grants.
    CostOverBurst,
    /// `never-matches`: the rule matches no request.
    NeverMatches,
    /// `open-login`: password guesses are not limited while a store is unavailable.
    OpenLogin,
    /// `key-not-carried`: requests do not have the key of the rule.
    KeyNotPresent,
    /// `without-effect`: a policy key that has no effect on this kind of rule.
    WithoutEffect,
    /// `may-fail`: an expression fails for some requests, to which the rule then applies.
    MayFail,
    /// `small-capacity`: a few clients fill the memory of the rule.
    SmallCapacity,
    /// `keys-never-expire`: a total counts keys of which there is no end.
    KeysNeverExpire,
    /// `unknown-method`: an unknown method that resembles a known one.
    UnknownMethod,
    /// `any-audience`: tokens for other services are accepted.
    AnyAudience,
    /// `open-admin`: other machines can use the admin API without a token.
    OpenAdmin,
    /// `repeated-token`: two operators have the same token.
    RepeatedToken,
}

impl fmt::Display for Lint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "unreachable",
            Self::CostOverBurst => "cost-over-burst",
            Self::NeverMatches => "never-matches",
            Self::OpenLogin => "open-login",
            Self::KeyNotPresent => "key-not-carried",
            Self::WithoutEffect => "without-effect",
            Self::MayFail => "may-fail",
            Self::SmallCapacity => "small-capacity",
            Self::KeysNeverExpire => "keys-never-expire",
            Self::UnknownMethod => "unknown-method",
            Self::AnyAudience => "any-audience",
            Self::OpenAdmin => "open-admin",
            Self::RepeatedToken => "repeated-token",
        })
    }
}

impl fmt::Display for LintWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.rule.is_empty() {
            write!(f, "rule `{}`: ", self.rule)?;
        }
        write!(f, "{}; {} ({})", self.reason, self.fix, self.lint)
    }
}

/// A capacity below this number of keys is reported.
const SMALL_CAPACITY_KEYS: u64 = 1_000;
/// The minimum memory of a key, in bytes.
const MIN_KEY_BYTES: u64 = 16;

/// The indexes of the tokens of operators that an operator before them has, too.
fn find_repeated_tokens(admin: &AdminSpec) -> impl Iterator<Item = (usize, &EnvVariable)> {
    let variables = || admin.tokens.iter().map(|operator| &operator.token);
    let is_known = move |index, variable| {
        variables().take(index).chain(&admin.token).any(|known: &EnvVariable| known == variable)
    };
    variables().enumerate().filter(move |(index, variable)| is_known(*index, *variable))
}

fn find_small_capacity(rule: &RuleSpec) -> Option<String> {
    let room = match rule.capacity? {
        Capacity::Keys(keys) => keys,
        Capacity::Bytes(bytes) => bytes / MIN_KEY_BYTES,
    };
    let is_small = room < SMALL_CAPACITY_KEYS && rule.key != KeySpec::All;
    is_small
        .then(|| "a few clients fill its capacity, and new ones then replace others or are denied".to_owned())
}

/// A total by a part of the request that clients choose freely: used keys are never removed.
fn find_endless_keys(rule: &RuleSpec) -> Option<String> {
    fn endless_part(key: &KeySpec) -> Option<&'static str> {
        match key {
            KeySpec::Part(KeyPart::Ip { .. }) => Some("ip"),
            KeySpec::Part(KeyPart::Path) => Some("path"),
            KeySpec::Part(KeyPart::Request) => Some("request"),
            KeySpec::All | KeySpec::Part(_) => None,
            KeySpec::Composite(parts) | KeySpec::First(parts) => parts.iter().find_map(endless_part),
        }
    }
    let quota = rule.all_quotas().into_iter().find(Quota::is_total)?;
    let part = endless_part(&rule.key)?;
    Some(format!("`{quota}` stores each key forever, and the number of keys by `{part}` has no bound"))
}

/// Finds likely mistakes in a policy. It avoids false positives, and does not find all mistakes. Rules that are off are
/// skipped.
pub fn lint(policy: &Policy) -> Vec<LintWarning> {
    let mut found = Vec::new();
    for (index, rule) in policy.rules.iter().enumerate() {
        if rule.enforcement == RuleEnforcement::All(Mode::Off) {
            continue;
        }
        let mut add = |lint: Lint, key: &str, reason: String, fix: String| {
            let keys = ["rules", &index.to_string()].map(str::to_owned).into_iter();
            let at = keys.chain(key.split('.').filter(|key| !key.is_empty()).map(str::to_owned)).collect();
            found.push(LintWarning { lint, rule: rule.name.clone(), path: at, reason, fix });
        };
        match find_never_matching(policy, rule) {
            Some((reason, fix)) => add(Lint::NeverMatches, "match", reason, fix.to_owned()),
            None => {
                if let Some(reason) = find_shadowing_rule(policy, index) {
                    let fix = format!("remove `{}`, or give it a lower quota", rule.name);
                    add(Lint::Unreachable, "", reason, fix);
                }
            }
        }
        if let Some((quota, reason)) = find_redundant_quota(rule) {
            let fix = format!("remove `{quota}` from `{}`, or lower it", rule.name);
            add(Lint::Unreachable, "quotas", reason, fix);
        }
        if let Some(reason) = find_cost_over_burst(rule) {
            let fix = "use a larger burst, or a smaller cost".to_owned();
            add(Lint::CostOverBurst, "cost", reason, fix);
        }
        let failure_mode = match counter_location(policy, rule) {
            CounterLocation::Memory => None,
            CounterLocation::DefaultStore(failure_mode) | CounterLocation::Store(_, failure_mode) => {
                Some(failure_mode)
            }
        };
        if failure_mode == Some(FailureMode::Open) && looks_like_login(rule) {
            let reason = "password guesses are not limited while its store is unavailable".to_owned();
            add(
                Lint::OpenLogin,
                "failure-mode",
                reason,
                "write `failure-mode: local`, or `closed`".to_owned(),
            );
        }
        for (reason, fix) in find_missing_key_parts(policy, rule) {
            add(Lint::KeyNotPresent, "key", reason, fix.to_owned());
        }
        for effect::IneffectiveKey { key, reason, fix } in effect::find_ineffective_keys(policy, rule) {
            add(Lint::WithoutEffect, key, reason, fix);
        }
        if let Some(reason) = find_small_capacity(rule) {
            let fix = format!("use a capacity of at least {SMALL_CAPACITY_KEYS} keys, or remove it");
            add(Lint::SmallCapacity, "capacity", reason, fix);
        }
        if let Some(reason) = find_endless_keys(rule) {
            let fix =
                "count by a key that you issue, as in `key: user`, or use a long period, as in `1000/w`";
            add(Lint::KeysNeverExpire, "key", reason, fix.to_owned());
        }
        for reason in find_fallible_conditions(&rule.matching) {
            let fix = "check that it is present first, as in `'x-plan' in request.headers && …`".to_owned();
            add(Lint::MayFail, "match.when", reason, fix);
        }
        for (method, suggestion) in find_unknown_methods(&rule.matching) {
            let reason = format!("unknown method `{method}`");
            add(Lint::UnknownMethod, "match.method", reason, format!("did you mean `{suggestion}`?"));
        }
    }
    if let (Some(address), None, []) = (policy.admin.listen, &policy.admin.token, &policy.admin.tokens[..])
        && !address.ip().is_loopback()
    {
        found.push(LintWarning {
            lint: Lint::OpenAdmin,
            rule: String::new(),
            path: vec!["admin".to_owned()],
            reason: format!("other machines can read the admin API at {address} without a token"),
            fix: format!(
                "use `admin: {{ listen: {address}, token: $ADMIN_TOKEN }}`, or an address on loopback"
            ),
        });
    }
    for (index, variable) in find_repeated_tokens(&policy.admin) {
        found.push(LintWarning {
            lint: Lint::RepeatedToken,
            rule: String::new(),
            path: ["admin", "tokens", &index.to_string(), "token"].map(str::to_owned).to_vec(),
            reason: format!(
                "two operators have the token `{variable}`, and the stronger role applies to both"
            ),
            fix: "give each operator a separate token".to_owned(),
        });
    }
    for key in effect::find_unused_store_keys(policy) {
        let reason = format!("`{key}` has no effect without a store");
        let fix = "remove it, or add a store, as in `store: redis://127.0.0.1:6379`".to_owned();
        let at = vec![key.to_owned()];
        found.push(LintWarning { lint: Lint::WithoutEffect, rule: String::new(), path: at, reason, fix });
    }
    for (path, reason, fix) in effect::find_unused_identity_keys(policy) {
        let (rule, reason, fix) = (String::new(), reason.to_owned(), fix.to_owned());
        found.push(LintWarning { lint: Lint::WithoutEffect, rule, path, reason, fix });
    }
    if effect::has_unused_overrides(policy) {
        found.push(LintWarning {
            lint: Lint::WithoutEffect,
            rule: String::new(),
            path: vec!["overrides".to_owned()],
            reason: "`overrides` has no effect: no rule supports them".to_owned(),
            fix: "remove it, or add a rule with a single quota or tiers".to_owned(),
        });
    }
    if policy.identity.jwt.as_ref().is_some_and(|jwt| jwt.audiences.is_empty()) {
        found.push(LintWarning {
            lint: Lint::AnyAudience,
            rule: String::new(),
            path: ["identity", "jwt"].map(str::to_owned).to_vec(),
            reason: "tokens that the issuer made for other services are accepted".to_owned(),
            fix: "set the `audience` of this service".to_owned(),
        });
    }
    for (path, reason, fix) in effect::find_unused_load_keys(policy) {
        let (rule, fix) = (String::new(), fix.to_owned());
        found.push(LintWarning { lint: Lint::WithoutEffect, rule, path, reason, fix });
    }
    for (index, route) in policy.routes.iter().enumerate() {
        if effect::requires_descriptor(&route.matching) {
            let key = if route.matching.descriptor.is_empty() { "any" } else { "descriptor" };
            let at = ["routes", &index.to_string(), key].map(str::to_owned).to_vec();
            let reason =
                "a route with `descriptor` matches no request: descriptors are not forwarded".to_owned();
            let (rule, fix) = (String::new(), "remove it".to_owned());
            found.push(LintWarning { lint: Lint::NeverMatches, rule, path: at, reason, fix });
        }
        for (method, suggestion) in find_unknown_methods(&route.matching) {
            let at = ["routes", &index.to_string(), "method"].map(str::to_owned).to_vec();
            let reason = format!("unknown method `{method}`");
            let fix = format!("did you mean `{suggestion}`?");
            found.push(LintWarning { lint: Lint::UnknownMethod, rule: String::new(), path: at, reason, fix });
        }
    }
    found
}

/// Finds expressions that fail for requests without certain values.
fn find_fallible_conditions(matching: &Match) -> Vec<String> {
    let inner = matching.not.iter().map(|not| &**not).chain(&matching.any).flat_map(find_fallible_conditions);
    let own = matching.when.as_ref().and_then(|when| {
        let compiled =
            CompiledExpression::new(when, ExpressionPurpose::Condition { on_failure: true }).ok()?;
        let values = compiled.unguarded_inputs();
        let reason = || {
            let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ");
            format!("its `when` fails for requests without {values}, and the rule applies to them")
        };
        (!values.is_empty()).then(reason)
    });
    own.into_iter().chain(inner).collect()
}

/// The methods of RFC 9110, RFC 5789 and other specifications.
const KNOWN_METHODS: [&str; 16] = [
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "CONNECT",
    "OPTIONS",
    "TRACE",
    "PATCH",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "QUERY",
];

fn find_unknown_methods(matching: &Match) -> Vec<(&str, &'static str)> {
    let inner = matching.not.iter().map(|not| &**not).chain(&matching.any).flat_map(find_unknown_methods);
    let own = matching.methods.iter().filter(|method| !KNOWN_METHODS.contains(&method.as_str()));
    own.filter_map(|method| Some((method.as_str(), suggest::closest(method, KNOWN_METHODS)?)))
        .chain(inner)
        .collect()
}

/// Finds a rule that matches no request, by its own conditions or because no route does.
fn find_never_matching(policy: &Policy, rule: &RuleSpec) -> Option<(String, &'static str)> {
    let matching = &rule.matching;
    if matching.not.as_ref().is_some_and(|not| covers(not, matching)) {
        return Some(("its `not` excludes all requests that it matches".to_owned(), "narrow the `not`"));
    }
    if let Some(key) = matching.http_condition().filter(|_| !matching.descriptor.is_empty()) {
        let reason = format!("no request has both a descriptor and a {key}");
        return Some((reason, "split it into two rules, or use `any`"));
    }
    if matching.headers.keys().any(|name| is_dropped_header(policy, name)) {
        return Some((DROPPED_HEADER_REASON.to_owned(), DROPPED_HEADER_FIX));
    }
    if matching.client_certificate != ClientCertificateMatch::default() && !verifies_clients(policy) {
        return Some((UNVERIFIED_CLIENTS_REASON.to_owned(), UNVERIFIED_CLIENTS_FIX));
    }
    let is_dot = |segment: &Segment| matches!(segment, Segment::Text(text) if text == "." || text == "..");
    let has_dots = |path: &crate::model::PathPattern| path.segments.iter().any(is_dot);
    if !matching.paths.is_empty() && matching.paths.iter().all(has_dots) {
        let reason = "request paths never contain `.` or `..` after normalization".to_owned();
        return Some((reason, "remove them from the path"));
    }
    let empty = |values: &BTreeMap<String, crate::model::ValueGlobs>| {
        values.iter().find(|(_, values)| values.0.is_empty()).map(|(name, _)| name.clone())
    };
    let lists = [&matching.headers, &matching.queries, &matching.cookies, &matching.descriptor];
    if let Some(name) = lists.into_iter().find_map(empty) {
        return Some((format!("`{name}` has an empty list of values"), "write `*` for any value"));
    }
    let is_routed = policy.envoy.is_none() || matching.http_condition().is_some();
    if is_routed
        && !policy.routes.is_empty()
        && policy.routes.iter().all(|route| are_disjoint(&route.matching, matching))
    {
        return Some((
            "no route matches the requests of this rule".to_owned(),
            "add a route for them, or change the `match`",
        ));
    }
    None
}

const UNVERIFIED_CLIENTS_REASON: &str = "no listener of the gateway verifies client certificates";
const UNVERIFIED_CLIENTS_FIX: &str = "add `client-ca` to the `tls` of a listener";

/// Whether requests may have a client certificate: those of a listener with `client-ca`, or of a program with layers.
fn verifies_clients(policy: &Policy) -> bool {
    let has_authority =
        |listener: &ListenerSpec| listener.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
    policy.routes.is_empty() || policy.listen.iter().any(has_authority)
}

/// Finds another rule that applies to all requests of this one, and whose quota is always exhausted first.
fn find_shadowing_rule(policy: &Policy, index: usize) -> Option<String> {
    let rule = policy.rules.get(index)?;
    let Quotas::All(quotas) = &rule.quotas else { return None };
    if quotas.is_empty() || !is_simple(rule) {
        return None;
    }
    let other = policy.rules.iter().enumerate().find(|(other_index, other)| {
        let Quotas::All(others) = &other.quotas else { return false };
        let is_tighter = |quota: &Quota| others.iter().any(|other| is_tighter(other, quota));
        // Of two equivalent rules, the second is reported.
        let is_same =
            || quotas == others && covers(&rule.matching, &other.matching) && key_covers(rule, other);
        *other_index != index
            && (*other_index < index || !is_same())
            && other.enforcement == RuleEnforcement::All(Mode::Enforce)
            && is_simple(other)
            && other.charge.is_none()
            && other.settle.is_none()
            && other.access.is_none()
            && max_cost(other) >= max_cost(rule)
            && covers(&other.matching, &rule.matching)
            && key_covers(other, rule)
            && quotas.iter().all(is_tighter)
    })?;
    Some(format!("`{}` matches the same requests, and its quota is always exhausted first", other.1.name))
}

/// Whether a rule has a fixed cost and no schedule.
fn is_simple(rule: &RuleSpec) -> bool {
    matches!(rule.cost, CostSpec::Fixed(_)) && rule.settle.is_none() && rule.schedule.is_none()
}

fn max_cost(rule: &RuleSpec) -> u64 {
    match rule.cost {
        CostSpec::Fixed(cost) => cost,
        CostSpec::FromRequest { max, .. } => max,
    }
}

/// Whether requests with the same key in `inner` always have the same key in `outer`.
fn key_covers(outer: &RuleSpec, inner: &RuleSpec) -> bool {
    if is_shared_key(&outer.key) {
        return true;
    }
    let parts = |key: &KeySpec| match key {
        KeySpec::Composite(parts) => parts.clone(),
        key => vec![key.clone()],
    };
    let inner_parts = parts(&inner.key);
    // Requests without a key may be counted by address, which `inner` may group differently.
    let is_same = || outer.key == inner.key && outer.missing == inner.missing;
    (outer.missing == MissingKey::Shared || is_always_present(&outer.key) || is_same())
        && parts(&outer.key).iter().all(|part| inner_parts.contains(part))
}

/// Finds a quota of a rule that is never exhausted, because another quota of the rule always is first.
fn find_redundant_quota(rule: &RuleSpec) -> Option<(Quota, String)> {
    let Quotas::All(quotas) = &rule.quotas else { return None };
    quotas.iter().enumerate().find_map(|(index, quota)| {
        let tighter = quotas.iter().enumerate().find(|(other_index, other)| {
            *other_index != index && is_tighter(other, quota) && (*other != quota || *other_index < index)
        });
        tighter.map(|(_, other)| {
            (*quota, format!("its quota `{quota}` is never exhausted, because `{other}` always is first"))
        })
    })
}

/// Whether requests that `tight` allows never exceed `wide`: the same algorithm with no larger burst and no higher rate.
/// Windows are compared only if they are equally long and start at the same time.
fn is_tighter(tight: &Quota, wide: &Quota) -> bool {
    if mem::discriminant(tight.kind()) != mem::discriminant(wide.kind()) || tight.limit() > wide.limit() {
        return false;
    }
    let is_comparable = match (tight.kind(), wide.kind()) {
        (AlgorithmKind::TokenBucket(tight), AlgorithmKind::TokenBucket(wide)) => {
            tight.initial() <= wide.initial()
        }
        (AlgorithmKind::Concurrency(tight), AlgorithmKind::Concurrency(wide)) => {
            tight.lease().is_none() || tight.lease() == wide.lease()
        }
        (AlgorithmKind::LeakyBucket(_) | AlgorithmKind::Smooth(_) | AlgorithmKind::WarmUp(_), _) => {
            tight == wide
        }
        // Windows that start at other times can be exhausted at other times.
        _ => tight.shares_state(wide),
    };
    if !is_comparable {
        return false;
    }
    match (tight.rate(), wide.rate()) {
        (None, None) => true,
        (Some(tight), Some(wide_rate)) => {
            let per = |amount: u64, other: Micros| u128::from(amount) * u128::from(other.get());
            let is_slower =
                per(tight.amount(), wide_rate.period()) <= per(wide_rate.amount(), tight.period());
            let is_bucket = matches!(wide.kind(), AlgorithmKind::TokenBucket(_));
            is_slower
                && tight.unit() == wide_rate.unit()
                && (is_bucket || tight.period() == wide_rate.period())
        }
        _ => false,
    }
}

fn find_cost_over_burst(rule: &RuleSpec) -> Option<String> {
    let (cost, what) = match &rule.cost {
        CostSpec::Fixed(cost) => (*cost, "costs"),
        CostSpec::FromRequest { default, max, .. } => ((*default).max(*max), "may cost"),
    };
    let quotas = rule.all_quotas();
    let quota = quotas.iter().find(|quota| is_never_granted(quota, cost))?;
    Some(format!("a request {what} {cost}, but `{quota}` never grants more than {}", quota.limit()))
}

/// Whether a quota denies this cost even in its initial state.
fn is_never_granted(quota: &Quota, cost: u64) -> bool {
    let now = Micros::from_secs(1);
    let mut state = vec![0; quota.state_len()];
    quota.create(&mut state[..], now);
    let result = quota.decide(&mut state[..], now, Demand::with_max_wait(cost, Micros::MAX));
    matches!(result.decision.outcome(), Outcome::Deny(Retry::Never))
}

/// Words in paths and rule names that indicate a login.
const LOGIN_WORDS: [&str; 14] = [
    "login", "signin", "sign-in", "logon", "auth", "token", "passw", "otp", "2fa", "mfa", "verify", "signup",
    "register", "reset",
];

fn looks_like_login(rule: &RuleSpec) -> bool {
    let is_like = |text: &str| {
        let text = text.to_ascii_lowercase();
        LOGIN_WORDS.iter().any(|word| text.contains(word))
    };
    let texts =
        rule.matching.paths.iter().flat_map(|path| &path.segments).filter_map(|segment| match segment {
            Segment::Text(text) => Some(text.as_str()),
            Segment::Glob(glob) => Some(glob.0.as_str()),
            Segment::Capture(_) => None,
        });
    texts.chain([rule.name.as_str()]).any(is_like)
}

/// Finds parts of keys that the requests of a rule do not have.
fn find_missing_key_parts(policy: &Policy, rule: &RuleSpec) -> Vec<(String, &'static str)> {
    let mut found = Vec::new();
    for_each_part(&rule.key, &mut |part| found.extend(find_missing_part(policy, rule, part)));
    if let Quotas::Tiers(tiers) = &rule.quotas {
        for_each_part(&tiers.key, &mut |part| found.extend(find_missing_part(policy, rule, part)));
    }
    if let CostSpec::FromRequest { from, .. } = &rule.cost {
        for_each_part(from, &mut |part| found.extend(find_missing_part(policy, rule, part)));
    }
    if let KeySpec::First(parts) = &rule.key
        && policy.envoy.is_none()
        && let Some(index) = parts.iter().position(is_always_present)
        && index + 1 < parts.len()
    {
        let reason = "keys in `first` after a key that every request has are never used".to_owned();
        found.push((reason, "move `ip` or `all` to the end of `first`"));
    }
    found
}

fn for_each_part(key: &KeySpec, each: &mut dyn FnMut(&KeyPart)) {
    match key {
        KeySpec::All => {}
        KeySpec::Part(part) => each(part),
        KeySpec::Composite(parts) | KeySpec::First(parts) => {
            parts.iter().for_each(|part| for_each_part(part, each));
        }
    }
}

/// How to make descriptors have an effect.
const ENVOY_FIX: &str = "add its address, as in `envoy: 127.0.0.1:8081`";

const DROPPED_HEADER_REASON: &str = "the gateway drops headers with underscores in their names";
const DROPPED_HEADER_FIX: &str = "use hyphens, or set `underscores-in-headers: allow` in `connections`";

/// Whether the gateway drops a header with this name.
fn is_dropped_header(policy: &Policy, name: &str) -> bool {
    name.contains('_') && policy.connections.underscores == Underscores::Drop
}

fn find_missing_part(policy: &Policy, rule: &RuleSpec, part: &KeyPart) -> Option<(String, &'static str)> {
    let paths = &rule.matching.paths;
    match part {
        KeyPart::Header(name) if is_dropped_header(policy, name) => {
            Some((DROPPED_HEADER_REASON.to_owned(), DROPPED_HEADER_FIX))
        }
        KeyPart::Capture(name) => {
            let has_name = |path: &crate::model::PathPattern| {
                let is_it = |segment: &Segment| matches!(segment, Segment::Capture(known) if known == name);
                let is_rest =
                    matches!(&path.tail, Some(crate::model::PathTail::Capture(known)) if known == name);
                is_rest || path.segments.iter().any(is_it)
            };
            match paths.iter().filter(|path| has_name(path)).count() {
                0 => Some((format!("none of its paths has `{{{name}}}`"), "add it to the path")),
                some if some < paths.len() => {
                    Some((format!("only some of its paths have `{{{name}}}`"), "add it to all of them"))
                }
                _ => None,
            }
        }
        KeyPart::Route if paths.is_empty() => {
            Some(("`route` needs a path in `match`".to_owned(), "add a path, or use `path`"))
        }
        KeyPart::User if policy.user.is_none() => {
            Some(("the policy does not define `user`".to_owned(), "define it, as in `user: header x-user`"))
        }
        KeyPart::Header(name) => find_excluded_value(&rule.matching, name, |not| &not.headers),
        KeyPart::Cookie(name) => find_excluded_value(&rule.matching, name, |not| &not.cookies),
        KeyPart::Query(name) => find_excluded_value(&rule.matching, name, |not| &not.queries),
        KeyPart::Body(pointer) if policy.routes.is_empty() => {
            let fix = "add a route, or use a part of the head";
            Some((
                format!("only a gateway reads bodies, for `body {pointer}`, and there are no `routes`"),
                fix,
            ))
        }
        KeyPart::ClientCertificate(_) if !verifies_clients(policy) => {
            Some((UNVERIFIED_CLIENTS_REASON.to_owned(), UNVERIFIED_CLIENTS_FIX))
        }
        KeyPart::Descriptor(name) if policy.envoy.is_none() => {
            Some((format!("only descriptors have `descriptor {name}`, and there is no `envoy`"), ENVOY_FIX))
        }
        KeyPart::Descriptor(name) => find_excluded_value(&rule.matching, name, |not| &not.descriptor),
        _ => None,
    }
}

/// Finds a header, query parameter, cookie or entry of a descriptor that the `not` of the rule excludes with any value.
fn find_excluded_value(
    matching: &Match,
    name: &str,
    values: fn(&Match) -> &BTreeMap<String, crate::model::ValueGlobs>,
) -> Option<(String, &'static str)> {
    let not = matching.not.as_deref()?;
    let excluded = values(not).get(name)?;
    let is_all = excluded.0.iter().any(|glob| glob.0 == "*");
    // Only if the `not` has no other condition.
    let mut rest = Match {
        headers: BTreeMap::new(),
        queries: BTreeMap::new(),
        cookies: BTreeMap::new(),
        descriptor: BTreeMap::new(),
        ..not.clone()
    };
    rest.not = None;
    let values = [&not.headers, &not.queries, &not.cookies, &not.descriptor];
    let is_alone = rest == Match::default() && values.map(BTreeMap::len).into_iter().sum::<usize>() == 1;
    (is_all && is_alone && not.not.is_none()).then(|| {
        (
            format!("its `not` excludes all requests that have `{name}`"),
            "use a key that the remaining requests have",
        )
    })
}
