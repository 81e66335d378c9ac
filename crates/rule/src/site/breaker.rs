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
        let (declaration, settings) = (self.declare)().map_err(|error| error.to_string())?;
        let name = declaration.name.clone();
        if let Some(guarded) = known().get(&*name) {
            return Ok(guarded.clone());
        }
        // Nothing is locked while anything is told.
        let rule = Rules::global().guard(declaration).map_err(|error| format!("{name}: {error}"))?;
        let clock = Rules::global().clock().unwrap_or_default();
        let made = Arc::new(Guarded { rule, breaker: Breaker::with_clock(settings, clock) });
        // Another place may have been quicker.
        Ok(known().entry(name.into_owned()).or_insert(made).clone())
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
