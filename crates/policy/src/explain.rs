//! What a policy would do with a request, in words.

use crate::{
    compile::{Compiler, Instead, Made, PolicyError, PolicyRule, without_stores},
    matching::{Mismatch, Seen},
    model::{Enforcement, Key, Policy, Quotas, RouteAction, Rule},
};
use std::{fmt, path::Path, time::Duration};
use tidegate_core::{Bound, Demand, Micros, Outcome, Quota};
use tidegate_engine::{Cause, Outage};
use tidegate_rule::{
    Answer, Fields, Limited, Mode, Rules,
    request::{Head, Missing},
};

/// What a policy would do with a request.
#[derive(Clone, Debug)]
pub struct Explanation {
    /// The request, in a line.
    pub request: String,
    /// The upstream that it goes to; `None` if no route matches, or the gateway answers.
    pub upstream: Option<String>,
    /// What the gateway answers itself, if its route says so.
    pub respond: Option<Instead>,
    /// What each rule says, in their order.
    pub rules: Vec<Explained>,
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
    /// Its quotas, and what becomes of a request when each is spent.
    pub quotas: Vec<SpentQuota>,
    /// What else it does: lists, breaker and so on.
    pub more: Vec<&'static str>,
}

/// For whom a request is counted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFound {
    /// For this one, as it is in the key of a store; empty for everybody together.
    Key(String),
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
    /// The quota.
    pub quota: Quota,
    /// The most that it lets through, whatever clients do: for each process in memory, for all of them in a store.
    pub bound: Bound,
    /// What becomes of a request when it is spent.
    pub spent: Spent,
}

/// What becomes of a request when a quota is spent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spent {
    /// This.
    Refused(Instead),
    /// It waits for so long.
    Waits(Duration),
    /// Nothing: the rule is only watched.
    Watched,
}

/// What a policy would do with a request: nothing is counted, and no store is asked. Names of files start from `base`.
pub fn explain(policy: &Policy, head: &dyn Head, base: &Path) -> Result<Explanation, PolicyError> {
    let made = Made::of(&without_stores(policy), &Compiler::new(Rules::new()).base(base), None)?;
    let seen = Seen::new(head, &made.proxies);
    let explain = |(made, said): (&PolicyRule, &Rule)| Explained {
        rule: said.name.clone(),
        finding: match made.matcher.mismatch(&seen) {
            _ if said.enforcement == Enforcement::All(Mode::Off) => Finding::Off,
            Some(mismatch) => Finding::Differs(mismatch),
            None => Finding::Applies(Box::new(applied(policy, said, made, &seen))),
        },
    };
    let client = seen.client().map(|client| format!(" from {client}")).unwrap_or_default();
    let route = made.route_index.first(&seen).and_then(|place| policy.routes.get(place));
    let (upstream, respond) = match route.map(|route| &route.action) {
        Some(RouteAction::Forward(upstream)) => (Some(upstream.clone()), None),
        Some(RouteAction::Respond(respond)) => (None, Some(Instead::respond(respond, &seen))),
        None => (None, None),
    };
    Ok(Explanation {
        request: format!("{} {}{}{client}", head.method(), seen.host().unwrap_or_default(), head.path()),
        upstream,
        respond,
        rules: made.rules.iter().zip(&policy.rules).map(explain).collect(),
    })
}

fn applied(policy: &Policy, said: &Rule, made: &PolicyRule, seen: &Seen<'_>) -> Applied {
    let head = seen.head();
    let key = match made.key_of(head) {
        Some(key) => KeyFound::Key(key.to_string()),
        None => KeyFound::Missing(said.missing),
    };
    let mode = made.mode(head);
    let cost = made.limiting.as_ref().map_or(1, |limiting| limiting.cost_of(head));
    let place = made.limiting.as_ref().and_then(|limiting| limiting.tier_of(head));
    let (tier, quotas) = match &said.quotas {
        Quotas::All(quotas) => (None, quotas.iter().copied().enumerate().collect()),
        Quotas::Tiers(tiers) => {
            let place = place.unwrap_or(tiers.each.len());
            match tiers.each.get(place) {
                Some((name, quota)) => (Some(name.clone()), vec![(place, *quota)]),
                None => (Some("else".to_owned()), vec![(place, tiers.otherwise)]),
            }
        }
    };
    let spent = |(place, quota): (usize, Quota)| SpentQuota {
        quota,
        bound: quota.bound(),
        spent: match mode {
            Mode::Enforce => spend(said, policy.headers, place, quota, cost, head),
            Mode::Shadow | Mode::Off => Spent::Watched,
        },
    };
    let parts = [
        (said.access.is_some(), "lists"),
        (said.adaptive.is_some(), "an adaptive limit"),
        (said.breaker.is_some(), "a breaker"),
        (said.bandwidth.is_some(), "bandwidth"),
        (said.schedule.is_some(), "a schedule, by which these quotas are multiplied"),
    ];
    Applied {
        path: made.matcher.path_of(seen).map(|path| path.shown().to_owned()),
        key,
        mode,
        cost,
        tier,
        counted: counted(policy, said),
        quotas: quotas.into_iter().map(spent).collect(),
        more: parts.into_iter().filter(|(is_there, _)| *is_there).map(|(_, part)| part).collect(),
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
            Spent::Refused(Instead::of(&rule.on_limit, usual, head.header("accept")))
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.request)?;
        match (&self.upstream, &self.respond) {
            (Some(upstream), _) => writeln!(f, "  goes to `{upstream}`")?,
            (None, Some(Instead::Answer(answer))) => {
                let location = answer.get("location").map(|location| format!(" {location}"));
                writeln!(f, "  the gateway answers {}{}", answer.status, location.unwrap_or_default())?;
            }
            (None, Some(_)) => writeln!(f, "  the gateway closes its connection")?,
            (None, None) => writeln!(f, "  goes nowhere: no route matches")?,
        }
        self.rules.iter().try_for_each(|rule| rule.fmt(f))
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
        if !self.quotas.is_empty() {
            writeln!(f, "  cost     {}", self.cost)?;
            writeln!(f, "  counted  {}", self.counted)?;
        }
        for quota in &self.quotas {
            writeln!(f, "  quota    {}", quota.quota)?;
            writeln!(f, "    bound  {}", quota.bound)?;
            writeln!(f, "    spent  {}", quota.spent)?;
        }
        match self.more.is_empty() {
            true => Ok(()),
            false => writeln!(f, "  also     {}", self.more.join(", ")),
        }
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
                "each of {nodes} processes admits its share from zero: at worst the bound, and once more in an outage"
            ),
        }
    }
}

impl fmt::Display for Spent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Watched => f.write_str("let through, and noted"),
            Self::Waits(wait) => write!(f, "waits {}", Micros::from(*wait)),
            Self::Refused(Instead::Drop) => f.write_str("the connection is closed"),
            Self::Refused(Instead::Upstream(name)) => write!(f, "`{name}` answers"),
            Self::Refused(Instead::Answer(answer)) => {
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
