//! One query: a rule, a key and a cost.

use super::body::{JsonMembers, QueryPosition};
use http::StatusCode;
use std::time::Duration;
use tidegate_core::{Decision, Quota, SettingError, suggest};
use tidegate_http_server::{ApiError, truncate};
use tidegate_limiter::{Bucket, Check, Limiter};
use tidegate_policy::compile::{NamedRule, PolicyGate, QuotaKind};
use tidegate_rule::{Mode, Rule, request::KeyValue};

/// One query: a rule, a key and a cost.
pub(super) struct RuleQuery<'a> {
    named: NamedRule<'a>,
    pub(super) mode: Mode,
    cost: u64,
    /// How long the caller accepts to wait for capacity.
    max_wait: Duration,
    key: KeyValue<'a>,
    tier: usize,
}

/// Whether a query charges the quota.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum QueryOp {
    Check,
    Peek,
}

/// The result of a query.
pub(super) enum QueryResult {
    /// A decision from memory; `None` if the rule is off.
    Decided(Option<Decision>),
    /// A remote store has to decide.
    Pending(Bucket),
}

impl<'a> RuleQuery<'a> {
    /// The members of a query that does not charge.
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

    /// The index of the rule in the policy.
    pub(super) fn rule_index(&self) -> usize {
        self.named.index()
    }

    pub(super) fn key(&self) -> &KeyValue<'a> {
        &self.key
    }

    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether the caller accepts a decision with a delay.
    pub(super) fn can_wait(&self) -> bool {
        !self.max_wait.is_zero()
    }

    /// The quota of its rule at this index.
    pub(super) fn quota(&self, index: usize) -> Option<Quota> {
        self.rule().quota_at(index)
    }

    /// The largest part of a final cost that exceeds the reserved one, if the rule limits it.
    pub(super) fn max_debt(&self) -> Option<u64> {
        self.named.source().settle.as_ref()?.max_debt
    }

    /// What the quotas of its rule count: tokens or slots.
    pub(super) fn quota_kind(&self) -> QuotaKind {
        self.named.quota_kind()
    }

    /// Charges the cost without waiting, or peeks. Slots are checked and not acquired.
    pub(super) fn execute(&self, op: QueryOp) -> QueryResult {
        if let Some(limiter) = self.rule().fast_limiter() {
            return QueryResult::Decided(Some(self.execute_in_memory(limiter, op)));
        }
        let Some(limiter) = self.limiter() else { return QueryResult::Decided(None) };
        if limiter.is_in_memory() {
            return QueryResult::Decided(Some(self.execute_in_memory(&limiter, op)));
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

    /// Same as [`execute`](Self::execute), with a remote store.
    pub(super) async fn execute_in_store(&self, bucket: &Bucket, op: QueryOp) -> Decision {
        match op {
            QueryOp::Check => bucket.check(self.cost).await,
            QueryOp::Peek => bucket.peek(self.cost).await,
        }
    }

    /// Returns this query as a check that can be combined with others.
    pub(super) fn to_check(&self) -> Option<Check> {
        let check = self.limiter()?.prepare(&self.key).cost(self.cost).tier(self.tier);
        Some(check.max_wait(self.max_wait))
    }

    /// The limiter of the rule; `None` if the rule is off or has none.
    fn limiter(&self) -> Option<Limiter> {
        self.rule().limiter().filter(|_| self.mode != Mode::Off)
    }
}

/// Returns the rule and the key that a query names.
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
        Some(closest) => format!("did you mean `{closest}`?"),
        None => "use a rule of the policy that has quotas".to_owned(),
    };
    ApiError::new(StatusCode::NOT_FOUND, format!("{position}unknown rule `{}`; {fix}", truncate(name)))
}
