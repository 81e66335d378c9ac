//! All rules of a program, and the settings that they follow.

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
use tidegate_limiter::{BuildError, Clock};

/// All rules of a program, and the settings that they follow. Clones are the same rules.
///
/// A rule is known by its name: whoever declares it again gets the same one, and shares its counters.
#[derive(Clone, Default)]
pub struct Rules {
    inner: Arc<Mutex<RulesInner>>,
}

/// The rule that has the name of an attribute's rule.
pub(crate) struct SiteRule {
    pub(crate) rule: Rule,
    /// Why it is not the rule of the attribute.
    pub(crate) conflict: Option<SettingError>,
}

#[derive(Default)]
struct RulesInner {
    settings: Settings,
    stores: StoreRegistry,
    rules: BTreeMap<Arc<str>, Weak<SharedRule>>,
    /// What has a mode and a message but counts elsewhere. Beside rules: both may have the same name.
    guards: Vec<Weak<SharedRule>>,
    connect: Option<ConnectStore>,
    /// Whoever applies settings has this: one after the other.
    apply_lock: Arc<Mutex<()>>,
    /// Names of stores that code has and settings have not, and that were told of.
    unknown_stores: BTreeSet<String>,
    /// Names of rules whose unused keys were logged.
    unused_reported: BTreeSet<Arc<str>>,
    /// Whether settings were ever applied.
    is_configured: bool,
    /// To be told as soon as nothing is locked.
    notices: Vec<Notice>,
}

impl Rules {
    /// No rules yet, and settings that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Those that attributes declare.
    pub fn global() -> &'static Self {
        static GLOBAL: LazyLock<Rules> = LazyLock::new(Rules::new);
        &GLOBAL
    }

    /// Has addresses of stores connected by `connect`.
    pub fn set_connect(&self, connect: ConnectStore) {
        self.with_inner(|inner| inner.connect = Some(connect));
    }

    /// No rules yet, and addresses of stores connected as these rules do.
    #[must_use]
    pub fn with_same_connect(&self) -> Self {
        let rules = Self::new();
        if let Some(connect) = self.lock().connect {
            rules.set_connect(connect);
        }
        rules
    }

    /// The rule that was declared, under the settings as they are. One that is already known by this name stays what it is:
    /// another declaration of it adds numbers where there are none, and is an error where they differ.
    ///
    /// Settings that cannot hold for it are told of too; it is then as code declares it.
    pub fn declare(&self, declaration: RuleConfig) -> Result<Rule, BuildError> {
        self.with_inner(|inner| inner.declare(declaration)).map(Rule::new)
    }

    /// The rule of an attribute, which is declared when its function is first called. If it conflicts with another
    /// declaration of the same name, the error is logged, and returned with the rule that has the name: calls of the function
    /// are refused as long as that rule is enforced.
    pub(crate) fn declare_site(&self, declaration: RuleConfig) -> Result<SiteRule, BuildError> {
        self.with_inner(|inner| inner.declare_site(declaration))
    }

    /// What a guard, which counts by itself, is to do under the settings as they are: its mode and its message.
    pub(crate) fn declare_guard(&self, declaration: RuleConfig) -> Result<Rule, BuildError> {
        self.with_inner(|inner| inner.declare_guard(declaration)).map(Rule::new)
    }

    /// The clock of what is counted in memory from now on.
    pub(crate) fn clock(&self) -> Option<Clock> {
        self.lock().settings.clock.clone()
    }

    /// Has all rules follow these settings from now on: all of them, or none if there is anything wrong.
    ///
    /// Stores stay connected where nothing is said that they depend on: address, prefix, deadline. Counters in a store stay
    /// there. Counters in memory stay where the rule stays in memory, and carry over what was used to quotas that share a state
    /// with those before; what others counted is there again when they come back. Settings for rules that code has not declared yet hold when it does.
    pub fn apply(&self, settings: Settings) -> Result<(), SettingsError> {
        let apply_lock = self.apply_lock();
        let _guard = apply_lock.lock();
        // Without the lock: whoever connects has things to tell.
        let (stores, connect) = self.with_inner(|inner| (inner.stores.clone(), inner.connect));
        let stores = stores.with_settings(&settings, connect)?;
        self.with_inner(|inner| inner.apply(settings, stores))
    }

    /// Declares these rules as if for the first time, and has them and all others follow these settings: all of them, or
    /// none if there is anything wrong.
    ///
    /// What [`Rules::apply`] says of counters holds here, too: those of a rule that stays as it is stay, and those of one
    /// whose numbers change carry over what was used. A rule that cannot be changed in place is another one than before: whoever
    /// holds that goes on with it. A rule that nobody declares again is forgotten when nobody holds it any more.
    pub fn redeclare(
        &self,
        declarations: Vec<RuleConfig>,
        settings: Settings,
    ) -> Result<Vec<Rule>, SettingsError> {
        let turn = self.apply_lock();
        let _guard = turn.lock();
        let (stores, connect) = self.with_inner(|inner| (inner.stores.clone(), inner.connect));
        let stores = stores.with_settings(&settings, connect)?;
        let lives = self.with_inner(|inner| inner.redeclare(declarations, settings, stores))?;
        Ok(lives.into_iter().map(Rule::new).collect())
    }

    /// Connects to the stores that these settings name and that are not in use yet, and waits until they can be asked. The
    /// settings are to be applied next; an error if a store cannot be reached, and then nothing has changed.
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

    /// The stores that settings name by an address, and how each of them is.
    pub fn stores(&self) -> Vec<StoreStatus> {
        let stores = self.lock().stores.clone();
        stores.statuses()
    }

    /// Whether an address can be one of a store. No store is asked.
    pub fn check_address(&self, url: &str) -> Result<(), SettingsError> {
        let connect = self.with_inner(|inner| inner.connect);
        check_address(url, connect)
    }

    /// To be held by whoever applies settings, so that nobody comes between what they looked at and what they do.
    fn apply_lock(&self) -> Arc<Mutex<()>> {
        self.with_inner(|inner| inner.apply_lock.clone())
    }

    /// Does something under the lock, and tells afterwards what there is to tell.
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
        if let Some(live) = self.rules.get(&*declaration.name).and_then(Weak::upgrade) {
            let declared = live.config();
            if let Some(conflict) = declared.check_conflict(&declaration) {
                return Err(conflict.into());
            }
            if declared.quotas.is_empty() && !declaration.quotas.is_empty() {
                self.declare_quotas(&live, declaration)?;
            }
            return Ok(live);
        }
        let name: Arc<str> = declaration.name.as_ref().into();
        let terms = self.plan_update(&name, &declaration, None)?.into_state();
        if terms.limiter.is_none() {
            self.notices.push(Notice::NoQuota { rule: name.clone() });
        }
        let live = Arc::new(SharedRule::new(name.clone(), declaration, terms));
        self.rules.retain(|_, live| live.strong_count() > 0);
        self.rules.insert(name, Arc::downgrade(&live));
        self.report_unused_keys(&live);
        Ok(live)
    }

    fn declare_site(&mut self, declaration: RuleConfig) -> Result<SiteRule, BuildError> {
        let live = self.rules.get(&*declaration.name).and_then(Weak::upgrade);
        if let Some(live) = live
            && let Some(error) = live.config().check_conflict(&declaration)
        {
            self.notices.push(Notice::Conflict { rule: live.name().clone(), error: error.clone() });
            return Ok(SiteRule { rule: Rule::new(live), conflict: Some(error) });
        }
        self.declare(declaration).map(|live| SiteRule { rule: Rule::new(live), conflict: None })
    }

    fn declare_guard(&mut self, declaration: RuleConfig) -> Result<Arc<SharedRule>, BuildError> {
        let declaration = RuleConfig { is_breaker: true, ..declaration };
        let name: Arc<str> = declaration.name.as_ref().into();
        let terms = self.plan_update(&name, &declaration, None)?.into_state();
        let live = Arc::new(SharedRule::new(name, declaration, terms));
        self.guards.retain(|live| live.strong_count() > 0);
        self.guards.push(Arc::downgrade(&live));
        self.report_unused_keys(&live);
        Ok(live)
    }

    fn redeclare(
        &mut self,
        declarations: Vec<RuleConfig>,
        settings: Settings,
        stores: StoreRegistry,
    ) -> Result<Vec<Arc<SharedRule>>, SettingsError> {
        let mut names = BTreeSet::new();
        let mut plans = Vec::new();
        for declaration in declarations {
            let name: Arc<str> = declaration.name.as_ref().into();
            if !names.insert(name.clone()) {
                let error = SettingError::new("two rules have this name", "give one another name");
                return Err(SettingsError::InvalidRule { rule: name.to_string(), key: "name", error });
            }
            let live = self.rules.get(&name).and_then(Weak::upgrade);
            let live = live.filter(|live| live.config().selection == declaration.selection);
            let now = live.as_ref().map(|live| live.state());
            let plan = RuleUpdate::new(&name, &declaration, &settings, &stores, now.as_deref())?;
            // A new limiter in memory is quick only in a rule that was made with it.
            let live = live.filter(|_| now.as_deref().is_some_and(|now| plan.can_keep(now)));
            plans.push((name, declaration, live, plan));
        }
        let is_other = |live: &Arc<SharedRule>| !names.contains(live.name());
        let others = self.rules.values().filter_map(Weak::upgrade).filter(is_other);
        let mut followed = Vec::new();
        for live in others.chain(self.guards.iter().filter_map(Weak::upgrade)) {
            let plan = RuleUpdate::new(live.name(), &live.config(), &settings, &stores, Some(&live.state()))?;
            followed.push((live, plan));
        }
        // Nothing can go wrong from here on.
        for (live, plan) in followed {
            self.notices.extend(plan.apply(&live));
        }
        let mut lives = Vec::with_capacity(plans.len());
        for (name, declaration, live, plan) in plans {
            let live = match live {
                Some(live) => {
                    live.set_config(declaration);
                    self.notices.extend(plan.apply(&live));
                    live
                }
                None => Arc::new(SharedRule::new(name.clone(), declaration, plan.into_state())),
            };
            self.rules.insert(name, Arc::downgrade(&live));
            lives.push(live);
        }
        self.rules.retain(|_, live| live.strong_count() > 0);
        (self.settings, self.stores, self.is_configured) = (settings, stores, true);
        Ok(lives)
    }

    fn apply(&mut self, settings: Settings, stores: StoreRegistry) -> Result<(), SettingsError> {
        let mut plans = Vec::new();
        for live in self.rules.values().chain(&self.guards).filter_map(Weak::upgrade) {
            let plan = RuleUpdate::new(live.name(), &live.config(), &settings, &stores, Some(&live.state()))?;
            plans.push((live, plan));
        }
        // Nothing can go wrong from here on.
        (self.settings, self.stores, self.is_configured) = (settings, stores, true);
        self.unused_reported.clear();
        for (live, plan) in plans {
            self.report_unknown_store(live.name(), &plan);
            self.report_unused_keys(&live);
            self.notices.extend(plan.apply(&live));
        }
        Ok(())
    }

    /// What the settings mean for one rule; without what they say of it if that cannot be.
    fn plan_update(
        &mut self,
        name: &Arc<str>,
        declared: &RuleConfig,
        now: Option<&SharedRule>,
    ) -> Result<RuleUpdate, BuildError> {
        let now = now.map(SharedRule::state);
        let plan = match RuleUpdate::new(name, declared, &self.settings, &self.stores, now.as_deref()) {
            Ok(plan) => plan,
            Err(error) => {
                self.notices.push(Notice::InvalidSettings { rule: name.clone(), error });
                let mut without = self.settings.clone();
                without.rules.remove(&**name);
                RuleUpdate::new(name, declared, &without, &self.stores, now.as_deref()).map_err(|error| {
                    match error {
                        SettingsError::Rule { error, .. } => error,
                        _ => BuildError::NoQuota,
                    }
                })?
            }
        };
        // Without settings all stores are the same one, and that is no surprise.
        if self.is_configured {
            self.report_unknown_store(name, &plan);
        }
        Ok(plan)
    }

    fn declare_quotas(&mut self, live: &Arc<SharedRule>, declaration: RuleConfig) -> Result<(), BuildError> {
        let plan = self.plan_update(live.name(), &declaration, Some(live))?;
        live.set_config(declaration);
        self.notices.extend(plan.apply(live));
        Ok(())
    }

    fn report_unknown_store(&mut self, rule: &Arc<str>, plan: &RuleUpdate) {
        if let Some(store) = plan.unknown_store()
            && self.unknown_stores.insert(store.to_owned())
        {
            self.notices.push(Notice::UnknownStore { rule: rule.clone(), store: store.to_owned() });
        }
    }

    /// Reports keys of the policy that do not apply to a rule of the code. A rule and a breaker may share a name, and then
    /// one uses the quotas and the other one the breaker.
    fn report_unused_keys(&mut self, live: &SharedRule) {
        let Some(its) = self.settings.rules.get(&**live.name()) else { return };
        let is_breaker = live.config().is_breaker;
        let mut guards = self.guards.iter().filter_map(Weak::upgrade);
        let has_other = match is_breaker {
            true => self.rules.contains_key(live.name()),
            false => guards.any(|guard| guard.name() == live.name()),
        };
        let other = match is_breaker {
            true => (!its.quotas.is_empty()).then_some("quota"),
            false => its.breaker.as_ref().map(|_| "breaker"),
        };
        let keys: Vec<_> = its.unused_keys.iter().copied().chain(other.filter(|_| !has_other)).collect();
        if !keys.is_empty() && self.unused_reported.insert(live.name().clone()) {
            self.notices.push(Notice::UnusedKeys { rule: live.name().clone(), keys: keys.join(", ") });
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}
