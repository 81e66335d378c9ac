//! What is asked of one rule.

use super::body::{JsonMembers, QueryPosition};
use http::StatusCode;
use std::time::Duration;
use tidegate_core::{Decision, Quota, SettingError, suggest};
use tidegate_http_server::{ApiError, truncate};
use tidegate_limiter::{Bucket, Check, Limiter};
use tidegate_policy::compile::{NamedRule, PolicyGate, QuotaKind};
use tidegate_rule::{Mode, Rule, request::KeyValue};

/// What is asked of one rule.
pub(super) struct RuleQuery<'a> {
    named: NamedRule<'a>,
    pub(super) mode: Mode,
    cost: u64,
    /// How long whoever asks would wait for its turn.
    max_wait: Duration,
    key: KeyValue<'a>,
    tier: usize,
}

/// Whether anything is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryOp {
    Check,
    Peek,
}

/// What comes of a question.
pub(super) enum QueryResult {
    /// This was decided; nothing, where there was nothing to be asked.
    Decided(Option<Decision>),
    /// A store has to be asked.
    Pending(Bucket),
}

impl<'a> RuleQuery<'a> {
    /// The members that say it, where nothing is taken.
    pub(super) const MEMBERS: [&'static str; 4] = ["rule", "key", "cost", "tier"];

    pub(super) fn parse(members: &'a JsonMembers<'_>, gate: &'a PolicyGate) -> Result<Self, ApiError> {
        let (named, key) = find_rule(members, gate)?;
        let tier = named.tier_index(members.optional_text("tier")?);
        let tier = tier.map_err(|error| invalid_value(&error, members.position))?;
        let (cost, max_wait) = (members.cost(Some(1))?, members.max_wait()?);
        Ok(Self { mode: named.mode_for(&key), cost, max_wait, key, tier, named })
    }

    pub(super) fn rule(&self) -> &'a Rule {
        self.named.rule()
    }

    /// Where the rule is in the policy.
    pub(super) fn rule_index(&self) -> usize {
        self.named.index()
    }

    pub(super) fn key(&self) -> &KeyValue<'a> {
        &self.key
    }

    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether it may be answered with a time to wait.
    pub(super) fn can_wait(&self) -> bool {
        !self.max_wait.is_zero()
    }

    /// The quota of its rule at this place.
    pub(super) fn quota(&self, index: usize) -> Option<Quota> {
        self.rule().quotas().get(index).copied()
    }

    /// What the quotas of its rule are of.
    pub(super) fn quota_kind(&self) -> QuotaKind {
        self.named.quota_kind()
    }

    /// Takes its cost, now or not at all, or looks. A slot is looked at, and not held.
    pub(super) fn execute(&self, touch: QueryOp) -> QueryResult {
        if let Some(limiter) = self.rule().fast_limiter() {
            return QueryResult::Decided(Some(self.execute_in_memory(limiter, touch)));
        }
        let Some(limiter) = self.limiter() else { return QueryResult::Decided(None) };
        if limiter.is_in_memory() {
            return QueryResult::Decided(Some(self.execute_in_memory(&limiter, touch)));
        }
        let bucket = limiter.key(&self.key);
        QueryResult::Pending(bucket.clone().tier(self.tier).unwrap_or(bucket))
    }

    fn execute_in_memory(&self, limiter: &Limiter, op: QueryOp) -> Decision {
        let bucket = limiter.blocking().key(&self.key);
        let bucket = bucket.tier(self.tier).unwrap_or(bucket);
        match op {
            QueryOp::Check => bucket.check(self.cost),
            QueryOp::Peek => bucket.peek(self.cost),
        }
    }

    /// The same, where a store has to be asked.
    pub(super) async fn execute_in_store(&self, bucket: &Bucket, op: QueryOp) -> Decision {
        match op {
            QueryOp::Check => bucket.check(self.cost).await,
            QueryOp::Peek => bucket.peek(self.cost).await,
        }
    }

    /// It as one of several that are decided together.
    pub(super) fn to_check(&self) -> Option<Check> {
        let check = self.limiter()?.prepare(&self.key).cost(self.cost).tier(self.tier);
        Some(check.max_wait(self.max_wait))
    }

    /// Where it is counted; `None` if nothing is to be asked.
    fn limiter(&self) -> Option<Limiter> {
        self.rule().limiter().filter(|_| self.mode != Mode::Off)
    }
}

/// The rule that is named, and the key.
pub(super) fn find_rule<'a>(
    members: &'a JsonMembers<'_>,
    gate: &'a PolicyGate,
) -> Result<(NamedRule<'a>, KeyValue<'a>), ApiError> {
    let name = members.text("rule")?;
    let named = gate.rule_by_name(name).ok_or_else(|| unknown_rule(members.position, name, gate))?;
    let key = named.parse_key(members.get("key")).map_err(|error| invalid_value(&error, members.position))?;
    Ok((named, key))
}

fn invalid_value(error: &SettingError, position: QueryPosition) -> ApiError {
    ApiError::bad_request(format!("{position}{error}"))
}

fn unknown_rule(position: QueryPosition, name: &str, gate: &PolicyGate) -> ApiError {
    let fix = match suggest::closest(name, gate.rule_names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name one of the policy's that has quotas".to_owned(),
    };
    ApiError::new(StatusCode::NOT_FOUND, format!("{position}there is no rule `{}`; {fix}", truncate(name)))
}
