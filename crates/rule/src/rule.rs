//! A named limit.

use crate::{
    Mode, RuleKey, events,
    gate::PolicyFields,
    limited::Limited,
    permit::RulePermit,
    rule_config::RuleConfig,
    rule_state::RuleState,
    rule_update::ConcurrencyQuotas,
    settings::{CallCheck, LoadScale},
};
use arc_swap::ArcSwap;
use std::{
    fmt,
    ops::Deref,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    time::Duration,
};
use tidegate_core::{Decision, Micros, Quota, Ratio, SettingError, header::CostUnit};
use tidegate_limiter::{
    Bucket, BuildError, Limiter, OverrideChange, WaitError, Waiter, background, store::QuotaSelection,
};
use tidegate_overload::{CallError, ScaledLimit, Scaler, load::Scalable};

/// A named limit: its quotas, its mode and its store. Clones share state.
///
/// All of that can change while it is in use; see [`crate::Rules::apply`].
#[derive(Clone)]
pub struct Rule {
    shared: Arc<SharedRule>,
}

/// The shared state of a rule.
pub(crate) struct SharedRule {
    active: Arc<ActiveState>,
    config: ArcSwap<RuleConfig>,
    /// Whether [`SharedRule::local_limiter`] alone decides.
    path: AtomicU8,
    /// The limiter in memory. Most rules never move to a store, so their checks avoid loading the state.
    local_limiter: Option<Limiter>,
    /// Whether a mismatch between the kind of calls and the kind of quotas was logged.
    is_misuse_reported: AtomicBool,
    /// Lets its quotas follow the load.
    scaled: Mutex<Option<ScaledLimit<ActiveState>>>,
}

/// What scaling changes. It does not own the scaling, so that the load monitor can use it while the rule is dropped.
struct ActiveState {
    name: Arc<str>,
    state: ArcSwap<RuleState>,
    /// The quotas as rate limit headers.
    policy_fields: ArcSwap<PolicyFields>,
}

const PATH_SLOW: u8 = 0;
const PATH_FAST: u8 = 1;
/// No check is needed.
const PATH_IDLE: u8 = 2;

/// How a rule is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CheckPath {
    /// No check is needed: the rule is off, or has no quota.
    Idle,
    /// [`Rule::local_limiter`] alone decides.
    Fast,
    /// The full check, with mode, wait and store.
    Slow,
}

impl SharedRule {
    pub(crate) fn new(name: Arc<str>, declared: RuleConfig, state: RuleState) -> Self {
        let local_limiter = state.limiter.as_ref().filter(|limiter| limiter.is_in_memory()).cloned();
        let (state, policy_fields) = (ArcSwap::from_pointee(state), ArcSwap::default());
        let shared = Self {
            active: Arc::new(ActiveState { name, state, policy_fields }),
            config: ArcSwap::from_pointee(declared),
            path: AtomicU8::new(PATH_SLOW),
            local_limiter,
            is_misuse_reported: AtomicBool::new(false),
            scaled: Mutex::default(),
        };
        shared.update_path();
        shared
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.active.name
    }

    pub(crate) fn config(&self) -> Arc<RuleConfig> {
        self.config.load_full()
    }

    /// Replaces the declaration.
    pub(crate) fn set_config(&self, declaration: RuleConfig) {
        self.config.store(Arc::new(declaration));
    }

    pub(crate) fn state(&self) -> Arc<RuleState> {
        self.active.state.load_full()
    }

    pub(crate) fn set_state(&self, state: RuleState) {
        self.path.store(PATH_SLOW, Ordering::Release);
        self.active.state.store(Arc::new(state));
        self.update_path();
    }

    /// What determines the factor of its quotas, if they follow the load.
    pub(crate) fn scaler(&self) -> Option<Scaler> {
        self.lock_scaled().as_ref().and_then(ScaledLimit::scaler)
    }

    /// Updates the rate limit headers of its quotas.
    pub(crate) fn set_policy_fields(&self, quotas: &[Quota]) {
        let config = self.config();
        self.active.set_policy_fields(quotas, config.selection, config.unit);
    }

    /// Lets the quotas follow the load from now on, from the factor of an earlier scaler.
    pub(crate) fn start_scaling(&self, scale: Option<&LoadScale>, previous: Option<Scaler>) {
        let Some(LoadScale { monitor, policy }) = scale else { return };
        let state = self.state();
        if state.limiter.is_none() {
            return;
        }
        let builder = ScaledLimit::builder(self.active.clone()).with_base_limit(state.quotas.to_vec());
        // Cannot fail: the quotas were checked before they were applied.
        *self.lock_scaled() = builder.with_load_policy(*policy).resume(previous).start(monitor).ok();
    }

    /// Stops to follow the load. The quotas stay scaled; the result determines by how much.
    pub(crate) fn stop_scaling(&self) -> Option<Scaler> {
        self.lock_scaled().take()?.detach()
    }

    fn lock_scaled(&self) -> MutexGuard<'_, Option<ScaledLimit<ActiveState>>> {
        self.scaled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Updates whether the fast path is valid.
    fn update_path(&self) {
        let state = self.active.state.load();
        self.set_policy_fields(&self.active.quotas());
        let is_local = match (&self.local_limiter, &state.limiter) {
            (Some(local), Some(current)) => local.is_same(current),
            _ => false,
        };
        // Calls that hold no slot must not use a concurrency quota; the slow path logs that.
        let is_plain = state.mode == Mode::Enforce
            && state.call_check.is_none()
            && state.error_rate.is_none()
            && state.wait.is_zero()
            && state.concurrency == ConcurrencyQuotas::None;
        let path = match state.active_limiter() {
            None if state.call_check.is_none() || state.mode != Mode::Enforce => PATH_IDLE,
            Some(_) if is_local && is_plain => PATH_FAST,
            None | Some(_) => PATH_SLOW,
        };
        self.path.store(path, Ordering::Release);
    }
}

/// Scales its quotas, in its limiter and in the rate limit headers.
impl Scalable for Rule {
    type Limit = Vec<Quota>;

    fn limit(&self) -> Vec<Quota> {
        self.quotas()
    }

    fn scale(limit: &Vec<Quota>, factor: Ratio) -> Result<Vec<Quota>, BuildError> {
        Limiter::scale(limit, factor)
    }

    fn set_limit(&self, limit: &Vec<Quota>) -> Result<(), BuildError> {
        self.shared.active.set_limit(limit)
    }
}

impl Scalable for ActiveState {
    type Limit = Vec<Quota>;

    fn limit(&self) -> Vec<Quota> {
        self.quotas()
    }

    fn scale(limit: &Vec<Quota>, factor: Ratio) -> Result<Vec<Quota>, BuildError> {
        Limiter::scale(limit, factor)
    }

    fn set_limit(&self, limit: &Vec<Quota>) -> Result<(), BuildError> {
        let Some(limiter) = self.state.load().limiter.clone() else { return Ok(()) };
        limiter.set_limit(limit)?;
        let fields = self.policy_fields.load();
        self.set_policy_fields(limit, fields.selection(), fields.unit());
        Ok(())
    }
}

impl ActiveState {
    fn quotas(&self) -> Vec<Quota> {
        self.state.load().limiter.as_ref().map(Limiter::quotas).unwrap_or_default()
    }

    fn set_policy_fields(&self, quotas: &[Quota], selection: QuotaSelection, unit: CostUnit) {
        let overrides = self.state.load().limiter.as_ref().map(Limiter::override_quotas).unwrap_or_default();
        let fields = PolicyFields::new(&self.name, quotas, selection, unit);
        self.policy_fields.store(Arc::new(fields.with_overrides(&self.name, &overrides)));
    }
}

impl Rule {
    pub(crate) fn new(shared: Arc<SharedRule>) -> Self {
        Self { shared }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.shared.active.name
    }

    /// The name, as a shared string.
    pub fn shared_name(&self) -> Arc<str> {
        self.shared.active.name.clone()
    }

    /// The mode.
    pub fn mode(&self) -> Mode {
        self.shared.active.state.load().mode
    }

    /// The quotas that apply; empty for a rule without quotas.
    pub fn quotas(&self) -> Vec<Quota> {
        self.shared.active.quotas()
    }

    /// The declared quotas. Those that [apply](Self::quotas) can follow the load or a schedule.
    pub fn declared_quotas(&self) -> Vec<Quota> {
        self.shared.active.state.load().quotas.to_vec()
    }

    /// The quota at this index of a decision: one of [`quotas`](Self::quotas), or that of an override.
    pub fn quota_at(&self, index: usize) -> Option<Quota> {
        let limiter = self.limiter()?;
        let quotas = limiter.quotas();
        match index.checked_sub(quotas.len()) {
            None => quotas.get(index).copied(),
            Some(slot) => limiter.override_quotas().get(slot).copied(),
        }
    }

    /// Sets and removes overrides of keys; see [`Limiter::apply_overrides`].
    pub fn apply_overrides(&self, changes: &[OverrideChange]) -> Vec<(usize, SettingError)> {
        let Some(limiter) = self.limiter() else { return Vec::new() };
        let rejected = limiter.apply_overrides(changes);
        self.shared.set_policy_fields(&limiter.quotas());
        rejected
    }

    /// Its quotas as rate limit headers.
    #[inline]
    pub fn policy_fields(&self) -> impl Deref<Target = Arc<PolicyFields>> + use<> {
        self.shared.active.policy_fields.load()
    }

    /// Whether all of its quotas apply to a call, or one tier that it selects.
    pub fn selection(&self) -> QuotaSelection {
        self.shared.active.policy_fields.load().selection()
    }

    /// How long a call may wait.
    pub fn wait(&self) -> Duration {
        self.shared.active.state.load().wait
    }

    /// The message for rejected clients.
    pub fn message(&self) -> Option<Arc<str>> {
        self.shared.active.state.load().message.clone()
    }

    /// The current limiter; `None` for a rule without quotas.
    pub fn limiter(&self) -> Option<Limiter> {
        self.shared.active.state.load().limiter.clone()
    }

    /// The limiter that alone decides, if any: in memory, enforced, and without waiting.
    #[inline]
    pub fn fast_limiter(&self) -> Option<&Limiter> {
        match self.shared.path.load(Ordering::Acquire) {
            PATH_FAST => self.shared.local_limiter.as_ref(),
            _ => None,
        }
    }

    /// How the rule is checked now.
    #[inline]
    pub(crate) fn check_path(&self) -> CheckPath {
        match self.shared.path.load(Ordering::Acquire) {
            PATH_FAST => CheckPath::Fast,
            PATH_IDLE => CheckPath::Idle,
            _ => CheckPath::Slow,
        }
    }

    /// The limiter in memory, which is used unless the settings name a store.
    pub(crate) fn local_limiter(&self) -> Option<&Limiter> {
        self.shared.local_limiter.as_ref()
    }

    pub(crate) fn state(&self) -> Arc<RuleState> {
        self.shared.state()
    }

    /// Charges `cost` to `key`, and waits up to the wait of the rule.
    #[inline]
    pub async fn admit<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.fast_limiter() {
            Some(limiter) => self.require_granted(limiter.check_cost(key, cost)),
            None => Box::pin(self.admit_slow(key, cost)).await,
        }
    }

    /// Like [`admit`](Self::admit), blocking the thread while it waits.
    #[inline]
    pub fn admit_blocking<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        match self.fast_limiter() {
            Some(limiter) => self.require_granted(limiter.check_cost(key, cost)),
            None => self.admit_slow_blocking(key, cost),
        }
    }

    /// Acquires a slot of `key`, which is released when the permit is dropped; waits up to the wait of the
    /// rule.
    ///
    /// In shadow mode a slot is acquired if one is free; calls are neither rejected nor delayed.
    pub async fn acquire<K: RuleKey + ?Sized>(&self, key: &K) -> Result<RulePermit, Limited> {
        let state = self.shared.state();
        self.check_call(&state)?;
        let Some(limiter) = state.limiter_for(key) else { return Ok(RulePermit::empty()) };
        self.expect_slots(&state);
        let permit = acquire_permit(limiter.key(key), state.waiter()).await;
        self.apply_mode_to_permit(&state, permit)
    }

    /// Like [`acquire`](Self::acquire), blocking the thread while it waits.
    pub fn acquire_blocking<K: RuleKey + ?Sized>(&self, key: &K) -> Result<RulePermit, Limited> {
        let state = self.shared.state();
        self.check_call(&state)?;
        let Some(limiter) = state.limiter_for(key) else { return Ok(RulePermit::empty()) };
        self.acquire_slot_blocking(&state, limiter, key)
    }

    /// Acquires a slot of this limiter, blocking the thread while it waits.
    pub(crate) fn acquire_slot_blocking<K: RuleKey + ?Sized>(
        &self,
        state: &RuleState,
        limiter: &Limiter,
        key: &K,
    ) -> Result<RulePermit, Limited> {
        self.expect_slots(state);
        let bucket = limiter.blocking().key(key);
        let permit = match state.waiter() {
            None => Ok(bucket.permit()),
            Some(waiter) => bucket.permit_queued(waiter),
        };
        self.apply_mode_to_permit(state, permit.map(RulePermit::new))
    }

    #[inline]
    fn require_granted(&self, decision: Decision) -> Result<(), Limited> {
        match decision.is_granted() {
            true => Ok(()),
            false => Err(self.to_limited(&decision)),
        }
    }

    /// Converts a denial into an error.
    #[cold]
    pub fn to_limited(&self, decision: &Decision) -> Limited {
        let state = self.shared.active.state.load();
        let fields = self.policy_fields();
        // An override has the name of the first quota.
        let named = if fields.is_override(decision.quota()) { decision.with_quota(0) } else { *decision };
        Limited::new(self.shared.active.name.clone(), CallError::from_denial(named))
            .with_message(state.message.clone())
            .with_quota(self.quota_at(decision.quota()))
            .with_unit(fields.unit())
    }

    async fn admit_slow<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        let state = self.shared.state();
        self.check_call(&state)?;
        let Some(limiter) = state.limiter_for(key) else { return Ok(()) };
        self.expect_rates(&state);
        let decision = acquire_tokens(limiter.key(key), cost, state.max_wait()).await;
        self.apply_mode(state.mode, decision)
    }

    fn admit_slow_blocking<K: RuleKey + ?Sized>(&self, key: &K, cost: u64) -> Result<(), Limited> {
        let state = self.shared.state();
        self.check_call(&state)?;
        let Some(limiter) = state.limiter_for(key) else { return Ok(()) };
        self.charge_blocking(&state, limiter, key, cost)
    }

    /// Charges `cost` to this limiter, blocking the thread while it waits.
    pub(crate) fn charge_blocking<K: RuleKey + ?Sized>(
        &self,
        state: &RuleState,
        limiter: &Limiter,
        key: &K,
        cost: u64,
    ) -> Result<(), Limited> {
        self.expect_rates(state);
        let (bucket, max_wait) = (limiter.blocking().key(key), state.max_wait());
        let decision = match max_wait.is_zero() {
            true => bucket.check(cost),
            false => bucket.try_acquire(cost, max_wait),
        };
        self.apply_mode(state.mode, decision)
    }

    /// Rejects a call that the policy does not allow now, whatever the quotas.
    pub(crate) fn check_call(&self, state: &RuleState) -> Result<(), Limited> {
        match state.call_check.as_ref().filter(|_| state.mode == Mode::Enforce).map(CallCheck::check) {
            Some(Err(rejection)) => Err(Limited::new(self.shared.active.name.clone(), rejection.into())
                .with_message(state.message.clone())),
            Some(Ok(())) | None => Ok(()),
        }
    }

    /// A call that holds no slot only checks a concurrency quota. That is probably a mistake, and logged
    /// once.
    pub(crate) fn expect_rates(&self, state: &RuleState) {
        if state.concurrency != ConcurrencyQuotas::None
            && !self.shared.is_misuse_reported.swap(true, Ordering::Relaxed)
        {
            events::SlotNotAcquired { rule: self.name() }.emit();
        }
    }

    /// A call that holds a slot refunds a rate when it ends. That is probably a mistake, and logged once.
    pub(crate) fn expect_slots(&self, state: &RuleState) {
        if state.concurrency == ConcurrencyQuotas::None
            && !self.shared.is_misuse_reported.swap(true, Ordering::Relaxed)
        {
            events::RateRefunded { rule: self.name() }.emit();
        }
    }

    /// Applies the mode under which the decision was made.
    pub(crate) fn apply_mode(&self, mode: Mode, decision: Decision) -> Result<(), Limited> {
        match mode {
            Mode::Enforce => self.require_granted(decision),
            Mode::Shadow | Mode::Off => Ok(()),
        }
    }

    /// Applies the mode under which the permit was requested.
    pub(crate) fn apply_mode_to_permit(
        &self,
        state: &RuleState,
        permit: Result<RulePermit, WaitError>,
    ) -> Result<RulePermit, Limited> {
        match (permit, state.mode) {
            (Ok(permit), Mode::Enforce) => match permit.denial() {
                Some(decision) => Err(self.to_limited(decision)),
                None => Ok(permit),
            },
            (Err(error), Mode::Enforce) => Err(Limited::new(self.shared.active.name.clone(), error.into())
                .with_message(state.message.clone())),
            (Ok(permit), Mode::Shadow | Mode::Off) => Ok(permit),
            (Err(_), Mode::Shadow | Mode::Off) => Ok(RulePermit::empty()),
        }
    }
}

/// The error if there is no runtime to query a store on.
pub(crate) const NO_RUNTIME: WaitError = WaitError::StoreUnavailable(Micros::from_secs(1));

/// Charges `cost`, waiting up to `max_wait`. A store is queried on the current runtime, or else on our own.
pub(crate) async fn acquire_tokens(bucket: Bucket, cost: u64, max_wait: Duration) -> Decision {
    let is_in_memory = bucket.is_in_memory();
    let acquiring = async move {
        match max_wait.is_zero() {
            true => bucket.check(cost).await,
            false => bucket.try_acquire(cost, max_wait).await,
        }
    };
    if is_in_memory {
        return acquiring.await;
    }
    background::run_in_runtime(acquiring)
        .await
        .unwrap_or_else(|| Decision::fail_closed(0, Micros::from_secs(1)))
}

/// Acquires a slot. A slot of a store is released even if the caller is dropped meanwhile.
pub(crate) async fn acquire_permit(bucket: Bucket, waiter: Option<Waiter>) -> Result<RulePermit, WaitError> {
    let is_in_memory = bucket.is_in_memory();
    let acquiring = async move {
        match waiter {
            None => Ok(bucket.permit().await),
            Some(waiter) => bucket.permit_queued(waiter).await,
        }
    };
    let permit = match is_in_memory {
        true => acquiring.await,
        false => background::run_to_completion(acquiring).await.unwrap_or(Err(NO_RUNTIME)),
    };
    permit.map(RulePermit::new)
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.shared.active.state.load();
        f.debug_struct("Rule")
            .field("name", &self.shared.active.name)
            .field("mode", &state.mode)
            .field("limiter", &state.limiter)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "this is how a test fails")]
mod tests {
    use super::*;
    use crate::{RuleSettings, Rules, Settings};
    use std::{
        sync::{Weak, mpsc},
        thread,
    };
    use tidegate_core::Percent;
    use tidegate_limiter::{
        Store, StoreError,
        store::{StoreFuture, StoreReply, StoreRequest},
    };
    use tidegate_overload::{LoadMonitor, ScalePolicy};

    /// A store that drops a rule on another thread while the quotas of that rule are changed.
    #[derive(Debug, Default)]
    struct DroppingStore(Mutex<Option<Rule>>);

    impl Store for DroppingStore {
        fn execute(&self, _request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
            Box::pin(std::future::ready(Err(StoreError::Timeout)))
        }

        fn effective_quota(&self, quota: Quota) -> Quota {
            if let Some(rule) = self.0.lock().unwrap().take() {
                let shared: Weak<SharedRule> = Arc::downgrade(&rule.shared);
                let dropped = thread::spawn(move || drop(rule));
                // Either the rule is no longer in use, or the caller of this function has the last reference.
                while shared.strong_count() > 0 && !dropped.is_finished() {
                    thread::yield_now();
                }
            }
            quota
        }
    }

    #[test]
    fn rule_can_be_dropped_while_its_quotas_are_scaled() {
        let (done, finished) = mpsc::channel();
        thread::spawn(move || {
            let source = |_now| Some(Percent::FULL);
            let monitor = LoadMonitor::builder().source("test", source).build().unwrap();
            let scale = Some(LoadScale { monitor: monitor.clone(), policy: ScalePolicy::default() });
            let store = Arc::new(DroppingStore::default());
            let settings = Settings::new().store(store.clone());
            let rules = Rules::new();
            rules.apply(settings.rule("a", RuleSettings { scale, ..RuleSettings::new() })).unwrap();
            let rule = rules.declare(RuleConfig::new("a").quota("10/s").unwrap()).unwrap();
            *store.0.lock().unwrap() = Some(rule);
            monitor.sample_once();
            done.send(store.0.lock().unwrap().is_none()).unwrap();
        });
        let is_dropped = finished.recv_timeout(Duration::from_secs(60));
        assert_eq!(is_dropped, Ok(true), "the monitor waits for itself");
    }
}
