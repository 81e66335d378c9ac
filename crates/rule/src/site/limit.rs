//! A site with a rate or a concurrency limit.
//!
//! The check starts before anything is awaited, and the future owns everything it needs: the key may be a
//! short-lived borrow, and the future of the function stays `Send`.

use crate::{
    Limited, Mode, Rule, RuleConfig, RuleKey, RulePermit, Rules, events,
    permit::{CountedCall, PendingCall},
    rule::{self, CheckPath},
    rule_state::RuleState,
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

/// A site with a limit.
pub struct LimitSite {
    declare: fn() -> Result<RuleConfig, BuildError>,
    state: OnceLock<SiteState>,
}

/// The rule of a site.
enum SiteState {
    /// The limiter in memory is copied here to avoid an indirection.
    Rule { rule: Rule, limiter: Option<Limiter> },
    /// The rule with this name has a conflicting declaration: calls are rejected while it is enforced.
    Conflict { rule: Rule, error: Arc<str> },
    /// There is no rule.
    None,
}

/// A site whose rule must be checked.
#[derive(Clone, Copy)]
pub struct ActiveSite<'a> {
    rule: &'a Rule,
    /// The limiter that alone decides.
    fast_limiter: Option<&'a Limiter>,
    /// The conflict because of which every call is rejected.
    conflict: Option<&'a Arc<str>>,
}

/// A call that is rejected, or must wait.
pub enum AdmitError<T> {
    /// It was rejected.
    Limited(Limited),
    /// It must wait: for the limit or for a store.
    Pending(PendingAdmit<T>),
}

/// The future of a call that must wait.
pub struct PendingAdmit<T> {
    /// Never locked: it keeps the function's future `Sync`.
    future: Mutex<AdmitFuture<T>>,
}

type AdmitFuture<T> = Pin<Box<dyn Future<Output = Result<T, Limited>> + Send>>;

/// A call that the rule has counted and must decide.
struct SiteCall {
    state: Arc<RuleState>,
    /// `None` if no quota applies to the call.
    limiter: Option<Limiter>,
    pending: PendingCall,
}

/// Reserved tokens; dropping it refunds them.
#[must_use = "dropping it refunds the tokens"]
pub struct SiteReservation {
    reservation: Option<Reservation>,
    pending: PendingCall,
}

impl LimitSite {
    /// Creates a site whose rule is declared on the first call.
    pub const fn new(declare: fn() -> Result<RuleConfig, BuildError>) -> Self {
        Self { declare, state: OnceLock::new() }
    }

    /// Its rule; `None` if it is off, or has no quota.
    #[inline]
    pub fn open(&self) -> Option<ActiveSite<'_>> {
        match self.state.get().unwrap_or_else(|| self.init()) {
            SiteState::Rule { rule, limiter } => match rule.check_path() {
                CheckPath::Fast => Some(ActiveSite { rule, fast_limiter: limiter.as_ref(), conflict: None }),
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

    /// Declares the rule before the cell is set, because a log subscriber may call this site itself.
    /// Concurrent declarations return the same rule.
    #[cold]
    fn init(&self) -> &SiteState {
        let declared = (self.declare)();
        let (name, mode) = match &declared {
            Ok(declaration) => (declaration.name.clone(), declaration.mode),
            Err(_) => (Cow::default(), Mode::Enforce),
        };
        let rule = declared.and_then(|declaration| Rules::global().declare_site(declaration));
        let (state, error) = match rule {
            Ok(SiteRule { rule, conflict: None }) => {
                (SiteState::Rule { limiter: rule.local_limiter().cloned(), rule }, None)
            }
            Ok(SiteRule { rule, conflict: Some(error) }) if mode == Mode::Enforce => {
                (SiteState::Conflict { rule, error: error.to_string().into() }, None)
            }
            // An attribute with `shadow` rejects nothing, even if it conflicts.
            Ok(SiteRule { .. }) => (SiteState::None, None),
            Err(error) => (SiteState::None, Some(error)),
        };
        if let (Ok(()), Some(error)) = (self.state.set(state), error) {
            events::RuleDeclarationFailed { rule: &name, error: &error }.emit();
        }
        self.state.get().unwrap_or(&SiteState::None)
    }
}

impl ActiveSite<'_> {
    /// Charges `cost` to `key`.
    #[inline]
    pub fn admit<K: RuleKey + ?Sized>(
        self,
        key: &K,
        cost: u64,
    ) -> Result<CountedCall, AdmitError<CountedCall>> {
        match self.fast_limiter {
            Some(limiter) => match limiter.check_cost(key, cost) {
                decision if decision.is_granted() => Ok(CountedCall::default()),
                decision => Err(AdmitError::Limited(self.rule.to_limited(&decision))),
            },
            None => self.admit_slow(key, cost),
        }
    }

    /// Charges `cost` to `key`, blocking while it waits.
    #[inline]
    pub fn admit_blocking<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<CountedCall, Limited> {
        match self.fast_limiter {
            Some(limiter) => match limiter.check_cost(key, cost) {
                decision if decision.is_granted() => Ok(CountedCall::default()),
                decision => Err(self.rule.to_limited(&decision)),
            },
            None => self.admit_slow_blocking(key, cost),
        }
    }

    #[cold]
    #[inline(never)]
    fn admit_slow_blocking<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<CountedCall, Limited> {
        let SiteCall { state, limiter, pending } = self.begin(key)?;
        let charged = limiter.map(|limiter| self.rule.charge_blocking(&state, &limiter, key, cost));
        charged.unwrap_or(Ok(())).map(|()| pending.start())
    }

    #[cold]
    #[inline(never)]
    fn admit_slow<K: RuleKey + ?Sized>(
        self,
        key: &K,
        cost: u64,
    ) -> Result<CountedCall, AdmitError<CountedCall>> {
        let SiteCall { state, limiter, pending } = self.begin(key).map_err(AdmitError::Limited)?;
        let Some(limiter) = limiter else { return Ok(pending.start()) };
        self.rule.expect_rates(&state);
        let (rule, max_wait, mode) = (self.rule.clone(), state.max_wait(), state.mode);
        if limiter.is_in_memory() && max_wait.is_zero() {
            let admitted = rule.apply_mode(mode, limiter.check_cost(key, cost));
            return admitted.map(|()| pending.start()).map_err(AdmitError::Limited);
        }
        let decision = rule::acquire_tokens(limiter.key(key), cost, max_wait);
        Err(AdmitError::pending(
            async move { rule.apply_mode(mode, decision.await).map(|()| pending.start()) },
        ))
    }

    /// Reserves `cost` for `key`, to be committed or refunded.
    pub fn reserve<K: RuleKey + ?Sized>(
        self,
        key: &K,
        cost: u64,
    ) -> Result<SiteReservation, AdmitError<SiteReservation>> {
        let SiteCall { state, limiter, pending } = self.begin(key).map_err(AdmitError::Limited)?;
        let Some(limiter) = limiter else { return Ok(SiteReservation { reservation: None, pending }) };
        self.rule.expect_rates(&state);
        let (rule, max_wait, mode) = (self.rule.clone(), state.max_wait(), state.mode);
        if limiter.is_in_memory() && max_wait.is_zero() {
            let reservation = limiter.blocking().key(key).reserve(cost, max_wait);
            let reserved = rule.apply_mode_to_reservation(mode, Some(reservation), pending);
            return reserved.map_err(AdmitError::Limited);
        }
        let waiting = reserve_tokens(limiter.key(key), cost, max_wait);
        Err(AdmitError::pending(async move { rule.apply_mode_to_reservation(mode, waiting.await, pending) }))
    }

    /// Reserves `cost` for `key`, to be committed or refunded, blocking while it waits.
    pub fn reserve_blocking<K: RuleKey + ?Sized>(
        self,
        key: &K,
        cost: u64,
    ) -> Result<SiteReservation, Limited> {
        let SiteCall { state, limiter, pending } = self.begin(key)?;
        let Some(limiter) = limiter else { return Ok(SiteReservation { reservation: None, pending }) };
        self.rule.expect_rates(&state);
        let (bucket, max_wait) = (limiter.blocking().key(key), state.max_wait());
        let reservation = match max_wait.is_zero() {
            true => bucket.reserve(cost, max_wait),
            false => bucket.acquire_reserved(cost, Some(max_wait)),
        };
        self.rule.apply_mode_to_reservation(state.mode, Some(reservation), pending)
    }

    /// Acquires a slot of `key`.
    pub fn acquire<K: RuleKey + ?Sized>(self, key: &K) -> Result<RulePermit, AdmitError<RulePermit>> {
        let SiteCall { state, limiter, pending } = self.begin(key).map_err(AdmitError::Limited)?;
        let Some(limiter) = limiter else { return Ok(RulePermit::empty().with_call(pending)) };
        self.rule.expect_slots(&state);
        if limiter.is_in_memory() && state.waiter().is_none() {
            let permit = limiter.blocking().key(key).permit();
            return self
                .rule
                .apply_mode_to_permit(&state, Ok(RulePermit::new(permit)))
                .map(|permit| permit.with_call(pending))
                .map_err(AdmitError::Limited);
        }
        let (rule, waiting) = (self.rule.clone(), rule::acquire_permit(limiter.key(key), state.waiter()));
        Err(AdmitError::pending(async move {
            Ok(rule.apply_mode_to_permit(&state, waiting.await)?.with_call(pending))
        }))
    }

    /// Acquires a slot of `key`, blocking while it waits.
    pub fn acquire_blocking<K: RuleKey + ?Sized>(self, key: &K) -> Result<RulePermit, Limited> {
        let SiteCall { state, limiter, pending } = self.begin(key)?;
        let permit = limiter.map(|limiter| self.rule.acquire_slot_blocking(&state, &limiter, key));
        Ok(permit.transpose()?.unwrap_or_else(RulePermit::empty).with_call(pending))
    }

    /// Counts a call, unless it is rejected whatever the quotas.
    fn begin<K: RuleKey + ?Sized>(self, key: &K) -> Result<SiteCall, Limited> {
        self.check_conflict()?;
        let state = self.rule.state();
        self.rule.check_call(&state)?;
        let limiter = state.limiter_for(key).cloned();
        let pending = state.start_call(key);
        Ok(SiteCall { state, limiter, pending })
    }

    /// Rejects the call if the rule has conflicting declarations. The message of the rule is not used,
    /// because it would hide the error.
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
    /// Applies the mode to a reservation.
    fn apply_mode_to_reservation(
        &self,
        mode: Mode,
        reservation: Option<Reservation>,
        pending: PendingCall,
    ) -> Result<SiteReservation, Limited> {
        // Without a reply the decision fails closed, as for an unavailable store.
        let decision = match &reservation {
            Some(reservation) => *reservation.decision(),
            None => Decision::fail_closed(0, Micros::from_secs(1)),
        };
        self.apply_mode(mode, decision).map(|()| SiteReservation { reservation, pending })
    }
}

/// Waits for tokens; a store is queried on the current runtime, or else on our own. `None` if there is
/// neither.
async fn reserve_tokens(bucket: Bucket, cost: u64, max_wait: Duration) -> Option<Reservation> {
    let is_in_memory = bucket.is_in_memory();
    let acquiring = async move { bucket.acquire_reserved(cost, Some(max_wait)).await };
    if is_in_memory { Some(acquiring.await) } else { background::run_in_runtime(acquiring).await }
}

impl<T> AdmitError<T> {
    fn pending(future: impl Future<Output = Result<T, Limited>> + Send + 'static) -> Self {
        Self::Pending(PendingAdmit { future: Mutex::new(Box::pin(future)) })
    }

    /// Waits for the result.
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
        let future = self.get_mut().future.get_mut().unwrap_or_else(PoisonError::into_inner);
        future.as_mut().poll(context)
    }
}

impl SiteReservation {
    /// Charges the tokens and starts the call. Returns the call, to record its outcome.
    pub fn keep(mut self) -> CountedCall {
        if let Some(reservation) = self.reservation.take() {
            reservation.keep();
        }
        std::mem::take(&mut self.pending).start()
    }
}

/// Reserved tokens in a store are refunded on the current runtime, or otherwise on our own.
impl Drop for SiteReservation {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            background::enter(|| drop(reservation));
        }
    }
}

impl fmt::Debug for SiteReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SiteReservation")
    }
}
