//! All rules of a program and their settings.

use crate::{
    metered_store::StoreStatus,
    notice::Notice,
    rule::{Rule, SharedRule},
    rule_config::RuleConfig,
    rule_update::{ConnectStore, RuleUpdate, StoreRegistry, check_address},
    settings::{Settings, SettingsError},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
};
use tidegate_core::SettingError;
use tidegate_limiter::{BuildError, Clock, Store};

/// All rules of a program and their settings. Clones share state.
///
/// A rule is identified by its name: declaring it again returns the same rule, with the same counters.
#[derive(Clone, Default)]
pub struct Rules {
    inner: Arc<Mutex<RulesInner>>,
}

/// The rule with the name that an attribute declares.
pub(crate) struct SiteRule {
    pub(crate) rule: Rule,
    /// The conflict with the declaration of the attribute.
    pub(crate) conflict: Option<SettingError>,
}

#[derive(Default)]
struct RulesInner {
    settings: Settings,
    stores: StoreRegistry,
    rules: BTreeMap<Arc<str>, Weak<SharedRule>>,
    /// Breakers, which have a mode and a message but no counters here. Separate, because a rule may have the
    /// same name.
    guards: Vec<Weak<SharedRule>>,
    connect: Option<ConnectStore>,
    /// Serializes the application of settings.
    apply_lock: Arc<Mutex<()>>,
    /// Names of unknown stores that were logged.
    unknown_stores: BTreeSet<String>,
    /// Names of rules whose unused keys were logged.
    unused_reported: BTreeSet<Arc<str>>,
    /// Whether settings were ever applied.
    is_configured: bool,
    /// Logged after the locks are released.
    notices: Vec<Notice>,
}

impl Rules {
    /// Creates an empty set of rules with default settings.
    pub fn new() -> Self {
        Self::default()
    }

    /// The rules that attributes declare.
    pub fn global() -> &'static Self {
        static GLOBAL: LazyLock<Rules> = LazyLock::new(Rules::new);
        &GLOBAL
    }

    /// Sets the function that connects stores by their addresses.
    pub fn set_connect(&self, connect: ConnectStore) {
        self.with_inner(|inner| inner.connect = Some(connect));
    }

    /// Creates an empty set of rules with the same connect function.
    #[must_use]
    pub fn with_same_connect(&self) -> Self {
        let rules = Self::new();
        if let Some(connect) = self.lock().connect {
            rules.set_connect(connect);
        }
        rules
    }

    /// Returns the declared rule under the current settings. A rule that already exists is reused: another
    /// declaration adds missing quotas, and is an error if the quotas differ.
    ///
    /// Invalid settings of the rule are logged; then its declaration applies.
    pub fn declare(&self, declaration: RuleConfig) -> Result<Rule, BuildError> {
        self.with_inner(|inner| inner.declare(declaration)).map(Rule::new)
    }

    /// Returns the rule of an attribute, which is declared when its function is first called. A conflict with
    /// another declaration of the same name is logged, and returned with the existing rule: calls of the
    /// function are rejected while that rule is enforced.
    pub(crate) fn declare_site(&self, declaration: RuleConfig) -> Result<SiteRule, BuildError> {
        self.with_inner(|inner| inner.declare_site(declaration))
    }

    /// Declares a breaker, and returns its mode and its message under the current settings.
    pub(crate) fn declare_guard(&self, declaration: RuleConfig) -> Result<Rule, BuildError> {
        self.with_inner(|inner| inner.declare_guard(declaration)).map(Rule::new)
    }

    /// The clock of limiters in memory.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.lock().settings.clock.clone()
    }

    /// Applies these settings to all rules; on an error, none of them changes.
    ///
    /// Store connections are reused if their address, prefix and deadline are unchanged. Counters in a store
    /// stay there. Counters in memory stay if the rule stays in memory, and usage carries over to quotas
    /// that share a state with the previous ones; the counters of other quotas reappear when those quotas
    /// return. Settings of rules that are not declared yet apply when they are.
    pub fn apply(&self, settings: Settings) -> Result<(), SettingsError> {
        let apply_lock = self.apply_lock();
        let _guard = apply_lock.lock();
        // Without the lock, because connecting may log.
        let (stores, connect) = self.with_inner(|inner| (inner.stores.clone(), inner.connect));
        let stores = stores.with_settings(&settings, connect)?;
        self.with_inner(|inner| inner.apply(settings, stores))
    }

    /// Declares these rules as if for the first time, and applies these settings to them and to all others;
    /// on an error, nothing changes.
    ///
    /// Counters are retained as described for [`Rules::apply`]: those of an unchanged rule stay, and changed
    /// quotas carry over the usage. A rule that cannot be changed in place is replaced: holders of the old
    /// one keep using it. A rule that is not declared again is dropped when nothing refers to it.
    pub fn redeclare(
        &self,
        declarations: Vec<RuleConfig>,
        settings: Settings,
    ) -> Result<Vec<Rule>, SettingsError> {
        let apply_lock = self.apply_lock();
        let _guard = apply_lock.lock();
        let (stores, connect) = self.with_inner(|inner| (inner.stores.clone(), inner.connect));
        let stores = stores.with_settings(&settings, connect)?;
        let rules = self.with_inner(|inner| inner.redeclare(declarations, settings, stores))?;
        Ok(rules.into_iter().map(Rule::new).collect())
    }

    /// Connects to the stores of these settings that are not in use yet, and waits until they are ready.
    /// Apply the settings next; on an error, nothing has changed.
    pub async fn connect_stores(&self, settings: &Settings) -> Result<(), SettingsError> {
        let (stores, connect) = self.with_inner(|inner| (inner.stores.clone(), inner.connect));
        let next = stores.with_settings(settings, connect)?;
        next.wait_ready(&stores).await?;
        self.with_inner(|inner| inner.stores.prepare(next));
        Ok(())
    }

    /// All rules in use, by name.
    pub fn list(&self) -> Vec<Rule> {
        self.lock().rules.values().filter_map(Weak::upgrade).map(Rule::new).collect()
    }

    /// The stores that the settings name by an address, with their status.
    pub fn stores(&self) -> Vec<StoreStatus> {
        let stores = self.lock().stores.clone();
        stores.statuses()
    }

    /// The default store; `None` if it is memory.
    pub fn default_store(&self) -> Option<Arc<dyn Store>> {
        self.lock().stores.default_store()
    }

    /// Checks whether an address is valid for a store, without connecting to it.
    pub fn check_address(&self, url: &str) -> Result<(), SettingsError> {
        let connect = self.with_inner(|inner| inner.connect);
        check_address(url, connect)
    }

    /// The lock that serializes updates from their planning to their application.
    fn apply_lock(&self) -> Arc<Mutex<()>> {
        self.with_inner(|inner| inner.apply_lock.clone())
    }

    /// Runs a function under the lock, and logs its notices afterwards.
    fn with_inner<R>(&self, call: impl FnOnce(&mut RulesInner) -> R) -> R {
        let mut inner = self.lock();
        let outcome = call(&mut inner);
        let notices = std::mem::take(&mut inner.notices);
        drop(inner);
        notices.into_iter().for_each(Notice::log);
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, RulesInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RulesInner {
    fn declare(&mut self, declaration: RuleConfig) -> Result<Arc<SharedRule>, BuildError> {
        if let Some(rule) = self.rules.get(&*declaration.name).and_then(Weak::upgrade) {
            let declared = rule.config();
            if let Some(conflict) = declared.check_conflict(&declaration) {
                return Err(conflict.into());
            }
            let adds_quotas = declared.quotas.is_empty() && !declaration.quotas.is_empty();
            let adds_outcomes = declaration.has_outcomes && !declared.has_outcomes;
            if adds_quotas || adds_outcomes {
                // The outcomes of one function are enough, whichever is called first.
                let has_outcomes = declaration.has_outcomes || declared.has_outcomes;
                let base = if adds_quotas { declaration } else { RuleConfig::clone(&declared) };
                self.extend_declaration(&rule, RuleConfig { has_outcomes, ..base })?;
            }
            return Ok(rule);
        }
        let name: Arc<str> = declaration.name.as_ref().into();
        let rule = self.plan_update(&name, &declaration, None)?.into_rule(name.clone(), declaration, None);
        if rule.state().limiter.is_none() {
            self.notices.push(Notice::NoQuota { rule: name.clone() });
        }
        self.rules.retain(|_, rule| rule.strong_count() > 0);
        self.rules.insert(name, Arc::downgrade(&rule));
        self.report_unused_keys(&rule);
        Ok(rule)
    }

    fn declare_site(&mut self, declaration: RuleConfig) -> Result<SiteRule, BuildError> {
        let rule = self.rules.get(&*declaration.name).and_then(Weak::upgrade);
        if let Some(rule) = rule
            && let Some(error) = rule.config().check_conflict(&declaration)
        {
            self.notices.push(Notice::Conflict { rule: rule.name().clone(), error: error.clone() });
            return Ok(SiteRule { rule: Rule::new(rule), conflict: Some(error) });
        }
        self.declare(declaration).map(|rule| SiteRule { rule: Rule::new(rule), conflict: None })
    }

    fn declare_guard(&mut self, declaration: RuleConfig) -> Result<Arc<SharedRule>, BuildError> {
        let declaration = RuleConfig { is_breaker: true, ..declaration };
        let name: Arc<str> = declaration.name.as_ref().into();
        let rule = self.plan_update(&name, &declaration, None)?.into_rule(name, declaration, None);
        self.guards.retain(|rule| rule.strong_count() > 0);
        self.guards.push(Arc::downgrade(&rule));
        self.report_unused_keys(&rule);
        Ok(rule)
    }

    fn redeclare(
        &mut self,
        declarations: Vec<RuleConfig>,
        settings: Settings,
        stores: StoreRegistry,
    ) -> Result<Vec<Arc<SharedRule>>, SettingsError> {
        let mut names = BTreeSet::new();
        let mut updates = Vec::new();
        for declaration in declarations {
            let name: Arc<str> = declaration.name.as_ref().into();
            if !names.insert(name.clone()) {
                let error = SettingError::new("two rules have this name", "give one another name");
                return Err(SettingsError::InvalidRule { rule: name.to_string(), key: "name", error });
            }
            let rule = self.rules.get(&name).and_then(Weak::upgrade);
            let rule = rule.filter(|rule| rule.config().selection == declaration.selection);
            let current = rule.as_ref().map(|rule| rule.state());
            let update = RuleUpdate::new(&name, &declaration, &settings, &stores, current.as_deref())?;
            // A rule with a new limiter in memory must be rebuilt, because the fast path uses the limiter it
            // was created with.
            let can_keep = current.is_some_and(|current| update.can_keep(&current));
            let scaler = rule.as_ref().filter(|_| !can_keep).and_then(|rule| rule.scaler());
            updates.push((name, declaration, rule.filter(|_| can_keep), scaler, update));
        }
        let is_other = |rule: &Arc<SharedRule>| !names.contains(rule.name());
        let others = self.rules.values().filter_map(Weak::upgrade).filter(is_other);
        let mut other_updates = Vec::new();
        for rule in others.chain(self.guards.iter().filter_map(Weak::upgrade)) {
            let update =
                RuleUpdate::new(rule.name(), &rule.config(), &settings, &stores, Some(&rule.state()))?;
            other_updates.push((rule, update));
        }
        // Nothing below can fail.
        for (rule, update) in other_updates {
            self.notices.extend(update.apply(&rule));
        }
        let mut rules = Vec::with_capacity(updates.len());
        for (name, declaration, rule, scaler, update) in updates {
            let rule = match rule {
                Some(rule) => {
                    rule.set_config(declaration);
                    self.notices.extend(update.apply(&rule));
                    rule
                }
                None => update.into_rule(name.clone(), declaration, scaler),
            };
            self.rules.insert(name, Arc::downgrade(&rule));
            rules.push(rule);
        }
        self.rules.retain(|_, rule| rule.strong_count() > 0);
        (self.settings, self.stores, self.is_configured) = (settings, stores, true);
        Ok(rules)
    }

    fn apply(&mut self, settings: Settings, stores: StoreRegistry) -> Result<(), SettingsError> {
        let mut updates = Vec::new();
        for rule in self.rules.values().chain(&self.guards).filter_map(Weak::upgrade) {
            let update =
                RuleUpdate::new(rule.name(), &rule.config(), &settings, &stores, Some(&rule.state()))?;
            updates.push((rule, update));
        }
        // Nothing below can fail.
        (self.settings, self.stores, self.is_configured) = (settings, stores, true);
        self.unused_reported.clear();
        for (rule, update) in updates {
            self.report_unknown_store(rule.name(), &update);
            self.report_unused_keys(&rule);
            self.notices.extend(update.apply(&rule));
        }
        Ok(())
    }

    /// Plans the update of one rule; without its settings if they are invalid.
    fn plan_update(
        &mut self,
        name: &Arc<str>,
        declared: &RuleConfig,
        current: Option<&SharedRule>,
    ) -> Result<RuleUpdate, BuildError> {
        let current = current.map(SharedRule::state);
        let update = match RuleUpdate::new(name, declared, &self.settings, &self.stores, current.as_deref()) {
            Ok(update) => update,
            Err(error) => {
                self.notices.push(Notice::InvalidSettings { rule: name.clone(), error });
                let mut without = self.settings.clone();
                without.rules.remove(&**name);
                RuleUpdate::new(name, declared, &without, &self.stores, current.as_deref()).map_err(
                    |error| match error {
                        SettingsError::Rule { error, .. } => error,
                        _ => BuildError::NoQuota,
                    },
                )?
            }
        };
        // Without settings all store names mean memory, which is not worth a warning.
        if self.is_configured {
            self.report_unknown_store(name, &update);
        }
        Ok(update)
    }

    /// Replaces the declaration of a rule with one that adds quotas or outcomes.
    fn extend_declaration(
        &mut self,
        rule: &Arc<SharedRule>,
        declaration: RuleConfig,
    ) -> Result<(), BuildError> {
        let update = self.plan_update(rule.name(), &declaration, Some(rule))?;
        rule.set_config(declaration);
        self.notices.extend(update.apply(rule));
        Ok(())
    }

    fn report_unknown_store(&mut self, rule: &Arc<str>, update: &RuleUpdate) {
        if let Some(store) = update.unknown_store()
            && self.unknown_stores.insert(store.to_owned())
        {
            self.notices.push(Notice::UnknownStore { rule: rule.clone(), store: store.to_owned() });
        }
    }

    /// Logs policy keys that do not apply to a rule of the code. A rule and a breaker may share a name: then
    /// one uses the quotas and the other the breaker settings.
    fn report_unused_keys(&mut self, rule: &SharedRule) {
        let Some(rule_settings) = self.settings.rules.get(&**rule.name()) else { return };
        let is_breaker = rule.config().is_breaker;
        let mut guards = self.guards.iter().filter_map(Weak::upgrade);
        let has_other = match is_breaker {
            true => self.rules.contains_key(rule.name()),
            false => guards.any(|guard| guard.name() == rule.name()),
        };
        let other = match is_breaker {
            true => (!rule_settings.quotas.is_empty()).then_some("quota"),
            false => rule_settings.breaker.as_ref().map(|_| "breaker"),
        };
        let keys: Vec<_> =
            rule_settings.unused_keys.iter().copied().chain(other.filter(|_| !has_other)).collect();
        if !keys.is_empty() && self.unused_reported.insert(rule.name().clone()) {
            self.notices.push(Notice::UnusedKeys { rule: rule.name().clone(), keys: keys.join(", ") });
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}
