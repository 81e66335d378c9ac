//! A site with a breaker.

use crate::{Limited, Mode, Rule, RuleConfig, Rules, events};
use arc_swap::ArcSwap;
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
};
use tidegate_core::SettingError;
use tidegate_limiter::Clock;
use tidegate_overload::{Breaker, BreakerSettings, CallError, CallGuard, CallOutcome, CallPermit};

/// A site with a breaker.
pub struct BreakerSite {
    declare: fn() -> Result<(RuleConfig, BreakerSettings), SettingError>,
    breaker: OnceLock<Option<SiteBreaker>>,
}

/// The breaker with the declared name.
struct SiteBreaker {
    breaker: Arc<NamedBreaker>,
    /// The conflict with the declaration of the site: calls are rejected while the breaker is enforced.
    conflict: Option<Arc<str>>,
}

/// A breaker with its rule and settings.
struct NamedBreaker {
    declaration: RuleConfig,
    settings: BreakerSettings,
    rule: Rule,
    clock: Clock,
    current: ArcSwap<ConfiguredBreaker>,
}

/// A breaker and the policy settings that it was created with; `None` for the declared ones.
struct ConfiguredBreaker {
    policy: Option<Arc<BreakerSettings>>,
    breaker: Arc<Breaker>,
}

impl BreakerSite {
    /// Creates a site whose breaker is declared on the first call.
    pub const fn new(declare: fn() -> Result<(RuleConfig, BreakerSettings), SettingError>) -> Self {
        Self { declare, breaker: OnceLock::new() }
    }

    /// Returns a permit for one call, or `None` if the outcome is not recorded.
    #[inline]
    pub fn try_acquire(&'static self) -> Result<Option<CallPermit<Arc<Breaker>>>, Limited> {
        let guarded = self.breaker.get().unwrap_or_else(|| self.init());
        let Some(SiteBreaker { breaker: guarded, conflict }) = guarded else { return Ok(None) };
        let state = guarded.rule.state();
        let mode = state.mode;
        if mode == Mode::Off {
            return Ok(None);
        }
        if let Some(error) = conflict {
            return conflict_result(mode, guarded, error);
        }
        match (guarded.breaker(state.breaker.as_ref()).try_acquire_owned(), mode) {
            (Ok(permit), _) => Ok(Some(permit)),
            (Err(_), Mode::Shadow | Mode::Off) => Ok(None),
            (Err(rejection), Mode::Enforce) => {
                let limited = Limited::new(guarded.rule.name(), CallError::GuardRejected(rejection));
                Err(limited.with_message(guarded.rule.message()))
            }
        }
    }

    /// Declares the breaker before the cell is set, because a log subscriber may call this site itself.
    #[cold]
    fn init(&self) -> &Option<SiteBreaker> {
        let (guarded, error) = match self.find() {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error)),
        };
        if let (Ok(()), Some(error)) = (self.breaker.set(guarded), error) {
            events::BreakerDeclarationFailed { error: &error }.emit();
        }
        self.breaker.get().unwrap_or(&None)
    }

    /// The breaker with the declared name, which may be shared with another site.
    fn find(&self) -> Result<Option<SiteBreaker>, String> {
        static KNOWN: LazyLock<Mutex<BTreeMap<String, Arc<NamedBreaker>>>> = LazyLock::new(Mutex::default);
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let (declaration, settings) = (self.declare)().map_err(|error| error.to_string())?;
        let name = &declaration.name;
        // Nothing is logged under the lock.
        let found = known().get(&**name).cloned();
        let guarded = match found {
            Some(guarded) => guarded,
            None => {
                let rule = Rules::global().declare_guard(declaration.clone());
                let rule = rule.map_err(|error| format!("{name}: {error}"))?;
                let clock = Rules::global().clock().unwrap_or_default();
                let breaker = Arc::new(Breaker::with_clock(settings.clone(), clock.clone()));
                let current = ArcSwap::from_pointee(ConfiguredBreaker { policy: None, breaker });
                let (declaration, settings) = (declaration.clone(), settings.clone());
                let declared = Arc::new(NamedBreaker { declaration, settings, rule, clock, current });
                // Another thread may have inserted it first.
                known().entry(name.clone().into_owned()).or_insert(declared).clone()
            }
        };
        let Some(error) = guarded.check_conflict(&declaration, &settings) else {
            return Ok(Some(SiteBreaker { breaker: guarded, conflict: None }));
        };
        events::BreakerConflict { breaker: name, error: &error }.emit();
        // An attribute with `shadow` rejects nothing, even if it conflicts.
        let is_enforced = declaration.mode == Mode::Enforce;
        Ok(is_enforced.then(|| SiteBreaker { breaker: guarded, conflict: Some(error.to_string().into()) }))
    }
}

/// The result of a call whose breaker has conflicting declarations.
#[cold]
fn conflict_result(
    mode: Mode,
    guarded: &NamedBreaker,
    error: &Arc<str>,
) -> Result<Option<CallPermit<Arc<Breaker>>>, Limited> {
    match mode {
        Mode::Shadow | Mode::Off => Ok(None),
        Mode::Enforce => {
            Err(Limited::new(guarded.rule.shared_name(), CallError::Misconfigured(error.clone())))
        }
    }
}

impl NamedBreaker {
    /// The breaker with the settings of the policy, or with the declared ones.
    fn breaker(&self, policy: Option<&Arc<BreakerSettings>>) -> Arc<Breaker> {
        let current = self.current.load();
        match (&current.policy, policy) {
            (None, None) => current.breaker.clone(),
            (Some(current_policy), Some(policy)) if Arc::ptr_eq(current_policy, policy) => {
                current.breaker.clone()
            }
            _ => self.reconfigure(policy),
        }
    }

    /// Replaces the breaker if the settings changed. Unchanged settings keep the recorded calls.
    #[cold]
    fn reconfigure(&self, policy: Option<&Arc<BreakerSettings>>) -> Arc<Breaker> {
        self.current.rcu(|current| {
            let settings = |policy: Option<&Arc<BreakerSettings>>| {
                policy.map_or(&self.settings, |policy| policy).clone()
            };
            let (old, new) = (settings(current.policy.as_ref()), settings(policy));
            let breaker = match old == new {
                true => current.breaker.clone(),
                false => Arc::new(Breaker::with_clock(new, self.clock.clone())),
            };
            ConfiguredBreaker { policy: policy.cloned(), breaker }
        });
        self.current.load().breaker.clone()
    }

    /// The conflict with the declaration of another site, with both locations; `None` if they agree.
    fn check_conflict(&self, other: &RuleConfig, settings: &BreakerSettings) -> Option<SettingError> {
        let first = &self.declaration;
        let (name, here, there) = (&first.name, first.location, other.location);
        if first.path != other.path {
            return Some(first.name_conflict_error(other));
        }
        (self.settings != *settings).then(|| {
            let problem = format!("breaker `{name}` has different settings at {there} and at {here}");
            SettingError::new(
                problem,
                "declare the same settings at both places, or give one of them another name",
            )
        })
    }
}

/// A result that can be classified as a success or a failure.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is neither a success nor a failure",
    label = "not a `Result`",
    note = "return a `Result`, or classify the result: `classify = |result| CallOutcome::…`"
)]
pub trait ClassifyOutcome {
    /// The outcome of the call.
    fn outcome(&self) -> CallOutcome;
}

impl<T, E> ClassifyOutcome for Result<T, E> {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::from_result(self)
    }
}

/// Classifies a result with a function, for `failure = …`.
#[inline]
pub fn classify<R>(result: &R, classify: impl FnOnce(&R) -> CallOutcome) -> CallOutcome {
    classify(result)
}
