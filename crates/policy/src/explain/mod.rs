//! Explains what a policy does with a request.
//!
//! The prediction evaluates the same compiled gate that a gateway uses, with counters in memory.

mod text;

use crate::{
    compile::{
        CompiledRule, Compiler, DryRun, OverrideStep, PolicyError, PolicyGate, Prefetch, RejectAction,
        RejectReason, RuleView, reserved_shares, without_stores,
    },
    head::{self, HeadError, HeadLimits, HttpRequestHead, ParsedRequest},
    matching::{Mismatch, RequestView},
    model::{
        self, BandwidthRate, KeySpec, Policy, PrioritySpec, Quotas, RouteAction, RuleEnforcement, RuleSpec,
        ShedSpec,
    },
    overrides::{OverrideRecord, OverrideValue, override_id, read_overrides},
};
use http::request;
use std::{borrow::Cow, collections::BTreeMap, net::IpAddr, path::Path, time::Duration};
use tidegate_access::{AccessDecision, BanRule};
use tidegate_core::{AlgorithmKind, Bound, Demand, Micros, Outcome, Percent, Quota, Utc};
use tidegate_limiter::{Clock, FailureMode};
use tidegate_overload::{CallError, ScalePolicy};
use tidegate_rule::{
    HeaderStyle, Limited, Mode, RejectionResponse, Rules,
    body::{BodyFormat, BodyScanner, BodyValues, ScanState},
    request::{MissingKey, RequestHead, TrustedProxies},
};

/// What a policy does with a request, with unused quotas.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The request, in one line.
    pub request: String,
    /// The outcome.
    pub outcome: PredictedOutcome,
    /// How each rule applies, in order.
    pub rules: Vec<RuleExplanation>,
}

/// The outcome of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PredictedOutcome {
    /// The request is forwarded.
    Forwarded {
        /// The upstream.
        upstream: String,
        /// The wait before.
        delay: Duration,
    },
    /// The request is admitted, and the gateway itself responds, as the route defines.
    Responded {
        /// The response.
        response: RejectAction,
        /// The wait before.
        delay: Duration,
    },
    /// The descriptor is within all limits. Descriptors are not forwarded.
    Allowed {
        /// The wait before.
        delay: Duration,
    },
    /// The request is admitted, and no route matches.
    NoRoute,
    /// The gateway rejects the head of the request before any rule.
    Malformed(HeadError),
    /// A rule rejects the request.
    Rejected {
        /// The rule.
        rule: String,
        /// The reason.
        reason: RejectReason,
        /// The action of the rule.
        action: RejectAction,
    },
}

impl PredictedOutcome {
    /// The status of the gateway's own response; `None` if an upstream responds, or the connection is closed.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::NoRoute => Some(404),
            Self::Malformed(error) => Some(error.status()),
            Self::Rejected { action: RejectAction::Response(answer), .. }
            | Self::Responded { response: RejectAction::Response(answer), .. } => Some(answer.status()),
            Self::Forwarded { .. }
            | Self::Responded { .. }
            | Self::Allowed { .. }
            | Self::Rejected { .. } => None,
        }
    }

    /// The location of the gateway's own response, if it is a redirect.
    pub fn location(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Rejected { action: RejectAction::Response(answer), .. }
            | Self::Responded { response: RejectAction::Response(answer), .. } => answer.header("location"),
            Self::Forwarded { .. }
            | Self::Responded { .. }
            | Self::Allowed { .. }
            | Self::NoRoute
            | Self::Malformed(_)
            | Self::Rejected { .. } => None,
        }
    }

    /// The upstream that handles the request, if one does.
    pub fn upstream(&self) -> Option<&str> {
        match self {
            Self::Forwarded { upstream, .. } => Some(upstream),
            Self::Rejected { action: RejectAction::Upstream(name), .. } => Some(name),
            Self::Responded { .. }
            | Self::Allowed { .. }
            | Self::NoRoute
            | Self::Malformed(_)
            | Self::Rejected { .. } => None,
        }
    }

    /// The rule that rejects the request, if one does.
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Rejected { rule, .. } => Some(rule),
            Self::Forwarded { .. }
            | Self::Responded { .. }
            | Self::Allowed { .. }
            | Self::NoRoute
            | Self::Malformed(_) => None,
        }
    }
}

/// How a rule applies to a request.
#[derive(Clone, Debug)]
pub struct RuleExplanation {
    /// The name of the rule.
    pub rule: String,
    /// Whether and how it applies.
    pub applicability: Applicability,
}

/// Whether a rule applies.
#[derive(Clone, Debug)]
pub enum Applicability {
    /// The rule does not match this request.
    Mismatch(Mismatch),
    /// The rule is off.
    Off,
    /// The rule applies.
    Applies(Box<AppliedRule>),
}

/// The details of a rule that applies.
#[derive(Clone, Debug)]
pub struct AppliedRule {
    /// The path pattern that matches, if the rule has one.
    pub path: Option<String>,
    /// The key of the request.
    pub key: ResolvedKey,
    /// Whether it is enforced for this key.
    pub mode: Mode,
    /// The cost of the request.
    pub cost: u64,
    /// The tier of the request, if the rule has tiers.
    pub tier: Option<String>,
    /// The location of the counters.
    pub counter_location: CounterLocation,
    /// The result of its lists for the client; `None` if it has no lists.
    pub list_match: Option<ListMatch>,
    /// The quotas, with the outcome when each is exhausted. None apply to a client that is allowed.
    pub quotas: Vec<QuotaExplanation>,
    /// Other effects, by the policy key: `charge`, `ban`, `schedule` and so on.
    pub details: Vec<(&'static str, String)>,
}

/// The result of the lists of a rule for a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListMatch {
    /// The client is allowed, and no other limit of the rule applies.
    Allowed,
    /// The client is denied.
    Denied,
    /// The client is on neither list.
    Unlisted,
}

/// The key that a request is counted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedKey {
    /// The key, as in a store; empty if all requests are counted together.
    Key(String),
    /// The request does not have the key, and is counted by the address of its client.
    Address(String),
    /// The request does not have the key, and is treated like this.
    Missing(MissingKey),
}

/// The location of the counters of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterLocation {
    /// In memory, separately in each process.
    Memory,
    /// In the default store. Its address is not shown.
    DefaultStore(FailureMode),
    /// In the store of this name.
    Store(String, FailureMode),
}

/// A quota, and the outcome when it is exhausted.
#[derive(Clone, Debug)]
pub struct QuotaExplanation {
    /// The quota that applies now.
    pub quota: Quota,
    /// The declared quota, if a schedule has changed it.
    pub declared: Option<Quota>,
    /// The upper bound of admitted requests: per process in memory, for all processes together in a store.
    pub bound: Bound,
    /// The outcome when the quota is exhausted.
    pub on_exhausted: ExhaustedOutcome,
}

/// The outcome of a request when a quota is exhausted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExhaustedOutcome {
    /// The request is rejected with this action.
    Rejected(RejectAction),
    /// The request waits for this time.
    Delayed(Duration),
    /// The request is admitted, because the rule is in shadow mode.
    Shadowed,
}

/// Explains what a policy does with a request if no quota is used and no client is banned. No store is accessed. File names
/// are relative to `base`.
pub fn explain(policy: &Policy, head: &dyn RequestHead, base: &Path) -> Result<Explanation, PolicyError> {
    let (gate, empty_gate) = (compile_gate(policy, base)?, compile_gate(policy, base)?);
    let overrides = read_overrides(policy, Clock::system().now())?;
    for gate in [&gate, &empty_gate] {
        gate.install_overrides(overrides.values().map(|record| (record, OverrideStep::Apply)));
    }
    let view = gate.view_request(head);
    let explain = |(index, rule_spec): (usize, &RuleSpec)| RuleExplanation {
        rule: rule_spec.name.clone(),
        applicability: match gate.matcher(index).and_then(|matcher| matcher.mismatch(&view)) {
            _ if rule_spec.enforcement == RuleEnforcement::All(Mode::Off) => Applicability::Off,
            Some(mismatch) => Applicability::Mismatch(mismatch),
            None => {
                let applied = explain_applied(policy, (index, rule_spec), (&gate, &overrides), &view);
                Applicability::Applies(Box::new(applied))
            }
        },
    };
    let client = view.client().map(|client| format!(" from {client}")).unwrap_or_default();
    let request = match head.descriptor() {
        Some(descriptor) => {
            let entries =
                descriptor.entries().map(|(name, value)| format!(" {name}={}", value.escape_debug()));
            entries.fold("descriptor".to_owned(), |line, entry| line + &entry)
        }
        None => format!("{} {}{}{client}", head.method(), view.host().unwrap_or_default(), head.path()),
    };
    Ok(Explanation {
        request,
        rules: policy.rules.iter().enumerate().map(explain).collect(),
        outcome: predict(&empty_gate, head),
    })
}

/// Explains what a gateway does with an HTTP request and its body from `peer` at the listener of this name: resolves the client
/// address, checks the head, parses the body if rules read it, and then [explains](explain) the request.
pub fn explain_request(
    policy: &Policy,
    (request, body): (&request::Parts, &[u8]),
    (peer, listener): (IpAddr, Option<&str>),
    base: &Path,
) -> Result<Explanation, PolicyError> {
    let proxies = TrustedProxies::from(policy.trusted_proxies.clone());
    let mut parsed = ParsedRequest::from(request);
    let client = proxies.client_address(&HttpRequestHead::new(&parsed, peer)).unwrap_or(peer);
    let line = format!("{} {} from {client}", request.method, request.uri);
    let limits = HeadLimits::from(&policy.connections);
    let is_trusted = || proxies.is_trusted(peer.to_canonical());
    match parsed.framing().and_then(|framing| head::check(&mut parsed, framing, &limits, is_trusted)) {
        Ok(()) => {
            let head = HttpRequestHead::new(&parsed, peer).with_client(client).with_listener(listener);
            let values = match parsed.fields.contains(b"content-encoding") {
                false => parse_body(policy, &head, body, base)?,
                true => None,
            };
            explain(policy, &head.with_body(values.as_ref()), base)
        }
        Err(error) => {
            Ok(Explanation { request: line, outcome: PredictedOutcome::Malformed(error), rules: Vec::new() })
        }
    }
}

/// The values that rules read of a body, if a gateway parses it.
fn parse_body(
    policy: &Policy,
    head: &HttpRequestHead<'_>,
    body: &[u8],
    base: &Path,
) -> Result<Option<BodyValues>, PolicyError> {
    if body.is_empty() || body.len() as u64 > policy.connections.parsed_body_size {
        return Ok(None);
    }
    let gate = compile_gate(policy, base)?;
    let Some(pointers) = gate.body_pointers(&gate.view_request(head)) else { return Ok(None) };
    let mut scanner = BodyScanner::new(pointers, BodyFormat::Json);
    scanner.push(body);
    Ok(Some(scanner.finish()).filter(|values| values.state() == ScanState::Complete))
}

/// Compiles a gate that connects to no store.
fn compile_gate(policy: &Policy, base: &Path) -> Result<PolicyGate, PolicyError> {
    Compiler::new(Rules::new())
        .ignore_load()
        .base(base)
        .memory(EXPLAIN_MEMORY_BYTES)
        .compile(&without_stores(policy), None)
}

/// The memory for the counters of a gate that is evaluated once.
const EXPLAIN_MEMORY_BYTES: u64 = 1 << 20;

/// Evaluates a gate with empty counters.
fn predict(gate: &PolicyGate, head: &dyn RequestHead) -> PredictedOutcome {
    let view = gate.view_request(head);
    let route = gate.find_route_index(&view).and_then(|index| gate.routes().get(index));
    let admitted = |delay| match route.map(|route| &route.action) {
        _ if head.descriptor().is_some() => PredictedOutcome::Allowed { delay },
        Some(RouteAction::Forward(upstream)) => {
            PredictedOutcome::Forwarded { upstream: upstream.clone(), delay }
        }
        Some(RouteAction::Respond(respond)) => {
            PredictedOutcome::Responded { response: RejectAction::for_route(respond, &view), delay }
        }
        None => PredictedOutcome::NoRoute,
    };
    // A dry run does not wait: the outcome after the wait is known.
    let (mut prefetch, mut dry_run) = (Prefetch::default(), DryRun::new(gate));
    gate.prepare(&view, &mut prefetch);
    gate.dry_run(head, (&prefetch, 0), &mut dry_run);
    match dry_run.rejection(head) {
        None => admitted(dry_run.delay()),
        Some(rejection) => PredictedOutcome::Rejected {
            rule: rejection.rule.to_string(),
            reason: rejection.reason,
            action: rejection.action,
        },
    }
}

fn explain_applied(
    policy: &Policy,
    (index, rule_spec): (usize, &RuleSpec),
    (gate, overrides): (&PolicyGate, &BTreeMap<u64, OverrideRecord>),
    view: &RequestView<'_>,
) -> AppliedRule {
    let head = view.head();
    let rule = gate.rule(index);
    let override_value = find_override(policy, rule_spec, gate.view(index), overrides, head);
    let key = match (rule.and_then(|rule| rule.key_of(head)), rule_spec.missing) {
        (Some(key), MissingKey::Ip) if !gate.has_key(index, head) => ResolvedKey::Address(key.to_string()),
        (Some(key), _) => ResolvedKey::Key(key.to_string()),
        (None, missing) => ResolvedKey::Missing(missing),
    };
    let mode = rule.map_or(Mode::Off, |rule| rule.mode(head));
    let limiting = rule.and_then(|rule| rule.limiting.as_ref());
    let cost = limiting.map_or(1, |limiting| limiting.cost_of(head));
    let tier_index = limiting.and_then(|limiting| limiting.tier_of(head));
    let (tier, quotas): (_, Vec<(usize, Quota)>) = match &rule_spec.quotas {
        Quotas::All(quotas) => (None, quotas.iter().copied().enumerate().collect()),
        Quotas::Tiers(tiers) => {
            let index = tier_index.unwrap_or(tiers.quotas.len());
            match tiers.quotas.get(index) {
                Some((name, quota)) => (Some(name.clone()), vec![(index, *quota)]),
                None => (Some("default".to_owned()), vec![(index, tiers.default)]),
            }
        }
    };
    let now = gate.view(index).map(|view| view.quotas()).unwrap_or_default();
    let explain_quota = |(index, declared): (usize, Quota)| {
        let scaled = now.get(index).copied().unwrap_or(declared);
        let quota = override_value.map_or(scaled, |value| value.quota.quota);
        QuotaExplanation {
            quota,
            declared: (override_value.is_none() && quota != declared).then_some(declared),
            bound: quota.bound(),
            on_exhausted: match mode {
                Mode::Enforce => simulate_exhausted(rule_spec, policy.headers, index, quota, cost, head),
                Mode::Shadow | Mode::Off => ExhaustedOutcome::Shadowed,
            },
        }
    };
    let listed =
        rule_spec.access.as_ref().filter(|access| !access.deny.is_empty() || !access.allow.is_empty());
    let listed = listed.and_then(|_| rule?.request_access.as_ref()).map(|access| match access.check(head) {
        Ok(client) if client.decision() == AccessDecision::Allowed => ListMatch::Allowed,
        Ok(_) => ListMatch::Unlisted,
        Err(_) => ListMatch::Denied,
    });
    AppliedRule {
        path: rule.and_then(|rule| rule.matcher.matching_path(view)).map(|path| path.pattern().to_owned()),
        key,
        mode,
        cost,
        tier,
        counter_location: counter_location(policy, rule_spec),
        list_match: listed,
        quotas: quotas.into_iter().map(explain_quota).collect(),
        details: override_value
            .map(|value| ("override", describe_override(value)))
            .into_iter()
            .chain(describe_details(rule_spec, gate, index, head))
            .collect(),
    }
}

/// The override of the key of this request, if it has an effect.
fn find_override<'a>(
    policy: &Policy,
    rule_spec: &RuleSpec,
    view: Option<RuleView<'_>>,
    overrides: &'a BTreeMap<u64, OverrideRecord>,
    head: &dyn RequestHead,
) -> Option<&'a OverrideValue> {
    policy.check_overrides(rule_spec).ok()?;
    let view = view?;
    let key = view.key_for(head)?.to_string();
    let value = overrides.get(&override_id(&rule_spec.name, &key))?.value.as_ref()?;
    view.limiter()?.check_override(&value.quota.quota).is_ok().then_some(value)
}

fn describe_override(value: &OverrideValue) -> String {
    let reason = value.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    format!(
        "{} until {}, in place of the quota of the rule{reason}",
        value.quota.text,
        Utc::from(value.until)
    )
}

/// Describes the other effects of a rule on a request.
fn describe_details(
    rule_spec: &RuleSpec,
    gate: &PolicyGate,
    index: usize,
    head: &dyn RequestHead,
) -> Vec<(&'static str, String)> {
    let mut more = Vec::new();
    let rule = gate.rule(index);
    if let Some(charge) = &rule_spec.charge {
        more.push(("charge", describe_charge(charge)));
    }
    if let Some(settle) = &rule_spec.settle {
        more.push(("settle", describe_settle(settle)));
    }
    if let Some(ban) = rule_spec.access.as_ref().and_then(|access| access.ban.as_ref()) {
        more.push(("ban", describe_ban(ban, rule.and_then(|rule| rule.ban_subject(head)).as_deref())));
    }
    if let (Some(schedule), false) = (&rule_spec.schedule, rule_spec.all_quotas().is_empty()) {
        more.push(("schedule", format!("{schedule}; the quotas above are the current ones")));
    }
    if let Some(view) = gate.view(index).and_then(|view| view.adaptive())
        && let Some(adaptive) = &rule_spec.adaptive
    {
        let (min, max) = (adaptive.min.unwrap_or(1), adaptive.max.unwrap_or(1_000));
        let target = Micros::from(adaptive.target);
        more.push(("adaptive", format!("starts at {} in flight, then {min} to {max} depending on latency, target {target}; over the limit 503", view.limit)));
    }
    if let Some(scale) = &rule_spec.scale
        && !rule_spec.all_quotas().is_empty()
    {
        let min = scale.min.unwrap_or(ScalePolicy::default().floor());
        more.push(("scale", format!("the quotas shrink to {min} while the load of the machine is high")));
    }
    if let Some(shed) = &rule_spec.shed {
        let class = rule.map_or(0, |rule| rule.class_of(head));
        let threshold = match shed {
            ShedSpec::All(threshold) => Some(*threshold),
            ShedSpec::Classes(thresholds) => thresholds.get(class).copied().flatten(),
        };
        let shed = match threshold {
            Some(threshold) => format!("503 while the load of the machine is above {threshold}"),
            None => "never, at this priority".to_owned(),
        };
        more.push(("shed", shed));
    }
    if let Some(feature) = &rule_spec.feature {
        more.push(("feature", format!("rejected while `{feature}` is off")));
    }
    if let Some(failing) = &rule_spec.while_failing {
        let calls = failing.min_calls.unwrap_or(100);
        let rate = failing.failure_rate.unwrap_or(Percent::from_ratio(1, 2));
        let window = Micros::from(failing.window_size.unwrap_or(Duration::from_secs(10)));
        let text = format!(
            "the quotas apply after more than {calls} calls in {window}, if more than {rate} of them fail"
        );
        more.push(("while-failing", text));
    }
    if let Some(max_age) = rule_spec.on_limit.fallback_cache() {
        let max_age = Micros::from(max_age);
        more.push(("fallback", format!("the last good response, if one of at most {max_age} is stored")));
    }
    if rule_spec.breaker.is_some() {
        more.push(("breaker", "initially closed; 503 while open".to_owned()));
    }
    if let Some(bandwidth) = &rule_spec.bandwidth {
        let rate = |direction: &str, declared: Option<BandwidthRate>, now: Option<Quota>| {
            let declared = declared?;
            let now = now.and_then(|now| now.rate()).filter(|now| declared.quota.rate() != Some(*now));
            Some(match now {
                None => format!("{direction} {declared}"),
                Some(now) => format!("{direction} {now} by the schedule, {declared} without it"),
            })
        };
        let (down, up) = rule.map_or((None, None), CompiledRule::bandwidth_quotas);
        let rates = [rate("down", bandwidth.down, down), rate("up", bandwidth.up, up)];
        let rates: Vec<_> = rates.into_iter().flatten().collect();
        more.push(("bandwidth", format!("{}: slowed down, never rejected", rates.join(", "))));
    }
    if let Some(priority) = &rule_spec.priority {
        let class = match (priority, rule) {
            (PrioritySpec::Fixed(name), _) => Some(name.as_str()),
            (_, Some(rule)) => crate::compile::CLASSES.get(rule.class_of(head)).map(|(name, _)| *name),
            _ => None,
        };
        let reserved: u64 = match (reserved_shares(rule_spec), rule) {
            (Some(shares), Some(rule)) if !rule_spec.all_quotas().is_empty() => {
                shares.iter().take(rule.class_of(head)).map(|share| u64::from(share.millionths())).sum()
            }
            _ => 0,
        };
        let share = Percent::from_ratio(reserved, Percent::FULL.millionths().into());
        more.extend(class.map(|class| match reserved {
            0 => ("priority", class.to_owned()),
            _ => ("priority", format!("{class}; {share} of the quotas is reserved for higher priorities")),
        }));
    }
    if let Some(ttl) = rule_spec.prefetch {
        let ttl = Micros::from(ttl);
        more.push(("prefetch", format!("in a window t, at most the bound of t plus {ttl}")));
    }
    if !rule_spec.wait.is_zero() {
        more.push(("wait", format!("up to {} for capacity", Micros::from(rule_spec.wait))));
    }
    more
}

fn describe_charge(charge: &model::ChargeSpec) -> String {
    let list = |patterns: &[model::StatusPattern]| {
        let name = |pattern: &model::StatusPattern| match pattern {
            model::StatusPattern::Status(status) => status.to_string(),
            model::StatusPattern::Class(hundred) => {
                format!("{}xx", if *hundred >= 100 { hundred / 100 } else { *hundred })
            }
        };
        patterns.iter().map(name).collect::<Vec<_>>().join(", ")
    };
    match charge {
        model::ChargeSpec::If(patterns) => {
            format!("only if the status is {}; otherwise refunded", list(patterns))
        }
        model::ChargeSpec::Unless(patterns) => format!("refunded if the status is {}", list(patterns)),
    }
}

fn describe_settle(settle: &model::SettleSpec) -> String {
    let stated = match &settle.source {
        model::SettleSource::Header(name) => format!("the value of the response header `{name}`"),
        model::SettleSource::Trailer(name) => format!("the value of the trailer `{name}` of the response"),
        model::SettleSource::Body(pointer) => format!("the number at `{pointer}` in the response"),
        model::SettleSource::OpenAi | model::SettleSource::Anthropic => {
            "the tokens that the response reports".to_owned()
        }
        model::SettleSource::Cel(expression) => format!("`{}`, computed from the response", expression.0),
    };
    match settle.max_debt {
        None => format!("{stated}, or else the cost of the request"),
        Some(max) => format!("{stated}, at most {max} above the cost of the request, or else that cost"),
    }
}

fn describe_ban(ban: &BanRule, subject: Option<&str>) -> String {
    match subject {
        Some(subject) => format!("{ban}: `{}`, not banned now", subject.escape_debug()),
        None => format!("{ban}: unknown client"),
    }
}

/// Returns the location of the counters of a rule.
pub(crate) fn counter_location(policy: &Policy, rule: &RuleSpec) -> CounterLocation {
    let failure_mode = rule.failure_mode.or(policy.stores.failure_mode).unwrap_or_default();
    let is_store = |address: &String| address != "memory";
    match &rule.store {
        Some(name) if policy.stores.named.get(name).is_none_or(is_store) => {
            CounterLocation::Store(name.clone(), failure_mode)
        }
        None if policy.stores.default.as_ref().is_some_and(is_store) => {
            CounterLocation::DefaultStore(failure_mode)
        }
        _ => CounterLocation::Memory,
    }
}

/// Computes the outcome of a request when a quota is exhausted, on a separate state.
fn simulate_exhausted(
    rule: &RuleSpec,
    fields: HeaderStyle,
    index: usize,
    quota: Quota,
    cost: u64,
    head: &dyn RequestHead,
) -> ExhaustedOutcome {
    let now = Micros::from_secs(1);
    let max_wait = Micros::from(rule.effective_wait());
    let mut state = vec![0; quota.state_len()];
    quota.create(&mut state[..], now);
    let available =
        if let AlgorithmKind::TokenBucket(bucket) = quota.kind() { bucket.initial() } else { quota.limit() };
    quota.decide(&mut state[..], now, Demand::with_max_wait(available, Micros::MAX));
    let decision = quota.decide(&mut state[..], now, Demand::with_max_wait(cost.max(1), max_wait)).decision;
    match decision.outcome() {
        Outcome::Allow | Outcome::Delay(_) => ExhaustedOutcome::Delayed(decision.wait().to_duration()),
        Outcome::Deny(_) => {
            let limited = Limited::new(rule.name.as_str(), CallError::Limited(decision.with_quota(index)))
                .with_message(rule.message.as_deref().map(Into::into))
                .with_quota(Some(quota))
                .with_unit(rule.unit());
            let default_response = RejectionResponse::from_limited(&limited, fields);
            ExhaustedOutcome::Rejected(RejectAction::for_rule(
                &rule.on_limit,
                default_response,
                head.header("accept"),
            ))
        }
    }
}

/// Whether a key is the same for all requests.
pub(crate) fn is_shared_key(key: &KeySpec) -> bool {
    match key {
        KeySpec::All => true,
        KeySpec::Part(_) => false,
        KeySpec::Composite(parts) => parts.iter().all(is_shared_key),
        KeySpec::First(parts) => parts.first().is_none_or(is_shared_key),
    }
}
