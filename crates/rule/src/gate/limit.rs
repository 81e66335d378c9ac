//! A rule applied to requests.

use super::{charge::ChargePolicy, queue::LimitQueue, rollout::is_in_rollout, route::RoutePattern};
use crate::{
    Mode, Rule, RuleConfig, Rules,
    request::{AddressKey, KeyValue, MissingKey, RequestHead, RequestKey, key},
};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::{Percent, Quota};
use tidegate_limiter::{BuildError, WaitPriority};

/// A rule applied to requests: which requests, by which key, at which cost.
///
/// ```
/// use tidegate_rule::{ChargePolicy, RuleConfig, RequestLimit, request::{RequestHead, ResponseHead, key}};
///
/// let login = RequestLimit::from_config(RuleConfig::new("login").quota("5/min")?)?
///     .key(key::peer())
///     .methods(["POST"])
///     .routes(["/login"])
///     .charge(ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401));
/// let search = RequestLimit::from_config(RuleConfig::new("search").quota("1000/min")?)?
///     .routes(["/search/*"])
///     .cost(|head: &dyn RequestHead| if head.header("x-deep").is_some() { 10 } else { 1 });
/// # Ok::<(), tidegate_limiter::BuildError>(())
/// ```
///
/// A concurrency quota (`3 at once`) holds its slots until the body of the response has been sent or dropped;
/// a request holds as many as its cost.
#[derive(Clone)]
pub struct RequestLimit {
    rule: Rule,
    key: RequestKey,
    missing: MissingKey,
    methods: Vec<Cow<'static, str>>,
    routes: Vec<RoutePattern>,
    condition: Option<Arc<RequestTest>>,
    cost: Option<Arc<RequestCost>>,
    tier: Option<Arc<RequestTier>>,
    charge: ChargePolicy,
    priority: Option<Arc<RequestPriorityFn>>,
    queue: Option<LimitQueue>,
    /// The share of the keys for which it is enforced; `None` for all.
    rollout: Option<Percent>,
    /// Whether the in-memory decision is final: nothing to settle later, and no slot to hold.
    is_plain: bool,
}

type RequestTest = dyn Fn(&dyn RequestHead) -> bool + Send + Sync;
type RequestCost = dyn Fn(&dyn RequestHead) -> u64 + Send + Sync;
type RequestTier = dyn Fn(&dyn RequestHead) -> usize + Send + Sync;
type RequestPriorityFn = dyn Fn(&dyn RequestHead) -> WaitPriority + Send + Sync;

impl RequestLimit {
    /// Creates a limit on all requests together, at a cost of one each.
    pub fn new(rule: Rule) -> Self {
        let is_plain = !rule.quotas().iter().any(Quota::is_concurrency);
        Self {
            rule,
            key: key::all(),
            missing: MissingKey::default(),
            methods: Vec::new(),
            routes: Vec::new(),
            condition: None,
            cost: None,
            tier: None,
            charge: ChargePolicy::upfront(),
            priority: None,
            queue: None,
            rollout: None,
            is_plain,
        }
    }

    /// Like [`new`](Self::new), with a rule that is declared in [`Rules::global`].
    pub fn from_config(config: RuleConfig) -> Result<Self, BuildError> {
        Rules::global().declare(config).map(Self::new)
    }

    /// Sets the key that requests are counted by.
    #[must_use]
    pub fn key(self, key: RequestKey) -> Self {
        Self { key, ..self }
    }

    /// Sets how requests without the key are treated.
    #[must_use]
    pub fn missing(self, missing: MissingKey) -> Self {
        Self { missing, ..self }
    }

    /// Limits only requests with one of these methods.
    #[must_use]
    pub fn methods<M: Into<Cow<'static, str>>>(mut self, methods: impl IntoIterator<Item = M>) -> Self {
        self.methods = methods.into_iter().map(Into::into).collect();
        self
    }

    /// Limits only requests to one of these routes, as the router names them: `/users/{id}`, or `/admin/*`
    /// for everything below. Without a matched route the raw path is compared, so another spelling of the
    /// path does not match.
    #[must_use]
    pub fn routes<R: Into<Cow<'static, str>>>(mut self, routes: impl IntoIterator<Item = R>) -> Self {
        self.routes = routes.into_iter().map(|route| RoutePattern::parse(route.into())).collect();
        self
    }

    /// Limits only requests that satisfy this test.
    #[must_use]
    pub fn condition(self, test: impl Fn(&dyn RequestHead) -> bool + Send + Sync + 'static) -> Self {
        Self { condition: Some(Arc::new(test)), ..self }
    }

    /// Sets the cost of a request. A cost of zero is admitted while any request would be.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&dyn RequestHead) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    /// Sets the tier of the rule that a request is counted by, from zero; the first if the index is invalid.
    /// Tiers of concurrency quotas do not wait for a slot, whatever the wait of the rule.
    #[must_use]
    pub fn tier(self, tier: impl Fn(&dyn RequestHead) -> usize + Send + Sync + 'static) -> Self {
        Self { tier: Some(Arc::new(tier)), ..self }
    }

    /// Sets what a request is charged, depending on its response.
    #[must_use]
    pub fn charge(self, charge: ChargePolicy) -> Self {
        Self { charge, ..self }
    }

    /// Sets the priority of a request that waits; first come, first served by default. Among several processes that share a
    /// store, each orders its own requests. Tiers are not ordered.
    #[must_use]
    pub fn priority(
        self,
        priority: impl Fn(&dyn RequestHead) -> WaitPriority + Send + Sync + 'static,
    ) -> Self {
        Self { priority: Some(Arc::new(priority)), ..self }
    }

    /// Sets how many requests may wait, if the rule has a wait; by default, a rate does not limit their
    /// number.
    #[must_use]
    pub fn queue(self, queue: LimitQueue) -> Self {
        Self { queue: Some(queue), ..self }
    }

    /// Enforces the limit for this share of its keys only; for other keys it is in shadow mode. A hash of the
    /// rule name and the key selects them: the same in every process, and a larger share includes the keys of
    /// a smaller one.
    #[must_use]
    pub fn rollout(self, share: Percent) -> Self {
        Self { rollout: Some(share), is_plain: false, ..self }
    }

    /// Whether it would be enforced for this key according to its rollout.
    pub fn is_enforced_for(&self, key: &KeyValue<'_>) -> bool {
        self.rollout.is_none_or(|share| is_in_rollout(self.rule.name(), key, share))
    }

    /// The key of this request; `None` if it is not counted, or if the key is required and missing.
    pub fn resolve_key<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        match (self.key.find(head), self.missing) {
            (None, MissingKey::Ip) => Some(address_key(head)),
            (None, MissingKey::Shared) => Some(KeyValue::All),
            (found, _) => found,
        }
    }

    /// The rule.
    pub fn rule(&self) -> &Rule {
        &self.rule
    }

    #[inline]
    pub(super) fn matches(&self, head: &dyn RequestHead) -> bool {
        (self.methods.is_empty() || self.methods.iter().any(|method| method == head.method()))
            && (self.routes.is_empty() || self.routes.iter().any(|route| route.matches(head)))
            && self.condition.as_ref().is_none_or(|test| test(head))
    }

    #[inline]
    pub(super) fn key_source(&self) -> (&RequestKey, &MissingKey) {
        (&self.key, &self.missing)
    }

    #[inline]
    pub(super) fn compute_cost(&self, head: &dyn RequestHead) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(head))
    }

    #[inline]
    pub(super) fn select_tier(&self, head: &dyn RequestHead) -> usize {
        self.tier.as_ref().map_or(0, |tier| tier(head))
    }

    /// A limit that is not enforced for this key is in shadow mode.
    pub(super) fn effective_mode(&self, mode: Mode, key: &KeyValue<'_>) -> Mode {
        match mode {
            Mode::Enforce if !self.is_enforced_for(key) => Mode::Shadow,
            mode => mode,
        }
    }

    pub(super) fn has_priority(&self) -> bool {
        self.priority.is_some()
    }

    pub(super) fn compute_priority(&self, head: &dyn RequestHead) -> WaitPriority {
        self.priority.as_ref().map(|priority| priority(head)).unwrap_or_default()
    }

    pub(super) fn wait_queue(&self) -> Option<&LimitQueue> {
        self.queue.as_ref()
    }

    pub(super) fn charge_policy(&self) -> &ChargePolicy {
        &self.charge
    }

    /// The prefix bits of the peer address, if it is the only input of this limit.
    pub(super) fn peer_key_prefix_len(&self) -> Option<u8> {
        let is_for_all = self.methods.is_empty() && self.routes.is_empty() && self.condition.is_none();
        let has_functions = self.cost.is_some() || self.tier.is_some() || self.priority.is_some();
        self.key.peer_prefix_len().filter(|_| is_for_all && !has_functions && self.is_plain())
    }

    /// Whether the in-memory decision is final.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain && self.charge.is_upfront()
    }
}

impl fmt::Debug for RequestLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestLimit")
            .field("rule", &self.rule.name())
            .field("methods", &self.methods)
            .field("routes", &self.routes)
            .field("charge", &self.charge)
            .finish_non_exhaustive()
    }
}

/// The key of a request that lacks its key. No key chosen by a client equals it.
pub(super) fn address_key<'a>(head: &dyn RequestHead) -> KeyValue<'a> {
    match head.peer() {
        Some(peer) => KeyValue::Fallback(u8::MAX, Box::new(KeyValue::Address(AddressKey::new(peer)))),
        None => KeyValue::All,
    }
}
