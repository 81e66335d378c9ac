//! What code says of a rule.

use crate::{Mode, site::SiteKey};
use std::{borrow::Cow, panic::Location, sync::Arc, time::Duration};
use tidegate_core::{CarryOver, Quota, SettingError};
use tidegate_limiter::{BuildError, Capacity, Overflow, store::QuotaSelection};

/// What code says of a rule; settings may say otherwise.
///
/// ```
/// use std::time::Duration;
/// use tidegate_rule::RuleConfig;
///
/// let rule_config = RuleConfig::new("login").quota("5/min")?.quota("20/h")?.wait(Duration::from_millis(50));
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct RuleConfig {
    pub(crate) name: Cow<'static, str>,
    /// The path of the function that it is named after; `None` if code gives it a name.
    pub(crate) path: Option<String>,
    /// Where code declares it.
    pub(crate) location: &'static Location<'static>,
    pub(crate) quotas: Vec<Quota>,
    pub(crate) selection: QuotaSelection,
    pub(crate) mode: Mode,
    pub(crate) store: Option<Cow<'static, str>>,
    pub(crate) wait: Duration,
    pub(crate) message: Option<Arc<str>>,
    pub(crate) capacity: Option<Capacity>,
    pub(crate) overflow: Overflow,
    /// The bytes that it may take where nothing is declared.
    pub(crate) memory: Option<u64>,
    pub(crate) max_waiters: Option<usize>,
    pub(crate) carry_over: CarryOver,
    /// The key of an attribute; `None` where the caller gives it.
    pub(crate) key: Option<SiteKey>,
    /// Whether it is a breaker, which counts by itself.
    pub(crate) is_breaker: bool,
}

impl RuleConfig {
    /// A rule with this name and, so far, no quota: its numbers live in the settings, and until they are there it limits
    /// nothing.
    #[track_caller]
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: name.into(),
            path: None,
            location: Location::caller(),
            quotas: Vec::new(),
            selection: QuotaSelection::All,
            mode: Mode::Enforce,
            store: None,
            wait: Duration::ZERO,
            message: None,
            capacity: None,
            overflow: Overflow::default(),
            memory: None,
            max_waiters: None,
            carry_over: CarryOver::default(),
            key: None,
            is_breaker: false,
        }
    }

    /// A rule that is named after a function.
    #[track_caller]
    pub(crate) fn for_function(name: String, path: String) -> Self {
        Self { path: Some(path), ..Self::new(name) }
    }

    /// Why this cannot be another declaration of the same rule, with both places; `None` if it can. Which of the two came
    /// first makes no difference.
    pub(crate) fn check_conflict(&self, other: &Self) -> Option<SettingError> {
        let (name, first, second) = (&self.name, self.location, other.location);
        if self.is_reference() || other.is_reference() {
            return None;
        }
        if self.path != other.path {
            return Some(self.name_conflict_error(other));
        }
        if self.selection == other.selection && self.quotas == other.quotas {
            return None;
        }
        let (ours, theirs) = (join_quotas(&self.quotas), join_quotas(&other.quotas));
        let problem =
            format!("rule `{name}` is declared as `{theirs}` at {second}, and as `{ours}` at {first}");
        Some(SettingError::new(
            problem,
            "declare the same quotas at both places, or give one of them another name",
        ))
    }

    /// That two rules have one name.
    pub(crate) fn name_conflict_error(&self, other: &Self) -> SettingError {
        let (name, first, second) = (&self.name, self.describe(), other.describe());
        let problem = format!("{second} has the rule name `{name}`, which is that of {first}");
        SettingError::new(problem, "give one of them another name, as in `rule = \"name\"`")
    }

    /// Whether it names a rule that is declared elsewhere: in the settings, or in code with quotas.
    fn is_reference(&self) -> bool {
        self.quotas.is_empty() && self.path.is_none()
    }

    fn describe(&self) -> String {
        let location = self.location;
        match &self.path {
            Some(path) => format!("`{path}` at {location}"),
            None => format!("the rule at {location}"),
        }
    }

    /// One more quota; all of them apply.
    pub fn quota<Q>(mut self, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.quotas.push(quota.try_into()?);
        Ok(self)
    }

    /// Quotas one of which applies: the one that a call names.
    #[must_use]
    pub fn tiers(self, quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self { quotas: quotas.into_iter().collect(), selection: QuotaSelection::Tier, ..self }
    }

    /// Counts and refuses nothing, or does nothing at all.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// The store it is counted in, by its name in the settings; the default one unless told otherwise.
    #[must_use]
    pub fn store(self, store: impl Into<Cow<'static, str>>) -> Self {
        Self { store: Some(store.into()), ..self }
    }

    /// How long a call may wait for its turn before it is refused; not at all unless told otherwise.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// What to tell whoever is refused.
    #[must_use]
    pub fn message(self, message: impl Into<Arc<str>>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    /// The bound on memory, where it is counted there.
    #[must_use]
    pub fn capacity(self, capacity: Capacity) -> Self {
        Self { capacity: Some(capacity), ..self }
    }

    /// What happens to new keys when there is no room for them in memory.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// The bytes that it may take where no capacity is declared. A rule keeps the memory that it has when this changes.
    #[must_use]
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: Some(bytes), ..self }
    }

    /// How many calls may wait in line, over all keys, where it is counted in memory.
    #[must_use]
    pub fn max_waiters(self, places: usize) -> Self {
        Self { max_waiters: Some(places), ..self }
    }

    /// The key that an attribute counts by.
    #[must_use]
    pub fn key(self, key: SiteKey) -> Self {
        Self { key: Some(key), ..self }
    }

    /// What becomes of what was counted when other numbers hold; what was used stays used unless told otherwise.
    #[must_use]
    pub fn carry_over(self, carry_over: CarryOver) -> Self {
        Self { carry_over, ..self }
    }
}

fn join_quotas(quotas: &[Quota]) -> String {
    quotas.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
