//! A place that is limited, by a rate or by a number at once.
//!
//! A question is asked before anything is awaited, and what is awaited owns all that it needs: the key may be anything that
//! lives only as long as the question, and the future of the function stays as `Send` as it was.

use crate::{
    Limited, Mode, Rule, RuleConfig, RuleKey, RulePermit, Rules,
    rule::{self, CheckPath},
    rules::SiteRule,
};
use std::{
    borrow::Cow,
    fmt,
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError},
    task::{Context, Poll},
    time::Duration,
};
use tidegate_core::{Decision, Micros};
use tidegate_limiter::{Bucket, BuildError, Limiter, Reservation, background};
use tidegate_overload::CallError;

/// A place that is limited.
pub struct LimitSite {
    declare: fn() -> Result<RuleConfig, BuildError>,
    state: OnceLock<SiteState>,
}

/// The rule of a place.
enum SiteState {
    /// The limiter that most rules have for good is kept beside it, one step nearer.
    Rule { rule: Rule, limiter: Option<Limiter> },
    /// The rule that has the name is declared in another way: calls are refused while it is enforced.
    Conflict { rule: Rule, error: Arc<str> },
    /// There is no rule.
    None,
}

/// A rule that has something to say.
#[derive(Clone, Copy)]
pub struct ActiveSite<'a> {
    rule: &'a Rule,
    /// Decides by itself.
    fast_limiter: Option<&'a Limiter>,
    /// Why every call is refused.
    conflict: Option<&'a Arc<str>>,
}

/// A call that may not go on, or not yet.
pub enum AdmitError<T> {
    /// It was refused.
    Limited(Limited),
    /// It has to wait: for its turn, or for a store.
    Pending(PendingAdmit<T>),
}

/// What such a call waits for.
pub struct PendingAdmit<T> {
    /// Never locked: it makes the function's future no less `Sync` than it was.
    future: Mutex<AdmitFuture<T>>,
}

type AdmitFuture<T> = Pin<Box<dyn Future<Output = Result<T, Limited>> + Send>>;

/// Tokens that are given back if the call is refused further on.
#[must_use = "dropping it gives the tokens back"]
pub struct SiteReservation {
    reservation: Option<Reservation>,
}

impl LimitSite {
    /// A site whose rule is declared when it is first passed.
    pub const fn new(declare: fn() -> Result<RuleConfig, BuildError>) -> Self {
        Self { declare, state: OnceLock::new() }
    }

    /// Its rule; `None` if that is off, or has no numbers.
    #[inline]
    pub fn open(&self) -> Option<ActiveSite<'_>> {
        match self.state.get().unwrap_or_else(|| self.init()) {
            SiteState::Rule { rule, limiter: here } => match rule.check_path() {
                CheckPath::Fast => Some(ActiveSite { rule, fast_limiter: here.as_ref(), conflict: None }),
                CheckPath::Slow => Some(ActiveSite { rule, fast_limiter: None, conflict: None }),
                CheckPath::Idle => None,
            },
            SiteState::Conflict { rule, error } => (rule.mode() == Mode::Enforce).then_some(ActiveSite {
                rule,
                fast_limiter: None,
                conflict: Some(error),
            }),
            SiteState::None => None,
        }
    }

    /// Makes the rule before it is put here: whoever is told of it may pass this place itself. If several do that at once,
    /// they get the same rule.
    #[cold]
    fn init(&self) -> &SiteState {
        let declared = (self.declare)();
        let (name, mode) = match &declared {
            Ok(declaration) => (declaration.name.clone(), declaration.mode),
            Err(_) => (Cow::default(), Mode::Enforce),
        };
        let rule = declared.and_then(|declaration| Rules::global().declare_site(declaration));
        let (made, error) = match rule {
            Ok(SiteRule { rule, conflict: None }) => {
                (SiteState::Rule { limiter: rule.local_limiter().cloned(), rule }, None)
            }
            Ok(SiteRule { rule, conflict: Some(error) }) if mode == Mode::Enforce => {
                (SiteState::Conflict { rule, error: error.to_string().into() }, None)
            }
            // An attribute with `shadow` refuses nothing, whatever is wrong with it.
            Ok(SiteRule { .. }) => (SiteState::None, None),
            Err(error) => (SiteState::None, Some(error)),
        };
        if let (Ok(()), Some(error)) = (self.state.set(made), error) {
            tracing::error!(rule = &*name, %error, "a rule cannot be made, and limits nothing");
        }
        self.state.get().unwrap_or(&SiteState::None)
    }
}

impl ActiveSite<'_> {
    /// Takes `cost` for `key`.
    #[inline]
    pub fn admit<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), AdmitError<()>> {
        match self.fast_limiter {
            Some(limiter) => match limiter.check_cost(key, cost) {
                decision if decision.is_granted() => Ok(()),
                decision => Err(AdmitError::Limited(self.rule.to_limited(&decision))),
            },
            None => self.admit_slow(key, cost),
        }
    }

    /// Takes `cost` for `key`, blocking where there is something to wait for.
    #[inline]
    pub fn admit_blocking<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.fast_limiter {
            Some(limiter) => match limiter.check_cost(key, cost) {
                decision if decision.is_granted() => Ok(()),
                decision => Err(self.rule.to_limited(&decision)),
            },
            None => self.admit_slow_blocking(key, cost),
        }
    }

    #[cold]
    #[inline(never)]
    fn admit_slow_blocking<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), Limited> {
        self.check_conflict()?;
        self.rule.admit_blocking(key, cost)
    }

    #[cold]
    #[inline(never)]
    fn admit_slow<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), AdmitError<()>> {
        self.check_conflict().map_err(AdmitError::Limited)?;
        let terms = self.rule.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(()) };
        self.rule.expect_rates(&terms);
        let (rule, patience, mode) = (self.rule.clone(), terms.max_wait(), terms.mode);
        if limiter.is_in_memory() && patience.is_zero() {
            return rule.apply_mode(mode, limiter.check_cost(key, cost)).map_err(AdmitError::Limited);
        }
        let asked = rule::acquire_tokens(limiter.key(key), cost, patience);
        Err(AdmitError::pending(async move { rule.apply_mode(mode, asked.await) }))
    }

    /// Takes `cost` for `key`, to be kept or given back.
    pub fn reserve<K: RuleKey + ?Sized>(
        self,
        key: &K,
        cost: u64,
    ) -> Result<SiteReservation, AdmitError<SiteReservation>> {
        self.check_conflict().map_err(AdmitError::Limited)?;
        let terms = self.rule.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(SiteReservation::empty()) };
        self.rule.expect_rates(&terms);
        let (rule, patience, mode) = (self.rule.clone(), terms.max_wait(), terms.mode);
        if limiter.is_in_memory() && patience.is_zero() {
            let taken = limiter.blocking().key(key).reserve(cost, patience);
            return rule.apply_mode_to_reservation(mode, Some(taken)).map_err(AdmitError::Limited);
        }
        let waiting = reserve_tokens(limiter.key(key), cost, patience);
        Err(AdmitError::pending(async move { rule.apply_mode_to_reservation(mode, waiting.await) }))
    }

    /// Takes `cost` for `key`, to be kept or given back, blocking where there is something to wait for.
    pub fn reserve_blocking<K: RuleKey + ?Sized>(
        self,
        key: &K,
        cost: u64,
    ) -> Result<SiteReservation, Limited> {
        self.check_conflict()?;
        let terms = self.rule.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(SiteReservation::empty()) };
        self.rule.expect_rates(&terms);
        let (bucket, patience) = (limiter.blocking().key(key), terms.max_wait());
        let reservation = match patience.is_zero() {
            true => bucket.reserve(cost, patience),
            false => bucket.acquire_reserved(cost, Some(patience)),
        };
        self.rule.apply_mode_to_reservation(terms.mode, Some(reservation))
    }

    /// Takes a slot of `key`.
    pub fn acquire<K: RuleKey + ?Sized>(self, key: &K) -> Result<RulePermit, AdmitError<RulePermit>> {
        self.check_conflict().map_err(AdmitError::Limited)?;
        let terms = self.rule.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(RulePermit::empty()) };
        self.rule.expect_slots(&terms);
        if limiter.is_in_memory() && terms.waiter().is_none() {
            let permit = limiter.blocking().key(key).permit();
            return self
                .rule
                .apply_mode_to_permit(&terms, Ok(RulePermit::new(permit)))
                .map_err(AdmitError::Limited);
        }
        let (rule, waiting) = (self.rule.clone(), rule::acquire_permit(limiter.key(key), terms.waiter()));
        Err(AdmitError::pending(async move { rule.apply_mode_to_permit(&terms, waiting.await) }))
    }

    /// Takes a slot of `key`, blocking where there is something to wait for.
    pub fn acquire_blocking<K: RuleKey + ?Sized>(self, key: &K) -> Result<RulePermit, Limited> {
        self.check_conflict()?;
        self.rule.acquire_blocking(key)
    }

    /// Refuses the call if code declares the rule in two ways. Without the message of the rule, which would hide the error.
    fn check_conflict(self) -> Result<(), Limited> {
        match self.conflict {
            Some(error) => {
                Err(Limited::new(self.rule.shared_name(), CallError::Misconfigured(error.clone())))
            }
            None => Ok(()),
        }
    }
}

impl Rule {
    /// What was taken, or why nothing was. A rule that is not enforced lets everybody go on.
    fn apply_mode_to_reservation(
        &self,
        mode: Mode,
        reservation: Option<Reservation>,
    ) -> Result<SiteReservation, Limited> {
        // Without an answer nothing is known: as when a store is away and the rule says closed.
        let decision = match &reservation {
            Some(reservation) => *reservation.decision(),
            None => Decision::fail_closed(0, Micros::from_secs(1)),
        };
        self.apply_mode(mode, decision).map(|()| SiteReservation { reservation })
    }
}

/// Waits for tokens; a store is asked on this runtime, or else on our own. `None` if there is neither.
async fn reserve_tokens(bucket: Bucket, cost: u64, patience: Duration) -> Option<Reservation> {
    let is_in_memory = bucket.is_in_memory();
    let taking = async move { bucket.acquire_reserved(cost, Some(patience)).await };
    if is_in_memory { Some(taking.await) } else { background::run_in_runtime(taking).await }
}

impl<T> AdmitError<T> {
    fn pending(answer: impl Future<Output = Result<T, Limited>> + Send + 'static) -> Self {
        Self::Pending(PendingAdmit { future: Mutex::new(Box::pin(answer)) })
    }

    /// How it ends.
    pub async fn resolve(self) -> Result<T, Limited> {
        match self {
            Self::Limited(limited) => Err(limited),
            Self::Pending(waiting) => waiting.await,
        }
    }
}

impl<T> Future for PendingAdmit<T> {
    type Output = Result<T, Limited>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.get_mut().future.get_mut().unwrap_or_else(PoisonError::into_inner);
        answer.as_mut().poll(context)
    }
}

impl SiteReservation {
    fn empty() -> Self {
        Self { reservation: None }
    }

    /// Spends the tokens.
    pub fn keep(mut self) {
        if let Some(reservation) = self.reservation.take() {
            reservation.keep();
        }
    }
}

/// What was taken in a store is given back on a runtime: on ours where there is none.
impl Drop for SiteReservation {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            background::enter(|| drop(reservation));
        }
    }
}

impl fmt::Debug for SiteReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taken")
    }
}
