//! The overrides in memory, and the policy that they apply to.

use super::{AppliedOverride, MAX_OVERRIDES, OverrideEdit, OverrideError, StoredIn};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    ops::Bound,
    sync::Arc,
};
use tidegate_core::{Micros, SettingError, Utc};
use tidegate_limiter::Limiter;
use tidegate_observe::{KeyLabel, effective_key_display};
use tidegate_policy::{
    Policy,
    compile::{OverrideStep, PolicyGate},
    overrides::{OverriddenKey, OverrideRecord, override_id},
};

/// The overrides that have not ended, by id.
#[derive(Default)]
pub(super) struct OverrideState {
    pub(super) location: StoredIn,
    records: BTreeMap<u64, Arc<OverrideRecord>>,
    /// The end and the id of each override.
    ends: BTreeSet<(Micros, u64)>,
    /// The last changes, the newest last.
    pub(super) history: VecDeque<Arc<OverrideRecord>>,
    last_change: u64,
    /// The last change that was fetched from the store, with all before it.
    pub(super) fetched_change: u64,
    pub(super) is_store_unavailable: bool,
    active: Option<OverriddenPolicy>,
}

/// The policy that the overrides apply to.
pub(super) struct OverriddenPolicy {
    policy: Policy,
    gate: PolicyGate,
    /// The limiters that have the overrides.
    limiters: HashMap<Arc<str>, Limiter>,
}

/// The change that an operator has read before their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedOverride {
    /// Any, or none.
    Any,
    /// There was no override.
    Absent,
    /// The override of the change with this number.
    Change(u64),
}

/// Which overrides are listed.
pub(crate) struct OverridePage<'a> {
    pub(crate) rule: Option<&'a str>,
    /// Only the override of this key.
    pub(crate) key: Option<&'a str>,
    /// Only those with a larger id.
    pub(crate) after: Option<u64>,
    pub(crate) limit: usize,
}

/// The maximum number of changes in the history.
const MAX_CHANGES: usize = 100;

impl ExpectedOverride {
    /// The number of the expected change, zero if there must be none; `None` if any is accepted.
    pub(super) fn change(self) -> Option<u64> {
        match self {
            Self::Any => None,
            Self::Absent => Some(0),
            Self::Change(change) => Some(change),
        }
    }
}

impl OverriddenPolicy {
    pub(super) fn new(policy: Policy, gate: PolicyGate) -> Self {
        Self { policy, gate, limiters: HashMap::new() }
    }

    /// Why an override has no effect.
    fn obstacle(
        &self,
        rule: &str,
        key: &OverriddenKey,
        record: Option<&OverrideRecord>,
    ) -> Option<SettingError> {
        let Some(named) = self.gate.rule_by_name(rule) else {
            let problem = format!("the policy has no rule `{rule}` with a quota");
            return Some(SettingError::new(problem, "use the name of a rule with a quota"));
        };
        let quota = record?.value.as_ref()?.quota.quota;
        let checked = named.check_override(&self.policy, &quota).map_err(Some);
        let key = key.with_json(|json| named.parse_key(Some(json)).map(drop)).map_err(Some);
        checked.and(key).err().flatten()
    }

    /// The key as operators see it.
    fn label(&self, rule: &str, key: &OverriddenKey) -> String {
        let is_credential = self.gate.has_credential(rule);
        let shown = effective_key_display(self.policy.observe.keys, is_credential);
        match key.text.is_empty() {
            true => "all".to_owned(),
            false => KeyLabel::new(shown, rule, &key.text).text(),
        }
    }
}

impl OverrideState {
    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Forgets all overrides of the previous location.
    pub(super) fn relocate(&mut self, location: StoredIn) {
        self.uninstall_all();
        let mut active = self.active.take();
        // Its limiters need the overrides of the next location.
        active.iter_mut().for_each(|active| active.limiters.clear());
        *self = Self { location, active, ..Self::default() };
    }

    /// Replays the changes of a file.
    pub(super) fn load(&mut self, records: Vec<OverrideRecord>, now: Micros) {
        for record in records {
            self.insert(Arc::new(record));
        }
        let ended: Vec<_> = self.ends.range(..=(now, u64::MAX)).copied().collect();
        for end in ended {
            self.ends.remove(&end);
            self.records.remove(&end.1);
        }
    }

    /// Puts the overrides in force in the limiters of a policy that do not have them yet.
    pub(super) fn activate(&mut self, mut next: OverriddenPolicy) {
        let before = self.active.take().map(|active| active.limiters).unwrap_or_default();
        let mut missing = HashSet::new();
        for rule in next.gate.views() {
            let Some(limiter) = rule.limiter().filter(Limiter::is_overridable) else { continue };
            if !before.get(rule.name()).is_some_and(|known| known.is_same(&limiter)) {
                missing.insert(rule.name());
            }
            next.limiters.insert(rule.name().into(), limiter);
        }
        let records = self.records.values().filter(|record| missing.contains(&*record.rule));
        next.gate.install_overrides(records.map(|record| (&**record, OverrideStep::Apply)));
        drop(missing);
        self.active = Some(next);
    }

    /// The record of a change that may be made. Changes nothing.
    pub(super) fn plan(&self, edit: &OverrideEdit, now: Micros) -> Result<OverrideRecord, OverrideError> {
        let active = self.active.as_ref().ok_or(OverrideError::Stopped)?;
        let record = OverrideRecord {
            change: self.last_change + 1,
            time: now,
            author: edit.author.clone(),
            rule: edit.rule.clone(),
            key: edit.key.clone(),
            value: edit.value.clone(),
        };
        let current = self.current(record.id(), now);
        let is_expected = match edit.expected.change() {
            None => true,
            Some(expected) => expected == current.map_or(0, |current| current.change),
        };
        if !is_expected {
            return Err(self.conflict(edit, current));
        }
        if record.value.is_none() {
            return if current.is_some() { Ok(record) } else { Err(OverrideError::NotFound) };
        }
        if let Some(obstacle) = active.obstacle(&record.rule, &record.key, Some(&record)) {
            return Err(OverrideError::Rejected(obstacle));
        }
        if current.is_none() && self.records.len() >= MAX_OVERRIDES {
            return Err(OverrideError::Full);
        }
        Ok(record)
    }

    /// The error of a change after another one that its author has not read.
    pub(super) fn conflict(&self, edit: &OverrideEdit, current: Option<&OverrideRecord>) -> OverrideError {
        let id = override_id(&edit.rule, &edit.key.text);
        let removed = self.history.iter().rev().find(|record| record.id() == id && record.value.is_none());
        let text = match (current, removed) {
            (Some(OverrideRecord { change, time, author, value: Some(value), .. }), _) => format!(
                "{author} has set it to {} until {} at {} (change {change}); read it again",
                value.quota.text,
                Utc::from(value.until),
                Utc::from(*time),
            ),
            (_, Some(removed)) => format!(
                "{} has removed it at {} (change {}); read it again",
                removed.author,
                Utc::from(removed.time),
                removed.change
            ),
            _ => "there is no override of this key; read it again".to_owned(),
        };
        OverrideError::Conflict(text)
    }

    /// Applies a change that is in the file or the store.
    pub(super) fn confirm(&mut self, record: &Arc<OverrideRecord>, now: Micros) -> AppliedOverride {
        let before = self.current(record.id(), now).cloned();
        let replaced = before.map_or(Value::Null, |before| self.to_json(&before, now));
        self.insert(record.clone());
        if let Some(active) = &self.active {
            active.gate.install_overrides([(&**record, OverrideStep::Apply)].into_iter());
        }
        AppliedOverride { json: self.to_json(record, now), replaced }
    }

    /// Applies changes of other gateways: newer ones of the same key stay.
    pub(super) fn merge(
        &mut self,
        mut records: Vec<Arc<OverrideRecord>>,
        is_complete_set: bool,
        now: Micros,
    ) {
        records.sort_by_key(|record| record.change);
        if is_complete_set {
            self.uninstall_all();
            self.records.clear();
            self.ends.clear();
        }
        records.retain(|record| {
            let known = self.records.get(&record.id()).map_or(0, |known| known.change);
            let has_ended = record.value.as_ref().is_some_and(|value| value.until <= now);
            record.change > known && !has_ended
        });
        for record in &records {
            self.insert(record.clone());
        }
        if let Some(active) = &self.active {
            active.gate.install_overrides(records.iter().map(|record| (&**record, OverrideStep::Apply)));
        }
    }

    /// Removes what has ended, and returns its number.
    pub(super) fn remove_ended(&mut self, now: Micros) -> usize {
        let ended: Vec<_> = self.ends.range(..=(now, u64::MAX)).copied().collect();
        let mut removed = Vec::with_capacity(ended.len());
        for end in ended {
            self.ends.remove(&end);
            removed.extend(self.records.remove(&end.1));
        }
        if let Some(active) = self.active.as_ref().filter(|_| !removed.is_empty()) {
            active.gate.install_overrides(removed.iter().map(|record| (&**record, OverrideStep::Remove)));
        }
        removed.len()
    }

    /// The changes that a file needs: those of overrides, and the last ones.
    pub(super) fn needed(&self) -> Vec<Arc<OverrideRecord>> {
        let mut needed: Vec<_> = self.records.values().chain(&self.history).cloned().collect();
        needed.sort_by_key(|record| record.change);
        needed.dedup_by_key(|record| record.change);
        needed
    }

    fn insert(&mut self, record: Arc<OverrideRecord>) {
        let id = record.id();
        self.last_change = self.last_change.max(record.change);
        self.history.push_back(record.clone());
        if self.history.len() > MAX_CHANGES {
            self.history.pop_front();
        }
        let until = record.value.as_ref().map(|value| value.until);
        let replaced = match until {
            Some(_) => self.records.insert(id, record),
            None => self.records.remove(&id),
        };
        if let Some(value) = replaced.as_ref().and_then(|replaced| replaced.value.as_ref()) {
            self.ends.remove(&(value.until, id));
        }
        self.ends.extend(until.map(|until| (until, id)));
    }

    fn uninstall_all(&self) {
        if let Some(active) = &self.active {
            active
                .gate
                .install_overrides(self.records.values().map(|record| (&**record, OverrideStep::Remove)));
        }
    }

    fn current(&self, id: u64, now: Micros) -> Option<&OverrideRecord> {
        let record = self.records.get(&id)?;
        record.value.as_ref().is_some_and(|value| value.until > now).then_some(&**record)
    }

    pub(super) fn find(&self, id: u64, now: Micros) -> Option<(Arc<str>, OverriddenKey)> {
        self.current(id, now).map(|record| (record.rule.clone(), record.key.clone()))
    }

    /// A page of overrides in the order of their ids.
    pub(super) fn page(&self, page: &OverridePage<'_>, now: Micros) -> Value {
        let OverridePage { rule, key, after, limit } = page;
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let only = key.map(|key| override_id(rule.unwrap_or_default(), key));
        let is_listed = |record: &&Arc<OverrideRecord>| {
            rule.is_none_or(|rule| rule == &*record.rule)
                && record.value.as_ref().is_some_and(|value| value.until > now)
        };
        let listed: Vec<_> = match only {
            Some(id) => self.records.get(&id).filter(is_listed).into_iter().collect(),
            None => {
                let all = self.records.range((start, Bound::Unbounded)).map(|(_, record)| record);
                all.filter(is_listed).take(limit + 1).collect()
            }
        };
        let next =
            (listed.len() > *limit).then(|| listed.get(limit - 1).map(|record| format_id(record.id())));
        let location = match self.location {
            StoredIn::Nowhere => Value::Null,
            StoredIn::File(_) => json!("file"),
            StoredIn::Store(_) => json!("store"),
        };
        let mut shown: Vec<_> = listed.into_iter().take(*limit).collect();
        if next.is_none() && after.is_none() {
            shown.sort_by(|a, b| (&a.rule, &a.key.text).cmp(&(&b.rule, &b.key.text)));
        }
        json!({
            "overrides": shown.iter().map(|record| self.to_json(record, now)).collect::<Vec<_>>(),
            "total": self.records.len(),
            "next": next.flatten(),
            "stored-in": location,
        })
    }

    /// These changes, as they are listed.
    pub(super) fn changes_json<'a>(&self, records: impl Iterator<Item = &'a OverrideRecord>) -> Value {
        let listed = records.map(|record| {
            let mut json = self.to_json(record, record.time);
            json.as_object_mut().map(|members| (members.remove("remaining"), members.remove("obstacle")));
            json
        });
        json!({ "changes": listed.collect::<Vec<_>>() })
    }

    fn to_json(&self, record: &OverrideRecord, now: Micros) -> Value {
        let value = record.value.as_ref();
        let active = self.active.as_ref();
        json!({
            "id": format_id(record.id()),
            "rule": &*record.rule,
            "key": active.map(|active| active.label(&record.rule, &record.key)),
            "quota": value.map(|value| &*value.quota.text),
            "until": value.map(|value| Utc::from(value.until).to_string()),
            "remaining": value.map(|value| value.until.saturating_sub(now).get() as f64 / 1e6),
            "reason": value.and_then(|value| value.reason.as_deref()),
            "by": &*record.author,
            "time": Utc::from(record.time).to_string(),
            "change": record.change,
            "obstacle": active
                .and_then(|active| active.obstacle(&record.rule, &record.key, Some(record)))
                .map(|error| error.problem().to_owned()),
        })
    }
}

/// The id of an override in the API.
pub(crate) fn format_id(id: u64) -> String {
    format!("o-{id:016x}")
}
