//! What is asked of one rule.

use super::{
    body::Members,
    problem::{Problem, shortened},
};
use http::StatusCode;
use std::sync::Arc;
use tidegate_core::{Decision, spelling};
use tidegate_engine::{OwnedAsk, SharedLimiter};
use tidegate_policy::compile::{Holds, NamedRule, PolicyGate};
use tidegate_rule::{Mode, Rule, request::KeyValue};

/// What is asked of one rule. It owns all it needs: the policy may be replaced meanwhile.
pub(super) struct Question {
    pub(super) rule: Rule,
    pub(super) mode: Mode,
    pub(super) holds: Holds,
    pub(super) cost: u64,
    /// Where it is counted; `None` if nothing is to be asked.
    limiter: Option<Arc<SharedLimiter>>,
    key: KeyValue<'static>,
    tier: usize,
}

impl Question {
    /// The members that say it.
    pub(super) const MEMBERS: [&'static str; 4] = ["rule", "key", "cost", "tier"];

    pub(super) fn of(members: &Members, gate: &PolicyGate) -> Result<Self, Problem> {
        let (named, key) = addressed(members, gate)?;
        let tier = named.tier(members.optional_text("tier")?);
        let tier = tier.map_err(|error| Problem::of(&error, &members.place))?;
        let (rule, mode) = (named.rule().clone(), named.mode_for(&key));
        let limiter = rule.limiter().filter(|_| mode != Mode::Off);
        Ok(Self { holds: named.holds(), mode, cost: members.cost(Some(1))?, limiter, key, tier, rule })
    }

    /// Takes its cost, now or not at all; `None` if there is nothing to be asked. A slot is looked at, and not held.
    pub(super) async fn check(&self) -> Option<Decision> {
        let limiter = self.limiter.as_ref()?;
        Some(match limiter.in_memory() {
            Some(memory) => {
                let bucket = memory.key(&self.key);
                bucket.tier(self.tier).unwrap_or(bucket).check(self.cost)
            }
            None => {
                let key = self.key.to_string();
                match limiter.tier(self.tier).filter(|_| self.tier > 0) {
                    Some(tier) => tier.check_cost(&key, self.cost).await,
                    None => limiter.check_cost(&key, self.cost).await,
                }
            }
        })
    }

    /// What its cost would get now.
    pub(super) async fn peek(&self) -> Option<Decision> {
        let limiter = self.limiter.as_ref()?;
        Some(match limiter.in_memory() {
            Some(memory) => {
                let bucket = memory.key(&self.key);
                bucket.tier(self.tier).unwrap_or(bucket).peek(self.cost)
            }
            None => {
                let key = self.key.to_string();
                match limiter.tier(self.tier).filter(|_| self.tier > 0) {
                    Some(tier) => tier.peek(&key, self.cost).await,
                    None => limiter.peek(&key, self.cost).await,
                }
            }
        })
    }

    /// It as one of several that are decided together.
    pub(super) fn ask(&self) -> Option<OwnedAsk> {
        let limiter = self.limiter.as_ref()?;
        Some(OwnedAsk::new(limiter, &self.key).cost(self.cost).tier(self.tier))
    }
}

/// The rule that is named, and the key.
pub(super) fn addressed<'a>(
    members: &Members,
    gate: &'a PolicyGate,
) -> Result<(NamedRule<'a>, KeyValue<'static>), Problem> {
    let name = members.text("rule")?;
    let named = gate.named(name).ok_or_else(|| missing(&members.place, name, gate))?;
    let key = named.key(members.value("key")).map_err(|error| Problem::of(&error, &members.place))?;
    Ok((named, key))
}

fn missing(place: &str, name: &str, gate: &PolicyGate) -> Problem {
    let fix = match spelling::meant(name, gate.names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name one of the policy's that has quotas".to_owned(),
    };
    Problem::new(StatusCode::NOT_FOUND, format!("{place}there is no rule `{}`; {fix}", shortened(name)))
}
