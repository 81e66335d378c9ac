//! A limit with a name.

use crate::{
    Mode, RuleKey, gate::PolicyFields, limited::Limited, permit::RulePermit, rule_config::RuleConfig,
    rule_state::RuleState, rule_update::ConcurrencyQuotas,
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
use tidegate_overload::CallError;

/// A limit with a name: its quotas, whether it is enforced, and where it is counted. Clones are the same rule.
///
/// All of that can change while it is in use; see [`crate::Rules::apply`].
#[derive(Clone)]
pub struct Rule {
    shared: Arc<SharedRule>,
}

/// A rule as it is now.
pub(crate) struct SharedRule {
    name: Arc<str>,
    config: ArcSwap<RuleConfig>,
    /// Whether [`SharedRule::here`] decides, and nothing else has to be known.
    path: AtomicU8,
    /// Where it is counted as long as nobody says otherwise: most rules are never moved, and need not ask whether.
    local_limiter: Option<Limiter>,
    state: ArcSwap<RuleState>,
    /// Whether it was told that calls take slots where a rate is, or the other way round.
    is_misuse_reported: AtomicBool,
    /// Its quotas as headers speak of them.
    policy_fields: ArcSwap<PolicyFields>,
}

const PATH_SLOW: u8 = 0;
const PATH_FAST: u8 = 1;
/// There is nothing to be asked.
const PATH_IDLE: u8 = 2;

/// How a rule is to be asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckPath {
    /// There is nothing to be asked: it is off, or has no numbers.
    Idle,
    /// The limiter [here](Rule::here) decides by itself.
    Fast,
    /// By all that holds for it.
    Slow,
}

impl SharedRule {
    pub(crate) fn new(name: Arc<str>, declared: RuleConfig, terms: RuleState) -> Self {
        let here = terms.limiter.as_ref().filter(|limiter| limiter.is_in_memory()).cloned();
        let live = Self {
            name,
            config: ArcSwap::from_pointee(declared),
            path: AtomicU8::new(PATH_SLOW),
            local_limiter: here,
            state: ArcSwap::from_pointee(terms),
            is_misuse_reported: AtomicBool::new(false),
            policy_fields: ArcSwap::default(),
        };
        live.update_path();
        live
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    pub(crate) fn config(&self) -> Arc<RuleConfig> {
        self.config.load_full()
    }

    /// Takes over the numbers of a declaration, where there were none.
    pub(crate) fn set_config(&self, declaration: RuleConfig) {
        self.config.store(Arc::new(declaration));
    }

    pub(crate) fn state(&self) -> Arc<RuleState> {
        self.state.load_full()
    }

    pub(crate) fn set_state(&self, terms: RuleState) {
        self.path.store(PATH_SLOW, Ordering::Release);
        self.state.store(Arc::new(terms));
        self.update_path();
    }

    /// Sets what response headers say of its quotas.
    pub(crate) fn set_policy_fields(&self, quotas: &[Quota]) {
        self.policy_fields.store(Arc::new(PolicyFields::new(&self.name, quotas, self.config().selection)));
    }

    /// Notes whether the quick way says all there is to say.
    fn update_path(&self) {
        let terms = self.state.load();
        let quotas = terms.limiter.as_ref().map(Limiter::quotas).unwrap_or_default();
        self.set_policy_fields(&quotas);
        let is_here = match (&self.local_limiter, &terms.limiter) {
            (Some(here), Some(now)) => here.is_same(now),
            _ => false,
        };
        // A number at once is not for those who hold nothing: they are told so on the long way.
        let is_plain = terms.mode == Mode::Enforce
            && terms.wait.is_zero()
            && terms.concurrency == ConcurrencyQuotas::None;
        let quick = match terms.active_limiter() {
            None => PATH_IDLE,
            Some(_) if is_here && is_plain => PATH_FAST,
            Some(_) => PATH_SLOW,
        };
        self.path.store(quick, Ordering::Release);
    }
}

impl Rule {
    pub(crate) fn new(live: Arc<SharedRule>) -> Self {
        Self { shared: live }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Its name, to be kept.
    pub fn shared_name(&self) -> Arc<str> {
        self.shared.name.clone()
    }

    /// What it does with what it decides.
    pub fn mode(&self) -> Mode {
        self.shared.state.load().mode
    }

    /// The quotas that apply; none for a rule whose numbers are nowhere to be found.
    pub fn quotas(&self) -> Vec<Quota> {
        self.shared.state.load().limiter.as_ref().map(Limiter::quotas).unwrap_or_default()
    }

    /// Its quotas as headers speak of them.
    #[inline]
    pub fn policy_fields(&self) -> impl Deref<Target = Arc<PolicyFields>> + use<> {
        self.shared.policy_fields.load()
    }

    /// Whether all its quotas apply to a call, or one that it chooses.
    pub fn selection(&self) -> QuotaSelection {
        self.shared.policy_fields.load().selection()
    }

    /// How long a call may wait for its turn.
    pub fn wait(&self) -> Duration {
        self.shared.state.load().wait
    }

    /// What to tell whoever is refused.
    pub fn message(&self) -> Option<Arc<str>> {
        self.shared.state.load().message.clone()
    }

    /// Where it is counted now; `None` for a rule without numbers.
    pub fn limiter(&self) -> Option<Limiter> {
        self.shared.state.load().limiter.clone()
    }

    /// The limiter that decides by itself: in memory, enforced, and without waiting. The quick way, if there is one.
    #[inline]
    pub fn fast_limiter(&self) -> Option<&Limiter> {
        match self.shared.path.load(Ordering::Acquire) {
            PATH_FAST => self.shared.local_limiter.as_ref(),
            _ => None,
        }
    }

    /// How it is to be asked now.
    #[inline]
    pub(crate) fn check_path(&self) -> CheckPath {
        match self.shared.path.load(Ordering::Acquire) {
            PATH_FAST => CheckPath::Fast,
            PATH_IDLE => CheckPath::Idle,
            _ => CheckPath::Slow,
        }
    }

    /// Where it is counted as long as nobody says otherwise.
    pub(crate) fn local_limiter(&self) -> Option<&Limiter> {
        self.shared.local_limiter.as_ref()
    }

    pub(crate) fn state(&self) -> Arc<RuleState> {
        self.shared.state()
    }

    /// Takes `cost` for `key`, waiting for it as long as the rule says.
    #[inline]
    pub async fn admit<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.fast_limiter() {
            Some(limiter) => self.require_granted(limiter.check_cost(key, cost)),
            None => Box::pin(self.admit_slow(key, cost)).await,
        }
    }

    /// The same for a thread that can wait: it blocks while the rule waits for a store, or for its turn.
    #[inline]
    pub fn admit_blocking<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.fast_limiter() {
            Some(limiter) => self.require_granted(limiter.check_cost(key, cost)),
            None => self.admit_slow_blocking(key, cost),
        }
    }

    /// Takes a slot of `key` that is held until what is returned is dropped, waiting for it as long as the rule says.
    ///
    /// In shadow mode a slot is taken where there is one, and nobody is refused or made to wait.
    pub async fn acquire<K: RuleKey + ?Sized>(&self, key: &K) -> Result<RulePermit, Limited> {
        let terms = self.shared.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(RulePermit::empty()) };
        self.expect_slots(&terms);
        let hold = acquire_permit(limiter.key(key), terms.waiter()).await;
        self.apply_mode_to_permit(&terms, hold)
    }

    /// The same for a thread that can wait.
    pub fn acquire_blocking<K: RuleKey + ?Sized>(&self, key: &K) -> Result<RulePermit, Limited> {
        let terms = self.shared.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(RulePermit::empty()) };
        self.expect_slots(&terms);
        let bucket = limiter.blocking().key(key);
        let permit = match terms.waiter() {
            None => Ok(bucket.permit()),
            Some(waiter) => bucket.permit_queued(waiter),
        };
        self.apply_mode_to_permit(&terms, permit.map(RulePermit::new))
    }

    #[inline]
    fn require_granted(&self, decision: Decision) -> Result<(), Limited> {
        match decision.is_granted() {
            true => Ok(()),
            false => Err(self.to_limited(&decision)),
        }
    }

    /// What to tell whoever got this denial.
    #[cold]
    pub fn to_limited(&self, decision: &Decision) -> Limited {
        let terms = self.shared.state.load();
        let quotas = terms.limiter.as_ref().map(Limiter::quotas).unwrap_or_default();
        Limited::new(self.shared.name.clone(), CallError::from_denial(*decision))
            .with_message(terms.message.clone())
            .with_quota(quotas.get(decision.quota()).copied())
    }

    async fn admit_slow<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        let terms = self.shared.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(()) };
        self.expect_rates(&terms);
        let decision = acquire_tokens(limiter.key(key), cost, terms.max_wait()).await;
        self.apply_mode(terms.mode, decision)
    }

    fn admit_slow_blocking<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        let terms = self.shared.state();
        let Some(limiter) = terms.active_limiter() else { return Ok(()) };
        self.expect_rates(&terms);
        let (bucket, patience) = (limiter.blocking().key(key), terms.max_wait());
        let decision = match patience.is_zero() {
            true => bucket.check(cost),
            false => bucket.try_acquire(cost, patience),
        };
        self.apply_mode(terms.mode, decision)
    }

    /// A number at once is only looked at by a call that holds nothing. That is hardly what was meant, and told once.
    pub(crate) fn expect_rates(&self, terms: &RuleState) {
        if terms.concurrency != ConcurrencyQuotas::None
            && !self.shared.is_misuse_reported.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                rule = self.name(),
                "calls of this rule hold no slot, so that a number `at once` is looked at but never taken; give it a rate, \
                 or count the number at once by a rule of its own"
            );
        }
    }

    /// What is taken from a rate by a call that holds it is back when the call ends. That is told once, too.
    pub(crate) fn expect_slots(&self, terms: &RuleState) {
        if terms.concurrency == ConcurrencyQuotas::None
            && !self.shared.is_misuse_reported.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(
                rule = self.name(),
                "calls of this rule hold a slot and give it back, so that a rate limits next to nothing; give it a number \
                 `at once`"
            );
        }
    }

    /// What a decision means under the mode that it was made under.
    pub(crate) fn apply_mode(&self, mode: Mode, decision: Decision) -> Result<(), Limited> {
        match mode {
            Mode::Enforce => self.require_granted(decision),
            Mode::Shadow | Mode::Off => Ok(()),
        }
    }

    /// What a slot, or none, means under the mode that it was asked for under.
    pub(crate) fn apply_mode_to_permit(
        &self,
        terms: &RuleState,
        hold: Result<RulePermit, WaitError>,
    ) -> Result<RulePermit, Limited> {
        match (hold, terms.mode) {
            (Ok(hold), Mode::Enforce) => match hold.denial() {
                Some(decision) => Err(self.to_limited(decision)),
                None => Ok(hold),
            },
            (Err(refused), Mode::Enforce) => {
                Err(Limited::new(self.shared.name.clone(), refused.into())
                    .with_message(terms.message.clone()))
            }
            (Ok(hold), Mode::Shadow | Mode::Off) => Ok(hold),
            (Err(_), Mode::Shadow | Mode::Off) => Ok(RulePermit::empty()),
        }
    }
}

/// Where there is nobody to ask a store.
pub(crate) const NO_RUNTIME: WaitError = WaitError::StoreUnavailable(Micros::from_secs(1));

/// Takes `cost`, waiting for it up to `patience`. A store is asked on this runtime, or else on our own.
pub(crate) async fn acquire_tokens(bucket: Bucket, cost: u64, patience: Duration) -> Decision {
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
pub(crate) async fn acquire_permit(bucket: Bucket, waiter: Option<Waiter>) -> Result<RulePermit, WaitError> {
    let is_in_memory = bucket.is_in_memory();
    let taking = async move {
        match waiter {
            None => Ok(bucket.permit().await),
            Some(waiter) => bucket.permit_queued(waiter).await,
        }
    };
    let permit = match is_in_memory {
        true => taking.await,
        false => background::run_to_completion(taking).await.unwrap_or(Err(NO_RUNTIME)),
    };
    permit.map(RulePermit::new)
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms = self.shared.state.load();
        f.debug_struct("Rule")
            .field("name", &self.shared.name)
            .field("mode", &terms.mode)
            .field("limiter", &terms.limiter)
            .finish_non_exhaustive()
    }
}
