//! All rules of a program, and the settings that they follow.

use crate::{
    declaration::Declaration,
    measured::StoreStatus,
    notice::Notice,
    plan::{Connect, Plan, Stores, check_address},
    rule::{Live, Rule},
    settings::{Settings, SettingsError},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
};
use tidegate_core::SettingError;
use tidegate_engine::{BuildError, Clock};

/// All rules of a program, and the settings that they follow. Clones are the same rules.
///
/// A rule is known by its name: whoever declares it again gets the same one, and shares its counters.
#[derive(Clone, Default)]
pub struct Rules {
    pub(crate) inner: Arc<Mutex<Inner>>,
}

/// The rule that has the name of an attribute's rule.
pub(crate) struct SiteRule {
    pub(crate) rule: Rule,
    /// Why it is not the rule of the attribute.
    pub(crate) conflict: Option<SettingError>,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// As they were given: with a file apart from what is said over it.
    pub(crate) given: Arc<Settings>,
    /// What holds of them.
    pub(crate) settings: Settings,
    stores: Stores,
    rules: BTreeMap<Arc<str>, Weak<Live>>,
    /// What has a mode and a message but counts elsewhere. Beside rules: both may have the same name.
    guards: Vec<Weak<Live>>,
    connect: Option<Connect>,
    /// Whoever applies settings has this: one after the other.
    applying: Arc<Mutex<()>>,
    /// Names of stores that code has and settings have not, and that were told of.
    strays: BTreeSet<String>,
    pub(crate) applied: u64,
    /// To be told as soon as nothing is locked.
    pub(crate) notices: Vec<Notice>,
    #[cfg(feature = "file")]
    pub(crate) watch: crate::watch::Watch,
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
    pub fn connect_by(&self, connect: Connect) {
        self.with(|inner| inner.connect = Some(connect));
    }

    /// The rule that was declared, under the settings as they are. One that is already known by this name stays what it is:
    /// another declaration of it adds numbers where there are none, and is an error where they differ.
    ///
    /// Settings that cannot hold for it are told of too; it is then as code declares it.
    pub fn rule(&self, declaration: Declaration) -> Result<Rule, BuildError> {
        self.with(|inner| inner.rule(declaration)).map(Rule::new)
    }

    /// The rule of an attribute, which is declared when its function is first called. If it conflicts with another
    /// declaration of the same name, the error is logged, and returned with the rule that has the name: calls of the function
    /// are refused as long as that rule is enforced.
    pub(crate) fn rule_of_site(&self, declaration: Declaration) -> Result<SiteRule, BuildError> {
        self.with(|inner| inner.rule_of_site(declaration))
    }

    /// What a guard, which counts by itself, is to do under the settings as they are: its mode and its message.
    pub(crate) fn guard(&self, declaration: Declaration) -> Result<Rule, BuildError> {
        self.with(|inner| inner.guard(declaration)).map(Rule::new)
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
        let turn = self.turn();
        let _turn = turn.lock();
        let outcome = self.take_over(&Arc::new(settings));
        #[cfg(feature = "file")]
        self.with(|inner| inner.watch_over(&self.inner, outcome.as_ref().err()));
        outcome
    }

    /// Declares these rules as if for the first time, and has them and all others follow these settings: all of them, or
    /// none if there is anything wrong.
    ///
    /// What [`Rules::apply`] says of counters holds here, too: those of a rule that stays as it is stay, and those of one
    /// whose numbers change carry over what was used. A rule that cannot be changed in place is another one than before: whoever
    /// holds that goes on with it. A rule that nobody declares again is forgotten when nobody holds it any more.
    pub fn redeclare(
        &self,
        declarations: Vec<Declaration>,
        settings: Settings,
    ) -> Result<Vec<Rule>, SettingsError> {
        let turn = self.turn();
        let _turn = turn.lock();
        let given = Arc::new(settings);
        let settings = given.resolved();
        let (stores, connect) = self.with(|inner| (inner.stores.clone(), inner.connect));
        let stores = stores.follow(&settings, connect)?;
        let lives = self.with(|inner| inner.redeclare(declarations, &given, settings, stores))?;
        Ok(lives.into_iter().map(Rule::new).collect())
    }

    /// Connects to the stores that these settings name and that are not in use yet, and waits until they can be asked. The
    /// settings are to be applied next; an error if a store cannot be reached, and then nothing has changed.
    pub async fn connect_stores(&self, settings: &Settings) -> Result<(), SettingsError> {
        let settings = settings.resolved();
        let (stores, connect) = self.with(|inner| (inner.stores.clone(), inner.connect));
        let next = stores.follow(&settings, connect)?;
        next.ready(&stores).await?;
        self.with(|inner| inner.stores.prepare(next));
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
        let connect = self.with(|inner| inner.connect);
        check_address(url, connect)
    }

    /// To be held by whoever applies settings, so that nobody comes between what they looked at and what they do.
    pub(crate) fn turn(&self) -> Arc<Mutex<()>> {
        self.with(|inner| inner.applying.clone())
    }

    /// Applies settings, in all their parts or in none.
    pub(crate) fn take_over(&self, given: &Arc<Settings>) -> Result<(), SettingsError> {
        let settings = given.resolved();
        // Without the lock: whoever connects has things to tell.
        let (stores, connect) = self.with(|inner| (inner.stores.clone(), inner.connect));
        let outcome = stores
            .follow(&settings, connect)
            .and_then(|stores| self.with(|inner| inner.take_over(given, settings, stores)));
        #[cfg(feature = "file")]
        let outcome = outcome.map_err(|error| given.locate(error));
        outcome
    }

    /// Does something under the lock, and tells afterwards what there is to tell.
    pub(crate) fn with<R>(&self, call: impl FnOnce(&mut Inner) -> R) -> R {
        let mut inner = self.lock();
        let outcome = call(&mut inner);
        let notices = std::mem::take(&mut inner.notices);
        drop(inner);
        notices.into_iter().for_each(Notice::tell);
        outcome
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn rule(&mut self, declaration: Declaration) -> Result<Arc<Live>, BuildError> {
        if let Some(live) = self.rules.get(&*declaration.name).and_then(Weak::upgrade) {
            let declared = live.declared();
            if let Some(conflict) = declared.conflict(&declaration) {
                return Err(conflict.into());
            }
            if declared.quotas.is_empty() && !declaration.quotas.is_empty() {
                self.declare_numbers(&live, declaration)?;
            }
            return Ok(live);
        }
        let name: Arc<str> = declaration.name.as_ref().into();
        let terms = self.plan(&name, &declaration, None)?.into_terms();
        if terms.limiter.is_none() {
            self.notices.push(Notice::NoNumbers { rule: name.clone() });
        }
        let live = Arc::new(Live::new(name.clone(), declaration, terms));
        self.rules.retain(|_, live| live.strong_count() > 0);
        self.rules.insert(name, Arc::downgrade(&live));
        Ok(live)
    }

    fn rule_of_site(&mut self, declaration: Declaration) -> Result<SiteRule, BuildError> {
        let live = self.rules.get(&*declaration.name).and_then(Weak::upgrade);
        if let Some(live) = live
            && let Some(error) = live.declared().conflict(&declaration)
        {
            self.notices.push(Notice::Conflict { rule: live.name().clone(), error: error.clone() });
            return Ok(SiteRule { rule: Rule::new(live), conflict: Some(error) });
        }
        self.rule(declaration).map(|live| SiteRule { rule: Rule::new(live), conflict: None })
    }

    fn guard(&mut self, declaration: Declaration) -> Result<Arc<Live>, BuildError> {
        let name: Arc<str> = declaration.name.as_ref().into();
        let terms = self.plan(&name, &declaration, None)?.into_terms();
        let live = Arc::new(Live::new(name, declaration, terms));
        self.guards.retain(|live| live.strong_count() > 0);
        self.guards.push(Arc::downgrade(&live));
        Ok(live)
    }

    fn redeclare(
        &mut self,
        declarations: Vec<Declaration>,
        given: &Arc<Settings>,
        settings: Settings,
        stores: Stores,
    ) -> Result<Vec<Arc<Live>>, SettingsError> {
        let mut names = BTreeSet::new();
        let mut plans = Vec::new();
        for declaration in declarations {
            let name: Arc<str> = declaration.name.as_ref().into();
            if !names.insert(name.clone()) {
                let (problem, fix) =
                    ("two rules have this name".to_owned(), "give one another name".to_owned());
                return Err(SettingsError::Unfit { rule: name.to_string(), problem, fix });
            }
            let live = self.rules.get(&name).and_then(Weak::upgrade);
            let live = live.filter(|live| live.declared().choice == declaration.choice);
            let now = live.as_ref().map(|live| live.terms());
            let plan = Plan::of(&name, &declaration, &settings, &stores, now.as_deref())?;
            // A new limiter in memory is quick only in a rule that was made with it.
            let live = live.filter(|_| now.as_deref().is_some_and(|now| plan.keeps(now)));
            plans.push((name, declaration, live, plan));
        }
        let is_other = |live: &Arc<Live>| !names.contains(live.name());
        let others = self.rules.values().filter_map(Weak::upgrade).filter(is_other);
        let mut followed = Vec::new();
        for live in others.chain(self.guards.iter().filter_map(Weak::upgrade)) {
            let plan = Plan::of(live.name(), &live.declared(), &settings, &stores, Some(&live.terms()))?;
            followed.push((live, plan));
        }
        // Nothing can go wrong from here on.
        for (live, plan) in followed {
            self.notices.extend(plan.carry_out(&live));
        }
        let mut lives = Vec::with_capacity(plans.len());
        for (name, declaration, live, plan) in plans {
            let live = match live {
                Some(live) => {
                    live.declare(declaration);
                    self.notices.extend(plan.carry_out(&live));
                    live
                }
                None => Arc::new(Live::new(name.clone(), declaration, plan.into_terms())),
            };
            self.rules.insert(name, Arc::downgrade(&live));
            lives.push(live);
        }
        self.rules.retain(|_, live| live.strong_count() > 0);
        (self.given, self.settings, self.stores) = (given.clone(), settings, stores);
        self.applied += 1;
        Ok(lives)
    }

    fn take_over(
        &mut self,
        given: &Arc<Settings>,
        settings: Settings,
        stores: Stores,
    ) -> Result<(), SettingsError> {
        let mut plans = Vec::new();
        for live in self.rules.values().chain(&self.guards).filter_map(Weak::upgrade) {
            let plan = Plan::of(live.name(), &live.declared(), &settings, &stores, Some(&live.terms()))?;
            plans.push((live, plan));
        }
        // Nothing can go wrong from here on.
        for (live, plan) in plans {
            self.note_stray(live.name(), &plan);
            self.notices.extend(plan.carry_out(&live));
        }
        (self.given, self.settings, self.stores) = (given.clone(), settings, stores);
        self.applied += 1;
        Ok(())
    }

    /// What the settings mean for one rule; without what they say of it if that cannot be.
    fn plan(
        &mut self,
        name: &Arc<str>,
        declared: &Declaration,
        now: Option<&Live>,
    ) -> Result<Plan, BuildError> {
        let now = now.map(Live::terms);
        let plan = match Plan::of(name, declared, &self.settings, &self.stores, now.as_deref()) {
            Ok(plan) => plan,
            Err(error) => {
                self.notices.push(Notice::Misfit { rule: name.clone(), error });
                let mut without = self.settings.clone();
                without.rules.remove(&**name);
                Plan::of(name, declared, &without, &self.stores, now.as_deref()).map_err(
                    |error| match error {
                        SettingsError::Rule { error, .. } => error,
                        _ => BuildError::NoQuota,
                    },
                )?
            }
        };
        // Without settings all stores are the same one, and that is no surprise.
        if self.applied > 0 {
            self.note_stray(name, &plan);
        }
        Ok(plan)
    }

    fn declare_numbers(&mut self, live: &Arc<Live>, declaration: Declaration) -> Result<(), BuildError> {
        let plan = self.plan(live.name(), &declaration, Some(live))?;
        live.declare(declaration);
        self.notices.extend(plan.carry_out(live));
        Ok(())
    }

    fn note_stray(&mut self, rule: &Arc<str>, plan: &Plan) {
        if let Some(store) = plan.stray()
            && self.strays.insert(store.to_owned())
        {
            self.notices.push(Notice::Stray { rule: rule.clone(), store: store.to_owned() });
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}
