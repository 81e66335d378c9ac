//! A place that is limited, by a rate or by a number at once.
//!
//! A question is asked before anything is awaited, and what is awaited owns all that it needs: the key may be anything that
//! lives only as long as the question, and the future of the function stays as `Send` as it was.

use crate::{
    Declaration, Hold, Limited, Mode, Rule, RuleKey, Rules,
    rule::{self, Way},
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
use tidegate_overload::Cause;

/// A place that is limited.
pub struct LimitSite {
    declare: fn() -> Result<Declaration, BuildError>,
    made: OnceLock<Made>,
}

/// The rule of a place.
enum Made {
    /// The limiter that most rules have for good is kept beside it, one step nearer.
    Rule { rule: Rule, here: Option<Limiter> },
    /// The rule that has the name is declared in another way: calls are refused while it is enforced.
    Conflict { rule: Rule, error: Arc<str> },
    /// There is no rule.
    None,
}

/// A rule that has something to say.
#[derive(Clone, Copy)]
pub struct Opened<'a> {
    rule: &'a Rule,
    /// Decides by itself.
    at_hand: Option<&'a Limiter>,
    /// Why every call is refused.
    conflict: Option<&'a Arc<str>>,
}

/// A call that may not go on, or not yet.
pub enum Stopped<T> {
    /// It was refused.
    Refused(Limited),
    /// It has to wait: for its turn, or for a store.
    Waiting(Waiting<T>),
}

/// What such a call waits for.
pub struct Waiting<T> {
    /// Never locked: it makes the function's future no less `Sync` than it was.
    answer: Mutex<Answer<T>>,
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Limited>> + Send>>;

/// Tokens that are given back if the call is refused further on.
#[must_use = "dropping it gives the tokens back"]
pub struct Taken {
    reservation: Option<Reservation>,
}

impl LimitSite {
    /// A site whose rule is declared when it is first passed.
    pub const fn new(declare: fn() -> Result<Declaration, BuildError>) -> Self {
        Self { declare, made: OnceLock::new() }
    }

    /// Its rule; `None` if that is off, or has no numbers.
    #[inline]
    pub fn open(&self) -> Option<Opened<'_>> {
        match self.made.get().unwrap_or_else(|| self.make()) {
            Made::Rule { rule, here } => match rule.way() {
                Way::Quick => Some(Opened { rule, at_hand: here.as_ref(), conflict: None }),
                Way::Slow => Some(Opened { rule, at_hand: None, conflict: None }),
                Way::None => None,
            },
            Made::Conflict { rule, error } => (rule.mode() == Mode::Enforce).then_some(Opened {
                rule,
                at_hand: None,
                conflict: Some(error),
            }),
            Made::None => None,
        }
    }

    /// Makes the rule before it is put here: whoever is told of it may pass this place itself. If several do that at once,
    /// they get the same rule.
    #[cold]
    fn make(&self) -> &Made {
        let declared = (self.declare)();
        let (name, mode) = match &declared {
            Ok(declaration) => (declaration.name.clone(), declaration.mode),
            Err(_) => (Cow::default(), Mode::Enforce),
        };
        let rule = declared.and_then(|declaration| Rules::global().rule_of_site(declaration));
        let (made, error) = match rule {
            Ok(SiteRule { rule, conflict: None }) => (Made::Rule { here: rule.here().cloned(), rule }, None),
            Ok(SiteRule { rule, conflict: Some(error) }) if mode == Mode::Enforce => {
                (Made::Conflict { rule, error: error.to_string().into() }, None)
            }
            // An attribute with `shadow` refuses nothing, whatever is wrong with it.
            Ok(SiteRule { .. }) => (Made::None, None),
            Err(error) => (Made::None, Some(error)),
        };
        if let (Ok(()), Some(error)) = (self.made.set(made), error) {
            tracing::error!(rule = &*name, %error, "a rule cannot be made, and limits nothing");
        }
        self.made.get().unwrap_or(&Made::None)
    }
}

impl Opened<'_> {
    /// Takes `cost` for `key`.
    #[inline]
    pub fn ask<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), Stopped<()>> {
        match self.at_hand {
            Some(limiter) => match limiter.check_cost(key, cost) {
                decision if decision.is_granted() => Ok(()),
                decision => Err(Stopped::Refused(self.rule.limited(&decision))),
            },
            None => self.ask_slowly(key, cost),
        }
    }

    /// Takes `cost` for `key`, blocking where there is something to wait for.
    #[inline]
    pub fn ask_blocking<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.at_hand {
            Some(limiter) => match limiter.check_cost(key, cost) {
                decision if decision.is_granted() => Ok(()),
                decision => Err(self.rule.limited(&decision)),
            },
            None => self.ask_slowly_blocking(key, cost),
        }
    }

    #[cold]
    #[inline(never)]
    fn ask_slowly_blocking<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), Limited> {
        self.check_conflict()?;
        self.rule.admit_blocking(key, cost)
    }

    #[cold]
    #[inline(never)]
    fn ask_slowly<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<(), Stopped<()>> {
        self.check_conflict().map_err(Stopped::Refused)?;
        let terms = self.rule.terms();
        let Some(limiter) = terms.in_use() else { return Ok(()) };
        self.rule.expect_rates(&terms);
        let (rule, patience, mode) = (self.rule.clone(), terms.patience(), terms.mode);
        if limiter.is_in_memory() && patience.is_zero() {
            return rule.conclude(mode, limiter.check_cost(key, cost)).map_err(Stopped::Refused);
        }
        let asked = rule::take(limiter.key(key), cost, patience);
        Err(Stopped::wait(async move { rule.conclude(mode, asked.await) }))
    }

    /// Takes `cost` for `key`, to be kept or given back.
    pub fn take<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<Taken, Stopped<Taken>> {
        self.check_conflict().map_err(Stopped::Refused)?;
        let terms = self.rule.terms();
        let Some(limiter) = terms.in_use() else { return Ok(Taken::nothing()) };
        self.rule.expect_rates(&terms);
        let (rule, patience, mode) = (self.rule.clone(), terms.patience(), terms.mode);
        if limiter.is_in_memory() && patience.is_zero() {
            let taken = limiter.blocking().key(key).reserve(cost, patience);
            return rule.conclude_taken(mode, Some(taken)).map_err(Stopped::Refused);
        }
        let waiting = take(limiter.key(key), cost, patience);
        Err(Stopped::wait(async move { rule.conclude_taken(mode, waiting.await) }))
    }

    /// Takes `cost` for `key`, to be kept or given back, blocking where there is something to wait for.
    pub fn take_blocking<K: RuleKey + ?Sized>(self, key: &K, cost: u64) -> Result<Taken, Limited> {
        self.check_conflict()?;
        let terms = self.rule.terms();
        let Some(limiter) = terms.in_use() else { return Ok(Taken::nothing()) };
        self.rule.expect_rates(&terms);
        let (bucket, patience) = (limiter.blocking().key(key), terms.patience());
        let reservation = match patience.is_zero() {
            true => bucket.reserve(cost, patience),
            false => bucket.acquire_reserved(cost, Some(patience)),
        };
        self.rule.conclude_taken(terms.mode, Some(reservation))
    }

    /// Takes a slot of `key`.
    pub fn hold<K: RuleKey + ?Sized>(self, key: &K) -> Result<Hold, Stopped<Hold>> {
        self.check_conflict().map_err(Stopped::Refused)?;
        let terms = self.rule.terms();
        let Some(limiter) = terms.in_use() else { return Ok(Hold::nothing()) };
        self.rule.expect_slots(&terms);
        if limiter.is_in_memory() && terms.waiter().is_none() {
            let permit = limiter.blocking().key(key).permit();
            return self.rule.settle(&terms, Ok(Hold::new(permit))).map_err(Stopped::Refused);
        }
        let (rule, waiting) = (self.rule.clone(), rule::take_slot(limiter.key(key), terms.waiter()));
        Err(Stopped::wait(async move { rule.settle(&terms, waiting.await) }))
    }

    /// Takes a slot of `key`, blocking where there is something to wait for.
    pub fn hold_blocking<K: RuleKey + ?Sized>(self, key: &K) -> Result<Hold, Limited> {
        self.check_conflict()?;
        self.rule.hold_blocking(key)
    }

    /// Refuses the call if code declares the rule in two ways. Without the message of the rule, which would hide the error.
    fn check_conflict(self) -> Result<(), Limited> {
        match self.conflict {
            Some(error) => Err(Limited::new(self.rule.shared_name(), Cause::Misconfigured(error.clone()))),
            None => Ok(()),
        }
    }
}

impl Rule {
    /// What was taken, or why nothing was. A rule that is not enforced lets everybody go on.
    fn conclude_taken(&self, mode: Mode, reservation: Option<Reservation>) -> Result<Taken, Limited> {
        // Without an answer nothing is known: as when a store is away and the rule says closed.
        let decision = match &reservation {
            Some(reservation) => *reservation.decision(),
            None => Decision::fail_closed(0, Micros::from_secs(1)),
        };
        self.conclude(mode, decision).map(|()| Taken { reservation })
    }
}

/// Waits for tokens; a store is asked on this runtime, or else on our own. `None` if there is neither.
async fn take(bucket: Bucket, cost: u64, patience: Duration) -> Option<Reservation> {
    let is_in_memory = bucket.is_in_memory();
    let taking = async move { bucket.acquire_reserved(cost, Some(patience)).await };
    if is_in_memory { Some(taking.await) } else { background::run_in_runtime(taking).await }
}

impl<T> Stopped<T> {
    fn wait(answer: impl Future<Output = Result<T, Limited>> + Send + 'static) -> Self {
        Self::Waiting(Waiting { answer: Mutex::new(Box::pin(answer)) })
    }

    /// How it ends.
    pub async fn settle(self) -> Result<T, Limited> {
        match self {
            Self::Refused(limited) => Err(limited),
            Self::Waiting(waiting) => waiting.await,
        }
    }
}

impl<T> Future for Waiting<T> {
    type Output = Result<T, Limited>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = self.get_mut().answer.get_mut().unwrap_or_else(PoisonError::into_inner);
        answer.as_mut().poll(context)
    }
}

impl Taken {
    fn nothing() -> Self {
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
impl Drop for Taken {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            background::enter(|| drop(reservation));
        }
    }
}

impl fmt::Debug for Taken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Taken")
    }
}
