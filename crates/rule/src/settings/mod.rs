//! What a program is told at its start, and again while it runs.

mod environment;
mod error;
#[cfg(feature = "file")]
mod file;
mod text;

pub use error::SettingsError;
#[cfg(feature = "file")]
pub use error::{FileError, FileProblem};
#[cfg(feature = "file")]
pub(crate) use file::bytes_of;
#[cfg(feature = "file")]
pub(crate) use text::SHORTEST_PACE;
pub(crate) use text::looks_like_address;

use crate::Mode;
use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};
use tidegate_core::{Quota, SettingError};
use tidegate_engine::{BuildError, Clock, Outage, Store};

/// Where state lives, what is on, and other numbers for rules than code declares.
///
/// ```
/// use tidegate_rule::{Mode, RuleSettings, Settings};
///
/// let settings = Settings::new()
///     .store_at("redis://127.0.0.1:6379")                                      // memory unless told otherwise
///     .prefix("shop")
///     .rule("login", RuleSettings::new().quota("5/min")?.mode(Mode::Shadow));
/// # Ok::<(), tidegate_engine::BuildError>(())
/// ```
///
/// They come from code, from a file ([`Settings::from_file`]) or from the environment ([`Settings::from_env`]). What code
/// or the environment says holds over what a file says, also when the file is read again.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) mode: Option<Mode>,
    pub(crate) store: Option<StoreAddress>,
    pub(crate) stores: BTreeMap<String, StoreAddress>,
    pub(crate) prefix: Option<String>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) outage: Option<Outage>,
    pub(crate) rules: BTreeMap<String, RuleSettings>,
    pub(crate) reload: Option<Duration>,
    pub(crate) clock: Option<Clock>,
    /// What is said where nothing is said here.
    #[cfg(feature = "file")]
    pub(crate) file: Option<Box<file::SettingsFile>>,
}

/// Where a store is.
#[derive(Clone, Default)]
pub enum StoreAddress {
    /// In this process.
    #[default]
    Memory,
    /// Somewhere that can be connected to.
    Url(String),
    /// Here it is.
    Given(Arc<dyn Store>),
}

/// `memory`, or a URL.
impl From<&str> for StoreAddress {
    fn from(address: &str) -> Self {
        match address {
            "memory" => Self::Memory,
            url => Self::Url(url.to_owned()),
        }
    }
}

impl StoreAddress {
    /// An address as it is written in a file: with `$NAME` and `${NAME}` for what `variable` knows of them, and `$$` for a
    /// dollar.
    pub fn expanded(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Self, SettingError> {
        let expanded = text::expanded(text, variable);
        let address = expanded.map_err(|mistake| SettingError::new(mistake.problem, mistake.fix))?;
        Ok(address.as_str().into())
    }
}

/// Addresses carry passwords, and are not shown.
impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("Memory"),
            Self::Url(_) => f.write_str("Url(…)"),
            Self::Given(store) => write!(f, "Given({store:?})"),
        }
    }
}

impl Settings {
    /// Memory, everything on, and the numbers that code declares.
    pub fn new() -> Self {
        Self::default()
    }

    /// The mode of all rules that have none of their own here: [`Mode::Off`] turns everything off, [`Mode::Shadow`] makes a
    /// dry run of it.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Where state lives.
    #[must_use]
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(StoreAddress::Given(store)), ..self }
    }

    /// Where state lives, as an address: `memory`, or a URL such as `redis://127.0.0.1:6379`.
    #[must_use]
    pub fn store_at(self, address: impl AsRef<str>) -> Self {
        Self { store: Some(address.as_ref().into()), ..self }
    }

    /// One more store, for rules that name it.
    #[must_use]
    pub fn named_store(mut self, name: impl Into<String>, store: StoreAddress) -> Self {
        self.stores.insert(name.into(), store);
        self
    }

    /// What all keys in a store start with.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: Some(prefix.into()), ..self }
    }

    /// How long a store may take to decide before it counts as away; what is usual for the store unless told otherwise.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// What is decided when the store is away.
    #[must_use]
    pub fn on_outage(self, outage: Outage) -> Self {
        Self { outage: Some(outage), ..self }
    }

    /// Another quota for one rule.
    pub fn quota<Q>(mut self, rule: impl Into<String>, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        self.rules.entry(rule.into()).or_default().quotas = vec![quota];
        Ok(self)
    }

    /// What one rule is to do.
    #[must_use]
    pub fn rule(mut self, rule: impl Into<String>, settings: RuleSettings) -> Self {
        self.rules.insert(rule.into(), settings);
        self
    }

    /// How often to look whether the file has changed; never unless told otherwise, here or in the file.
    #[must_use]
    pub fn reload_every(self, pace: Duration) -> Self {
        Self { reload: Some(pace), ..self }
    }

    /// The clock of everything that is counted in memory from now on; for tests.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// What holds, with the file and what is said over it in one.
    pub(crate) fn resolved(&self) -> Self {
        #[cfg(feature = "file")]
        let mut all = self.file.as_ref().map(|file| file.says().clone()).unwrap_or_default();
        #[cfg(not(feature = "file"))]
        let mut all = Self::new();
        let over = self.clone();
        all.mode = over.mode.or(all.mode);
        all.store = over.store.or(all.store);
        all.stores.extend(over.stores);
        all.prefix = over.prefix.or(all.prefix);
        all.deadline = over.deadline.or(all.deadline);
        all.outage = over.outage.or(all.outage);
        all.reload = over.reload.or(all.reload);
        all.clock = over.clock.or(all.clock);
        for (rule, its) in over.rules {
            let known = all.rules.remove(&rule).unwrap_or_default();
            all.rules.insert(rule, its.over(known));
        }
        all
    }
}

/// What one rule is to do; what is left out stays as code declares it.
#[derive(Clone, Debug, Default)]
pub struct RuleSettings {
    pub(crate) quotas: Vec<Quota>,
    pub(crate) mode: Option<Mode>,
    pub(crate) store: Option<String>,
    pub(crate) outage: Option<Outage>,
    pub(crate) wait: Option<Duration>,
    pub(crate) message: Option<Arc<str>>,
}

impl RuleSettings {
    /// Everything as code declares it.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more quota. Together they replace those of the code.
    pub fn quota<Q>(mut self, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.quotas.push(quota.try_into()?);
        Ok(self)
    }

    /// Whether it is enforced.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// The store it is counted in, by name.
    #[must_use]
    pub fn store(self, store: impl Into<String>) -> Self {
        Self { store: Some(store.into()), ..self }
    }

    /// What is decided when that store is away.
    #[must_use]
    pub fn on_outage(self, outage: Outage) -> Self {
        Self { outage: Some(outage), ..self }
    }

    /// How long a call may wait for its turn.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// What to tell whoever is refused.
    #[must_use]
    pub fn message(self, message: impl Into<Arc<str>>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    /// These, and what they leave open from `base`.
    fn over(self, base: Self) -> Self {
        Self {
            quotas: if self.quotas.is_empty() { base.quotas } else { self.quotas },
            mode: self.mode.or(base.mode),
            store: self.store.or(base.store),
            outage: self.outage.or(base.outage),
            wait: self.wait.or(base.wait),
            message: self.message.or(base.message),
        }
    }
}
