//! All rules of a program, and the settings that they follow.

use crate::{
    declaration::Declaration,
    plan::{Connect, Plan, Stores},
    rule::{Live, Rule},
    settings::{Settings, SettingsError},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
};
use tidegate_engine::BuildError;

/// All rules of a program, and the settings that they follow. Clones are the same rules.
///
/// A rule is known by its name: whoever declares it again gets the same one, and shares its counters.
#[derive(Clone, Default)]
pub struct Rules {
    pub(crate) inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
pub(crate) struct Inner {
    /// As they were given: with a file apart from what is said over it.
    pub(crate) given: Settings,
    /// What holds of them.
    pub(crate) settings: Settings,
    stores: Stores,
    rules: BTreeMap<Arc<str>, Weak<Live>>,
    connect: Option<Connect>,
    /// Names of stores that code has and settings have not, and that were told of.
    strays: BTreeSet<String>,
    pub(crate) applied: u64,
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
        self.lock().connect = Some(connect);
    }

    /// The rule that was declared, under the settings as they are. One that is already known by this name stays what it is:
    /// another declaration of it adds numbers where there are none, and is told of where they differ.
    ///
    /// Settings that cannot hold for it are told of too; it is then as code declares it.
    pub fn rule(&self, declaration: Declaration) -> Result<Rule, BuildError> {
        let mut inner = self.lock();
        if let Some(live) = inner.rules.get(&*declaration.name).and_then(Weak::upgrade) {
            match live.declared().quotas.is_empty() && !declaration.quotas.is_empty() {
                true => inner.declare_numbers(&live, declaration)?,
                false => live.dispute(&declaration),
            }
            return Ok(Rule::new(live));
        }
        let name: Arc<str> = declaration.name.as_ref().into();
        let plan = inner.plan(&name, &declaration, None)?;
        let terms = plan.into_terms();
        if terms.limiter.is_none() {
            tracing::warn!(
                rule = &*name,
                "a rule without numbers limits nothing; give it a quota in the settings"
            );
        }
        let live = Arc::new(Live::new(name.clone(), declaration, terms));
        inner.rules.retain(|_, live| live.strong_count() > 0);
        inner.rules.insert(name, Arc::downgrade(&live));
        Ok(Rule::new(live))
    }

    /// Has all rules follow these settings from now on: all of them, or none if there is anything wrong.
    ///
    /// Stores stay connected where nothing is said that they depend on: address, prefix, deadline. Counters in a store stay
    /// there. Counters in memory stay where the rule stays in memory with as many quotas of the same algorithms, and carry
    /// over what was used; else it starts anew. So does a log or a number of parts that grows: the room for it was given
    /// when it was made. Settings for rules that code has not declared yet hold when it does.
    pub fn apply(&self, settings: Settings) -> Result<(), SettingsError> {
        let mut inner = self.lock();
        let outcome = inner.apply(settings);
        #[cfg(feature = "file")]
        inner.watch_over(&self.inner, outcome.as_ref().err());
        outcome
    }

    /// All rules in use, by name.
    pub fn list(&self) -> Vec<Rule> {
        self.lock().rules.values().filter_map(Weak::upgrade).map(Rule::new).collect()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    pub(crate) fn apply(&mut self, given: Settings) -> Result<(), SettingsError> {
        let settings = given.resolved();
        let planned = self.plan_all(&settings);
        #[cfg(feature = "file")]
        let planned = planned.map_err(|error| given.locate(error));
        let (stores, plans) = planned?;
        // Nothing can go wrong from here on.
        for (live, plan) in plans {
            self.tell_of_stray(live.name(), &plan);
            plan.carry_out(&live);
        }
        (self.given, self.settings, self.stores) = (given, settings, stores);
        self.applied += 1;
        Ok(())
    }

    #[allow(clippy::type_complexity, reason = "used once, right above")]
    fn plan_all(&self, settings: &Settings) -> Result<(Stores, Vec<(Arc<Live>, Plan)>), SettingsError> {
        let stores = self.stores.follow(settings, self.connect)?;
        let mut plans = Vec::new();
        for live in self.rules.values().filter_map(Weak::upgrade) {
            let plan = Plan::of(live.name(), &live.declared(), settings, &stores, Some(&live.terms()))?;
            plans.push((live, plan));
        }
        Ok((stores, plans))
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
                tracing::error!(rule = &**name, %error, "settings do not fit the rule, which is as code declares it");
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
            self.tell_of_stray(name, &plan);
        }
        Ok(plan)
    }

    fn declare_numbers(&mut self, live: &Arc<Live>, declaration: Declaration) -> Result<(), BuildError> {
        let plan = self.plan(live.name(), &declaration, Some(live))?;
        live.declare(declaration);
        plan.carry_out(live);
        Ok(())
    }

    fn tell_of_stray(&mut self, rule: &str, plan: &Plan) {
        if let Some(store) = plan.stray()
            && self.strays.insert(store.to_owned())
        {
            tracing::warn!(rule, store, "settings have no store of this name; the default one is used");
        }
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}
