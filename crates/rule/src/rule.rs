//! A limit with a name.

use crate::{
    Mode, RuleKey, declaration::Declaration, gate::Labels, hold::Hold, limited::Limited, plan::Permits,
    terms::Terms,
};
use arc_swap::ArcSwap;
use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Decision, Micros, Quota};
use tidegate_limiter::{Bucket, Limiter, WaitError, Waiter, background, store::QuotaSelection};
use tidegate_overload::Cause;

/// A limit with a name: its quotas, whether it is enforced, and where it is counted. Clones are the same rule.
///
/// All of that can change while it is in use; see [`crate::Rules::apply`].
#[derive(Clone)]
pub struct Rule {
    live: Arc<Live>,
}

/// A rule as it is now.
pub(crate) struct Live {
    name: Arc<str>,
    declared: ArcSwap<Declaration>,
    /// Whether [`Live::here`] decides, and nothing else has to be known.
    quick: AtomicU8,
    /// Where it is counted as long as nobody says otherwise: most rules are never moved, and need not ask whether.
    here: Option<Limiter>,
    terms: ArcSwap<Terms>,
    /// Whether it was told that calls take slots where a rate is, or the other way round.
    is_misused: AtomicBool,
    /// Its quotas as headers speak of them.
    labels: ArcSwap<Labels>,
}

const SLOW: u8 = 0;
const QUICK: u8 = 1;
/// There is nothing to be asked.
const IDLE: u8 = 2;

/// How a rule is to be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// There is nothing to be asked: it is off, or has no numbers.
    None,
    /// The limiter [here](Rule::here) decides by itself.
    Quick,
    /// By all that holds for it.
    Slow,
}

impl Live {
    pub(crate) fn new(name: Arc<str>, declared: Declaration, terms: Terms) -> Self {
        let here = terms.limiter.as_ref().filter(|limiter| limiter.is_in_memory()).cloned();
        let live = Self {
            name,
            declared: ArcSwap::from_pointee(declared),
            quick: AtomicU8::new(SLOW),
            here,
            terms: ArcSwap::from_pointee(terms),
            is_misused: AtomicBool::new(false),
            labels: ArcSwap::default(),
        };
        live.hurry();
        live
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn declared(&self) -> Arc<Declaration> {
        self.declared.load_full()
    }

    /// Takes over the numbers of a declaration, where there were none.
    pub(crate) fn declare(&self, declaration: Declaration) {
        self.declared.store(Arc::new(declaration));
    }

    pub(crate) fn terms(&self) -> Arc<Terms> {
        self.terms.load_full()
    }

    pub(crate) fn change(&self, terms: Terms) {
        self.quick.store(SLOW, Ordering::Release);
        self.terms.store(Arc::new(terms));
        self.hurry();
    }

    /// Sets what response headers say of its quotas.
    pub(crate) fn set_labels(&self, quotas: &[Quota]) {
        self.labels.store(Arc::new(Labels::new(&self.name, quotas, self.declared().choice)));
    }

    /// Notes whether the quick way says all there is to say.
    fn hurry(&self) {
        let terms = self.terms.load();
        let quotas = terms.limiter.as_ref().map(Limiter::quotas).unwrap_or_default();
        self.set_labels(&quotas);
        let is_here = match (&self.here, &terms.limiter) {
            (Some(here), Some(now)) => here.is_same(now),
            _ => false,
        };
        // A number at once is not for those who hold nothing: they are told so on the long way.
        let is_plain = terms.mode == Mode::Enforce && terms.wait.is_zero() && terms.permits == Permits::None;
        let quick = match terms.in_use() {
            None => IDLE,
            Some(_) if is_here && is_plain => QUICK,
            Some(_) => SLOW,
        };
        self.quick.store(quick, Ordering::Release);
    }
}

impl Rule {
    pub(crate) fn new(live: Arc<Live>) -> Self {
        Self { live }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.live.name
    }

    /// Its name, to be kept.
    pub fn shared_name(&self) -> Arc<str> {
        self.live.name.clone()
    }

    /// What it does with what it decides.
    pub fn mode(&self) -> Mode {
        self.live.terms.load().mode
    }

    /// The quotas that apply; none for a rule whose numbers are nowhere to be found.
    pub fn quotas(&self) -> Vec<Quota> {
        self.live.terms.load().limiter.as_ref().map(Limiter::quotas).unwrap_or_default()
    }

    /// Its quotas as headers speak of them.
    #[inline]
    pub fn labels(&self) -> impl Deref<Target = Arc<Labels>> + use<> {
        self.live.labels.load()
    }

    /// Whether all its quotas apply to a call, or one that it chooses.
    pub fn choice(&self) -> QuotaSelection {
        self.live.labels.load().choice()
    }

    /// How long a call may wait for its turn.
    pub fn wait(&self) -> Duration {
        self.live.terms.load().wait
    }

    /// What to tell whoever is refused.
    pub fn message(&self) -> Option<Arc<str>> {
        self.live.terms.load().message.clone()
    }

    /// Where it is counted now; `None` for a rule without numbers.
    pub fn limiter(&self) -> Option<Limiter> {
        self.live.terms.load().limiter.clone()
    }

    /// The limiter that decides by itself: in memory, enforced, and without waiting. The quick way, if there is one.
    #[inline]
    pub fn at_hand(&self) -> Option<&Limiter> {
        match self.live.quick.load(Ordering::Acquire) {
            QUICK => self.live.here.as_ref(),
            _ => None,
        }
    }

    /// How it is to be asked now.
    #[inline]
    pub(crate) fn way(&self) -> Way {
        match self.live.quick.load(Ordering::Acquire) {
            QUICK => Way::Quick,
            IDLE => Way::None,
            _ => Way::Slow,
        }
    }

    /// Where it is counted as long as nobody says otherwise.
    pub(crate) fn here(&self) -> Option<&Limiter> {
        self.live.here.as_ref()
    }

    pub(crate) fn terms(&self) -> Arc<Terms> {
        self.live.terms()
    }

    /// Takes `cost` for `key`, waiting for it as long as the rule says.
    #[inline]
    pub async fn admit<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.at_hand() {
            Some(limiter) => self.judge(limiter.check_cost(key, cost)),
            None => Box::pin(self.admit_slowly(key, cost)).await,
        }
    }

    /// The same for a thread that can wait: it blocks while the rule waits for a store, or for its turn.
    #[inline]
    pub fn admit_blocking<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.at_hand() {
            Some(limiter) => self.judge(limiter.check_cost(key, cost)),
            None => self.admit_slowly_blocking(key, cost),
        }
    }

    /// Takes a slot of `key` that is held until what is returned is dropped, waiting for it as long as the rule says.
    ///
    /// In shadow mode a slot is taken where there is one, and nobody is refused or made to wait.
    pub async fn hold<K: RuleKey + ?Sized>(&self, key: &K) -> Result<Hold, Limited> {
        let terms = self.live.terms();
        let Some(limiter) = terms.in_use() else { return Ok(Hold::nothing()) };
        self.expect_slots(&terms);
        let hold = take_slot(limiter.key(key), terms.waiter()).await;
        self.settle(&terms, hold)
    }

    /// The same for a thread that can wait.
    pub fn hold_blocking<K: RuleKey + ?Sized>(&self, key: &K) -> Result<Hold, Limited> {
        let terms = self.live.terms();
        let Some(limiter) = terms.in_use() else { return Ok(Hold::nothing()) };
        self.expect_slots(&terms);
        let bucket = limiter.blocking().key(key);
        let permit = match terms.waiter() {
            None => Ok(bucket.permit()),
            Some(waiter) => bucket.permit_queued(waiter),
        };
        self.settle(&terms, permit.map(Hold::new))
    }

    #[inline]
    fn judge(&self, decision: Decision) -> Result<(), Limited> {
        match decision.is_granted() {
            true => Ok(()),
            false => Err(self.limited(&decision)),
        }
    }

    /// What to tell whoever got this denial.
    #[cold]
    pub fn limited(&self, decision: &Decision) -> Limited {
        let terms = self.live.terms.load();
        let quotas = terms.limiter.as_ref().map(Limiter::quotas).unwrap_or_default();
        Limited::new(self.live.name.clone(), Cause::of_denial(*decision))
            .with_message(terms.message.clone())
            .with_quota(quotas.get(decision.quota()).copied())
    }

    async fn admit_slowly<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        let terms = self.live.terms();
        let Some(limiter) = terms.in_use() else { return Ok(()) };
        self.expect_rates(&terms);
        let decision = take(limiter.key(key), cost, terms.patience()).await;
        self.conclude(terms.mode, decision)
    }

    fn admit_slowly_blocking<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        let terms = self.live.terms();
        let Some(limiter) = terms.in_use() else { return Ok(()) };
        self.expect_rates(&terms);
        let (bucket, patience) = (limiter.blocking().key(key), terms.patience());
        let decision = match patience.is_zero() {
            true => bucket.check(cost),
            false => bucket.try_acquire(cost, patience),
        };
        self.conclude(terms.mode, decision)
    }

    /// A number at once is only looked at by a call that holds nothing. That is hardly what was meant, and told once.
    pub(crate) fn expect_rates(&self, terms: &Terms) {
        if terms.permits != Permits::None && !self.live.is_misused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                rule = self.name(),
                "calls of this rule hold no slot, so that a number `at once` is looked at but never taken; give it a rate, \
                 or count the number at once by a rule of its own"
            );
        }
    }

    /// What is taken from a rate by a call that holds it is back when the call ends. That is told once, too.
    pub(crate) fn expect_slots(&self, terms: &Terms) {
        if terms.permits == Permits::None && !self.live.is_misused.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                rule = self.name(),
                "calls of this rule hold a slot and give it back, so that a rate limits next to nothing; give it a number \
                 `at once`"
            );
        }
    }

    /// What a decision means under the mode that it was made under.
    pub(crate) fn conclude(&self, mode: Mode, decision: Decision) -> Result<(), Limited> {
        match mode {
            Mode::Enforce => self.judge(decision),
            Mode::Shadow | Mode::Off => Ok(()),
        }
    }

    /// What a slot, or none, means under the mode that it was asked for under.
    pub(crate) fn settle(&self, terms: &Terms, hold: Result<Hold, WaitError>) -> Result<Hold, Limited> {
        match (hold, terms.mode) {
            (Ok(hold), Mode::Enforce) => match hold.denial() {
                Some(decision) => Err(self.limited(decision)),
                None => Ok(hold),
            },
            (Err(refused), Mode::Enforce) => {
                Err(Limited::new(self.live.name.clone(), refused.into()).with_message(terms.message.clone()))
            }
            (Ok(hold), Mode::Shadow | Mode::Off) => Ok(hold),
            (Err(_), Mode::Shadow | Mode::Off) => Ok(Hold::nothing()),
        }
    }
}

/// Where there is nobody to ask a store.
pub(crate) const NOBODY: WaitError = WaitError::StoreUnavailable(Micros::from_secs(1));

/// Takes `cost`, waiting for it up to `patience`. A store is asked on this runtime, or else on our own.
pub(crate) async fn take(bucket: Bucket, cost: u64, patience: Duration) -> Decision {
    let is_in_memory = bucket.is_in_memory();
    let taking = async move {
        match patience.is_zero() {
            true => bucket.check(cost).await,
            false => bucket.try_acquire(cost, patience).await,
        }
    };
    if is_in_memory {
        return taking.await;
    }
    background::run_in_runtime(taking).await.unwrap_or_else(|| Decision::fail_closed(0, Micros::from_secs(1)))
}

/// Takes a slot. One of a store whose caller is gone when it comes is given back like any other.
pub(crate) async fn take_slot(bucket: Bucket, waiter: Option<Waiter>) -> Result<Hold, WaitError> {
    let is_in_memory = bucket.is_in_memory();
    let taking = async move {
        match waiter {
            None => Ok(bucket.permit().await),
            Some(waiter) => bucket.permit_queued(waiter).await,
        }
    };
    let permit = match is_in_memory {
        true => taking.await,
        false => background::run_to_completion(taking).await.unwrap_or(Err(NOBODY)),
    };
    permit.map(Hold::new)
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.live.terms.load();
        f.debug_struct("Rule")
            .field("name", &self.live.name)
            .field("mode", &terms.mode)
            .field("limiter", &terms.limiter)
            .finish_non_exhaustive()
    }
}
