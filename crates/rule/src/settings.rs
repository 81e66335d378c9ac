//! Stores, modes and quotas that override the declarations in code: the part of a policy for attributes and
//! layers.

use crate::{Mode, site::SiteKey};
use std::{collections::BTreeMap, error, fmt, sync::Arc, time::Duration};
use tidegate_core::{CarryOver, Quota, SettingError};
use tidegate_limiter::{BuildError, Capacity, Clock, FailureMode, Overflow, Store, TokenPrefetch};
use tidegate_overload::{BreakerSettings, LoadMonitor, Rejection, ScalePolicy, error_rate::KeyedErrorRate};

/// Stores, modes, and settings that replace those declared in code.
///
/// ```
/// use tidegate_rule::{Mode, RuleSettings, Settings};
///
/// let settings = Settings::new()
///     .store_url("redis://127.0.0.1:6379")                                      // memory by default
///     .prefix("shop")
///     .rule("login", RuleSettings::new().quota("5/min")?.mode(Mode::Shadow));
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// Programs write a policy file instead, which `tidegate-policy` compiles into these.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub(crate) mode: Option<Mode>,
    pub(crate) store: Option<StoreAddress>,
    pub(crate) stores: BTreeMap<String, StoreAddress>,
    pub(crate) prefix: Option<String>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) failure_mode: Option<FailureMode>,
    pub(crate) rules: BTreeMap<String, RuleSettings>,
    pub(crate) clock: Option<Clock>,
}

/// The address of a store.
#[derive(Clone, Default)]
pub enum StoreAddress {
    /// In this process.
    #[default]
    Memory,
    /// A URL to connect to.
    Url(String),
    /// An existing store.
    Instance(Arc<dyn Store>),
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
    /// Parses an address with variables: `$NAME` and `${NAME}` are replaced by the values that `variable`
    /// returns, and `$$` by a dollar sign.
    pub fn parse_expanded(
        text: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<Self, SettingError> {
        expand(text, variable).map(|address| address.as_str().into())
    }
}

/// Addresses contain passwords, so they are redacted.
impl fmt::Debug for StoreAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("Memory"),
            Self::Url(_) => f.write_str("Url(…)"),
            Self::Instance(store) => write!(f, "Instance({store:?})"),
        }
    }
}

pub(crate) fn looks_like_address(text: &str) -> bool {
    text.contains("://") || text.contains('@')
}

fn expand(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, SettingError> {
    let mut whole = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, behind)) = rest.split_once('$') {
        whole.push_str(before);
        let (name, after) = match behind.strip_prefix('{') {
            Some(braced) => braced.split_once('}').ok_or_else(|| {
                SettingError::new("missing `}` after `${`", "write ${NAME}, or $$ for a dollar")
            })?,
            None => {
                let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
                behind.split_at(behind.find(|c| !is_part(c)).unwrap_or(behind.len()))
            }
        };
        rest = after;
        match (name, after.strip_prefix('$')) {
            ("", Some(after)) if !behind.starts_with('{') => {
                whole.push('$');
                rest = after;
            }
            ("", _) => {
                return Err(SettingError::new("missing name after `$`", "write $NAME, or $$ for a dollar"));
            }
            (name, _) => whole.push_str(&variable(name).ok_or_else(|| unset_variable(name))?),
        }
    }
    whole.push_str(rest);
    Ok(whole)
}

/// An unusual name may be part of a password with a dollar sign, so it is redacted.
fn unset_variable(name: &str) -> SettingError {
    let is_usual = name.starts_with(|c: char| c.is_ascii_uppercase() || c == '_')
        && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    let name = if is_usual { name } else { "behind a `$`" };
    let fix =
        format!("set {} in the environment, or write $$ for a dollar", if is_usual { name } else { "it" });
    SettingError::new(format!("the variable {name} is not set"), fix)
}

impl Settings {
    /// Creates settings that change nothing: memory, with the modes and quotas declared in code.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the mode of all rules without a mode here: [`Mode::Off`] disables all rules, [`Mode::Shadow`]
    /// makes a dry run.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Sets the default store.
    #[must_use]
    pub fn store(self, store: Arc<dyn Store>) -> Self {
        Self { store: Some(StoreAddress::Instance(store)), ..self }
    }

    /// Sets the default store by its address: `memory`, or a URL such as `redis://127.0.0.1:6379`.
    #[must_use]
    pub fn store_url(self, address: impl AsRef<str>) -> Self {
        Self { store: Some(address.as_ref().into()), ..self }
    }

    /// Adds a store for rules that name it.
    #[must_use]
    pub fn named_store(mut self, name: impl Into<String>, store: StoreAddress) -> Self {
        self.stores.insert(name.into(), store);
        self
    }

    /// Sets the prefix of all keys in a store.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: Some(prefix.into()), ..self }
    }

    /// Sets the deadline after which a store counts as unavailable; that of the store by default.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline: Some(deadline), ..self }
    }

    /// Sets the failure mode for an unavailable store.
    #[must_use]
    pub fn failure_mode(self, failure_mode: FailureMode) -> Self {
        Self { failure_mode: Some(failure_mode), ..self }
    }

    /// Replaces the quota of one rule.
    pub fn quota<Q>(mut self, rule: impl Into<String>, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        let quota = quota.try_into()?;
        self.rules.entry(rule.into()).or_default().quotas = vec![quota];
        Ok(self)
    }

    /// Sets the settings of one rule.
    #[must_use]
    pub fn rule(mut self, rule: impl Into<String>, settings: RuleSettings) -> Self {
        self.rules.insert(rule.into(), settings);
        self
    }

    /// Sets the clock of limiters in memory; for tests.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }
}

/// The settings of one rule; omitted ones stay as declared in code.
#[derive(Clone, Debug, Default)]
pub struct RuleSettings {
    /// The quotas that replace the declared ones; if empty, those stay.
    pub quotas: Vec<Quota>,
    pub(crate) mode: Option<Mode>,
    pub(crate) store: Option<String>,
    pub(crate) failure_mode: Option<FailureMode>,
    pub(crate) wait: Option<Duration>,
    pub(crate) message: Option<Arc<str>>,
    /// Whether tokens are prefetched from the store.
    pub prefetch: Option<TokenPrefetch>,
    /// The bound on memory.
    pub capacity: Option<Capacity>,
    /// How new keys are treated when memory is full.
    pub overflow: Option<Overflow>,
    /// Whether usage carries over when the quotas change.
    pub carry_over: Option<CarryOver>,
    /// The settings that replace those of `#[breaker]`.
    pub breaker: Option<Arc<BreakerSettings>>,
    /// Rejects calls before any quota, such as while a feature is off.
    pub call_check: Option<CallCheck>,
    /// How the quotas follow the load.
    pub scale: Option<LoadScale>,
    /// The quotas apply to a key only while its error rate is exceeded.
    pub while_failing: Option<Arc<KeyedErrorRate>>,
    /// The key that calls are counted by; an attribute with another key is rejected.
    pub key: Option<SiteKey>,
    /// Keys of the policy that do not apply to a rule declared in code, and change none of its decisions; logged.
    pub unused_keys: Vec<&'static str>,
    pub(crate) unsupported: Option<(&'static str, SettingError)>,
}

/// How the quotas of a rule follow the load.
#[derive(Clone, Debug)]
pub struct LoadScale {
    /// Measures the load.
    pub monitor: LoadMonitor,
    /// The factors for it.
    pub policy: ScalePolicy,
}

impl LoadScale {
    /// Rejects totals under this policy key: tokens of a larger total would never be repaid, and a denial by a smaller one is
    /// final.
    #[doc(hidden)]
    pub fn reject_totals(key: &str, quotas: &[Quota]) -> Result<(), SettingError> {
        let Some(total) = quotas.iter().find(|quota| quota.is_total()) else { return Ok(()) };
        let problem = format!("`{key}` changes quotas for a time, but `{total}` never refills");
        Err(SettingError::new(problem, format!("remove `{key}`, or use a rate")))
    }
}

/// A check of every call of a rule, before its quotas.
#[derive(Clone)]
pub struct CallCheck(Arc<dyn Fn() -> Result<(), Rejection> + Send + Sync>);

impl CallCheck {
    /// Creates a check by a function.
    pub fn new(check: impl Fn() -> Result<(), Rejection> + Send + Sync + 'static) -> Self {
        Self(Arc::new(check))
    }

    pub(crate) fn check(&self) -> Result<(), Rejection> {
        (self.0)()
    }
}

impl fmt::Debug for CallCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CallCheck")
    }
}

impl RuleSettings {
    /// Creates settings that change nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a quota. Together they replace the declared ones.
    pub fn quota<Q>(mut self, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.quotas.push(quota.try_into()?);
        Ok(self)
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode: Some(mode), ..self }
    }

    /// Sets the store by its name.
    #[must_use]
    pub fn store(self, store: impl Into<String>) -> Self {
        Self { store: Some(store.into()), ..self }
    }

    /// Sets the failure mode for an unavailable store.
    #[must_use]
    pub fn failure_mode(self, failure_mode: FailureMode) -> Self {
        Self { failure_mode: Some(failure_mode), ..self }
    }

    /// Sets how long a call may wait.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait: Some(wait), ..self }
    }

    /// Sets the message for rejected clients.
    #[must_use]
    pub fn message(self, message: impl Into<Arc<str>>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    /// Records a policy key that rules declared in code do not support: such a rule is rejected. Only the
    /// first is reported.
    #[must_use]
    pub fn unsupported(self, key: &'static str, error: SettingError) -> Self {
        Self { unsupported: self.unsupported.or(Some((key, error))), ..self }
    }
}

/// An error in the settings. Contains the place and the fix, and never a password.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A rule cannot be built.
    #[error("rule `{rule}`: {error}")]
    Rule {
        /// The rule.
        rule: String,
        /// The cause.
        #[source]
        error: BuildError,
    },
    /// The settings of a rule are incompatible with its declaration.
    #[error("rule `{rule}`: {error}")]
    InvalidRule {
        /// The rule.
        rule: String,
        /// The policy key at fault.
        key: &'static str,
        /// The problem and the fix.
        #[source]
        error: SettingError,
    },
    /// A rule names an unknown store.
    #[error("rule `{rule}`: unknown store `{store}`; {}", known_stores(.known))]
    UnknownStore {
        /// The rule.
        rule: String,
        /// The name of the store.
        store: String,
        /// The names of all stores.
        known: Vec<String>,
    },
    /// The address of a store is invalid.
    #[error("store{}: {error}", .name.as_ref().map(|name| format!(" `{name}`")).unwrap_or_default())]
    Store {
        /// Its name; `None` for the default one.
        name: Option<String>,
        /// The cause.
        #[source]
        error: Box<dyn error::Error + Send + Sync>,
    },
    /// The program has no connector for stores.
    #[error(
        "no connector for store addresses; enable the feature `redis`, and call `tidegate::init` or \
         `tidegate::rules` first"
    )]
    NoConnector,
}

fn known_stores(known: &[String]) -> String {
    match known.is_empty() {
        true => "define it under `stores`".to_owned(),
        false => format!("use one of `{}`", known.join("`, `")),
    }
}

#[cfg(test)]
mod tests {
    use super::{SettingError, expand};

    #[test]
    fn variables_are_expanded() {
        let variable = |name: &str| match name {
            "HOST" => Some("db".to_owned()),
            "SECRET" => Some("pa$$word".to_owned()),
            _ => None,
        };
        let table = [
            ("memory", Ok("memory")),
            ("redis://$HOST:6379", Ok("redis://db:6379")),
            ("redis://:${SECRET}@$HOST", Ok("redis://:pa$$word@db")),
            ("redis://:a$$b@host", Ok("redis://:a$b@host")),
            ("redis://$NOWHERE", Err("the variable NOWHERE is not set")),
            ("redis://:hunter$2a@host", Err("the variable behind a `$` is not set")),
            ("redis://${HOST", Err("missing `}` after `${`")),
            ("redis://$@host", Err("missing name after `$`")),
            ("redis://${}@host", Err("missing name after `$`")),
            ("redis://host/$", Err("missing name after `$`")),
        ];
        for (text, expected) in table {
            let found = expand(text, &variable);
            assert_eq!(found.as_deref().map_err(SettingError::problem), expected, "{text}");
        }
    }
}
