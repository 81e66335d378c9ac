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
        let Some(guarded) = self.guarded.get_or_init(|| self.make()) else { return Ok(None) };
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

    /// The breaker with the declared name, which may be that of another place already.
    #[cold]
    fn make(&self) -> Option<Arc<Guarded>> {
        static KNOWN: LazyLock<Mutex<BTreeMap<String, Arc<Guarded>>>> = LazyLock::new(Mutex::default);
        let (declaration, settings) = match (self.declare)() {
            Ok(declared) => declared,
            Err(error) => {
                tracing::error!(%error, "a breaker cannot be made, and stops nothing");
                return None;
            }
        };
        let name = declaration.name.clone();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(guarded) = known.get(&*name) {
            return Some(guarded.clone());
        }
        let rule = Rules::global().guard(declaration).inspect_err(|error| {
            tracing::error!(rule = &*name, %error, "a breaker cannot be made, and stops nothing");
        });
        let clock = Rules::global().clock().unwrap_or_default();
        let guarded = Arc::new(Guarded { rule: rule.ok()?, breaker: Breaker::with_clock(settings, clock) });
        known.insert(name.into_owned(), guarded.clone());
        Some(guarded)
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
