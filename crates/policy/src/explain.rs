//! What a policy does with a request, in words.
//!
//! The prediction is made by the gate that a gateway asks, compiled from the same policy and counting in memory.

use crate::{
    compile::{
        Compiler, DenyReason, DryRun, PolicyError, PolicyGate, Prefetch, RejectAction, without_stores,
    },
    head::{self, HeadError, HeadLimits, RequestHead},
    matching::{Mismatch, Seen},
    model::{self, Enforcement, Key, Policy, Priority, Quotas, RouteAction, Rule},
};
use http::{header, request};
use std::{fmt, net::IpAddr, path::Path, time::Duration};
use tidegate_access::{BanRule, Standing};
use tidegate_core::{Bound, Demand, Micros, Outcome, Quota};
use tidegate_limiter::Outage;
use tidegate_overload::Cause;
use tidegate_rule::{
    Answer, Fields, Limited, Mode, Rules,
    request::{Head, Missing, TrustedProxies},
};

/// What a policy does with a request that is the first to come.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The request, in a line.
    pub request: String,
    /// What becomes of it.
    pub outcome: Predicted,
    /// What each rule says, in their order.
    pub rules: Vec<Explained>,
}

/// What becomes of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Predicted {
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

impl Predicted {
    /// The status of the gateway's own answer; `None` where an upstream answers, or nobody.
    pub fn status(&self) -> Option<u16> {
        match self {
            Self::NoRoute => Some(404),
            Self::Malformed(error) => Some(error.status()),
            Self::Refused { action: RejectAction::Answer(answer), .. }
            | Self::Responded { response: RejectAction::Answer(answer), .. } => Some(answer.final_status()),
            Self::Forwarded { .. } | Self::Responded { .. } | Self::Refused { .. } => None,
        }
    }

    /// Where the gateway's own answer redirects to, if it does.
    pub fn location(&self) -> Option<&str> {
        match self {
            Self::Refused { action: RejectAction::Answer(answer), .. }
            | Self::Responded { response: RejectAction::Answer(answer), .. } => answer.get("location"),
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
pub struct Explained {
    /// Its name.
    pub rule: String,
    /// What it says.
    pub finding: Finding,
}

/// Whether a rule applies.
#[derive(Clone, Debug)]
pub enum Finding {
    /// It is not about this request.
    Differs(Mismatch),
    /// It is off.
    Off,
    /// It applies.
    Applies(Box<Applied>),
}

/// How a rule applies.
#[derive(Clone, Debug)]
pub struct Applied {
    /// The pattern that fits the path, if it has one.
    pub path: Option<String>,
    /// For whom it counts.
    pub key: KeyFound,
    /// Whether it is enforced for this key.
    pub mode: Mode,
    /// What the request costs.
    pub cost: u64,
    /// The name of its tier, where the rule has tiers.
    pub tier: Option<String>,
    /// Where it is counted.
    pub counted: Counted,
    /// What its lists say of the client; `None` where it has none.
    pub listed: Option<Listed>,
    /// Its quotas, and what becomes of a request when each is spent; none apply to a client that is allowed.
    pub quotas: Vec<SpentQuota>,
    /// What else it does, by the key of the policy: `charge`, `ban`, `schedule` and so on.
    pub more: Vec<(&'static str, String)>,
}

/// What the lists of a rule say of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// It is allowed, and no other limit of the rule applies.
    Allowed,
    /// It is denied.
    Denied,
    /// It is on neither list.
    Unlisted,
}

/// For whom a request is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFound {
    /// For this one, as it is in the key of a store; empty for everybody together.
    Key(String),
    /// It has no such key, and is counted by the address of its client.
    Address(String),
    /// It has no such key, and this becomes of it.
    Missing(Missing),
}

/// Where a rule is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counted {
    /// In each process by itself.
    Memory,
    /// In the store that rules without one of their own have; its address is not told.
    DefaultStore(Outage),
    /// In the store of this name.
    Store(String, Outage),
}

/// A quota, and what becomes of a request when it is spent.
#[derive(Clone, Debug)]
pub struct SpentQuota {
    /// The quota that applies now.
    pub quota: Quota,
    /// What the policy declares, where a schedule has changed it.
    pub declared: Option<Quota>,
    /// The most that it lets through, whatever clients do: for each process in memory, for all of them in a store.
    pub bound: Bound,
    /// What becomes of a request when it is spent.
    pub spent: Spent,
}

/// What becomes of a request when a quota is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spent {
    /// This.
    Refused(RejectAction),
    /// It waits for so long.
    Waits(Duration),
    /// Nothing: the rule is only watched.
    Watched,
}

/// Explains what a policy does with a request that is the first to come: nothing is counted, nobody is banned, and no store is
/// asked. Names of files start from `base`.
pub fn explain(policy: &Policy, head: &dyn Head, base: &Path) -> Result<Explanation, PolicyError> {
    let compile =
        || Compiler::new(Rules::new()).base(base).memory(MEMORY).compile(&without_stores(policy), None);
    let gate = compile()?;
    let seen = gate.see(head);
    let explain = |(place, said): (usize, &Rule)| Explained {
        rule: said.name.clone(),
        finding: match gate.matcher(place).and_then(|matcher| matcher.mismatch(&seen)) {
            _ if said.enforcement == Enforcement::All(Mode::Off) => Finding::Off,
            Some(mismatch) => Finding::Differs(mismatch),
            None => Finding::Applies(Box::new(applied(policy, (place, said), &gate, &seen))),
        },
    };
    let client = seen.client().map(|client| format!(" from {client}")).unwrap_or_default();
    Ok(Explanation {
        request: format!("{} {}{}{client}", head.method(), seen.host().unwrap_or_default(), head.path()),
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
    let client = proxies.client(&RequestHead::new(&request, peer)).unwrap_or(peer);
    let line = format!("{} {} from {client}", request.method, request.uri);
    let length =
        request.headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    let length = length.filter(|_| !request.headers.contains_key(header::TRANSFER_ENCODING));
    let limits = HeadLimits::from(&policy.connections);
    match head::check(&mut request, &limits, length, || proxies.trusts(peer.to_canonical())) {
        Ok(()) => {
            let head = RequestHead::new(&request, peer).with_client(client).with_listener(listener);
            explain(policy, &head, base)
        }
        Err(error) => {
            Ok(Explanation { request: line, outcome: Predicted::Malformed(error), rules: Vec::new() })
        }
    }
}

/// What the tables of a gate that is asked once may take.
const MEMORY: u64 = 1 << 20;

/// Evaluates a gate that has counted nothing.
fn predict(gate: &PolicyGate, head: &dyn Head) -> Predicted {
    let seen = gate.see(head);
    let route = gate.place_of_route(&seen).and_then(|place| gate.routes().get(place));
    let admitted = |delay| match route.map(|route| &route.action) {
        Some(RouteAction::Forward(upstream)) => Predicted::Forwarded { upstream: upstream.clone(), delay },
        Some(RouteAction::Respond(respond)) => {
            Predicted::Responded { response: RejectAction::respond(respond, &seen), delay }
        }
        None => Predicted::NoRoute,
    };
    // Nothing is waited for: what comes of a wait is known.
    let (mut prefetch, mut dry_run) = (Prefetch::default(), DryRun::new(gate));
    gate.prepare(&seen, &mut prefetch);
    gate.dry_run(head, (&prefetch, 0), &mut dry_run);
    match dry_run.refusal(head) {
        None => admitted(dry_run.delay()),
        Some(refusal) => Predicted::Refused {
            rule: refusal.rule.to_string(),
            reason: refusal.reason,
            action: refusal.action,
        },
    }
}

fn applied(policy: &Policy, (place, said): (usize, &Rule), gate: &PolicyGate, seen: &Seen<'_>) -> Applied {
    let head = seen.head();
    let rule = gate.rule(place);
    let key = match (rule.and_then(|rule| rule.key_of(head)), said.missing) {
        (Some(key), Missing::Address) if !gate.has_key(place, head) => KeyFound::Address(key.to_string()),
        (Some(key), _) => KeyFound::Key(key.to_string()),
        (None, missing) => KeyFound::Missing(missing),
    };
    let mode = rule.map_or(Mode::Off, |rule| rule.mode(head));
    let limiting = rule.and_then(|rule| rule.limiting.as_ref());
    let cost = limiting.map_or(1, |limiting| limiting.cost_of(head));
    let tier_place = limiting.and_then(|limiting| limiting.tier_of(head));
    let (tier, quotas): (_, Vec<(usize, Quota)>) = match &said.quotas {
        Quotas::All(quotas) => (None, quotas.iter().copied().enumerate().collect()),
        Quotas::Tiers(tiers) => {
            let place = tier_place.unwrap_or(tiers.each.len());
            match tiers.each.get(place) {
                Some((name, quota)) => (Some(name.clone()), vec![(place, *quota)]),
                None => (Some("else".to_owned()), vec![(place, tiers.otherwise)]),
            }
        }
    };
    let now = gate.view(place).map(|view| view.quotas()).unwrap_or_default();
    let spent = |(place, declared): (usize, Quota)| {
        let quota = now.get(place).copied().unwrap_or(declared);
        SpentQuota {
            quota,
            declared: (quota != declared).then_some(declared),
            bound: quota.bound(),
            spent: match mode {
                Mode::Enforce => spend(said, policy.headers, place, quota, cost, head),
                Mode::Shadow | Mode::Off => Spent::Watched,
            },
        }
    };
    let listed = said.access.as_ref().filter(|access| !access.deny.is_empty() || !access.allow.is_empty());
    let listed = listed.and_then(|_| rule?.door.as_ref()).map(|door| match door.knock(head) {
        Ok(guest) if guest.standing() == Standing::Allowed => Listed::Allowed,
        Ok(_) => Listed::Unlisted,
        Err(_) => Listed::Denied,
    });
    Applied {
        path: rule.and_then(|rule| rule.matcher.path_of(seen)).map(|path| path.shown().to_owned()),
        key,
        mode,
        cost,
        tier,
        counted: counted(policy, said),
        listed,
        quotas: quotas.into_iter().map(spent).collect(),
        more: more(said, gate, place, head),
    }
}

/// What else a rule does with a request.
fn more(said: &Rule, gate: &PolicyGate, place: usize, head: &dyn Head) -> Vec<(&'static str, String)> {
    let mut more = Vec::new();
    let rule = gate.rule(place);
    if let Some(charge) = &said.charge {
        more.push(("charge", charged(charge)));
    }
    if let Some(ban) = said.access.as_ref().and_then(|access| access.ban.as_ref()) {
        more.push(("ban", banned(ban, rule.and_then(|rule| rule.banned_as(head)).as_deref())));
    }
    if let (Some(schedule), false) = (&said.schedule, quotas_of(said).is_empty()) {
        more.push(("schedule", format!("{schedule}; the quotas above are those of now")));
    }
    if let Some(view) = gate.view(place).and_then(|view| view.adaptive())
        && let Some(adaptive) = &said.adaptive
    {
        let (min, max) = (adaptive.least.unwrap_or(1), adaptive.most.unwrap_or(1_000));
        let target = Micros::from(adaptive.target);
        more.push(("adaptive", format!("starts at {} in flight, then {min} to {max} by the latency, target {target}; beyond that 503", view.limit)));
    }
    if said.breaker.is_some() {
        more.push(("breaker", "closed at first; 503 while it is open".to_owned()));
    }
    if let Some(bandwidth) = &said.bandwidth {
        let rate = |way: &str, quota: Option<Quota>| quota.map(|quota| format!("{way} {quota}"));
        let rates: Vec<_> =
            [rate("down", bandwidth.down), rate("up", bandwidth.up)].into_iter().flatten().collect();
        more.push(("bandwidth", format!("{}: slowed down, never refused", rates.join(", "))));
    }
    if let Some(priority) = &said.priority {
        let class = match (priority, rule) {
            (Priority::Always(name), _) => Some(name.as_str()),
            (_, Some(rule)) => crate::compile::CLASSES.get(rule.class_of(head)).map(|(name, _)| *name),
            _ => None,
        };
        more.extend(class.map(|class| ("priority", class.to_owned())));
    }
    if !said.wait.is_zero() {
        more.push(("wait", format!("up to {} for its turn", Micros::from(said.wait))));
    }
    more
}

fn quotas_of(rule: &Rule) -> Vec<Quota> {
    match &rule.quotas {
        Quotas::All(quotas) => quotas.clone(),
        Quotas::Tiers(tiers) => tiers.each.iter().map(|(_, quota)| *quota).chain([tiers.otherwise]).collect(),
    }
}

fn charged(charge: &model::Charge) -> String {
    let list = |dues: &[model::Due]| {
        let due = |due: &model::Due| match due {
            model::Due::Status(status) => status.to_string(),
            model::Due::Hundred(hundred) => {
                format!("{}xx", if *hundred >= 100 { hundred / 100 } else { *hundred })
            }
        };
        dues.iter().map(due).collect::<Vec<_>>().join(", ")
    };
    match charge {
        model::Charge::If(dues) => format!("only if answered with {}; otherwise refunded", list(dues)),
        model::Charge::Unless(dues) => format!("refunded if answered with {}", list(dues)),
        model::Charge::Header(name) => format!("what the response header `{name}` says"),
    }
}

fn banned(ban: &BanRule, whom: Option<&str>) -> String {
    match whom {
        Some(whom) => format!("{ban}: `{}`, who is not banned now", whom.escape_debug()),
        None => format!("{ban}: the client is not known"),
    }
}

/// Where a rule is counted.
pub(crate) fn counted(policy: &Policy, rule: &Rule) -> Counted {
    let outage = rule.on_outage.or(policy.stores.on_outage).unwrap_or_default();
    let is_store = |address: &String| address != "memory";
    match &rule.store {
        Some(name) if policy.stores.named.get(name).is_none_or(is_store) => {
            Counted::Store(name.clone(), outage)
        }
        None if policy.stores.default.as_ref().is_some_and(is_store) => Counted::DefaultStore(outage),
        _ => Counted::Memory,
    }
}

/// What is answered to a request that comes when a quota is used up, worked out on a state of its own.
fn spend(rule: &Rule, fields: Fields, place: usize, quota: Quota, cost: u64, head: &dyn Head) -> Spent {
    let now = Micros::from_secs(1);
    let patience = Micros::from(rule.wait);
    let mut words = vec![0; quota.width()];
    quota.create(&mut words[..], now);
    quota.decide(&mut words[..], now, Demand::within(quota.limit(), Micros::MAX));
    let decision = quota.decide(&mut words[..], now, Demand::within(cost.max(1), patience)).decision;
    match decision.outcome() {
        Outcome::Allow | Outcome::Delay(_) => Spent::Waits(decision.wait().to_duration()),
        Outcome::Deny(_) => {
            let limited = Limited::new(rule.name.as_str(), Cause::Limited(decision.of_quota(place)))
                .with_message(rule.message.as_deref().map(Into::into))
                .with_quota(Some(quota));
            let usual = Answer::of(&limited, fields);
            Spent::Refused(RejectAction::of(&rule.on_limit, usual, head.header("accept")))
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

impl fmt::Display for Predicted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forwarded { upstream, delay } if delay.is_zero() => write!(f, "goes to `{upstream}`"),
            Self::Forwarded { upstream, delay } => {
                write!(f, "goes to `{upstream}` after a wait of {}", Micros::from(*delay))
            }
            Self::Responded { response, delay } => {
                match response {
                    RejectAction::Answer(answer) => {
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
                write!(f, "refused by rule `{rule}`, since {reason}: {}", Spent::Refused(action.clone()))
            }
        }
    }
}

impl fmt::Display for Explained {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.finding {
            Finding::Differs(mismatch) => writeln!(f, "rule `{}` does not apply: {mismatch}", self.rule),
            Finding::Off => writeln!(f, "rule `{}` is off", self.rule),
            Finding::Applies(applied) => write!(f, "rule `{}` applies\n{applied}", self.rule),
        }
    }
}

impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = &self.path {
            writeln!(f, "  path     {path}")?;
        }
        match &self.key {
            KeyFound::Key(key) if key.is_empty() => writeln!(f, "  key      everybody together")?,
            KeyFound::Key(key) => writeln!(f, "  key      {}", key.escape_debug())?,
            KeyFound::Address(key) => {
                let address = key.rsplit('?').next().unwrap_or(key);
                writeln!(f, "  key      not there: counted by the address {}", address.escape_debug())?;
            }
            KeyFound::Missing(Missing::Share | Missing::Address) => {
                writeln!(f, "  key      not there: shared with all others without it")?;
            }
            KeyFound::Missing(Missing::Skip) => writeln!(f, "  key      not there: the rule is skipped")?,
            KeyFound::Missing(Missing::Refuse) => writeln!(f, "  key      not there: refused with 400")?,
        }
        writeln!(f, "  mode     {}", self.mode)?;
        if let Some(tier) = &self.tier {
            writeln!(f, "  tier     {tier}")?;
        }
        match &self.listed {
            None => {}
            Some(Listed::Allowed) => {
                return writeln!(f, "  lists    allowed: no other limit of this rule applies");
            }
            Some(Listed::Denied) if self.mode == Mode::Enforce => return writeln!(f, "  lists    denied"),
            Some(Listed::Denied) => writeln!(f, "  lists    denied, which is only noted")?,
            Some(Listed::Unlisted) => writeln!(f, "  lists    on none of them")?,
        }
        if !self.quotas.is_empty() {
            writeln!(f, "  cost     {}", self.cost)?;
            writeln!(f, "  counted  {}", self.counted)?;
        }
        for quota in &self.quotas {
            match quota.declared {
                Some(declared) => {
                    writeln!(f, "  quota    {} by the schedule, {declared} without it", quota.quota)?;
                }
                None => writeln!(f, "  quota    {}", quota.quota)?,
            }
            writeln!(f, "    bound  {}", quota.bound)?;
            writeln!(f, "    spent  {}", quota.spent)?;
        }
        self.more.iter().try_for_each(|(key, text)| writeln!(f, "  {key:<8} {text}"))
    }
}

impl fmt::Display for Counted {
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
            Outage::Open => {
                f.write_str("everything is admitted, and so is a request that misses its deadline: no bound holds")
            }
            Outage::Closed => f.write_str("nothing is admitted"),
            Outage::Local { nodes: 1 } => f.write_str(
                "each process counts by itself what it admits: at worst the bound times the number of processes",
            ),
            Outage::Local { nodes } => write!(
                f,
                "each of {nodes} processes admits its share from zero, at least 1: at worst the bound plus all shares"
            ),
        }
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watched => f.write_str("let through, and noted"),
            Self::Waits(wait) => write!(f, "waits {}", Micros::from(*wait)),
            Self::Refused(RejectAction::Drop) => f.write_str("the connection is closed"),
            Self::Refused(RejectAction::Upstream(name)) => write!(f, "`{name}` answers"),
            Self::Refused(RejectAction::Answer(answer)) => {
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
pub(crate) fn is_everybody(key: &Key) -> bool {
    match key {
        Key::All => true,
        Key::Part(_) => false,
        Key::Every(parts) => parts.iter().all(is_everybody),
        Key::First(parts) => parts.first().is_none_or(is_everybody),
    }
}
