//! Rules as a file would say them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use tidegate_policy::{
    compile::{Compiler, PolicyGate, PolicyResult, Refusal},
    model::{Access, Key, Network, Part, Policy, Quotas, Rule},
};
use tidegate_rule::{Evaluation, Rules, request::Head};

/// A rule with this name and these quotas, for everybody together.
pub(crate) fn rule(name: &str, quotas: &[&str]) -> Rule {
    let quotas = quotas.iter().map(|quota| quota.parse().unwrap()).collect();
    Rule { quotas: Quotas::All(quotas), ..Rule::new(name) }
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
    let (clock, _hand) = tidegate_limiter::Clock::manual();
    Compiler::new(Rules::new()).clock(clock).compile(policy, None).unwrap()
}

pub(crate) fn now(asked: Evaluation<PolicyResult>) -> PolicyResult {
    match asked {
        Evaluation::Ready(passage) => passage,
        Evaluation::Pending(_) => panic!("everything is at hand"),
    }
}

/// Why a request is not let through; `None` if it is.
pub(crate) fn refusal(gate: &PolicyGate, request: &dyn Head) -> Option<Refusal> {
    match now(gate.check(request)) {
        PolicyResult::Admitted(_) => None,
        PolicyResult::Refused(refusal) => Some(*refusal),
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
