//! What is asked of one rule.

use super::body::{Members, Place};
use http::StatusCode;
use std::time::Duration;
use tidegate_core::{Decision, Quota, SettingError, suggest};
use tidegate_http_server::{ApiError, shortened};
use tidegate_limiter::{Bucket, Check, Limiter};
use tidegate_policy::compile::{NamedRule, PolicyGate, QuotaKind};
use tidegate_rule::{Mode, Rule, request::KeyValue};

/// What is asked of one rule.
pub(super) struct Question<'a> {
    named: NamedRule<'a>,
    pub(super) mode: Mode,
    cost: u64,
    /// How long whoever asks would wait for its turn.
    patience: Duration,
    key: KeyValue<'a>,
    tier: usize,
}

/// Whether anything is taken.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Touch {
    Take,
    Look,
}

/// What comes of a question.
pub(super) enum Touched {
    /// This was decided; nothing, where there was nothing to be asked.
    Now(Option<Decision>),
    /// A store has to be asked.
    Later(Bucket),
}

impl<'a> Question<'a> {
    /// The members that say it, where nothing is taken.
    pub(super) const MEMBERS: [&'static str; 4] = ["rule", "key", "cost", "tier"];

    pub(super) fn of(members: &'a Members<'_>, gate: &'a PolicyGate) -> Result<Self, ApiError> {
        let (named, key) = addressed(members, gate)?;
        let tier = named.tier_index(members.optional_text("tier")?);
        let tier = tier.map_err(|error| invalid(&error, members.place))?;
        let (cost, patience) = (members.cost(Some(1))?, members.within()?);
        Ok(Self { mode: named.mode_for(&key), cost, patience, key, tier, named })
    }

    pub(super) fn rule(&self) -> &'a Rule {
        self.named.rule()
    }

    /// Where the rule is in the policy.
    pub(super) fn place(&self) -> usize {
        self.named.index()
    }

    pub(super) fn key(&self) -> &KeyValue<'a> {
        &self.key
    }

    pub(super) fn cost(&self) -> u64 {
        self.cost
    }

    /// Whether it may be answered with a time to wait.
    pub(super) fn is_patient(&self) -> bool {
        !self.patience.is_zero()
    }

    /// The quota of its rule at this place.
    pub(super) fn quota(&self, place: usize) -> Option<Quota> {
        self.rule().quotas().get(place).copied()
    }

    /// What the quotas of its rule are of.
    pub(super) fn holds(&self) -> QuotaKind {
        self.named.quota_kind()
    }

    /// Takes its cost, now or not at all, or looks. A slot is looked at, and not held.
    pub(super) fn touch(&self, touch: Touch) -> Touched {
        if let Some(limiter) = self.rule().fast_limiter() {
            return Touched::Now(Some(self.touch_memory(limiter, touch)));
        }
        let Some(limiter) = self.limiter() else { return Touched::Now(None) };
        if limiter.is_in_memory() {
            return Touched::Now(Some(self.touch_memory(&limiter, touch)));
        }
        let bucket = limiter.key(&self.key);
        Touched::Later(bucket.clone().tier(self.tier).unwrap_or(bucket))
    }

    fn touch_memory(&self, limiter: &Limiter, touch: Touch) -> Decision {
        let bucket = limiter.blocking().key(&self.key);
        let bucket = bucket.tier(self.tier).unwrap_or(bucket);
        match touch {
            Touch::Take => bucket.check(self.cost),
            Touch::Look => bucket.peek(self.cost),
        }
    }

    /// The same, where a store has to be asked.
    pub(super) async fn touch_store(&self, bucket: &Bucket, touch: Touch) -> Decision {
        match touch {
            Touch::Take => bucket.check(self.cost).await,
            Touch::Look => bucket.peek(self.cost).await,
        }
    }

    /// It as one of several that are decided together.
    pub(super) fn ask(&self) -> Option<Check> {
        let check = self.limiter()?.prepare(&self.key).cost(self.cost).tier(self.tier);
        Some(check.max_wait(self.patience))
    }

    /// Where it is counted; `None` if nothing is to be asked.
    fn limiter(&self) -> Option<Limiter> {
        self.rule().limiter().filter(|_| self.mode != Mode::Off)
    }
}

/// The rule that is named, and the key.
pub(super) fn addressed<'a>(
    members: &'a Members<'_>,
    gate: &'a PolicyGate,
) -> Result<(NamedRule<'a>, KeyValue<'a>), ApiError> {
    let name = members.text("rule")?;
    let named = gate.rule_by_name(name).ok_or_else(|| missing(members.place, name, gate))?;
    let key = named.parse_key(members.given("key")).map_err(|error| invalid(&error, members.place))?;
    Ok((named, key))
}

fn invalid(error: &SettingError, place: Place) -> ApiError {
    ApiError::bad(format!("{place}{error}"))
}

fn missing(place: Place, name: &str, gate: &PolicyGate) -> ApiError {
    let fix = match suggest::closest(name, gate.rule_names()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "name one of the policy's that has quotas".to_owned(),
    };
    ApiError::new(StatusCode::NOT_FOUND, format!("{place}there is no rule `{}`; {fix}", shortened(name)))
}
