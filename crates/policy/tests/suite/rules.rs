//! Helpers that build rules, policies and gates.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use tidegate_policy::{
    compile::{Compiler, PolicyGate, PolicyRejection, PolicyResult},
    model::{AccessSpec, KeyPart, KeySpec, Network, Policy, Quotas, RuleSpec},
};
use tidegate_rule::{Evaluation, Rules, request::RequestHead};

/// A rule with this name and these quotas, which counts all requests together.
pub(crate) fn rule(name: &str, quotas: &[&str]) -> RuleSpec {
    let quotas = quotas.iter().map(|quota| quota.parse().unwrap()).collect();
    RuleSpec { quotas: Quotas::All(quotas), ..RuleSpec::new(name) }
}

pub(crate) fn ip() -> KeySpec {
    KeySpec::Part(KeyPart::Ip { prefix_len: 64 })
}

pub(crate) fn header(name: &str) -> KeySpec {
    KeySpec::Part(KeyPart::Header(name.to_owned()))
}

pub(crate) fn networks(networks: &[&str]) -> Vec<Network> {
    let network = |network: &&str| match network.parse() {
        Ok(prefix) => Network::Prefix(prefix),
        Err(_) => Network::List((*network).to_owned()),
    };
    networks.iter().map(network).collect()
}

pub(crate) fn access(deny: &[&str], allow: &[&str], ban: Option<&str>) -> AccessSpec {
    AccessSpec { deny: networks(deny), allow: networks(allow), ban: ban.map(|ban| ban.parse().unwrap()) }
}

pub(crate) fn policy(rules: impl IntoIterator<Item = RuleSpec>) -> Policy {
    Policy { rules: rules.into_iter().collect(), ..Policy::default() }
}

pub(crate) fn gate(policy: &Policy) -> PolicyGate {
    let (clock, _manual_clock) = tidegate_limiter::Clock::manual();
    Compiler::new(Rules::new()).clock(clock).compile(policy, None).unwrap()
}

pub(crate) fn expect_ready(evaluation: Evaluation<PolicyResult>) -> PolicyResult {
    match evaluation {
        Evaluation::Ready(result) => result,
        Evaluation::Pending(_) => panic!("expected an immediate result"),
    }
}

/// The refusal of a request; `None` if it is admitted.
pub(crate) fn rejection(gate: &PolicyGate, request: &dyn RequestHead) -> Option<PolicyRejection> {
    match expect_ready(gate.check(request)) {
        PolicyResult::Admitted(_) => None,
        PolicyResult::Rejected(rejection) => Some(*rejection),
    }
}

/// The name of the rule that denies a request; empty if it is admitted.
pub(crate) fn rejecting_rule(gate: &PolicyGate, request: &dyn RequestHead) -> String {
    rejection(gate, request).map(|rejection| rejection.rule.to_string()).unwrap_or_default()
}

/// The number of admitted requests out of ten.
pub(crate) fn count_admitted(gate: &PolicyGate, request: &dyn RequestHead) -> usize {
    (0..10).filter(|_| rejection(gate, request).is_none()).count()
}
