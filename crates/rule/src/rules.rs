//! All rules of a program, and the settings that they follow.

use crate::{
    background,
    declaration::Declaration,
    rule::{Live, Rule, Terms},
    settings::{RuleSettings, Settings, StoreAddress},
};
use std::{
    collections::BTreeMap,
    error, fmt,
    sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak},
};
use tidegate_core::Inherit;
use tidegate_engine::{BuildError, Limiter, SharedLimiter, Store, store::Choice};

/// All rules of a program, and the settings that they follow. Clones are the same rules.
///
/// A rule is known by its name: whoever declares it again gets the same one, and shares its counters.
#[derive(Clone, Default)]
pub struct Rules {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    settings: Settings,
    /// Stores that are connected, by the name they have in the settings; the default one has none.
    stores: BTreeMap<Option<String>, Connected>,
    rules: BTreeMap<Arc<str>, Weak<Live>>,
    connect: Option<Connect>,
}

/// A store, and where it is.
#[derive(Clone)]
struct Connected {
    url: Option<String>,
    prefix: Option<String>,
    store: Arc<dyn Store>,
}

/// Makes a store of an address and a prefix. It is called within a runtime, and must not wait: a store that is not there
/// yet is one that is away.
pub type Connect =
    fn(url: &str, prefix: Option<&str>) -> Result<Arc<dyn Store>, Box<dyn error::Error + Send + Sync>>;

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

    /// The rule that was declared, under the settings as they are. One that is already known by this name stays what it is.
    pub fn rule(&self, declaration: Declaration) -> Result<Rule, BuildError> {
        let mut inner = self.lock();
        if let Some(live) = inner.rules.get(&*declaration.name).and_then(Weak::upgrade) {
            return Ok(Rule::new(live));
        }
        let name: Arc<str> = declaration.name.as_ref().into();
        let terms = inner.terms(&name, &declaration, None)?;
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
    /// Counters stay where a rule stays in its store and keeps its algorithms; else it starts anew.
    pub fn apply(&self, settings: Settings) -> Result<(), SettingsError> {
        let mut inner = self.lock();
        let stores = inner.connect(&settings)?;
        let (old_settings, old_stores) =
            (std::mem::replace(&mut inner.settings, settings), std::mem::replace(&mut inner.stores, stores));
        let live: Vec<_> = inner.rules.values().filter_map(Weak::upgrade).collect();
        let terms: Result<Vec<_>, _> = live
            .iter()
            .map(|live| {
                inner
                    .terms(live.name(), live.declared(), Some(&live.terms()))
                    .map_err(|error| SettingsError::Rule { rule: live.name().to_string(), error })
            })
            .collect();
        match terms {
            Ok(terms) => {
                live.iter().zip(terms).for_each(|(live, terms)| live.change(terms));
                Ok(())
            }
            Err(error) => {
                (inner.settings, inner.stores) = (old_settings, old_stores);
                Err(error)
            }
        }
    }

    /// All rules in use, by name.
    pub fn list(&self) -> Vec<Rule> {
        self.lock().rules.values().filter_map(Weak::upgrade).map(Rule::new).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Connects every store that is not yet.
    fn connect(&self, settings: &Settings) -> Result<BTreeMap<Option<String>, Connected>, SettingsError> {
        let mut stores = BTreeMap::new();
        let named = settings.stores.iter().map(|(name, address)| (Some(name.clone()), address));
        for (name, address) in named.chain([(None, &settings.store)]) {
            let connected = match address {
                StoreAddress::Memory => continue,
                StoreAddress::Given(store) => Connected { url: None, prefix: None, store: store.clone() },
                StoreAddress::Url(url) => self.connect_to(&name, url, settings.prefix.as_deref())?,
            };
            stores.insert(name, connected);
        }
        let is_known = |store: &String| settings.stores.contains_key(store);
        for (rule, its) in &settings.rules {
            if let Some(store) = its.store.as_ref().filter(|store| !is_known(store)) {
                return Err(SettingsError::unknown_store(rule, store, settings));
            }
        }
        Ok(stores)
    }

    fn connect_to(
        &self,
        name: &Option<String>,
        url: &str,
        prefix: Option<&str>,
    ) -> Result<Connected, SettingsError> {
        let is_same =
            |known: &&Connected| known.url.as_deref() == Some(url) && known.prefix.as_deref() == prefix;
        if let Some(known) = self.stores.get(name).filter(is_same) {
            return Ok(known.clone());
        }
        let Some(connect) = self.connect else { return Err(SettingsError::NoConnection) };
        let store = background::enter_own(|| connect(url, prefix))
            .ok_or(SettingsError::NoConnection)?
            .map_err(|error| SettingsError::Store { name: name.clone(), error })?;
        Ok(Connected { url: Some(url.to_owned()), prefix: prefix.map(str::to_owned), store })
    }

    /// What holds for a rule under these settings, with the counters that it has, where it can keep them.
    fn terms(&self, name: &str, declared: &Declaration, now: Option<&Terms>) -> Result<Terms, BuildError> {
        let none = RuleSettings::new();
        let its = self.settings.rules.get(name).unwrap_or(&none);
        let store = its.store.clone().or_else(|| declared.store.as_deref().map(str::to_owned));
        let mode = its.mode.or(self.settings.mode).unwrap_or(declared.mode);
        Ok(Terms {
            mode,
            wait: its.wait.unwrap_or(declared.wait),
            message: its.message.clone().or_else(|| declared.message.clone()),
            limiter: self.limiter(name, declared, its, &store, now)?,
        })
    }

    fn limiter(
        &self,
        name: &str,
        declared: &Declaration,
        its: &RuleSettings,
        store: &Option<String>,
        now: Option<&Terms>,
    ) -> Result<Option<Arc<SharedLimiter>>, BuildError> {
        let quotas = if its.quotas.is_empty() { &declared.quotas } else { &its.quotas };
        if quotas.is_empty() {
            return Ok(None);
        }
        // A store that code names and settings do not is the default one.
        let home = self.stores.get(store).or_else(|| self.stores.get(&None)).map(|known| &known.store);
        if let Some(limiter) = now.and_then(|terms| terms.limiter.as_ref())
            && limiter.is_in(home)
            && limiter.quotas().len() == quotas.len()
            && limiter.change_all(quotas, Inherit::default()).is_ok()
        {
            return Ok(Some(limiter.clone()));
        }
        let mut memory = Limiter::builder();
        if let Some(clock) = &self.settings.clock {
            memory = memory.clock(clock.clone());
        }
        if let Some(capacity) = declared.capacity {
            memory = memory.capacity(capacity);
        }
        let outage = its.outage.unwrap_or(self.settings.outage);
        let mut builder = SharedLimiter::builder(name).memory(memory).on_outage(outage);
        if let Some(store) = home {
            builder = builder.shared_store(store.clone());
        }
        let limiter = match declared.choice {
            Choice::All => builder.build_all(quotas)?,
            Choice::Tier => builder.build_tiers(quotas)?,
        };
        Ok(Some(Arc::new(limiter)))
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list()).finish()
    }
}

/// Why settings were not taken.
#[derive(Debug)]
#[non_exhaustive]
pub enum SettingsError {
    /// A rule cannot be what it is to be.
    Rule {
        /// Which.
        rule: String,
        /// Why.
        error: BuildError,
    },
    /// A rule names a store that there is none of.
    UnknownStore {
        /// The rule.
        rule: String,
        /// What it names.
        store: String,
        /// What there is.
        known: Vec<String>,
    },
    /// A store cannot be what its address says.
    Store {
        /// Its name; `None` for the default one.
        name: Option<String>,
        /// Why.
        error: Box<dyn error::Error + Send + Sync>,
    },
    /// There is nothing that connects to stores.
    NoConnection,
}

impl SettingsError {
    fn unknown_store(rule: &str, store: &str, settings: &Settings) -> Self {
        let known = settings.stores.keys().cloned().collect();
        Self::UnknownStore { rule: rule.to_owned(), store: store.to_owned(), known }
    }
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule { rule, error } => write!(f, "rule `{rule}`: {error}"),
            Self::UnknownStore { rule, store, known } if known.is_empty() => {
                write!(
                    f,
                    "rule `{rule}` names the store `{store}`, but there are none; declare it under `stores`"
                )
            }
            Self::UnknownStore { rule, store, known } => {
                let known = known.join("`, `");
                write!(f, "rule `{rule}` names the store `{store}`; there are `{known}`")
            }
            Self::Store { name: Some(name), error } => write!(f, "store `{name}`: {error}"),
            Self::Store { name: None, error } => write!(f, "store: {error}"),
            Self::NoConnection => f.write_str(
                "an address of a store, but nothing to connect to it; switch on the feature `redis`",
            ),
        }
    }
}

impl error::Error for SettingsError {
    fn source(&self) -> Option<&(dyn error::Error + 'static)> {
        match self {
            Self::Rule { error, .. } => Some(error),
            Self::Store { error, .. } => Some(&**error),
            Self::UnknownStore { .. } | Self::NoConnection => None,
        }
    }
}
