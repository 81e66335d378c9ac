//! A place that is guarded by a breaker.

use crate::{Limited, Mode, Rule, RuleConfig, Rules};
use arc_swap::ArcSwap;
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
};
use tidegate_core::SettingError;
use tidegate_limiter::Clock;
use tidegate_overload::{Breaker, BreakerSettings, CallError, CallGuard, CallOutcome, CallPermit};

/// A place that is guarded by a breaker.
pub struct BreakerSite {
    declare: fn() -> Result<(RuleConfig, BreakerSettings), SettingError>,
    breaker: OnceLock<Option<SiteBreaker>>,
}

/// The breaker that has the name.
struct SiteBreaker {
    breaker: Arc<NamedBreaker>,
    /// Why it is not that of the place: calls are refused while it is enforced.
    conflict: Option<Arc<str>>,
}

/// A breaker, and what settings say of it.
struct NamedBreaker {
    declaration: RuleConfig,
    settings: BreakerSettings,
    rule: Rule,
    clock: Clock,
    current: ArcSwap<ConfiguredBreaker>,
}

/// A breaker with the settings of the policy that it was made with; `None` for those of the code.
struct ConfiguredBreaker {
    policy: Option<Arc<BreakerSettings>>,
    breaker: Arc<Breaker>,
}

impl BreakerSite {
    /// A site whose breaker is made when it is first passed.
    pub const fn new(declare: fn() -> Result<(RuleConfig, BreakerSettings), SettingError>) -> Self {
        Self { declare, breaker: OnceLock::new() }
    }

    /// Leave to make one call, or `None` where nobody wants to hear how it ends.
    #[inline]
    pub fn try_acquire(&'static self) -> Result<Option<CallPermit<Arc<Breaker>>>, Limited> {
        let guarded = self.breaker.get().unwrap_or_else(|| self.init());
        let Some(SiteBreaker { breaker: guarded, conflict }) = guarded else { return Ok(None) };
        let terms = guarded.rule.state();
        let mode = terms.mode;
        if mode == Mode::Off {
            return Ok(None);
        }
        if let Some(error) = conflict {
            return conflict_result(mode, guarded, error);
        }
        match (guarded.breaker(terms.breaker.as_ref()).try_acquire_owned(), mode) {
            (Ok(pass), _) => Ok(Some(pass)),
            (Err(_), Mode::Shadow | Mode::Off) => Ok(None),
            (Err(rejection), Mode::Enforce) => {
                let limited = Limited::new(guarded.rule.name(), CallError::Rejected(rejection));
                Err(limited.with_message(guarded.rule.message()))
            }
        }
    }

    /// Makes the breaker before it is put here: whoever is told of it may pass this place itself.
    #[cold]
    fn init(&self) -> &Option<SiteBreaker> {
        let (guarded, error) = match self.find() {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error)),
        };
        if let (Ok(()), Some(error)) = (self.breaker.set(guarded), error) {
            tracing::error!(error, "a breaker cannot be made, and stops nothing");
        }
        self.breaker.get().unwrap_or(&None)
    }

    /// The breaker with the declared name, which may be that of another place already.
    fn find(&self) -> Result<Option<SiteBreaker>, String> {
        static KNOWN: LazyLock<Mutex<BTreeMap<String, Arc<NamedBreaker>>>> = LazyLock::new(Mutex::default);
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let (declaration, settings) = (self.declare)().map_err(|error| error.to_string())?;
        let name = &declaration.name;
        // Nothing is locked while anything is logged.
        let found = known().get(&**name).cloned();
        let guarded = match found {
            Some(guarded) => guarded,
            None => {
                let rule = Rules::global().declare_guard(declaration.clone());
                let rule = rule.map_err(|error| format!("{name}: {error}"))?;
                let clock = Rules::global().clock().unwrap_or_default();
                let breaker = Arc::new(Breaker::with_clock(settings.clone(), clock.clone()));
                let now = ArcSwap::from_pointee(ConfiguredBreaker { policy: None, breaker });
                let (declaration, settings) = (declaration.clone(), settings.clone());
                let made = Arc::new(NamedBreaker { declaration, settings, rule, clock, current: now });
                // Another place may have been quicker.
                known().entry(name.clone().into_owned()).or_insert(made).clone()
            }
        };
        let Some(error) = guarded.check_conflict(&declaration, &settings) else {
            return Ok(Some(SiteBreaker { breaker: guarded, conflict: None }));
        };
        tracing::error!(breaker = &**name, %error, "conflicting breaker declarations, calls are refused");
        // An attribute with `shadow` refuses nothing, whatever is wrong with it.
        let is_enforced = declaration.mode == Mode::Enforce;
        Ok(is_enforced.then(|| SiteBreaker { breaker: guarded, conflict: Some(error.to_string().into()) }))
    }
}

/// What a call gets whose breaker is declared in two ways.
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
    /// The breaker with the settings of the policy, or with those of the code where it has none.
    fn breaker(&self, policy: Option<&Arc<BreakerSettings>>) -> Arc<Breaker> {
        let now = self.current.load();
        match (&now.policy, policy) {
            (None, None) => now.breaker.clone(),
            (Some(now_policy), Some(policy)) if Arc::ptr_eq(now_policy, policy) => now.breaker.clone(),
            _ => self.reconfigure(policy),
        }
    }

    /// Starts again with other settings. The same settings, read again, keep what was counted.
    #[cold]
    fn reconfigure(&self, policy: Option<&Arc<BreakerSettings>>) -> Arc<Breaker> {
        self.current.rcu(|now| {
            let settings = |policy: Option<&Arc<BreakerSettings>>| {
                policy.map_or(&self.settings, |policy| policy).clone()
            };
            let (old, new) = (settings(now.policy.as_ref()), settings(policy));
            let breaker = match old == new {
                true => now.breaker.clone(),
                false => Arc::new(Breaker::with_clock(new, self.clock.clone())),
            };
            ConfiguredBreaker { policy: policy.cloned(), breaker }
        });
        self.current.load().breaker.clone()
    }

    /// Why this cannot be the breaker of another place as well, with both places; `None` if it can.
    fn check_conflict(&self, other: &RuleConfig, settings: &BreakerSettings) -> Option<SettingError> {
        let first = &self.declaration;
        let (name, here, there) = (&first.name, first.location, other.location);
        if first.path != other.path {
            return Some(first.name_conflict_error(other));
        }
        (self.settings != *settings).then(|| {
            let problem = format!("breaker `{name}` has other settings at {there} than at {here}");
            SettingError::new(
                problem,
                "write the same settings at both places, or give one of them another name",
            )
        })
    }
}

/// What tells by itself whether a call went well.
#[diagnostic::on_unimplemented(
    message = "a breaker cannot tell from `{Self}` whether the call failed",
    label = "neither `Ok` nor `Err`",
    note = "return a `Result`, or say what is a failure: `failure = |answer| Report::…`"
)]
pub trait ClassifyOutcome {
    /// How the call ended.
    fn outcome(&self) -> CallOutcome;
}

impl<T, E> ClassifyOutcome for Result<T, E> {
    #[inline]
    fn outcome(&self) -> CallOutcome {
        CallOutcome::from_result(self)
    }
}

/// What a function of the caller's says about how a call ended, for `failure = …`.
#[inline]
pub fn classify<R>(answer: &R, judge: impl FnOnce(&R) -> CallOutcome) -> CallOutcome {
    judge(answer)
}
