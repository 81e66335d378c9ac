//! The declaration of a rule in code.

use crate::{Mode, site::SiteKey};
use std::{borrow::Cow, panic::Location, sync::Arc, time::Duration};
use tidegate_core::{CarryOver, Quota, SettingError, header::CostUnit};
use tidegate_limiter::{BuildError, Capacity, Overflow, store::QuotaSelection};

/// The declaration of a rule in code, which settings may override.
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
    /// The path of the function that it is named after; `None` if code names it.
    pub(crate) path: Option<String>,
    /// Where code declares it.
    pub(crate) location: &'static Location<'static>,
    pub(crate) quotas: Vec<Quota>,
    pub(crate) selection: QuotaSelection,
    pub(crate) unit: CostUnit,
    pub(crate) mode: Mode,
    pub(crate) store: Option<Cow<'static, str>>,
    pub(crate) wait: Duration,
    pub(crate) message: Option<Arc<str>>,
    pub(crate) capacity: Option<Capacity>,
    pub(crate) overflow: Overflow,
    /// The memory limit in bytes if no capacity is declared.
    pub(crate) memory: Option<u64>,
    pub(crate) max_waiters: Option<usize>,
    pub(crate) carry_over: CarryOver,
    /// Whether its keys can have overrides.
    pub(crate) is_overridable: bool,
    /// The key of an attribute; `None` if the caller provides the key.
    pub(crate) key: Option<SiteKey>,
    /// Whether it is a breaker, which has no quota.
    pub(crate) is_breaker: bool,
    /// Whether the outcomes of its calls are recorded.
    pub(crate) has_outcomes: bool,
}

impl RuleConfig {
    /// Declares a rule with this name and without a quota: settings must provide its quotas, and until then
    /// it limits nothing.
    #[track_caller]
    pub fn new(name: impl Into<Cow<'static, str>>) -> Self {
        Self {
            name: name.into(),
            path: None,
            location: Location::caller(),
            quotas: Vec::new(),
            selection: QuotaSelection::All,
            unit: CostUnit::default(),
            mode: Mode::Enforce,
            store: None,
            wait: Duration::ZERO,
            message: None,
            capacity: None,
            overflow: Overflow::default(),
            memory: None,
            max_waiters: None,
            carry_over: CarryOver::default(),
            is_overridable: false,
            key: None,
            is_breaker: false,
            has_outcomes: false,
        }
    }

    /// The same declaration with another name and other quotas.
    #[must_use]
    pub fn derive(&self, name: impl Into<Cow<'static, str>>, quotas: Vec<Quota>) -> Self {
        Self { name: name.into(), quotas, ..self.clone() }
    }

    /// Declares a rule that is named after a function.
    #[track_caller]
    pub(crate) fn for_function(name: String, path: String) -> Self {
        Self { path: Some(path), ..Self::new(name) }
    }

    /// The conflict with another declaration of the same rule, with both locations; `None` if they agree.
    /// Their order makes no difference.
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

    /// The error if two rules have the same name.
    pub(crate) fn name_conflict_error(&self, other: &Self) -> SettingError {
        let (name, first, second) = (&self.name, self.describe(), other.describe());
        let problem = format!("{second} uses the rule name `{name}` of {first}");
        SettingError::new(problem, "give one of them another name, as in `rule = \"name\"`")
    }

    /// Whether it refers to a rule that is declared elsewhere: in the settings, or in code with quotas.
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

    /// Adds a quota; all of them apply.
    pub fn quota<Q>(mut self, quota: Q) -> Result<Self, BuildError>
    where
        Q: TryInto<Quota>,
        BuildError: From<Q::Error>,
    {
        self.quotas.push(quota.try_into()?);
        Ok(self)
    }

    /// Sets quotas of which one applies: the tier that a call selects.
    #[must_use]
    pub fn tiers(self, quotas: impl IntoIterator<Item = Quota>) -> Self {
        Self { quotas: quotas.into_iter().collect(), selection: QuotaSelection::Tier, ..self }
    }

    /// Sets what the quotas count, for headers that name it; requests by default.
    #[must_use]
    pub fn unit(self, unit: CostUnit) -> Self {
        Self { unit, ..self }
    }

    /// Sets the mode.
    #[must_use]
    pub fn mode(self, mode: Mode) -> Self {
        Self { mode, ..self }
    }

    /// Sets the store by its name in the settings; the default store by default.
    #[must_use]
    pub fn store(self, store: impl Into<Cow<'static, str>>) -> Self {
        Self { store: Some(store.into()), ..self }
    }

    /// Sets how long a call may wait before it is rejected; zero by default.
    #[must_use]
    pub fn wait(self, wait: Duration) -> Self {
        Self { wait, ..self }
    }

    /// Sets the message for rejected clients.
    #[must_use]
    pub fn message(self, message: impl Into<Arc<str>>) -> Self {
        Self { message: Some(message.into()), ..self }
    }

    /// Sets the capacity of the key table, if it counts in memory.
    #[must_use]
    pub fn capacity(self, capacity: Capacity) -> Self {
        Self { capacity: Some(capacity), ..self }
    }

    /// Sets how new keys are treated when the key table is full.
    #[must_use]
    pub fn overflow(self, overflow: Overflow) -> Self {
        Self { overflow, ..self }
    }

    /// Sets the memory limit if no capacity is declared. A change does not affect the memory of an existing
    /// rule.
    #[must_use]
    pub fn memory(self, bytes: u64) -> Self {
        Self { memory: Some(bytes), ..self }
    }

    /// Sets how many calls may wait, over all keys, if it counts in memory.
    #[must_use]
    pub fn max_waiters(self, count: usize) -> Self {
        Self { max_waiters: Some(count), ..self }
    }

    /// Sets the key of an attribute.
    #[must_use]
    pub fn key(self, key: SiteKey) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Declares that the outcomes of calls are recorded, so that the quotas can apply only while calls fail. Only attributes
    /// record them.
    #[doc(hidden)]
    #[must_use]
    pub fn with_outcomes(self) -> Self {
        Self { has_outcomes: true, ..self }
    }

    /// Lets keys have quotas of their own; see [`crate::Rule::apply_overrides`]. Without effect for several quotas that all apply.
    #[must_use]
    pub fn overridable(self) -> Self {
        Self { is_overridable: true, ..self }
    }

    /// Sets whether usage carries over when the quotas change; it does by default.
    #[must_use]
    pub fn carry_over(self, carry_over: CarryOver) -> Self {
        Self { carry_over, ..self }
    }
}

fn join_quotas(quotas: &[Quota]) -> String {
    quotas.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}
