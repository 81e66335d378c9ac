//! Computes the effect of settings on a rule before anything changes, so that an update is atomic.

use crate::{
    metered_store::{MeteredStore, StoreStatus},
    notice::Notice,
    rule::{Rule, SharedRule},
    rule_config::RuleConfig,
    rule_state::{MemoryBounds, RuleState},
    settings::{LoadScale, RuleSettings, Settings, SettingsError, StoreAddress, looks_like_address},
};
use std::{collections::BTreeMap, error, sync::Arc, time::Duration};
use tidegate_core::{CarryOver, Quota, Ratio, SettingError};
use tidegate_limiter::{
    BuildError, Capacity, Clock, Limiter, Store, StoreError,
    background::{self, BackgroundStore},
    store::{QuotaSelection, RuntimeAffinity},
};
use tidegate_overload::{Scaler, load::Scalable as _};

/// Connects a store by its settings. It is called within a runtime that is never dropped, and must not block:
/// a store that is not connected yet counts as unavailable.
pub type ConnectStore =
    fn(&StoreConnection<'_>) -> Result<Arc<dyn Store>, Box<dyn error::Error + Send + Sync>>;

/// The settings of a store connection.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct StoreConnection<'a> {
    /// The address. It may contain a password.
    pub url: &'a str,
    /// The prefix of its keys.
    pub prefix: Option<&'a str>,
    /// The deadline of a decision.
    pub deadline: Option<Duration>,
}

/// The stores named by the settings.
#[derive(Clone, Default)]
pub(crate) struct StoreRegistry {
    /// By name; `None` is the default store. Memory has no entry.
    named: BTreeMap<Option<String>, Arc<dyn Store>>,
    connected: BTreeMap<ConnectionKey, Arc<MeteredStore>>,
    /// The named stores that were connected here.
    metered: BTreeMap<Option<String>, Arc<MeteredStore>>,
    /// The connections of the settings that are applied next.
    prepared: BTreeMap<ConnectionKey, Arc<MeteredStore>>,
}

/// The maximum time until a new store must be ready.
const READY_TIMEOUT: Duration = Duration::from_secs(10);

/// The settings that identify a connection: while they are unchanged, the connection is reused.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ConnectionKey {
    url: String,
    prefix: Option<String>,
    deadline: Option<Duration>,
}

impl StoreRegistry {
    /// Creates the stores of new settings, reusing existing connections.
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
                    let key = ConnectionKey { url: url.clone(), prefix, deadline };
                    let known = stores.connected.get(&key).or_else(|| self.connected.get(&key));
                    let known = known.or_else(|| self.prepared.get(&key)).cloned();
                    let store = match known {
                        Some(store) => store,
                        None => key.connect(&name, connect)?,
                    };
                    stores.connected.insert(key, store.clone());
                    stores.metered.insert(name.clone(), store.clone());
                    store
                }
            };
            stores.named.insert(name, store);
        }
        for (rule, rule_settings) in &settings.rules {
            if let Some(store) =
                rule_settings.store.as_ref().filter(|store| !settings.stores.contains_key(*store))
            {
                let known = settings.stores.keys().cloned().collect();
                // Redacted if it is an address instead of a name.
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

    /// Waits until the stores that are not in `before` are ready.
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

    /// Stores the connections of the settings that are applied next.
    pub(crate) fn prepare(&mut self, next: Self) {
        self.prepared = next.connected;
    }

    /// The default store; `None` if it is memory.
    pub(crate) fn default_store(&self) -> Option<Arc<dyn Store>> {
        self.named.get(&None).cloned()
    }

    /// The statuses of the stores that were connected here.
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
        let no_thread = || Err("cannot start a background thread".into());
        let store = background::enter(|| connect(&connection)).unwrap_or_else(no_thread);
        let measured = |store| Ok(Arc::new(MeteredStore::new(store, Clock::system())));
        match store {
            Ok(store) if store.runtime_affinity() == RuntimeAffinity::AnyRuntime => measured(store),
            Ok(store) => measured(Arc::new(BackgroundStore(store))),
            Err(error) => Err(SettingsError::Store { name: name.clone(), error }),
        }
    }
}

/// Checks whether an address is valid for a store.
pub(crate) fn check_address(url: &str, connect: Option<ConnectStore>) -> Result<(), SettingsError> {
    ConnectionKey { url: url.to_owned(), prefix: None, deadline: None }.connect(&None, connect).map(drop)
}

/// The planned update of a rule.
pub(crate) struct RuleUpdate {
    state: RuleState,
    limiter_change: LimiterChange,
    /// How the quotas follow the load.
    scale: Option<LoadScale>,
    /// The limiter that is replaced by another one in the same store.
    replaced: Option<Limiter>,
    /// Whether usage carries over.
    carry_over: CarryOver,
    unknown_store: Option<String>,
}

/// What happens to the limiter of a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LimiterChange {
    /// The rule uses the same limiter with the same quotas.
    Keep,
    /// The rule uses the same limiter with other quotas.
    Quotas,
    /// The rule gets a new limiter, or has no quotas.
    Replace,
}

impl RuleUpdate {
    /// Plans the update of a rule. Changes nothing.
    pub(crate) fn new(
        name: &str,
        declared: &RuleConfig,
        settings: &Settings,
        stores: &StoreRegistry,
        current: Option<&RuleState>,
    ) -> Result<Self, SettingsError> {
        let none = RuleSettings::new();
        let rule_settings = settings.rules.get(name).unwrap_or(&none);
        if let Some((key, error)) = check_settings(declared, rule_settings) {
            return Err(SettingsError::InvalidRule { rule: name.to_owned(), key, error });
        }
        let declared = &RuleConfig {
            capacity: rule_settings.capacity.or(declared.capacity),
            overflow: rule_settings.overflow.unwrap_or(declared.overflow),
            carry_over: rule_settings.carry_over.unwrap_or(declared.carry_over),
            ..declared.clone()
        };
        let quotas = if rule_settings.quotas.is_empty() { &declared.quotas } else { &rule_settings.quotas };
        let mut update = Self {
            state: RuleState {
                mode: rule_settings.mode.or(settings.mode).unwrap_or(declared.mode),
                wait: rule_settings.wait.unwrap_or(declared.wait),
                message: rule_settings.message.clone().or_else(|| declared.message.clone()),
                failure_mode: rule_settings.failure_mode.or(settings.failure_mode).unwrap_or_default(),
                prefetch: rule_settings.prefetch,
                concurrency: concurrency_quotas(quotas),
                memory: MemoryBounds { capacity: declared.capacity, overflow: declared.overflow },
                breaker: rule_settings.breaker.clone(),
                call_check: rule_settings.call_check.clone(),
                error_rate: match (
                    &rule_settings.while_failing,
                    current.and_then(|now| now.error_rate.as_ref()),
                ) {
                    (Some(next), Some(now)) if now.is_equivalent(next) => Some(now.clone()),
                    (next, _) => next.clone(),
                },
                quotas: Arc::default(),
                limiter: None,
            },
            limiter_change: LimiterChange::Replace,
            scale: None,
            replaced: None,
            carry_over: declared.carry_over,
            unknown_store: None,
        };
        if quotas.is_empty() || declared.is_breaker {
            return Ok(update);
        }
        if let Some(scale) = &rule_settings.scale {
            let factors = [scale.policy.floor(), scale.policy.ceiling()];
            let scaled = factors.map(|factor| Rule::scale(quotas, factor));
            if let Some(error) = scaled.into_iter().find_map(Result::err) {
                return Err(SettingsError::Rule { rule: name.to_owned(), error });
            }
            update.scale = Some(scale.clone());
        }
        let StoreLookup { store, unknown_store } = find_store(declared, rule_settings, settings, stores);
        update.unknown_store = unknown_store;
        let adapt = |quota: &Quota| store.map_or(*quota, |store| store.effective_quota(*quota));
        update.state.quotas = quotas.iter().map(adapt).collect();
        if !update.try_keep(current, store, declared) {
            let current_limiter =
                current.and_then(|now| now.limiter.as_ref()).filter(|limiter| limiter.uses_store(store));
            // With the same quotas the usage carries over anyway.
            let carries_over = declared.carry_over == CarryOver::Keep
                || current.is_some_and(|now| now.quotas == update.state.quotas);
            update.replaced = current_limiter.filter(|_| carries_over).cloned();
            let old = update.replaced.as_ref();
            let built = build_limiter(name, declared, quotas, settings, &update.state, store, old);
            let limiter = built.map_err(|error| SettingsError::Rule { rule: name.to_owned(), error })?;
            update.state.limiter = Some(limiter);
        }
        Ok(update)
    }

    /// Keeps the current limiter if it can be changed accordingly. A new one in the same store is equivalent,
    /// since the counters are in the store.
    fn try_keep(
        &mut self,
        current: Option<&RuleState>,
        store: Option<&Arc<dyn Store>>,
        declared: &RuleConfig,
    ) -> bool {
        let Some(current) = current else { return false };
        let Some(limiter) = current.limiter.as_ref().filter(|limiter| limiter.uses_store(store)) else {
            return false;
        };
        if current.memory != self.state.memory {
            return false;
        }
        let is_overridable = declared.is_overridable
            && (declared.selection == QuotaSelection::Tier || self.state.quotas.len() == 1);
        if limiter.is_overridable() != is_overridable {
            return false;
        }
        // Declared quotas are compared: those of the limiter can be scaled.
        let has_same_quotas = current.quotas == self.state.quotas;
        let is_same_in_store =
            current.failure_mode == self.state.failure_mode && current.prefetch == self.state.prefetch;
        let is_same = has_same_quotas && (store.is_none() || is_same_in_store);
        if !is_same && (!limiter.is_in_memory() || limiter.can_change_all(&self.state.quotas).is_err()) {
            return false;
        }
        self.limiter_change = if has_same_quotas { LimiterChange::Keep } else { LimiterChange::Quotas };
        self.state.limiter = Some(limiter.clone());
        true
    }

    /// The store that code names and the settings do not define, so that the default one is used.
    pub(crate) fn unknown_store(&self) -> Option<&str> {
        self.unknown_store.as_deref()
    }

    /// Whether it keeps the current limiter of a rule, or finds its counters in the store.
    pub(crate) fn can_keep(&self, current: &RuleState) -> bool {
        match (&self.state.limiter, &current.limiter) {
            (Some(next), Some(now)) => next.is_same(now) || !next.is_in_memory(),
            (next, _) => next.is_none(),
        }
    }

    /// The state of a new rule. It takes over the usage of the limiter that it replaces.
    pub(crate) fn into_state(self) -> RuleState {
        self.take_over();
        self.state
    }

    /// Creates the rule. Its quotas follow the load from the factor of an earlier scaler.
    pub(crate) fn into_rule(
        mut self,
        name: Arc<str>,
        declaration: RuleConfig,
        previous: Option<Scaler>,
    ) -> Arc<SharedRule> {
        let scale = self.scale.take();
        let rule = Arc::new(SharedRule::new(name, declaration, self.into_state()));
        rule.start_scaling(scale.as_ref(), previous);
        rule
    }

    fn take_over(&self) {
        if let (Some(old), Some(new)) = (&self.replaced, &self.state.limiter) {
            new.take_over(old);
        }
    }

    /// Applies the update. Everything that can fail was checked before.
    pub(crate) fn apply(mut self, rule: &SharedRule) -> Option<Notice> {
        let (previous, scale) = (rule.stop_scaling(), self.scale.take());
        let changed = self.change_limiter(rule, previous, scale.as_ref());
        self.take_over();
        rule.set_state(self.state);
        rule.start_scaling(scale.as_ref(), previous);
        changed.err().map(|error| Notice::ConcurrentChange { rule: rule.name().clone(), error })
    }

    /// Sets the quotas of the limiter, scaled as before: at no time do the declared ones apply.
    fn change_limiter(
        &self,
        rule: &SharedRule,
        previous: Option<Scaler>,
        scale: Option<&LoadScale>,
    ) -> Result<(), BuildError> {
        let Some(limiter) = &self.state.limiter else { return Ok(()) };
        // Something else may scale the quotas.
        if self.limiter_change == LimiterChange::Keep && previous.is_none() {
            return Ok(());
        }
        let resumed =
            scale.zip(previous).map(|(scale, previous)| Scaler::new(scale.policy).resume(&previous));
        let factor = resumed.map_or(Ratio::ONE, |scaler| scaler.factor());
        let quotas = Rule::scale(&self.state.quotas.to_vec(), factor)?;
        if quotas == limiter.quotas() {
            return Ok(());
        }
        if self.limiter_change != LimiterChange::Replace {
            // Before the change, which may take a while: responses to requests that it admits show the new quotas.
            rule.set_policy_fields(&quotas);
        }
        let how = match self.limiter_change {
            LimiterChange::Keep => CarryOver::Keep,
            LimiterChange::Quotas | LimiterChange::Replace => self.carry_over,
        };
        limiter.change_all(&quotas, how)
    }
}

/// The store of a rule, or memory.
fn find_store<'a>(
    declared: &RuleConfig,
    rule_settings: &RuleSettings,
    settings: &Settings,
    stores: &'a StoreRegistry,
) -> StoreLookup<'a> {
    let name = rule_settings.store.as_deref().or(declared.store.as_deref());
    let is_known = name.is_none_or(|name| settings.stores.contains_key(name));
    let found = name.filter(|_| is_known).map(str::to_owned);
    StoreLookup {
        store: stores.named.get(&found),
        unknown_store: name.filter(|_| !is_known).map(str::to_owned),
    }
}

struct StoreLookup<'a> {
    store: Option<&'a Arc<dyn Store>>,
    /// A store name that the settings do not define.
    unknown_store: Option<String>,
}

fn build_limiter(
    name: &str,
    declared: &RuleConfig,
    quotas: &[Quota],
    settings: &Settings,
    state: &RuleState,
    store: Option<&Arc<dyn Store>>,
    replaced: Option<&Limiter>,
) -> Result<Limiter, BuildError> {
    let mut builder =
        Limiter::builder().name(name).failure_mode(state.failure_mode).carry_over(declared.carry_over);
    if let Some(prefetch) = state.prefetch {
        builder = builder.prefetch(prefetch);
    }
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
    if declared.is_overridable {
        builder = builder.overridable();
    }
    match declared.selection {
        QuotaSelection::All => builder.build_all(quotas),
        QuotaSelection::Tier => builder.build_tiers(quotas),
    }
}

/// The policy key that is incompatible with the declaration of a rule, and why.
fn check_settings(
    declared: &RuleConfig,
    rule_settings: &RuleSettings,
) -> Option<(&'static str, SettingError)> {
    if let Some((key, error)) = &rule_settings.unsupported {
        return Some((key, error.clone()));
    }
    if let (Some(key), Some(declared_key)) = (rule_settings.key, declared.key)
        && !key.matches(declared_key)
    {
        let problem =
            format!("the policy counts by `{key}`, but the attribute counts {}", declared_key.description());
        let fix = format!("leave `key` out of the policy, or write `key = {key}` in the attribute");
        return Some(("key", SettingError::new(problem, fix)));
    }
    if rule_settings.while_failing.is_some() && !declared.has_outcomes && !declared.is_breaker {
        let problem = "`while-failing` needs the outcomes of calls, which this rule does not record";
        let fix = "return a `Result` from the function with the attribute, add `classify` to the attribute, or remove `while-failing`";
        return Some(("while-failing", SettingError::new(problem, fix)));
    }
    let quotas = if rule_settings.quotas.is_empty() { &declared.quotas } else { &rule_settings.quotas };
    if rule_settings.scale.is_some()
        && let Err(error) = LoadScale::reject_totals("scale", quotas)
    {
        return Some(("scale", error));
    }
    let (first, given) = (declared.quotas.first()?, rule_settings.quotas.first()?);
    if declared.selection == QuotaSelection::Tier && declared.quotas.len() != rule_settings.quotas.len() {
        let (tiers, given) = (declared.quotas.len(), rule_settings.quotas.len());
        let problem = format!("{given} quotas for a rule of {tiers} tiers");
        return Some((
            "quotas",
            SettingError::new(problem, "give one for each tier, in the order of the code"),
        ));
    }
    // A call either charges tokens or holds a slot.
    let (problem, fix) =
        match (concurrency_quotas(&declared.quotas), concurrency_quotas(&rule_settings.quotas)) {
            (ConcurrencyQuotas::All, ConcurrencyQuotas::None) => (
                format!("`{given}` counts calls, but the rule (`{first}`) counts those in flight"),
                "give a concurrency quota, as in `3 at once`",
            ),
            (ConcurrencyQuotas::None, ConcurrencyQuotas::All) => (
                format!("`{given}` counts calls in flight, but the rule (`{first}`) counts calls"),
                "give a rate, as in `10/s`",
            ),
            _ => return None,
        };
    Some(("quota", SettingError::new(problem, fix)))
}

/// Which of the quotas count calls in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConcurrencyQuotas {
    All,
    Some,
    None,
}

pub(crate) fn concurrency_quotas(quotas: &[Quota]) -> ConcurrencyQuotas {
    let count = quotas.iter().filter(|quota| quota.is_concurrency()).count();
    match count {
        0 => ConcurrencyQuotas::None,
        all if all == quotas.len() => ConcurrencyQuotas::All,
        _ => ConcurrencyQuotas::Some,
    }
}
