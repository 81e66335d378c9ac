//! What a policy does with a request, in words.
//!
//! The prediction is made by the gate that a gateway asks, compiled from the same policy and counting in memory.

use crate::{
    compile::{
        Compiler, DenyReason, DryRun, PolicyError, PolicyGate, Prefetch, RejectAction, without_stores,
    },
    head::{self, HeadError, HeadLimits, HttpRequestHead},
    matching::{Mismatch, RequestView},
    model::{self, KeySpec, Policy, PrioritySpec, Quotas, RouteAction, RuleEnforcement, RuleSpec},
};
use http::{header, request};
use std::{fmt, net::IpAddr, path::Path, time::Duration};
use tidegate_access::{AccessDecision, BanRule};
use tidegate_core::{Bound, Demand, Micros, Outcome, Quota};
use tidegate_limiter::FailureMode;
use tidegate_overload::CallError;
use tidegate_rule::{
    HeaderStyle, Limited, Mode, RejectionResponse, Rules,
    request::{MissingKey, RequestHead, TrustedProxies},
};

/// What a policy does with a request that is the first to come.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The request, in a line.
    pub request: String,
    /// What becomes of it.
    pub outcome: PredictedOutcome,
    /// What each rule says, in their order.
    pub rules: Vec<RuleExplanation>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PredictedOutcome {
    /// It is forwarded.
    Forwarded {
        /// To this upstream.
        upstream: String,
        /// After this wait.
        delay: Duration,
    },
    /// It is admitted, and the gateway answers it, as its route says.
    Responded {
        /// With this.
        response: RejectAction,
        /// After this wait.
        delay: Duration,
    },
    /// It is admitted, and no route matches.
    NoRoute,
    /// The gateway refuses its head before any rule decides on it.
    Malformed(HeadError),
    /// It is refused.
    Refused {
        /// By this rule.
        rule: String,
        /// For this reason.
        reason: DenyReason,
        /// This is done with it.
        action: RejectAction,
    },
}

impl PredictedOutcome {
    /// The status of the gateway's own answer; `None` where an upstream answers, or nobody.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::NoRoute => Some(404),
            Self::Malformed(error) => Some(error.status()),
            Self::Refused { action: RejectAction::Response(answer), .. }
            | Self::Responded { response: RejectAction::Response(answer), .. } => Some(answer.final_status()),
            Self::Forwarded { .. } | Self::Responded { .. } | Self::Refused { .. } => None,
        }
    }

    /// Where the gateway's own answer redirects to, if it does.
    pub fn location(&self) -> Option<&str> {
        match self {
            Self::Refused { action: RejectAction::Response(answer), .. }
            | Self::Responded { response: RejectAction::Response(answer), .. } => answer.get("location"),
            Self::Forwarded { .. }
            | Self::Responded { .. }
            | Self::NoRoute
            | Self::Malformed(_)
            | Self::Refused { .. } => None,
        }
    }

    /// The upstream that answers, if one does.
    pub fn upstream(&self) -> Option<&str> {
        match self {
            Self::Forwarded { upstream, .. } => Some(upstream),
            Self::Refused { action: RejectAction::Upstream(name), .. } => Some(name),
            Self::Responded { .. } | Self::NoRoute | Self::Malformed(_) | Self::Refused { .. } => None,
        }
    }

    /// The rule that refuses, if one does.
    pub fn rule(&self) -> Option<&str> {
        match self {
            Self::Refused { rule, .. } => Some(rule),
            Self::Forwarded { .. } | Self::Responded { .. } | Self::NoRoute | Self::Malformed(_) => None,
        }
    }
}

/// What one rule says.
#[derive(Clone, Debug)]
pub struct RuleExplanation {
    /// Its name.
    pub rule: String,
    /// What it says.
    pub applicability: Applicability,
}

/// Whether a rule applies.
#[derive(Clone, Debug)]
pub enum Applicability {
    /// It is not about this request.
    Mismatch(Mismatch),
    /// It is off.
    Off,
    /// It applies.
    Applies(Box<AppliedRule>),
}

/// How a rule applies.
#[derive(Clone, Debug)]
pub struct AppliedRule {
    /// The pattern that fits the path, if it has one.
    pub path: Option<String>,
    /// For whom it counts.
    pub key: ResolvedKey,
    /// Whether it is enforced for this key.
    pub mode: Mode,
    /// What the request costs.
    pub cost: u64,
    /// The name of its tier, where the rule has tiers.
    pub tier: Option<String>,
    /// Where it is counted.
    pub counter_location: CounterLocation,
    /// What its lists say of the client; `None` where it has none.
    pub list_match: Option<ListMatch>,
    /// Its quotas, and what becomes of a request when each is spent; none apply to a client that is allowed.
    pub quotas: Vec<QuotaExplanation>,
    /// What else it does, by the key of the policy: `charge`, `ban`, `schedule` and so on.
    pub details: Vec<(&'static str, String)>,
}

/// What the lists of a rule say of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListMatch {
    /// It is allowed, and no other limit of the rule applies.
    Allowed,
    /// It is denied.
    Denied,
    /// It is on neither list.
    Unlisted,
}

/// For whom a request is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResolvedKey {
    /// For this one, as it is in the key of a store; empty for everybody together.
    Key(String),
    /// It has no such key, and is counted by the address of its client.
    Address(String),
    /// It has no such key, and this becomes of it.
    Missing(MissingKey),
}

/// Where a rule is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CounterLocation {
    /// In each process by itself.
    Memory,
    /// In the store that rules without one of their own have; its address is not told.
    DefaultStore(FailureMode),
    /// In the store of this name.
    Store(String, FailureMode),
}

/// A quota, and what becomes of a request when it is spent.
#[derive(Clone, Debug)]
pub struct QuotaExplanation {
    /// The quota that applies now.
    pub quota: Quota,
    /// What the policy declares, where a schedule has changed it.
    pub declared: Option<Quota>,
    /// The most that it lets through, whatever clients do: for each process in memory, for all of them in a store.
    pub bound: Bound,
    /// What becomes of a request when it is spent.
    pub on_exhausted: ExhaustedOutcome,
}

/// What becomes of a request when a quota is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExhaustedOutcome {
    /// This.
    Refused(RejectAction),
    /// It waits for so long.
    Delayed(Duration),
    /// Nothing: the rule is only watched.
    Shadowed,
}

/// Explains what a policy does with a request that is the first to come: nothing is counted, nobody is banned, and no store is
/// asked. Names of files start from `base`.
pub fn explain(policy: &Policy, head: &dyn RequestHead, base: &Path) -> Result<Explanation, PolicyError> {
    let compile = || {
        Compiler::new(Rules::new())
            .base(base)
            .memory(EXPLAIN_MEMORY_BYTES)
            .compile(&without_stores(policy), None)
    };
    let gate = compile()?;
    let view = gate.view_request(head);
    let explain = |(place, rule_spec): (usize, &RuleSpec)| RuleExplanation {
        rule: rule_spec.name.clone(),
        applicability: match gate.matcher(place).and_then(|matcher| matcher.mismatch(&view)) {
            _ if rule_spec.enforcement == RuleEnforcement::All(Mode::Off) => Applicability::Off,
            Some(mismatch) => Applicability::Mismatch(mismatch),
            None => {
                Applicability::Applies(Box::new(explain_applied(policy, (place, rule_spec), &gate, &view)))
            }
        },
    };
    let client = view.client().map(|client| format!(" from {client}")).unwrap_or_default();
    Ok(Explanation {
        request: format!("{} {}{}{client}", head.method(), view.host().unwrap_or_default(), head.path()),
        rules: policy.rules.iter().enumerate().map(explain).collect(),
        outcome: predict(&compile()?, head),
    })
}

/// Explains what a gateway does with a request over HTTP from `peer`, which comes through the listener of this name: its client is
/// resolved, its head is checked, and then it is [explained](explain).
pub fn explain_request(
    policy: &Policy,
    mut request: request::Parts,
    (peer, listener): (IpAddr, Option<&str>),
    base: &Path,
) -> Result<Explanation, PolicyError> {
    let proxies = TrustedProxies::from(policy.trusted_proxies.clone());
    let client = proxies.client_address(&HttpRequestHead::new(&request, peer)).unwrap_or(peer);
    let line = format!("{} {} from {client}", request.method, request.uri);
    let length =
        request.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let length = length.filter(|_| !request.headers.contains_key(header::TRANSFER_ENCODING));
    let limits = HeadLimits::from(&policy.connections);
    match head::check(&mut request, &limits, length, || proxies.is_trusted(peer.to_canonical())) {
        Ok(()) => {
            let head = HttpRequestHead::new(&request, peer).with_client(client).with_listener(listener);
            explain(policy, &head, base)
        }
        Err(error) => {
            Ok(Explanation { request: line, outcome: PredictedOutcome::Malformed(error), rules: Vec::new() })
        }
    }
}

/// What the tables of a gate that is asked once may take.
const EXPLAIN_MEMORY_BYTES: u64 = 1 << 20;

/// Evaluates a gate that has counted nothing.
fn predict(gate: &PolicyGate, head: &dyn RequestHead) -> PredictedOutcome {
    let view = gate.view_request(head);
    let route = gate.find_route_index(&view).and_then(|place| gate.routes().get(place));
    let admitted = |delay| match route.map(|route| &route.action) {
        Some(RouteAction::Forward(upstream)) => {
            PredictedOutcome::Forwarded { upstream: upstream.clone(), delay }
        }
        Some(RouteAction::Respond(respond)) => {
            PredictedOutcome::Responded { response: RejectAction::for_route(respond, &view), delay }
        }
        None => PredictedOutcome::NoRoute,
    };
    // Nothing is waited for: what comes of a wait is known.
    let (mut prefetch, mut dry_run) = (Prefetch::default(), DryRun::new(gate));
    gate.prepare(&view, &mut prefetch);
    gate.dry_run(head, (&prefetch, 0), &mut dry_run);
    match dry_run.refusal(head) {
        None => admitted(dry_run.delay()),
        Some(refusal) => PredictedOutcome::Refused {
            rule: refusal.rule.to_string(),
            reason: refusal.reason,
            action: refusal.action,
        },
    }
}

fn explain_applied(
    policy: &Policy,
    (place, rule_spec): (usize, &RuleSpec),
    gate: &PolicyGate,
    view: &RequestView<'_>,
) -> AppliedRule {
    let head = view.head();
    let rule = gate.rule(place);
    let key = match (rule.and_then(|rule| rule.key_of(head)), rule_spec.missing) {
        (Some(key), MissingKey::Address) if !gate.has_key(place, head) => {
            ResolvedKey::Address(key.to_string())
        }
        (Some(key), _) => ResolvedKey::Key(key.to_string()),
        (None, missing) => ResolvedKey::Missing(missing),
    };
    let mode = rule.map_or(Mode::Off, |rule| rule.mode(head));
    let limiting = rule.and_then(|rule| rule.limiting.as_ref());
    let cost = limiting.map_or(1, |limiting| limiting.cost_of(head));
    let tier_place = limiting.and_then(|limiting| limiting.tier_of(head));
    let (tier, quotas): (_, Vec<(usize, Quota)>) = match &rule_spec.quotas {
        Quotas::All(quotas) => (None, quotas.iter().copied().enumerate().collect()),
        Quotas::Tiers(tiers) => {
            let place = tier_place.unwrap_or(tiers.quotas.len());
            match tiers.quotas.get(place) {
                Some((name, quota)) => (Some(name.clone()), vec![(place, *quota)]),
                None => (Some("else".to_owned()), vec![(place, tiers.default)]),
            }
        }
    };
    let now = gate.view(place).map(|view| view.quotas()).unwrap_or_default();
    let spent = |(place, declared): (usize, Quota)| {
        let quota = now.get(place).copied().unwrap_or(declared);
        QuotaExplanation {
            quota,
            declared: (quota != declared).then_some(declared),
            bound: quota.bound(),
            on_exhausted: match mode {
                Mode::Enforce => simulate_exhausted(rule_spec, policy.headers, place, quota, cost, head),
                Mode::Shadow | Mode::Off => ExhaustedOutcome::Shadowed,
            },
        }
    };
    let listed =
        rule_spec.access.as_ref().filter(|access| !access.deny.is_empty() || !access.allow.is_empty());
    let listed = listed.and_then(|_| rule?.request_access.as_ref()).map(|door| match door.check(head) {
        Ok(guest) if guest.decision() == AccessDecision::Allowed => ListMatch::Allowed,
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
        quotas: quotas.into_iter().map(spent).collect(),
        details: describe_details(rule_spec, gate, place, head),
    }
}

/// What else a rule does with a request.
fn describe_details(
    rule_spec: &RuleSpec,
    gate: &PolicyGate,
    place: usize,
    head: &dyn RequestHead,
) -> Vec<(&'static str, String)> {
    let mut more = Vec::new();
    let rule = gate.rule(place);
    if let Some(charge) = &rule_spec.charge {
        more.push(("charge", describe_charge(charge)));
    }
    if let Some(ban) = rule_spec.access.as_ref().and_then(|access| access.ban.as_ref()) {
        more.push(("ban", describe_ban(ban, rule.and_then(|rule| rule.ban_subject(head)).as_deref())));
    }
    if let (Some(schedule), false) = (&rule_spec.schedule, quotas_of(rule_spec).is_empty()) {
        more.push(("schedule", format!("{schedule}; the quotas above are those of now")));
    }
    if let Some(view) = gate.view(place).and_then(|view| view.adaptive())
        && let Some(adaptive) = &rule_spec.adaptive
    {
        let (min, max) = (adaptive.min.unwrap_or(1), adaptive.max.unwrap_or(1_000));
        let target = Micros::from(adaptive.target);
        more.push(("adaptive", format!("starts at {} in flight, then {min} to {max} by the latency, target {target}; beyond that 503", view.limit)));
    }
    if rule_spec.breaker.is_some() {
        more.push(("breaker", "closed at first; 503 while it is open".to_owned()));
    }
    if let Some(bandwidth) = &rule_spec.bandwidth {
        let rate = |way: &str, quota: Option<Quota>| quota.map(|quota| format!("{way} {quota}"));
        let rates: Vec<_> =
            [rate("down", bandwidth.down), rate("up", bandwidth.up)].into_iter().flatten().collect();
        more.push(("bandwidth", format!("{}: slowed down, never refused", rates.join(", "))));
    }
    if let Some(priority) = &rule_spec.priority {
        let class = match (priority, rule) {
            (PrioritySpec::Fixed(name), _) => Some(name.as_str()),
            (_, Some(rule)) => crate::compile::CLASSES.get(rule.class_of(head)).map(|(name, _)| *name),
            _ => None,
        };
        more.extend(class.map(|class| ("priority", class.to_owned())));
    }
    if !rule_spec.wait.is_zero() {
        more.push(("wait", format!("up to {} for its turn", Micros::from(rule_spec.wait))));
    }
    more
}

fn quotas_of(rule: &RuleSpec) -> Vec<Quota> {
    match &rule.quotas {
        Quotas::All(quotas) => quotas.clone(),
        Quotas::Tiers(tiers) => tiers.quotas.iter().map(|(_, quota)| *quota).chain([tiers.default]).collect(),
    }
}

fn describe_charge(charge: &model::ChargeSpec) -> String {
    let list = |dues: &[model::StatusPattern]| {
        let due = |due: &model::StatusPattern| match due {
            model::StatusPattern::Status(status) => status.to_string(),
            model::StatusPattern::Class(hundred) => {
                format!("{}xx", if *hundred >= 100 { hundred / 100 } else { *hundred })
            }
        };
        dues.iter().map(due).collect::<Vec<_>>().join(", ")
    };
    match charge {
        model::ChargeSpec::If(dues) => format!("only if answered with {}; otherwise refunded", list(dues)),
        model::ChargeSpec::Unless(dues) => format!("refunded if answered with {}", list(dues)),
        model::ChargeSpec::Header(name) => format!("what the response header `{name}` says"),
    }
}

fn describe_ban(ban: &BanRule, subject: Option<&str>) -> String {
    match subject {
        Some(whom) => format!("{ban}: `{}`, who is not banned now", whom.escape_debug()),
        None => format!("{ban}: the client is not known"),
    }
}

/// Where a rule is counted.
pub(crate) fn counter_location(policy: &Policy, rule: &RuleSpec) -> CounterLocation {
    let outage = rule.on_outage.or(policy.stores.on_outage).unwrap_or_default();
    let is_store = |address: &String| address != "memory";
    match &rule.store {
        Some(name) if policy.stores.named.get(name).is_none_or(is_store) => {
            CounterLocation::Store(name.clone(), outage)
        }
        None if policy.stores.default.as_ref().is_some_and(is_store) => CounterLocation::DefaultStore(outage),
        _ => CounterLocation::Memory,
    }
}

/// What is answered to a request that comes when a quota is used up, worked out on a state of its own.
fn simulate_exhausted(
    rule: &RuleSpec,
    fields: HeaderStyle,
    place: usize,
    quota: Quota,
    cost: u64,
    head: &dyn RequestHead,
) -> ExhaustedOutcome {
    let now = Micros::from_secs(1);
    let patience = Micros::from(rule.wait);
    let mut words = vec![0; quota.state_len()];
    quota.create(&mut words[..], now);
    quota.decide(&mut words[..], now, Demand::with_max_wait(quota.limit(), Micros::MAX));
    let decision = quota.decide(&mut words[..], now, Demand::with_max_wait(cost.max(1), patience)).decision;
    match decision.outcome() {
        Outcome::Allow | Outcome::Delay(_) => ExhaustedOutcome::Delayed(decision.wait().to_duration()),
        Outcome::Deny(_) => {
            let limited = Limited::new(rule.name.as_str(), CallError::Limited(decision.with_quota(place)))
                .with_message(rule.message.as_deref().map(Into::into))
                .with_quota(Some(quota));
            let default_response = RejectionResponse::from_limited(&limited, fields);
            ExhaustedOutcome::Refused(RejectAction::for_rule(
                &rule.on_limit,
                default_response,
                head.header("accept"),
            ))
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        writeln!(f, "  {}", self.outcome)?;
        self.rules.iter().try_for_each(|rule| rule.fmt(f))
    }
}

impl fmt::Display for PredictedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forwarded { upstream, delay } if delay.is_zero() => write!(f, "goes to `{upstream}`"),
            Self::Forwarded { upstream, delay } => {
                write!(f, "goes to `{upstream}` after a wait of {}", Micros::from(*delay))
            }
            Self::Responded { response, delay } => {
                match response {
                    RejectAction::Response(answer) => {
                        let location = answer.get("location").map(|location| format!(" {location}"));
                        write!(f, "the gateway answers {}{}", answer.status, location.unwrap_or_default())?;
                    }
                    _ => f.write_str("the gateway closes its connection")?,
                }
                match delay.is_zero() {
                    true => Ok(()),
                    false => write!(f, " after a wait of {}", Micros::from(*delay)),
                }
            }
            Self::NoRoute => f.write_str("goes nowhere: no route matches, 404"),
            Self::Malformed(error) => write!(f, "refused with {} before any rule: {error}", error.status()),
            Self::Refused { rule, reason, action } => {
                let reason = match reason {
                    DenyReason::Limited => "its quota is exceeded",
                    DenyReason::NoKey => "the key is missing",
                    DenyReason::Denied => "the client is denied",
                    DenyReason::Banned => "the client is banned",
                    DenyReason::Guarded => "it protects what is behind it",
                };
                write!(
                    f,
                    "refused by rule `{rule}`, since {reason}: {}",
                    ExhaustedOutcome::Refused(action.clone())
                )
            }
        }
    }
}

impl fmt::Display for RuleExplanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.applicability {
            Applicability::Mismatch(mismatch) => {
                writeln!(f, "rule `{}` does not apply: {mismatch}", self.rule)
            }
            Applicability::Off => writeln!(f, "rule `{}` is off", self.rule),
            Applicability::Applies(applied) => write!(f, "rule `{}` applies\n{applied}", self.rule),
        }
    }
}

impl fmt::Display for AppliedRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            writeln!(f, "  path     {path}")?;
        }
        match &self.key {
            ResolvedKey::Key(key) if key.is_empty() => writeln!(f, "  key      everybody together")?,
            ResolvedKey::Key(key) => writeln!(f, "  key      {}", key.escape_debug())?,
            ResolvedKey::Address(key) => {
                let address = key.rsplit('?').next().unwrap_or(key);
                writeln!(f, "  key      not there: counted by the address {}", address.escape_debug())?;
            }
            ResolvedKey::Missing(MissingKey::Shared | MissingKey::Address) => {
                writeln!(f, "  key      not there: shared with all others without it")?;
            }
            ResolvedKey::Missing(MissingKey::Skip) => {
                writeln!(f, "  key      not there: the rule is skipped")?;
            }
            ResolvedKey::Missing(MissingKey::Reject) => {
                writeln!(f, "  key      not there: refused with 400")?;
            }
        }
        writeln!(f, "  mode     {}", self.mode)?;
        if let Some(tier) = &self.tier {
            writeln!(f, "  tier     {tier}")?;
        }
        match &self.list_match {
            None => {}
            Some(ListMatch::Allowed) => {
                return writeln!(f, "  lists    allowed: no other limit of this rule applies");
            }
            Some(ListMatch::Denied) if self.mode == Mode::Enforce => return writeln!(f, "  lists    denied"),
            Some(ListMatch::Denied) => writeln!(f, "  lists    denied, which is only noted")?,
            Some(ListMatch::Unlisted) => writeln!(f, "  lists    on none of them")?,
        }
        if !self.quotas.is_empty() {
            writeln!(f, "  cost     {}", self.cost)?;
            writeln!(f, "  counted  {}", self.counter_location)?;
        }
        for quota in &self.quotas {
            match quota.declared {
                Some(declared) => {
                    writeln!(f, "  quota    {} by the schedule, {declared} without it", quota.quota)?;
                }
                None => writeln!(f, "  quota    {}", quota.quota)?,
            }
            writeln!(f, "    bound  {}", quota.bound)?;
            writeln!(f, "    spent  {}", quota.on_exhausted)?;
        }
        self.details.iter().try_for_each(|(key, text)| writeln!(f, "  {key:<8} {text}"))
    }
}

impl fmt::Display for CounterLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let outage = match self {
            Self::Memory => return f.write_str("in memory: the bound holds for each process"),
            Self::DefaultStore(outage) => {
                f.write_str("in the default store")?;
                outage
            }
            Self::Store(name, outage) => {
                write!(f, "in the store `{name}`")?;
                outage
            }
        };
        f.write_str(": the bound holds for all processes together; while it is unavailable ")?;
        match outage {
            FailureMode::Open => {
                f.write_str("everything is admitted, and so is a request that misses its deadline: no bound holds")
            }
            FailureMode::Closed => f.write_str("nothing is admitted"),
            FailureMode::Local { nodes: 1 } => f.write_str(
                "each process counts by itself what it admits: at worst the bound times the number of processes",
            ),
            FailureMode::Local { nodes } => write!(
                f,
                "each of {nodes} processes admits its share from zero, at least 1: at worst the bound plus all shares"
            ),
        }
    }
}

impl fmt::Display for ExhaustedOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shadowed => f.write_str("let through, and noted"),
            Self::Delayed(wait) => write!(f, "waits {}", Micros::from(*wait)),
            Self::Refused(RejectAction::Drop) => f.write_str("the connection is closed"),
            Self::Refused(RejectAction::Upstream(name)) => write!(f, "`{name}` answers"),
            Self::Refused(RejectAction::Response(answer)) => {
                write!(f, "{}", answer.final_status())?;
                for name in ["location", "retry-after", "content-type"] {
                    if let Some(value) = answer.get(name) {
                        write!(f, ", {name}: {value}")?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Whether a key is the same for everybody.
pub(crate) fn is_shared_key(key: &KeySpec) -> bool {
    match key {
        KeySpec::All => true,
        KeySpec::Part(_) => false,
        KeySpec::Composite(parts) => parts.iter().all(is_shared_key),
        KeySpec::First(parts) => parts.first().is_none_or(is_shared_key),
    }
}
