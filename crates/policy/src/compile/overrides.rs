//! Which rules can have overrides: quotas of single keys, until they end.

use super::{NamedRule, PolicyGate, reserved_shares};
use crate::{
    model::{OverrideLocation, Policy, QueueOrder, Quotas, RuleSpec},
    overrides::OverrideRecord,
};
use std::{collections::HashMap, time::Duration};
use tidegate_core::{Quota, SettingError};
use tidegate_limiter::{Limiter, QuotaOverride};

impl Policy {
    /// Whether keys of this rule can have overrides: the policy keeps overrides, and the rule supports them.
    pub fn check_overrides(&self, rule: &RuleSpec) -> Result<(), SettingError> {
        if self.overrides.is_none() {
            let fix = "add `overrides: { file: overrides.jsonl }` or `overrides: store` to the policy";
            return Err(SettingError::new("the policy keeps no overrides", fix));
        }
        rule.check_overridable()
    }
}

impl RuleSpec {
    /// Whether the quotas of this rule can be overridden.
    pub(crate) fn check_overridable(&self) -> Result<(), SettingError> {
        let quotas = match &self.quotas {
            Quotas::Tiers(tiers) => tiers.all_quotas(),
            Quotas::All(quotas) => quotas.clone(),
        };
        let is_ordered =
            self.priority.is_some() && self.queue.as_ref().is_some_and(|it| it.order == QueueOrder::Priority);
        let (problem, fix) = match &self.quotas {
            Quotas::All(all) if all.is_empty() => ("the rule has no quota", "use a rule with a quota"),
            Quotas::All(all) if all.len() > 1 => (
                "the rule has several quotas, and an override would replace only one",
                "move the other quotas to rules of their own",
            ),
            _ if reserved_shares(self).is_some() || is_ordered => (
                "the rule has priorities, which do not support overrides",
                "move the priorities to a rule of their own",
            ),
            _ if quotas.iter().any(Quota::is_concurrency) && self.effective_wait() > Duration::ZERO => (
                "requests of the rule wait for a slot, which does not support overrides",
                "remove `wait` from the rule",
            ),
            _ => return Ok(()),
        };
        Err(SettingError::new(problem, fix))
    }
}

/// Checks that the policy has the store of its overrides.
pub(super) fn check_location(policy: &Policy) -> Result<(), SettingError> {
    let has_store = policy.stores.default.as_ref().is_some_and(|address| address != "memory");
    match &policy.overrides {
        Some(OverrideLocation::Store) if !has_store => {
            let fix = "define one, as in `store: redis://127.0.0.1:6379`, or keep them in a file";
            Err(SettingError::new("the overrides need a `store`, and the policy has none", fix))
        }
        _ => Ok(()),
    }
}

impl NamedRule<'_> {
    /// Whether a key of this rule can have this quota as its override.
    pub fn check_override(&self, policy: &Policy, quota: &Quota) -> Result<(), SettingError> {
        policy.check_overrides(self.source())?;
        match self.rule().limiter() {
            Some(limiter) => limiter.check_override(quota),
            None => Ok(()),
        }
    }
}

/// What happens to an override in the limiter of its rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OverrideStep {
    /// Its change is applied.
    Apply,
    /// It is removed.
    Remove,
}

impl PolicyGate {
    /// Applies changes of overrides to the limiters of their rules. Those that a rule does not support have no effect.
    pub fn install_overrides<'a>(&self, records: impl Iterator<Item = (&'a OverrideRecord, OverrideStep)>) {
        let mut by_rule: HashMap<&str, Vec<_>> = HashMap::new();
        for (record, step) in records {
            by_rule.entry(&*record.rule).or_default().push((record, step));
        }
        for (rule, records) in by_rule {
            let Some(named) = self.rule_by_name(rule) else { continue };
            let Some(limiter) = named.rule().limiter().filter(Limiter::is_overridable) else { continue };
            let changes = records.into_iter().filter_map(|(record, step)| {
                let id = record.key.with_json(|json| {
                    named.parse_key(Some(json)).ok().map(|key| limiter.override_id(&key))
                })?;
                let value = record.value.as_ref().filter(|_| step == OverrideStep::Apply);
                Some((id, value.map(|it| QuotaOverride { quota: it.quota.quota, until: it.until })))
            });
            let _rejected = named.rule().apply_overrides(&changes.collect::<Vec<_>>());
        }
    }
}
