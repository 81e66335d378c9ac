//! Overrides: quotas of single keys that operators set at run time, until they end.
//!
//! ```text
//!   operator ──change──▶ file or store ──▶ OverrideState ──▶ limiters of the gate in force
//!                              ▲              │
//!                   other gateways, polled    └─ removed when they end
//! ```
//!
//! A change is confirmed when it is in the file or the store. `docs/decisions/068-overrides.md` explains the design.

mod file;
mod state;

pub(crate) use state::{ExpectedOverride, OverridePage};

use crate::events;
use file::OverrideFile;
use state::{OverriddenPolicy, OverrideState};
use std::{
    io,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tidegate_core::{Micros, SettingError};
use tidegate_http_server::StartupError;
use tidegate_limiter::{
    Clock, Store, StoreError,
    store::{OverrideReply, OverrideRequest},
};
use tidegate_policy::{
    Policy,
    compile::PolicyGate,
    model::OverrideLocation,
    overrides::{OverriddenKey, OverrideInterner, OverrideRecord, OverrideValue},
};
use tidegate_rule::Rules;

/// The overrides of one gateway. They outlive policies.
pub struct KeyOverrides {
    clock: Clock,
    /// Locked for a whole change, and before the state.
    file: Mutex<Option<OverrideFile>>,
    /// Serializes calls of the store, so that an older reply is not applied after a newer one.
    store_calls: tokio::sync::Mutex<()>,
    state: Mutex<OverrideState>,
}

/// Overrides that were read from the file of a policy that is about to be in force.
pub struct OpenedOverrides {
    file: OverrideFile,
    records: Vec<OverrideRecord>,
}

/// Where the overrides are.
#[derive(Clone, Default)]
enum StoredIn {
    #[default]
    Nowhere,
    File(PathBuf),
    Store(Arc<dyn Store>),
}

/// A change of an override, before it has a number.
pub(crate) struct OverrideEdit {
    pub(crate) rule: Arc<str>,
    pub(crate) key: OverriddenKey,
    /// `None` removes the override.
    pub(crate) value: Option<OverrideValue>,
    pub(crate) expected: ExpectedOverride,
    pub(crate) author: Arc<str>,
}

/// The result of a change.
pub(crate) struct AppliedOverride {
    /// The change, as it is listed.
    pub(crate) json: serde_json::Value,
    /// The override before.
    pub(crate) replaced: serde_json::Value,
}

/// Why an override cannot be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum OverrideError {
    #[error("{}; {}", .0.problem(), .0.fix())]
    Rejected(SettingError),
    /// Another operator was faster.
    #[error("{0}")]
    Conflict(String),
    #[error("no such override; it may have ended")]
    NotFound,
    #[error("there are {MAX_OVERRIDES} overrides; remove some, or use tiers")]
    Full,
    #[error("cannot write {}: {source}", .file.display())]
    File { file: PathBuf, source: io::Error },
    #[error("{0}; try again")]
    Store(StoreError),
    #[error("gateway stopped")]
    Stopped,
}

/// The maximum number of overrides. It bounds their memory.
pub(crate) const MAX_OVERRIDES: usize = 1_000_000;
/// A file is rewritten when it has more than twice its needed lines, and this number.
const MIN_REWRITTEN_LINES: usize = 1_000;
/// The number of changes per request to a store.
const PAGE: usize = 1_000;

impl KeyOverrides {
    /// No overrides yet. `clock` is that of the limiters.
    pub fn new(clock: Clock) -> Arc<Self> {
        let store_calls = tokio::sync::Mutex::default();
        Arc::new(Self { clock, file: Mutex::default(), store_calls, state: Mutex::default() })
    }

    /// Reads the overrides of a policy, if it keeps them in another file than the policy in force.
    pub fn open(&self, policy: &Policy) -> Result<Option<OpenedOverrides>, StartupError> {
        let Some(OverrideLocation::File(path)) = &policy.overrides else { return Ok(None) };
        if lock(&self.file).as_ref().is_some_and(|file| file.path() == path) {
            return Ok(None);
        }
        let (file, records) = OverrideFile::open(path)?;
        Ok(Some(OpenedOverrides { file, records }))
    }

    /// Applies the overrides to a policy that is about to be in force. `opened` are those that [`open`](Self::open) has read.
    pub fn activate(
        &self,
        opened: Option<OpenedOverrides>,
        policy: &Policy,
        gate: &PolicyGate,
        rules: &Rules,
    ) {
        let mut file = lock(&self.file);
        let location = match (&policy.overrides, rules.default_store()) {
            (Some(OverrideLocation::File(path)), _) => StoredIn::File(path.clone()),
            (Some(OverrideLocation::Store), Some(store)) => StoredIn::Store(store),
            _ => StoredIn::Nowhere,
        };
        let mut state = lock(&self.state);
        if !location.is_same(&state.location) {
            if !matches!(location, StoredIn::File(_)) {
                *file = None;
            }
            state.relocate(location);
        }
        let now = self.clock.now();
        let mut opened_lines = 0;
        if let Some(OpenedOverrides { file: opened, records }) = opened {
            opened_lines = opened.lines;
            *file = Some(opened);
            state.load(records, now);
        }
        state.activate(OverriddenPolicy::new(policy.clone(), gate.clone()));
        let needed = if opened_lines > 0 { state.needed() } else { Vec::new() };
        drop(state);
        if needed.len() < opened_lines {
            rewrite(&mut file, &needed);
        }
    }

    /// Removes the overrides that have ended; call it about once per second.
    pub fn remove_ended(&self) {
        let removed = lock(&self.state).remove_ended(self.clock.now());
        if removed > 0 {
            events::OverridesEnded { count: removed }.emit();
        }
    }

    /// Fetches the changes of other gateways, if the overrides are in a store; call it about once per second.
    pub async fn fetch_changes(&self) {
        let Some(store) = self.store() else { return };
        let _guard = self.store_calls.lock().await;
        let mut interner = OverrideInterner::default();
        let (mut fetched, mut is_complete_set) = (Vec::new(), false);
        let mut after = lock(&self.state).fetched_change;
        for number in 0.. {
            let request = OverrideRequest::ChangesAfter { change: after, limit: PAGE, is_first: number == 0 };
            let page = match store.overrides(request).await {
                Ok(OverrideReply::Changes(page)) => page,
                Ok(_) => {
                    return self.report_store(Some(&StoreError::ErrorReply("unexpected reply".to_owned())));
                }
                Err(error) => return self.report_store(Some(&error)),
            };
            if page.is_reset {
                fetched.clear();
                is_complete_set = true;
            }
            for line in &page.lines {
                match OverrideRecord::parse(line.as_bytes(), &mut interner) {
                    Ok(record) => fetched.push(Arc::new(record)),
                    Err(problem) => events::OverrideInvalid { problem }.emit(),
                }
            }
            after = page.last;
            if page.last >= page.latest {
                break;
            }
        }
        self.report_store(None);
        let now = self.clock.now();
        let mut state = lock(&self.state);
        if matches!(&state.location, StoredIn::Store(current) if Arc::ptr_eq(current, &store)) {
            state.merge(fetched, is_complete_set, now);
            state.fetched_change = after;
        }
    }

    /// Logs once that the store is unavailable, and once that it is available again.
    fn report_store(&self, error: Option<&StoreError>) {
        let was_unavailable = std::mem::replace(&mut lock(&self.state).is_store_unavailable, error.is_some());
        match error {
            Some(error) if !was_unavailable => events::OverrideStoreUnavailable { error }.emit(),
            None if was_unavailable => events::OverrideStoreRecovered.emit(),
            _ => {}
        }
    }

    fn store(&self) -> Option<Arc<dyn Store>> {
        match &lock(&self.state).location {
            StoredIn::Store(store) => Some(store.clone()),
            _ => None,
        }
    }

    /// Makes a change.
    pub(crate) async fn change(
        self: &Arc<Self>,
        edit: OverrideEdit,
    ) -> Result<AppliedOverride, OverrideError> {
        if let Some(store) = self.store() {
            // A caller that disconnects does not stop the change between the store and this gateway.
            let this = self.clone();
            let changed = tokio::spawn(async move { this.change_in_store(&store, &edit).await });
            return changed.await.unwrap_or(Err(OverrideError::Stopped));
        }
        let this = self.clone();
        let changed = tokio::task::spawn_blocking(move || this.change_in_file(&edit));
        changed.await.unwrap_or(Err(OverrideError::Stopped))
    }

    fn change_in_file(&self, edit: &OverrideEdit) -> Result<AppliedOverride, OverrideError> {
        let mut file = lock(&self.file);
        let now = self.clock.now();
        let record = lock(&self.state).plan(edit, now)?;
        let Some(open) = file.as_mut() else { return Err(OverrideError::Stopped) };
        if let Err(source) = open.append(&record) {
            return Err(OverrideError::File { file: open.path().to_owned(), source });
        }
        let lines = open.lines;
        let mut state = lock(&self.state);
        let applied = state.confirm(&Arc::new(record), now);
        let is_long = lines > 2 * state.len() + MIN_REWRITTEN_LINES;
        let needed = if is_long { state.needed() } else { Vec::new() };
        drop(state);
        if is_long {
            rewrite(&mut file, &needed);
        }
        Ok(applied)
    }

    async fn change_in_store(
        &self,
        store: &Arc<dyn Store>,
        edit: &OverrideEdit,
    ) -> Result<AppliedOverride, OverrideError> {
        let _guard = self.store_calls.lock().await;
        let now = self.clock.now();
        // The store compares: this gateway may not have the last change yet.
        let record = lock(&self.state).plan(&edit.without_expectation(), now)?;
        let request = OverrideRequest::Change {
            id: record.id(),
            expected: edit.expected.change(),
            members: record.to_members(),
            until: record.value.as_ref().map(|value| value.until),
            now,
            max: MAX_OVERRIDES,
        };
        match store.overrides(request).await {
            Ok(OverrideReply::Changed(change)) => {
                let record = Arc::new(OverrideRecord { change, ..record });
                Ok(lock(&self.state).confirm(&record, now))
            }
            Ok(OverrideReply::Conflict(line)) => {
                let current = line.and_then(|line| {
                    OverrideRecord::parse(line.as_bytes(), &mut OverrideInterner::default())
                        .ok()
                        .map(Arc::new)
                });
                let mut state = lock(&self.state);
                state.merge(current.iter().cloned().collect(), false, now);
                Err(state.conflict(edit, current.as_deref()))
            }
            Ok(OverrideReply::Absent) => Err(OverrideError::NotFound),
            Ok(OverrideReply::Full) => Err(OverrideError::Full),
            Ok(_) => Err(OverrideError::Store(StoreError::ErrorReply("unexpected reply".to_owned()))),
            Err(error) => Err(OverrideError::Store(error)),
        }
    }

    /// A page of the overrides.
    pub(crate) fn page(&self, page: &OverridePage<'_>) -> serde_json::Value {
        lock(&self.state).page(page, self.clock.now())
    }

    /// The last changes, the newest first.
    pub(crate) async fn changes(&self) -> Result<serde_json::Value, OverrideError> {
        if let Some(store) = self.store() {
            let lines = match store.overrides(OverrideRequest::History).await {
                Ok(OverrideReply::History(lines)) => lines,
                Ok(_) => return Err(OverrideError::Stopped),
                Err(error) => return Err(OverrideError::Store(error)),
            };
            let mut interner = OverrideInterner::default();
            let records =
                lines.iter().filter_map(|line| OverrideRecord::parse(line.as_bytes(), &mut interner).ok());
            let records: Vec<_> = records.collect();
            return Ok(lock(&self.state).changes_json(records.iter()));
        }
        let state = lock(&self.state);
        Ok(state.changes_json(state.history.iter().rev().map(|record| &**record)))
    }

    /// The rule and the key of an override, by its id.
    pub(crate) fn find(&self, id: u64) -> Option<(Arc<str>, OverriddenKey)> {
        lock(&self.state).find(id, self.clock.now())
    }

    pub(crate) fn now(&self) -> Micros {
        self.clock.now()
    }
}

impl StoredIn {
    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nowhere, Self::Nowhere) => true,
            (Self::File(a), Self::File(b)) => a == b,
            (Self::Store(a), Self::Store(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl OverrideEdit {
    fn without_expectation(&self) -> Self {
        Self {
            rule: self.rule.clone(),
            key: self.key.clone(),
            value: self.value.clone(),
            expected: ExpectedOverride::Any,
            author: self.author.clone(),
        }
    }
}

/// Removes the changes from the file that are no longer needed. An error leaves the file as it is.
fn rewrite(file: &mut Option<OverrideFile>, needed: &[Arc<OverrideRecord>]) {
    if let Some(file) = file
        && let Err(error) = file.rewrite(needed.iter().map(|record| &**record))
    {
        events::OverrideFileNotRewritten { file: file.path(), error: &error }.emit();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
