//! The limits of a rule besides its quotas: lists, bans, a circuit breaker, an adaptive limit, bandwidth.

use super::{
    identity::CredentialKinds,
    keys::{CLASSES, IndexFn, KeyCompiler, can_ban_by_key, class_priority, is_always_present},
    load::build_shedder,
    reject::RejectionTemplates,
    rules::RuleLimiting,
};
use crate::{
    credentials::key_has_credential,
    matching::{CompiledExpression, Lists, Matcher, access_list_from_entries, to_setting_error},
    model::{
        self, AccessSpec, AdaptiveSpec, BandwidthRate, BreakerSpec, BreakerWindow, FailingSpec, KeySpec,
        LoadSpec, RuleEnforcement, RuleSpec,
    },
};
use std::{fmt, sync::Arc, time::Duration};
use tidegate_access::{AccessControl, AccessList, Bans, ListAction};
use tidegate_bandwidth::{Bandwidth, KeyedBandwidth};
use tidegate_core::{Micros, Percent, Quota, Ratio, SettingError};
use tidegate_limiter::{BuildError, Capacity, Clock, Semaphore, WaitError, Waiter};
use tidegate_overload::{
    AdaptiveLimit, Breaker, BreakerSettings, CallGuard as _, CallOutcome, CallPermit, ErrorRateSettings,
    Feature, Features, PriorityLimit, Rejection,
    adaptive::{Bounds, LatencyTarget},
    error_rate::KeyedErrorRate,
    load::{LoadShedder, Scalable},
    priority::{PriorityClass, PriorityRequest},
};
use tidegate_rule::{
    KeyQueue, LimitQueue, Mode,
    body::JsonPointer,
    is_in_rollout,
    middleware::RequestAccess,
    request::{KeyValue, MissingKey, RequestHead, RequestKey, TrustedProxies},
};

/// A compiled rule.
pub(crate) struct CompiledRule {
    pub(crate) source: RuleSpec,
    pub(crate) matcher: Matcher,
    /// Its index in the gate, if it has quotas.
    pub(crate) limit: Option<usize>,
    pub(crate) limiting: Option<RuleLimiting>,
    /// The limits of requests of a class and below, which leave the reserve of higher classes free.
    pub(crate) reserve_limits: Vec<(usize, usize)>,
    /// The expressions of its keys.
    pub(crate) expressions: Vec<Arc<CompiledExpression>>,
    /// The key of the policy.
    pub(crate) key: RequestKey,
    /// The key with the fallback for requests without it.
    pub(crate) counter_key: RequestKey,
    /// The keys that read a single header, cookie or query parameter: for its key, tiers, cost and priority.
    pub(crate) single_value_keys: Vec<RequestKey>,
    /// The values of the body that it reads: for its key, tiers, cost and priority.
    pub(crate) body_pointers: Vec<JsonPointer>,
    /// The credentials that its key, cost, tiers and priority read.
    pub(crate) credentials: CredentialKinds,
    /// These, and those that its match reads.
    pub(crate) verified_credentials: CredentialKinds,
    /// Whether its key may be a credential.
    pub(crate) has_credential: bool,
    pub(crate) proxies: TrustedProxies,
    pub(crate) access_control: Option<Arc<AccessControl>>,
    pub(crate) request_access: Option<RequestAccess>,
    /// Requests are rejected while it is off.
    pub(crate) feature: Option<Feature>,
    pub(crate) shedder: Option<Arc<LoadShedder>>,
    /// The quotas apply only to keys whose error rate is exceeded.
    pub(crate) error_rate: Option<Arc<KeyedErrorRate>>,
    pub(crate) breaker: Option<Arc<Breaker>>,
    pub(crate) adaptive: Option<InFlightLimit>,
    pub(crate) class: Option<Arc<IndexFn>>,
    /// The wait queue, if requests may wait.
    pub(crate) queue: Option<LimitQueue>,
    pub(crate) down: Option<Arc<KeyedBandwidth>>,
    pub(crate) up: Option<Arc<KeyedBandwidth>>,
    pub(crate) rejections: RejectionTemplates,
}

/// A permit of a guard. It records the outcome of the call.
pub(crate) enum GuardPermit {
    Breaker(CallPermit<Arc<Breaker>>),
    Adaptive(CallPermit<Arc<AdaptiveLimit>>),
    Priority(CallPermit<Arc<PriorityLimit>>),
}

/// A limit of requests in flight that adapts to the latency of the upstream.
#[derive(Clone)]
pub(crate) enum InFlightLimit {
    /// Admits requests in order of arrival. Waiting requests are ordered by priority.
    Adaptive(Arc<AdaptiveLimit>),
    /// Requests do not wait, and those of lower priority are shed first.
    Priority(Arc<PriorityLimit>),
}

/// The reason why a guard rejects a request.
#[derive(Clone, Copy)]
pub(crate) enum GuardRejection {
    /// The guard rejects the call.
    Immediate(Rejection),
    /// The request has to wait in the queue.
    MustWait,
    /// The wait in the queue failed.
    WaitFailed(WaitError),
}

/// A byte rate of a rule with a schedule.
pub(crate) struct ScheduledBandwidth {
    keys: Arc<KeyedBandwidth>,
    /// The rate of the policy, whose burst may be the default one.
    pub(crate) declared: Quota,
}

impl Scalable for ScheduledBandwidth {
    type Limit = Quota;

    fn limit(&self) -> Quota {
        self.keys.quota()
    }

    fn scale(limit: &Quota, factor: Ratio) -> Result<Quota, BuildError> {
        Ok(limit.scale(factor)?)
    }

    fn set_limit(&self, limit: &Quota) -> Result<(), BuildError> {
        self.keys.change(*limit)
    }
}

impl From<Rejection> for GuardRejection {
    fn from(rejection: Rejection) -> Self {
        Self::Immediate(rejection)
    }
}

impl GuardPermit {
    pub(crate) fn report(self, report: CallOutcome) {
        match self {
            Self::Breaker(permit) => permit.record(report),
            Self::Adaptive(permit) => permit.record(report),
            Self::Priority(permit) => permit.record(report),
        }
    }
}

impl CompiledRule {
    pub(crate) fn name(&self) -> &str {
        &self.source.name
    }

    /// The number of failed expression evaluations.
    pub(crate) fn failures(&self) -> u64 {
        let keys = self.expressions.iter().map(|expression| expression.failures());
        keys.fold(self.matcher.failures(), u64::saturating_add)
    }

    pub(crate) fn has_only_quotas(&self) -> bool {
        self.request_access.is_none()
            && self.reserve_limits.is_empty()
            && !self.has_guards()
            && self.error_rate.is_none()
            && self.down.is_none()
            && self.up.is_none()
    }

    pub(crate) fn has_guards(&self) -> bool {
        self.breaker.is_some() || self.adaptive.is_some() || self.shedder.is_some() || self.feature.is_some()
    }

    /// Rejects a request whose feature is off, or whose class is shed.
    pub(crate) fn check_load(&self, class: usize) -> Result<(), Rejection> {
        check_load(self.feature.as_ref(), self.shedder.as_deref(), class)
    }

    /// Whether its quotas follow the load or a schedule.
    pub(crate) fn is_scaled(&self) -> bool {
        self.source.schedule.is_some() || self.source.scale.is_some()
    }

    /// The limits of a request of this class.
    pub(crate) fn limits_of(&self, class: usize) -> impl Iterator<Item = usize> {
        let reserves = self.reserve_limits.iter().filter(move |(highest, _)| class >= *highest);
        self.limit.into_iter().chain(reserves.map(|(_, limit)| *limit))
    }

    /// The mode for this request, for everything but quotas.
    pub(crate) fn mode(&self, head: &dyn RequestHead) -> Mode {
        match &self.source.enforcement {
            RuleEnforcement::All(mode) => *mode,
            RuleEnforcement::Percent(share) => {
                let is_chosen =
                    self.key_of(head).is_some_and(|key| is_in_rollout(&self.source.name, &key, *share));
                if is_chosen { Mode::Enforce } else { Mode::Shadow }
            }
        }
    }

    pub(crate) fn key_of<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        match (self.counter_key.find(head), self.source.missing) {
            (None, MissingKey::Shared | MissingKey::Ip) => Some(KeyValue::All),
            (found, _) => found,
        }
    }

    /// Whether a request repeats a value that this rule reads, and is rejected for it.
    pub(crate) fn rejects_duplicates(&self, head: &dyn RequestHead) -> bool {
        self.single_value_keys.iter().any(|key| key.has_duplicates(head)) && self.mode(head) == Mode::Enforce
    }

    /// Whether this rule rejects requests without a valid credential.
    pub(crate) fn requires_credential(&self, head: &dyn RequestHead) -> bool {
        !self.credentials.is_empty()
            && self.source.missing == MissingKey::Reject
            && self.mode(head) == Mode::Enforce
    }

    /// The subject of a ban of this rule for a request; `None` if it is unknown.
    pub(crate) fn ban_subject(&self, head: &dyn RequestHead) -> Option<String> {
        let access = self.request_access.as_ref()?;
        let address = || access.list_key(head).map(|address| address.to_string());
        access.ban_key(head).map(String::from).or_else(address)
    }

    /// The priority class of a request.
    pub(crate) fn class_of(&self, head: &dyn RequestHead) -> usize {
        self.class.as_ref().map_or(NORMAL_CLASS, |class| class(head))
    }

    /// Acquires permits of all its guards. On error the caller must release those in `permits`.
    pub(crate) fn acquire_guards(
        &self,
        class: usize,
        permits: &mut Vec<GuardPermit>,
    ) -> Result<(), GuardRejection> {
        self.check_load(class)?;
        if let Some(breaker) = &self.breaker {
            permits.push(GuardPermit::Breaker(breaker.try_acquire_owned()?));
        }
        match &self.adaptive {
            None => {}
            Some(InFlightLimit::Priority(limit)) => {
                permits.push(GuardPermit::Priority(limit.try_acquire_owned(PriorityRequest::new(class))?));
            }
            Some(InFlightLimit::Adaptive(limit)) => match limit.try_acquire_owned() {
                Ok(permit) => permits.push(GuardPermit::Adaptive(permit)),
                Err(rejection) if self.source.wait.is_zero() => return Err(rejection.into()),
                Err(_) => return Err(GuardRejection::MustWait),
            },
        }
        Ok(())
    }

    /// The queue for the key of a request, if it may wait.
    pub(crate) fn key_queue(&self, head: &dyn RequestHead) -> Option<KeyQueue> {
        let queue = self.queue.as_ref()?;
        Some(queue.for_key(&self.key_of(head).unwrap_or(KeyValue::All)))
    }

    /// Like [`acquire_guards`](Self::acquire_guards), but waits in the queue.
    pub(crate) async fn acquire_guards_queued(
        &self,
        class: usize,
        queue: Option<&KeyQueue>,
        permits: &mut Vec<GuardPermit>,
    ) -> Result<(), GuardRejection> {
        if let Some(InFlightLimit::Adaptive(limit)) =
            self.adaptive.as_ref().filter(|_| !self.source.wait.is_zero())
        {
            self.check_load(class)?;
            let permit = match limit.try_acquire_owned() {
                Ok(permit) => permit,
                Err(_) => {
                    let _waiting =
                        queue.map(KeyQueue::enter).transpose().map_err(GuardRejection::WaitFailed)?;
                    let waiter = Waiter::new(1).deadline(self.source.wait).priority(class_priority(class));
                    limit.acquire_owned(waiter).await.map_err(GuardRejection::WaitFailed)?
                }
            };
            permits.push(GuardPermit::Adaptive(permit));
            // Acquired last, so that a probe of the breaker does not wait.
            if let Some(breaker) = &self.breaker {
                permits.push(GuardPermit::Breaker(breaker.try_acquire_owned()?));
            }
            return Ok(());
        }
        self.acquire_guards(class, permits)
    }

    /// The byte rates of this request: of its response, and of its body.
    pub(crate) fn bandwidth(&self, head: &dyn RequestHead) -> (Option<Bandwidth>, Option<Bandwidth>) {
        if self.down.is_none() && self.up.is_none() {
            return (None, None);
        }
        let Some(key) = self.key_of(head) else { return (None, None) };
        let of = |rates: &Option<Arc<KeyedBandwidth>>| rates.as_ref().map(|rates| rates.key(&key));
        (of(&self.down), of(&self.up))
    }

    /// The current byte rates: of responses, and of requests.
    pub(crate) fn bandwidth_quotas(&self) -> (Option<Quota>, Option<Quota>) {
        let quota = |keys: &Option<Arc<KeyedBandwidth>>| keys.as_ref().map(|keys| keys.quota());
        (quota(&self.down), quota(&self.up))
    }

    /// The byte rates, for a schedule.
    pub(crate) fn scheduled_bandwidths(&self) -> impl Iterator<Item = ScheduledBandwidth> {
        let spec = self.source.bandwidth.as_ref();
        let declared = [spec.and_then(|spec| spec.down), spec.and_then(|spec| spec.up)];
        let tables = [&self.down, &self.up].into_iter().zip(declared);
        tables.filter_map(|(keys, rate)| {
            Some(ScheduledBandwidth { keys: keys.clone()?, declared: rate?.quota })
        })
    }

    /// Applies the current content of the lists.
    pub(crate) fn reload_lists(&self, lists: &Lists) -> Result<(), SettingError> {
        if let (Some(control), Some(access)) = (&self.access_control, &self.source.access) {
            control.replace(build_access_list(access, lists)?);
        }
        Ok(())
    }
}

impl fmt::Debug for CompiledRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CompiledRule").field("name", &self.source.name).finish_non_exhaustive()
    }
}

/// The default maximum number of waiting requests over all keys of a rule.
pub(crate) const DEFAULT_MAX_WAITERS: u64 = 10_000;

/// The default bounds of an adaptive concurrency limit.
pub(crate) const DEFAULT_MIN_CONCURRENCY: u64 = 1;
pub(crate) const DEFAULT_MAX_CONCURRENCY: u64 = 1_000;

/// The maximum number of keys with an error rate, of about half a kilobyte each.
const MAX_ERROR_RATES: usize = 16_384;

/// Rejects a call whose feature is off, or whose class is shed.
pub(crate) fn check_load(
    feature: Option<&Feature>,
    shedder: Option<&LoadShedder>,
    class: usize,
) -> Result<(), Rejection> {
    if feature.is_some_and(|feature| !feature.is_on()) {
        return Err(Rejection::FeatureOff);
    }
    match shedder.is_some_and(|shedder| shedder.is_shed(class)) {
        true => Err(Rejection::LoadShed),
        false => Ok(()),
    }
}

/// The class of requests without a priority.
pub(crate) const NORMAL_CLASS: usize = 2;

/// Compiles a rule, and reuses the state of the previous rule of the same name.
pub(crate) struct RuleCompiler<'a> {
    pub(crate) previous: Option<&'a CompiledRule>,
    pub(crate) lists: &'a Lists,
    pub(crate) proxies: &'a TrustedProxies,
    pub(crate) clock: Option<&'a Clock>,
    pub(crate) load: Option<&'a LoadSpec>,
    pub(crate) features: &'a Features,
    /// The default memory of a table, in bytes.
    pub(crate) memory: u64,
    /// Changes to apply after the whole policy has compiled without errors.
    pub(crate) commits: &'a mut Vec<Box<dyn FnOnce()>>,
}

impl RuleCompiler<'_> {
    pub(crate) fn compile(
        &mut self,
        source: &RuleSpec,
        matcher: Matcher,
        keys: &KeyCompiler<'_>,
    ) -> Result<CompiledRule, SettingError> {
        let control = source.access.as_ref().map(|access| self.build_access_control(access)).transpose()?;
        let key = keys.compile(&source.key)?;
        let request_access = control.as_ref().map(|control| {
            // A descriptor may have no address. Only `deny: all` denies it then.
            let access = RequestAccess::new(control.clone())
                .trusted_proxies(self.proxies.clone())
                .on_unknown_descriptor(match source.access.as_ref().is_some_and(AccessSpec::denies_all) {
                    true => ListAction::Deny,
                    false => ListAction::Allow,
                });
            match can_ban_by_key(&source.key) {
                true => access.ban_by(key.clone()),
                false => access,
            }
        });
        let class = source.priority.as_ref().map(|class| keys.compile_class(class)).transpose()?;
        source.check_bandwidth()?;
        let rates = source.bandwidth.as_ref();
        let before = |of: fn(&CompiledRule) -> &Option<Arc<KeyedBandwidth>>| {
            self.previous.and_then(|rule| of(rule).clone())
        };
        let (old_down, old_up) = (before(|rule| &rule.down), before(|rule| &rule.up));
        Ok(CompiledRule {
            source: source.clone(),
            matcher,
            limit: None,
            limiting: None,
            reserve_limits: Vec::new(),
            expressions: Vec::new(),
            proxies: self.proxies.clone(),
            counter_key: match source.missing {
                MissingKey::Ip if !is_always_present(&source.key) => {
                    key.clone().or(keys.client_address_key())
                }
                _ => key.clone(),
            },
            key,
            single_value_keys: Vec::new(),
            body_pointers: Vec::new(),
            credentials: CredentialKinds::default(),
            verified_credentials: CredentialKinds::default(),
            has_credential: key_has_credential(&source.key, keys.user),
            access_control: control,
            request_access,
            feature: source.feature.as_ref().map(|name| self.features.feature(name)).transpose()?,
            shedder: match &source.shed {
                Some(shed) => {
                    let before = self.previous.and_then(|rule| rule.shedder.as_deref());
                    Some(build_shedder(shed, self.load, before)?)
                }
                None => None,
            },
            error_rate: source
                .while_failing
                .as_ref()
                .map(|spec| self.build_error_rate(spec, source))
                .transpose()?,
            breaker: source.breaker.as_ref().map(|spec| self.build_breaker(spec)).transpose()?,
            adaptive: source.adaptive.as_ref().map(|spec| self.build_adaptive(spec, source)).transpose()?,
            class,
            queue: (!source.effective_wait().is_zero()).then(|| self.build_queue(source.queue.as_ref())),
            down: rates
                .and_then(|rates| rates.down)
                .map(|rate| self.build_bandwidth(rate, source, old_down))
                .transpose()?,
            up: rates
                .and_then(|rates| rates.up)
                .map(|rate| self.build_bandwidth(rate, source, old_up))
                .transpose()?,
            rejections: RejectionTemplates::default(),
        })
    }

    /// Builds the access control. Bans are retained when only the list changes.
    fn build_access_control(&mut self, access: &AccessSpec) -> Result<Arc<AccessControl>, SettingError> {
        let list = build_access_list(access, self.lists)?;
        let known =
            self.previous.filter(|rule| rule.source.access.as_ref().map(|old| &old.ban) == Some(&access.ban));
        if let Some(control) = known.and_then(|rule| rule.access_control.clone()) {
            let (list, existing) = (list, control.clone());
            self.commits.push(Box::new(move || existing.replace(list)));
            return Ok(control);
        }
        let mut bans = Bans::builder();
        if let Some(rule) = &access.ban {
            bans = bans.rule(rule.clone());
        }
        if let Some(clock) = self.clock {
            bans = bans.clock(clock.clone());
        }
        let bans = bans.build().map_err(|error| to_setting_error(&error.to_string(), "change the `ban`"))?;
        Ok(Arc::new(AccessControl::new(list, bans)))
    }

    /// Builds the wait queue. Waiting requests stay in the existing queue.
    fn build_queue(&mut self, spec: Option<&model::QueueSpec>) -> LimitQueue {
        let count = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
        let max_per_key = spec.map_or(DEFAULT_MAX_WAITERS, |queue| queue.max);
        let max_total =
            spec.and_then(|queue| queue.max_total).unwrap_or(max_per_key.max(DEFAULT_MAX_WAITERS));
        let (max_per_key, max_total) = (count(max_per_key), count(max_total));
        match self.previous.and_then(|rule| rule.queue.clone()) {
            None => LimitQueue::new(max_per_key, max_total),
            Some(queue) => {
                let existing = queue.clone();
                self.commits.push(Box::new(move || existing.set_limits(max_per_key, max_total)));
                queue
            }
        }
    }

    fn build_error_rate(
        &self,
        spec: &FailingSpec,
        source: &RuleSpec,
    ) -> Result<Arc<KeyedErrorRate>, SettingError> {
        let is_unchanged = |rule: &&CompiledRule| {
            rule.source.while_failing.as_ref() == Some(spec) && rule.source.key == source.key
        };
        if let Some(known) = self.previous.filter(is_unchanged).and_then(|rule| rule.error_rate.clone()) {
            return Ok(known);
        }
        let capacity = if source.key == KeySpec::All { Some(Capacity::Keys(1)) } else { source.capacity };
        build_error_rates(spec, capacity, self.clock)
    }

    fn build_breaker(&self, spec: &BreakerSpec) -> Result<Arc<Breaker>, SettingError> {
        let known = self.previous.filter(|rule| rule.source.breaker.as_ref() == Some(spec));
        if let Some(breaker) = known.and_then(|rule| rule.breaker.clone()) {
            return Ok(breaker);
        }
        let settings = breaker_settings(spec)?;
        Ok(Arc::new(match self.clock {
            Some(clock) => Breaker::with_clock(settings, clock.clone()),
            None => Breaker::new(settings),
        }))
    }

    fn build_adaptive(&self, spec: &AdaptiveSpec, source: &RuleSpec) -> Result<InFlightLimit, SettingError> {
        let has_queue = !source.wait.is_zero() || source.priority.is_none();
        let known = self.previous.filter(|rule| {
            let had_queue = matches!(rule.adaptive, Some(InFlightLimit::Adaptive(_)));
            rule.source.adaptive.as_ref() == Some(spec) && had_queue == has_queue
        });
        if let Some(adaptive) = known.and_then(|rule| rule.adaptive.clone()) {
            return Ok(adaptive);
        }
        let (min, max) = (
            to_u32(spec.min.unwrap_or(DEFAULT_MIN_CONCURRENCY))?,
            to_u32(spec.max.unwrap_or(DEFAULT_MAX_CONCURRENCY))?,
        );
        let initial = 20.clamp(min.min(max), max.max(min));
        let target = Micros::from(spec.target);
        let controller = LatencyTarget::new(target)?.bounds(Bounds::new(min, initial, max)?);
        if has_queue {
            // The queue of the rule limits the number of waiting requests.
            let mut semaphore = Semaphore::builder().max_waiters(usize::MAX);
            if let Some(clock) = self.clock {
                semaphore = semaphore.clock(clock.clone());
            }
            return AdaptiveLimit::with_slots(controller, semaphore)
                .map(Arc::new)
                .map(InFlightLimit::Adaptive);
        }
        let classes: Result<Vec<_>, _> = CLASSES
            .iter()
            .map(|(name, share)| Ok(PriorityClass::new(*name, Percent::new(*share)?)))
            .collect();
        let mut builder = PriorityLimit::builder(classes?);
        if let Some(clock) = self.clock {
            builder = builder.clock(clock.clone());
        }
        builder.build_adaptive(controller).map(Arc::new).map(InFlightLimit::Priority)
    }

    fn build_bandwidth(
        &mut self,
        rate: BandwidthRate,
        source: &RuleSpec,
        before: Option<Arc<KeyedBandwidth>>,
    ) -> Result<Arc<KeyedBandwidth>, SettingError> {
        let capacity = match source.key.is_per_request() {
            // One key for each request in flight, and the limits of connections bound these.
            true => Capacity::Keys(u64::MAX),
            // One table for each direction.
            false => source.capacity.unwrap_or(Capacity::Bytes(self.memory / 2)),
        };
        let mut builder =
            Bandwidth::builder().limit_after(rate.after).capacity(capacity).overflow(source.overflow);
        if let Some(clock) = self.clock {
            builder = builder.clock(clock.clone());
        }
        // Built in any case, so that an invalid rate is found before anything changes.
        let settings = builder.clone();
        let rate = rate.quota;
        let built = builder.build_keyed(rate);
        let built = built
            .map_err(|error| SettingError::new(format!("bandwidth `{rate}`: {error}"), "write `1MB/s`"))?;
        match before {
            None => Ok(Arc::new(built)),
            Some(before) => {
                let existing = before.clone();
                // Cannot fail: `built` has the same settings.
                self.commits.push(Box::new(move || _ = existing.reconfigure(&settings, rate)));
                Ok(before)
            }
        }
    }
}

/// Builds the error rates of the keys of a rule.
pub(crate) fn build_error_rates(
    spec: &FailingSpec,
    capacity: Option<Capacity>,
    clock: Option<&Clock>,
) -> Result<Arc<KeyedErrorRate>, SettingError> {
    let capacity = match capacity {
        Some(Capacity::Keys(keys)) => usize::try_from(keys).unwrap_or(usize::MAX).min(MAX_ERROR_RATES),
        Some(Capacity::Bytes(_)) | None => MAX_ERROR_RATES,
    };
    let clock = clock.cloned().unwrap_or_default();
    Ok(Arc::new(KeyedErrorRate::with_clock(error_rate_settings(spec)?, capacity, clock)))
}

/// Converts the settings of `while-failing`.
pub(super) fn error_rate_settings(spec: &FailingSpec) -> Result<ErrorRateSettings, SettingError> {
    let mut settings = ErrorRateSettings::builder();
    if let Some(window) = spec.window_size {
        settings = settings.window(window);
    }
    if let Some(calls) = spec.min_calls {
        settings = settings.request_threshold(calls);
    }
    if let Some(rate) = spec.failure_rate {
        settings = settings.error_threshold(rate);
    }
    settings.build()
}

fn to_u32(number: u64) -> Result<u32, SettingError> {
    u32::try_from(number)
        .map_err(|_| SettingError::new(format!("number out of range: {number}"), "use a smaller number"))
}

/// The default upper bound of the open duration with a backoff.
pub(crate) const DEFAULT_MAX_OPEN_DURATION: Duration = Duration::from_secs(3_600);

/// Converts the settings of a circuit breaker, of a rule or of an upstream.
pub fn breaker_settings(spec: &BreakerSpec) -> Result<BreakerSettings, SettingError> {
    let mut settings = BreakerSettings::builder();
    if let Some(rate) = spec.failure_rate {
        settings = settings.failure_rate(rate);
    }
    match (spec.slow_call_rate, spec.slow_call_duration) {
        (rate, Some(slow)) => settings = settings.slow_calls(rate.unwrap_or(Percent::FULL), slow),
        (Some(_), None) => {
            return Err(SettingError::new(
                "`slow-call-rate` without `slow-call-duration`",
                "add the duration from which a call is slow, as in `slow-call-duration: 1s`",
            ));
        }
        (None, None) => {}
    }
    settings = match spec.window_size {
        Some(BreakerWindow::Calls(calls)) => settings.count_window(to_u32(calls)?),
        Some(BreakerWindow::Time(time)) => settings.time_window(time),
        None => settings,
    };
    if let Some(calls) = spec.min_calls {
        settings = settings.min_calls(calls);
    }
    if let Some(time) = spec.open_duration {
        settings = settings.open_duration(time);
    }
    if let Some(probes) = spec.half_open_calls {
        settings = settings.half_open_calls(to_u32(probes)?);
    }
    if let Some(factor) = spec.backoff {
        settings =
            settings.backoff(factor.as_f64(), spec.max_open_duration.unwrap_or(DEFAULT_MAX_OPEN_DURATION));
    }
    if let Some(jitter) = spec.jitter {
        settings = settings.jitter(jitter);
    }
    if let Some(timeout) = spec.half_open_timeout {
        settings = settings.half_open_timeout(timeout);
    }
    settings.build()
}

fn build_access_list(access: &AccessSpec, lists: &Lists) -> Result<AccessList, SettingError> {
    let deny = lists.entries(&access.deny, ListAction::Deny)?;
    let allow = lists.entries(&access.allow, ListAction::Allow)?;
    access_list_from_entries(deny.into_iter().chain(allow))
}
