//! Rules as a file would say them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use std::time::Duration;
use tidegate_policy::{
    compile::{Compiler, Passage, PolicyAsked, PolicyGate, Refusal},
    model::{Access, Cost, Enforcement, Key, Match, Network, OnLimit, Part, Policy, Quotas, Rule},
};
use tidegate_rule::{
    Mode, Rules,
    request::{Head, Missing},
};

/// A rule with this name and these quotas, for everybody together.
pub(crate) fn rule(name: &str, quotas: &[&str]) -> Rule {
    Rule {
        name: name.to_owned(),
        matching: Match::default(),
        key: Key::All,
        missing: Missing::Share,
        quotas: Quotas::All(quotas.iter().map(|quota| quota.parse().unwrap()).collect()),
        cost: Cost::Fixed(1),
        charge: None,
        adaptive: None,
        bandwidth: None,
        access: None,
        breaker: None,
        priority: None,
        schedule: None,
        enforcement: Enforcement::All(Mode::Enforce),
        store: None,
        on_outage: None,
        wait: Duration::ZERO,
        queue: None,
        message: None,
        on_limit: OnLimit::default(),
    }
}

pub(crate) fn ip() -> Key {
    Key::Part(Part::Ip { bits: 64 })
}

pub(crate) fn header(name: &str) -> Key {
    Key::Part(Part::Header(name.to_owned()))
}

pub(crate) fn networks(networks: &[&str]) -> Vec<Network> {
    let network = |network: &&str| match network.parse() {
        Ok(prefix) => Network::Prefix(prefix),
        Err(_) => Network::List((*network).to_owned()),
    };
    networks.iter().map(network).collect()
}

pub(crate) fn access(deny: &[&str], allow: &[&str], ban: Option<&str>) -> Access {
    Access { deny: networks(deny), allow: networks(allow), ban: ban.map(|ban| ban.parse().unwrap()) }
}

pub(crate) fn policy(rules: impl IntoIterator<Item = Rule>) -> Policy {
    Policy { rules: rules.into_iter().collect(), ..Policy::default() }
}

pub(crate) fn gate(policy: &Policy) -> PolicyGate {
    let (clock, _hand) = tidegate_engine::Clock::manual();
    Compiler::new(Rules::new()).clock(clock).compile(policy, None).unwrap()
}

pub(crate) fn now(asked: PolicyAsked) -> Passage {
    match asked {
        PolicyAsked::Now(passage) => passage,
        PolicyAsked::Later(_) => panic!("everything is at hand"),
    }
}

/// Why a request is not let through; `None` if it is.
pub(crate) fn refusal(gate: &PolicyGate, request: &dyn Head) -> Option<Refusal> {
    match now(gate.ask(request)) {
        Passage::Admitted(_) => None,
        Passage::Refused(refusal) => Some(*refusal),
    }
}

/// The rule that refuses a request, or nothing.
pub(crate) fn refuser(gate: &PolicyGate, request: &dyn Head) -> String {
    refusal(gate, request).map(|refusal| refusal.rule.to_string()).unwrap_or_default()
}

/// How many of ten are let through.
pub(crate) fn admitted(gate: &PolicyGate, request: &dyn Head) -> usize {
    (0..10).filter(|_| refusal(gate, request).is_none()).count()
}
