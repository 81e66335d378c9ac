//! One rule, and which requests it is about.

use super::{charge::ChargePolicy, queue::LimitQueue, rollout::is_in_rollout, route::RoutePattern};
use crate::{
    Mode, Rule, RuleConfig, Rules,
    request::{AddressKey, KeyValue, MissingKey, RequestHead, RequestKey, key},
};
use std::{borrow::Cow, fmt, sync::Arc};
use tidegate_core::{AlgorithmKind, Percent, Quota};
use tidegate_limiter::{BuildError, WaitPriority};

/// A rule applied to requests: to which, counted for whom, at what cost.
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
/// A quota of a number at once (`3 at once`) holds its slots until the body of the answer has been sent or dropped; a
/// request holds as many as its cost.
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
    /// The part of its keys for which it is enforced; all of them where there is none.
    rollout: Option<Percent>,
    /// Whether what is at hand says everything: there is nothing to settle later, and no slot to hold.
    is_plain: bool,
}

type RequestTest = dyn Fn(&dyn RequestHead) -> bool + Send + Sync;
type RequestCost = dyn Fn(&dyn RequestHead) -> u64 + Send + Sync;
type RequestTier = dyn Fn(&dyn RequestHead) -> usize + Send + Sync;
type RequestPriorityFn = dyn Fn(&dyn RequestHead) -> WaitPriority + Send + Sync;

impl RequestLimit {
    /// A rule for all requests, counted together, at a cost of one each.
    pub fn new(rule: Rule) -> Self {
        let is_plain = !rule.quotas().iter().any(is_concurrency);
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

    /// The same of a rule that is declared here, among those of [`Rules::global`].
    pub fn from_config(declaration: RuleConfig) -> Result<Self, BuildError> {
        Rules::global().declare(declaration).map(Self::new)
    }

    /// For whom it counts.
    #[must_use]
    pub fn key(self, key: RequestKey) -> Self {
        Self { key, ..self }
    }

    /// What becomes of requests in which the key is not found.
    #[must_use]
    pub fn missing(self, missing: MissingKey) -> Self {
        Self { missing, ..self }
    }

    /// Only requests with one of these methods.
    #[must_use]
    pub fn methods<M: Into<Cow<'static, str>>>(mut self, methods: impl IntoIterator<Item = M>) -> Self {
        self.methods = methods.into_iter().map(Into::into).collect();
        self
    }

    /// Only requests to one of these routes, as the router names them: `/users/{id}`, or `/admin/*` for everything below.
    /// Where no router has matched, the path is compared as it came: who spells it in another way is not meant.
    #[must_use]
    pub fn routes<R: Into<Cow<'static, str>>>(mut self, routes: impl IntoIterator<Item = R>) -> Self {
        self.routes = routes.into_iter().map(|route| RoutePattern::parse(route.into())).collect();
        self
    }

    /// Only requests of which this is true.
    #[must_use]
    pub fn condition(self, test: impl Fn(&dyn RequestHead) -> bool + Send + Sync + 'static) -> Self {
        Self { condition: Some(Arc::new(test)), ..self }
    }

    /// What a request costs. One that costs nothing is let through while anything at all would be.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&dyn RequestHead) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    /// Which of the rule's tiers a request is counted by, from zero; the first if there is no such tier. Tiers that are
    /// numbers at once do not wait for a slot, whatever the rule says of waiting.
    #[must_use]
    pub fn tier(self, tier: impl Fn(&dyn RequestHead) -> usize + Send + Sync + 'static) -> Self {
        Self { tier: Some(Arc::new(tier)), ..self }
    }

    /// What a request pays, knowing how it was answered.
    #[must_use]
    pub fn charge(self, charge: ChargePolicy) -> Self {
        Self { charge, ..self }
    }

    /// Who of those that wait for a slot goes first; the first who came unless told otherwise.
    #[must_use]
    pub fn priority(
        self,
        priority: impl Fn(&dyn RequestHead) -> WaitPriority + Send + Sync + 'static,
    ) -> Self {
        Self { priority: Some(Arc::new(priority)), ..self }
    }

    /// How many may wait, where the rule has a wait; as many as want to for a rate, unless told otherwise.
    #[must_use]
    pub fn queue(self, queue: LimitQueue) -> Self {
        Self { queue: Some(queue), ..self }
    }

    /// Is enforced for this part of its keys only, and in shadow mode for the others. Which ones is decided by a hash of the
    /// name of the rule and the key: always the same, in every process, and as the part grows none of them is left out.
    #[must_use]
    pub fn rollout(self, share: Percent) -> Self {
        Self { rollout: Some(share), is_plain: false, ..self }
    }

    /// Whether it would be enforced for this key, as far as the part of its keys goes.
    pub fn is_enforced_for(&self, key: &KeyValue<'_>) -> bool {
        self.rollout.is_none_or(|share| is_in_rollout(self.rule.name(), key, share))
    }

    /// For whom this request is counted; `None` if it is not, or must not be without a key.
    pub fn resolve_key<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        match (self.key.find(head), self.missing) {
            (None, MissingKey::Address) => Some(address_key(head)),
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

    /// What is not enforced for this key is in shadow mode.
    pub(super) fn effective_mode(&self, mode: Mode, key: &KeyValue<'_>) -> Mode {
        match mode {
            Mode::Enforce if !self.is_enforced_for(key) => Mode::Shadow,
            mode => mode,
        }
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

    /// The bits of the peer's address that it counts by, if it reads nothing else of a request.
    pub(super) fn peer_key_bits(&self) -> Option<u8> {
        let is_for_all = self.methods.is_empty() && self.routes.is_empty() && self.condition.is_none();
        let has_functions = self.cost.is_some() || self.tier.is_some() || self.priority.is_some();
        self.key.peer_bits().filter(|_| is_for_all && !has_functions && self.is_plain())
    }

    /// Whether a decision by what is at hand is all that has to be known.
    #[inline]
    pub(super) fn is_plain(&self) -> bool {
        self.is_plain && self.charge.is_upfront()
    }
}

pub(super) fn is_concurrency(quota: &Quota) -> bool {
    matches!(quota.kind(), AlgorithmKind::Concurrency(_))
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

/// For whom a request is counted that has no key. No key that a client chooses reads like it.
pub(super) fn address_key<'a>(head: &dyn RequestHead) -> KeyValue<'a> {
    match head.peer() {
        Some(peer) => KeyValue::Fallback(u8::MAX, Box::new(KeyValue::Address(AddressKey::new(peer)))),
        None => KeyValue::All,
    }
}
