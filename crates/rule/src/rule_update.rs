//! What settings mean for a rule: worked out before anything is changed, so that nothing is half done.

use crate::{
    metered_store::{MeteredStore, StoreStatus},
    notice::Notice,
    rule::SharedRule,
    rule_config::RuleConfig,
    rule_state::{MemoryBounds, RuleState},
    settings::{RuleSettings, Settings, SettingsError, StoreAddress, looks_like_address},
};
use std::{collections::BTreeMap, error, sync::Arc, time::Duration};
use tidegate_core::{CarryOver, Quota, SettingError};
use tidegate_limiter::{
    BuildError, Capacity, Clock, FailureMode, Limiter, Store, StoreError,
    background::{self, BackgroundStore},
    store::{QuotaSelection, RuntimeAffinity},
};

/// Makes a store of what settings say of it. It is called within a runtime that outlives everything, and must not wait: a
/// store that is not there yet is one that is away.
pub type ConnectStore =
    fn(&StoreConnection<'_>) -> Result<Arc<dyn Store>, Box<dyn error::Error + Send + Sync>>;

/// What settings say of a store.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct StoreConnection<'a> {
    /// Where it is. May hold a password.
    pub url: &'a str,
    /// What its keys start with.
    pub prefix: Option<&'a str>,
    /// How long it may take to decide.
    pub deadline: Option<Duration>,
}

/// The stores that settings name.
#[derive(Clone, Default)]
pub(crate) struct StoreRegistry {
    /// By name; the default one has none. What is in memory is not here.
    named: BTreeMap<Option<String>, Arc<dyn Store>>,
    connected: BTreeMap<ConnectionKey, Arc<MeteredStore>>,
    /// Those of the named ones that were connected here.
    metered: BTreeMap<Option<String>, Arc<MeteredStore>>,
    /// Those that the next settings are going to name.
    prepared: BTreeMap<ConnectionKey, Arc<MeteredStore>>,
}

/// How long a store that settings name anew may take until it can be asked.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// What a connection depends on: as long as this stays, so does the connection.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionKey {
    url: String,
    prefix: Option<String>,
    deadline: Option<Duration>,
}

impl StoreRegistry {
    /// Those of new settings, with the connections that there are.
    pub(crate) fn with_settings(
        &self,
        settings: &Settings,
        connect: Option<ConnectStore>,
    ) -> Result<Self, SettingsError> {
        let mut stores = Self::default();
        let default = settings.store.iter().map(|address| (None, address));
        let named = settings.stores.iter().map(|(name, address)| (Some(name.clone()), address));
        for (name, address) in default.chain(named) {
            let store = match address {
                StoreAddress::Memory => continue,
                StoreAddress::Instance(store) => store.clone(),
                StoreAddress::Url(url) => {
                    let (prefix, deadline) = (settings.prefix.clone(), settings.deadline);
                    let line = ConnectionKey { url: url.clone(), prefix, deadline };
                    let known = stores.connected.get(&line).or_else(|| self.connected.get(&line));
                    let known = known.or_else(|| self.prepared.get(&line)).cloned();
                    let store = match known {
                        Some(store) => store,
                        None => line.connect(&name, connect)?,
                    };
                    stores.connected.insert(line, store.clone());
                    stores.metered.insert(name.clone(), store.clone());
                    store
                }
            };
            stores.named.insert(name, store);
        }
        for (rule, its) in &settings.rules {
            if let Some(store) = its.store.as_ref().filter(|store| !settings.stores.contains_key(*store)) {
                let known = settings.stores.keys().cloned().collect();
                // Not to be told if it is an address instead of a name.
                let store = if looks_like_address(store) { "…" } else { store };
                return Err(SettingsError::UnknownStore {
                    rule: rule.clone(),
                    store: store.to_owned(),
                    known,
                });
            }
        }
        Ok(stores)
    }

    /// Waits until those can be asked that are not among `before`.
    pub(crate) async fn wait_ready(&self, before: &Self) -> Result<(), SettingsError> {
        let is_known = |store: &Arc<MeteredStore>| {
            before.connected.values().chain(before.prepared.values()).any(|known| Arc::ptr_eq(known, store))
        };
        for (name, store) in self.metered.iter().filter(|(_, store)| !is_known(store)) {
            let ready = tokio::time::timeout(READY_TIMEOUT, store.ready()).await;
            if let Err(error) = ready.unwrap_or(Err(StoreError::Timeout)) {
                return Err(SettingsError::Store { name: name.clone(), error: error.into() });
            }
        }
        Ok(())
    }

    /// Keeps the connections of stores that the next settings name.
    pub(crate) fn prepare(&mut self, next: Self) {
        self.prepared = next.connected;
    }

    /// How those are that were connected here.
    pub(crate) fn statuses(&self) -> Vec<StoreStatus> {
        self.metered.iter().map(|(name, store)| store.status(name.as_deref())).collect()
    }
}

impl ConnectionKey {
    fn connect(
        &self,
        name: &Option<String>,
        connect: Option<ConnectStore>,
    ) -> Result<Arc<MeteredStore>, SettingsError> {
        let connect = connect.ok_or(SettingsError::NoConnector)?;
        let connection =
            StoreConnection { url: &self.url, prefix: self.prefix.as_deref(), deadline: self.deadline };
        let no_thread = || Err("this machine has no thread to give for it".into());
        let store = background::enter(|| connect(&connection)).unwrap_or_else(no_thread);
        let measured = |store| Ok(Arc::new(MeteredStore::new(store, Clock::system())));
        match store {
            Ok(store) if store.runtime_affinity() == RuntimeAffinity::AnyRuntime => measured(store),
            Ok(store) => measured(Arc::new(BackgroundStore(store))),
            Err(error) => Err(SettingsError::Store { name: name.clone(), error }),
        }
    }
}

/// Whether an address can be one of a store.
pub(crate) fn check_address(url: &str, connect: Option<ConnectStore>) -> Result<(), SettingsError> {
    ConnectionKey { url: url.to_owned(), prefix: None, deadline: None }.connect(&None, connect).map(drop)
}

/// What is to become of a rule.
pub(crate) struct RuleUpdate {
    state: RuleState,
    /// The quotas that the limiter it has in memory is to take over.
    new_quotas: Option<Vec<Quota>>,
    /// The limiter that is replaced by another one in the same place.
    replaced: Option<Limiter>,
    /// What becomes then of what was counted.
    carry_over: CarryOver,
    unknown_store: Option<String>,
}

impl RuleUpdate {
    /// What settings mean for a rule that has so far been under `now`.
    pub(crate) fn new(
        name: &str,
        declared: &RuleConfig,
        settings: &Settings,
        stores: &StoreRegistry,
        now: Option<&RuleState>,
    ) -> Result<Self, SettingsError> {
        let none = RuleSettings::new();
        let its = settings.rules.get(name).unwrap_or(&none);
        if let Some((key, error)) = check_settings(declared, its) {
            return Err(SettingsError::InvalidRule { rule: name.to_owned(), key, error });
        }
        let declared = &RuleConfig {
            capacity: its.capacity.or(declared.capacity),
            overflow: its.overflow.unwrap_or(declared.overflow),
            carry_over: its.carry_over.unwrap_or(declared.carry_over),
            ..declared.clone()
        };
        let quotas = if its.quotas.is_empty() { &declared.quotas } else { &its.quotas };
        let mut plan = Self {
            state: RuleState {
                mode: its.mode.or(settings.mode).unwrap_or(declared.mode),
                wait: its.wait.unwrap_or(declared.wait),
                message: its.message.clone().or_else(|| declared.message.clone()),
                outage: its.outage.or(settings.outage).unwrap_or_default(),
                concurrency: concurrency_quotas(quotas),
                memory: MemoryBounds { capacity: declared.capacity, overflow: declared.overflow },
                breaker: its.breaker.clone(),
                limiter: None,
            },
            new_quotas: None,
            replaced: None,
            carry_over: declared.carry_over,
            unknown_store: None,
        };
        if quotas.is_empty() || declared.is_breaker {
            return Ok(plan);
        }
        let StoreLookup { store, unknown_store: stray } = find_store(declared, its, settings, stores);
        plan.unknown_store = stray;
        if !plan.try_keep(now, store, quotas) {
            let now = now.and_then(|now| now.limiter.as_ref()).filter(|limiter| limiter.uses_store(store));
            // Without another quota there is nothing to be forgotten.
            let is_kept = |now: &&Limiter| {
                declared.carry_over == CarryOver::Keep || quotas.iter().copied().eq(now.quotas())
            };
            plan.replaced = now.filter(is_kept).cloned();
            let old = plan.replaced.as_ref();
            let built = build_limiter(name, declared, quotas, settings, plan.state.outage, store, old);
            let limiter = built.map_err(|error| SettingsError::Rule { rule: name.to_owned(), error })?;
            plan.state.limiter = Some(limiter);
        }
        Ok(plan)
    }

    /// Stays with the limiter that the rule has, if it can be what it is to be. A new one in the same store is as good: what
    /// is counted there stays there, whoever asks for it.
    fn try_keep(
        &mut self,
        now: Option<&RuleState>,
        store: Option<&Arc<dyn Store>>,
        quotas: &[Quota],
    ) -> bool {
        let Some(now) = now else { return false };
        let Some(limiter) = now.limiter.as_ref().filter(|limiter| limiter.uses_store(store)) else {
            return false;
        };
        if now.memory != self.state.memory {
            return false;
        }
        if !is_same(limiter, store, quotas, &self.state, now) {
            if !limiter.is_in_memory() || limiter.can_change_all(quotas).is_err() {
                return false;
            }
            self.new_quotas = Some(quotas.to_vec());
        }
        self.state.limiter = Some(limiter.clone());
        true
    }

    /// The store that code names and settings do not know, so that the default one is used.
    pub(crate) fn unknown_store(&self) -> Option<&str> {
        self.unknown_store.as_deref()
    }

    /// Whether it stays with the limiter that a rule has now, or would find everything in the store where that has left it.
    pub(crate) fn can_keep(&self, now: &RuleState) -> bool {
        match (&self.state.limiter, &now.limiter) {
            (Some(next), Some(now)) => next.is_same(now) || !next.is_in_memory(),
            (next, _) => next.is_none(),
        }
    }

    /// What a rule of its own is made of. It takes over what the limiter counted that it replaces.
    pub(crate) fn into_state(self) -> RuleState {
        self.take_over();
        self.state
    }

    fn take_over(&self) {
        if let (Some(old), Some(new)) = (&self.replaced, &self.state.limiter) {
            new.take_over(old);
        }
    }

    /// Makes it so. What could fail has been tried.
    pub(crate) fn apply(self, live: &SharedRule) -> Option<Notice> {
        let changed = match (&self.new_quotas, &self.state.limiter) {
            (Some(quotas), Some(limiter)) => {
                // Ahead of the change, which may take a while: the headers of whoever it admits name its quotas.
                live.set_policy_fields(quotas);
                limiter.change_all(quotas, self.carry_over)
            }
            _ => Ok(()),
        };
        self.take_over();
        live.set_state(self.state);
        changed.err().map(|error| Notice::ConcurrentChange { rule: live.name().clone(), error })
    }
}

/// Where a rule is counted: in this store, or in memory.
fn find_store<'a>(
    declared: &RuleConfig,
    its: &RuleSettings,
    settings: &Settings,
    stores: &'a StoreRegistry,
) -> StoreLookup<'a> {
    let name = its.store.as_deref().or(declared.store.as_deref());
    let is_known = name.is_none_or(|name| settings.stores.contains_key(name));
    let found = name.filter(|_| is_known).map(str::to_owned);
    StoreLookup {
        store: stores.named.get(&found),
        unknown_store: name.filter(|_| !is_known).map(str::to_owned),
    }
}

struct StoreLookup<'a> {
    store: Option<&'a Arc<dyn Store>>,
    /// The name of a store that there is none of.
    unknown_store: Option<String>,
}

/// Whether a limiter already is what it is to be.
fn is_same(
    limiter: &Limiter,
    store: Option<&Arc<dyn Store>>,
    quotas: &[Quota],
    next: &RuleState,
    now: &RuleState,
) -> bool {
    let adapted = quotas.iter().map(|quota| store.map_or(*quota, |store| store.effective_quota(*quota)));
    adapted.eq(limiter.quotas()) && (store.is_none() || now.outage == next.outage)
}

fn build_limiter(
    name: &str,
    declared: &RuleConfig,
    quotas: &[Quota],
    settings: &Settings,
    outage: FailureMode,
    store: Option<&Arc<dyn Store>>,
    replaced: Option<&Limiter>,
) -> Result<Limiter, BuildError> {
    let mut builder = Limiter::builder().name(name).failure_mode(outage).carry_over(declared.carry_over);
    if let Some(old) = replaced {
        builder = builder.predecessor(old);
    }
    if let Some(clock) = &settings.clock {
        builder = builder.clock(clock.clone());
    }
    if let Some(capacity) = declared.capacity.or(declared.memory.map(Capacity::Bytes)) {
        builder = builder.capacity(capacity);
    }
    let rule: Arc<str> = name.into();
    builder = builder.overflow(declared.overflow).on_full(move |size| {
        let notice = Notice::TableFull { rule: rule.clone(), size };
        background::spawn(async move { notice.log() });
    });
    if let Some(places) = declared.max_waiters {
        builder = builder.max_waiters(places);
    }
    if let Some(store) = store {
        builder = builder.shared_store(store.clone());
    }
    match declared.selection {
        QuotaSelection::All => builder.build_all(quotas),
        QuotaSelection::Tier => builder.build_tiers(quotas),
    }
}

/// The key of the policy that does not fit a rule as it is declared, and why.
fn check_settings(declared: &RuleConfig, its: &RuleSettings) -> Option<(&'static str, SettingError)> {
    if let Some((key, error)) = &its.unsupported {
        return Some((key, error.clone()));
    }
    if let (Some(wanted), Some(key)) = (its.key, declared.key)
        && !wanted.matches(key)
    {
        let problem =
            format!("the policy counts by `{wanted}`, but the attribute counts {}", key.description());
        let fix = format!("leave `key` out of the policy, or write `key = {wanted}` in the attribute");
        return Some(("key", SettingError::new(problem, fix)));
    }
    let (first, given) = (declared.quotas.first()?, its.quotas.first()?);
    if declared.selection == QuotaSelection::Tier && declared.quotas.len() != its.quotas.len() {
        let (tiers, given) = (declared.quotas.len(), its.quotas.len());
        let problem = format!("{given} quotas for a rule of {tiers} tiers");
        return Some((
            "quotas",
            SettingError::new(problem, "give one for each tier, in the order of the code"),
        ));
    }
    // A caller takes tokens or holds a slot, and cannot do the other.
    let (problem, fix) = match (concurrency_quotas(&declared.quotas), concurrency_quotas(&its.quotas)) {
        (ConcurrencyQuotas::All, ConcurrencyQuotas::None) => (
            format!("`{given}` counts calls, but the rule (`{first}`) counts those in flight"),
            "give a number `at once`",
        ),
        (ConcurrencyQuotas::None, ConcurrencyQuotas::All) => (
            format!("`{given}` counts calls in flight, but the rule (`{first}`) counts calls"),
            "give a rate, such as `10/s`",
        ),
        _ => return None,
    };
    Some(("quota", SettingError::new(problem, fix)))
}

/// Which of some quotas count calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConcurrencyQuotas {
    All,
    Some,
    None,
}

pub(crate) fn concurrency_quotas(quotas: &[Quota]) -> ConcurrencyQuotas {
    let count = quotas.iter().filter(|quota| quota.rate().is_none()).count();
    match count {
        0 => ConcurrencyQuotas::None,
        all if all == quotas.len() => ConcurrencyQuotas::All,
        _ => ConcurrencyQuotas::Some,
    }
}
