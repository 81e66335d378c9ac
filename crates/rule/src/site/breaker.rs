//! A place that is guarded by a breaker.

use crate::{Declaration, Limited, Mode, Rule, Rules};
use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock, Mutex, OnceLock, PoisonError},
};
use tidegate_core::{BreakerSettings, Report, SettingError};
use tidegate_engine::{Breaker, Cause, Guard, Pass};

/// A place that is guarded by a breaker.
pub struct BreakerSite {
    declare: fn() -> Result<(Declaration, BreakerSettings), SettingError>,
    guarded: OnceLock<Option<Arc<Guarded>>>,
}

/// A breaker, and what settings say of it.
struct Guarded {
    declaration: Declaration,
    settings: BreakerSettings,
    rule: Rule,
    breaker: Breaker,
}

impl BreakerSite {
    /// A site whose breaker is made when it is first passed.
    pub const fn new(declare: fn() -> Result<(Declaration, BreakerSettings), SettingError>) -> Self {
        Self { declare, guarded: OnceLock::new() }
    }

    /// Leave to make one call, or `None` where nobody wants to hear how it ends.
    #[inline]
    pub fn try_pass(&'static self) -> Result<Option<Pass<&'static Breaker>>, Limited> {
        let guarded = self.guarded.get().unwrap_or_else(|| self.make());
        let Some(guarded) = guarded else { return Ok(None) };
        let mode = guarded.rule.mode();
        if mode == Mode::Off {
            return Ok(None);
        }
        match (guarded.breaker.try_pass(), mode) {
            (Ok(pass), _) => Ok(Some(pass)),
            (Err(_), Mode::Shadow | Mode::Off) => Ok(None),
            (Err(rejection), Mode::Enforce) => {
                let limited = Limited::new(guarded.rule.name(), Cause::Rejected(rejection));
                Err(limited.with_message(guarded.rule.message()))
            }
        }
    }

    /// Makes the breaker before it is put here: whoever is told of it may pass this place itself.
    #[cold]
    fn make(&self) -> &Option<Arc<Guarded>> {
        let (guarded, error) = match self.find() {
            Ok(guarded) => (Some(guarded), None),
            Err(error) => (None, Some(error)),
        };
        if let (Ok(()), Some(error)) = (self.guarded.set(guarded), error) {
            tracing::error!(error, "a breaker cannot be made, and stops nothing");
        }
        self.guarded.get().unwrap_or(&None)
    }

    /// The breaker with the declared name, which may be that of another place already.
    fn find(&self) -> Result<Arc<Guarded>, String> {
        static KNOWN: LazyLock<Mutex<BTreeMap<String, Arc<Guarded>>>> = LazyLock::new(Mutex::default);
        let known = || KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut declaration, settings) = (self.declare)().map_err(|error| error.to_string())?;
        // Nothing is locked while anything is told.
        let found = known().get(&*declaration.name).cloned();
        if let Some(guarded) = found {
            let Some(error) = guarded.conflict(&declaration, &settings) else { return Ok(guarded) };
            tracing::error!(%error, "conflicting breaker declarations");
            // The first declaration of a name holds at both places; a function without a name of its own has a breaker of
            // its own.
            let Some(path) = declaration.path.take() else { return Ok(guarded) };
            declaration.name = path.into();
        }
        let name = declaration.name.clone();
        let rule = Rules::global().guard(declaration.clone()).map_err(|error| format!("{name}: {error}"))?;
        let clock = Rules::global().clock().unwrap_or_default();
        let breaker = Breaker::with_clock(settings.clone(), clock);
        let made = Arc::new(Guarded { declaration, settings, rule, breaker });
        // Another place may have been quicker.
        Ok(known().entry(name.into_owned()).or_insert(made).clone())
    }
}

impl Guarded {
    /// Why this cannot be the breaker of another place as well, with both places; `None` if it can.
    fn conflict(&self, other: &Declaration, settings: &BreakerSettings) -> Option<SettingError> {
        let first = &self.declaration;
        let (name, here, there) = (&first.name, first.location, other.location);
        if first.path != other.path {
            return Some(first.name_conflict(other));
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
pub trait Judged {
    /// How the call ended.
    fn report(&self) -> Report;
}

impl<T, E> Judged for Result<T, E> {
    #[inline]
    fn report(&self) -> Report {
        Report::of(self)
    }
}

/// What a function of the caller's says about how a call ended, for `failure = …`.
#[inline]
pub fn judge<R>(answer: &R, judge: impl FnOnce(&R) -> Report) -> Report {
    judge(answer)
}
