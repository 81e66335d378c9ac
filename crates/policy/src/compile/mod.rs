//! Compiled policies, which are evaluated for every request.
//!
//! ```text
//!   Policy ──compile──▶ PolicyGate          request ──check──▶ admitted ──response──▶ settle
//!      ▲                    │ replaced                    └──▶ denied: the action of the rule
//!      └── a new file ──────┘ completely, or not at all
//! ```

mod cached_fallback;
mod code;
mod dry_run;
mod error;
mod evaluate;
mod guards;
mod identity;
mod keys;
mod live;
mod load;
mod named;
mod overrides;
mod reject;
mod rules;
mod settle;
mod view;

pub use cached_fallback::CachedFallbacks;
pub use dry_run::{DryRun, Prefetch};
pub use error::{PolicyError, PolicyProblem};
pub use evaluate::{PolicyAdmission, PolicyRejection, PolicyResult, RejectReason, RuleDecision, RuleResult};
pub use guards::breaker_settings;
pub use identity::{CredentialProblem, RemoteKeySet};
pub use live::LivePolicy;
pub use named::{NamedRule, QuotaKind};
pub use overrides::OverrideStep;
pub use reject::RejectAction;
pub use view::{AdaptiveView, FailingView, RuleView};

/// JSON whose strings borrow from the source if they have no escapes.
pub use serde_json_borrow::{ObjectAsVec as JsonObject, Value as JsonValue};

use crate::{
    index::RuleIndex,
    matching::{Lists, Matcher, RequestView},
    model::{OverrideLocation, Policy, RouteSpec, Stores},
};
use error::ProblemCollector;
use guards::ScheduledBandwidth;
pub(crate) use guards::{
    CompiledRule, DEFAULT_MAX_CONCURRENCY, DEFAULT_MAX_OPEN_DURATION, DEFAULT_MAX_WAITERS,
    DEFAULT_MIN_CONCURRENCY,
};
pub(crate) use identity::{CompiledIdentity, CredentialKinds, CredentialResult, CredentialResults};
use keys::RouteTable;
pub(crate) use keys::{CLASSES, is_always_present};
pub(crate) use load::{DEFAULT_RECOVERY, follows_load};
use load::{PolicyMonitor, PreparedMonitor};
use rules::{CompiledPolicy, build_limits};
pub(crate) use rules::{DEFAULT_RESERVE, MAX_RULE_BYTES, reserved_shares};
use std::{
    collections::HashMap,
    env, fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use tidegate_core::{Ratio, SettingError};
use tidegate_limiter::{Clock, Limiter};
use tidegate_overload::{Features, LoadMonitor, ScaledLimit, Scaler, load::Scalable as _};
use tidegate_rule::{
    Gate, Rule, Rules, StoreAddress,
    body::JsonPointer,
    request::{KeyValue, RequestHead, RequestKey, TrustedProxies},
};

/// Compiles policies to gates.
///
/// ```
/// use tidegate_policy::{compile::Compiler, model::Policy};
/// use tidegate_rule::Rules;
///
/// let compiler = Compiler::new(Rules::new());
/// let gate = compiler.compile(&Policy::default(), None)?;
/// let next = compiler.compile(&Policy::default(), Some(&gate))?;    // keeps the counters
/// # Ok::<(), tidegate_policy::compile::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compiler {
    rules: Rules,
    base: PathBuf,
    clock: Option<Clock>,
    wall_clock: Option<Clock>,
    memory: u64,
    ignores_load: bool,
}

impl Compiler {
    /// A compiler that registers rules here. Rules of the same name share their counters across all policies that it compiles.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            base: PathBuf::new(),
            clock: None,
            wall_clock: None,
            memory: rules::DEFAULT_MEMORY_BYTES,
            ignores_load: false,
        }
    }

    /// Sets the directory that file names are relative to; the current one by default.
    #[must_use]
    pub fn base(self, base: impl Into<PathBuf>) -> Self {
        Self { base: base.into(), ..self }
    }

    /// Sets the clock of counters in memory; the system clock by default.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// Sets the clock for the times of tokens and for dates in headers, since 1970; the wall clock by default.
    #[must_use]
    pub fn wall_clock(self, clock: Clock) -> Self {
        Self { wall_clock: Some(clock), ..self }
    }

    /// Sets the total memory for the tables of all rules, in bytes; 1 GiB by default. Each rule gets an equal share from 1 to
    /// 64 MiB.
    #[must_use]
    pub fn memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }

    /// Does not measure the load of this machine: for traffic that is not received now, such as a replayed log. Nothing is shed
    /// or scaled by load.
    #[must_use]
    pub fn ignore_load(self) -> Self {
        Self { ignores_load: true, ..self }
    }

    /// Connects to the stores of a policy that are not in use yet, before it is applied. Returns an error if one is
    /// unavailable.
    pub async fn connect_stores(&self, policy: &Policy) -> Result<(), PolicyError> {
        let mut problems = ProblemCollector::default();
        let settings = rules::build_settings(policy, self, &mut problems);
        problems.into_result()?;
        self.rules.connect_stores(&settings).await.map_err(|error| PolicyError::from_settings_error(&error))
    }

    /// Compiles a policy and applies it in place of the previous one. If it has problems, returns all of them and changes nothing.
    ///
    /// Counters of an unchanged rule stay, and those of a rule with a changed quota carry over their usage. Breakers, adaptive
    /// limits and bans stay while their settings are unchanged. The previous gate can still be used; it counts in the same
    /// rules.
    pub fn compile(&self, policy: &Policy, before: Option<&PolicyGate>) -> Result<PolicyGate, PolicyError> {
        let made = CompiledPolicy::build(policy, self, before.map(|before| &*before.inner))?;
        let monitor = PreparedMonitor::start(made.monitor)?;
        // The new gate scales the limiters from now on. Until then they keep their factors.
        let paused = before.map(PolicyGate::pause_schedules);
        let declared = self.rules.redeclare(made.declarations, made.settings);
        let limits = match declared {
            Ok(rules) => build_limits(rules, &made.rules),
            Err(error) => {
                drop(paused);
                return Err(PolicyError::from_settings_error(&error));
            }
        };
        let scalers = paused.map(PausedSchedules::disarm).unwrap_or_default();
        made.commits.into_iter().for_each(|commit| commit());
        let gate = Gate::new(limits).with_header_style(policy.headers);
        let gate = match &self.wall_clock {
            Some(clock) => gate.with_wall_clock(clock.clone()),
            None => gate,
        };
        let limited = made.rules.iter().enumerate().filter(|(_, rule)| rule.limit.is_some());
        let inner = PolicyGateInner {
            gate,
            names: named::index_names(
                limited.clone().map(|(index, rule)| (index, &rule.source)),
                policy.user.as_ref(),
            ),
            limit_rules: limited
                .flat_map(|(index, rule)| std::iter::repeat_n(index, 1 + rule.reserve_limits.len()))
                .collect(),
            cached_fallbacks: CachedFallbacks::new(
                made.rules.iter().map(|rule| &rule.source),
                policy.user.as_ref(),
            ),
            index: made.index,
            body_pointers: collect_body_pointers(&made.rules),
            rules: made.rules,
            routes: made.routes,
            proxies: made.proxies,
            lists: made.lists,
            monitor,
            features: made.features,
            identity: made.identity,
            user: made.user,
            is_user_credential: made.is_user_credential,
            scaled_limits: Mutex::default(),
        };
        let gate = PolicyGate { inner: Arc::new(inner) };
        gate.attach_schedules(&scalers);
        gate.follow_load();
        Ok(gate)
    }
}

fn collect_body_pointers(rules: &[CompiledRule]) -> Arc<[JsonPointer]> {
    let mut pointers: Vec<_> = rules.iter().flat_map(|rule| rule.body_pointers.iter().cloned()).collect();
    pointers.sort();
    pointers.dedup();
    pointers.into()
}

/// A compiled policy. Clones share their state.
#[derive(Clone)]
pub struct PolicyGate {
    inner: Arc<PolicyGateInner>,
}

pub(crate) struct PolicyGateInner {
    /// The limits, one for each rule with quotas.
    gate: Gate,
    /// The rules with quotas, by name.
    names: named::RuleNames,
    /// The index of the rule of each limit.
    limit_rules: Vec<usize>,
    cached_fallbacks: CachedFallbacks,
    index: RuleIndex,
    rules: Vec<CompiledRule>,
    /// The values of bodies that the rules need.
    body_pointers: Arc<[JsonPointer]>,
    routes: Arc<RouteTable>,
    proxies: TrustedProxies,
    lists: Lists,
    /// The monitor that applies schedules and the load; `None` if nothing follows it.
    monitor: Option<Arc<PolicyMonitor>>,
    features: Features,
    identity: Option<Arc<CompiledIdentity>>,
    user: Option<RequestKey>,
    is_user_credential: bool,
    scaled_limits: Mutex<ScaledLimits>,
}

/// The limits that follow a schedule or the load.
#[derive(Default)]
struct ScaledLimits {
    /// Each with the index of its limit.
    limiters: Vec<(usize, ScaledLimit<Rule>)>,
    bandwidths: Vec<ScaledLimit<ScheduledBandwidth>>,
}

/// A part of a policy that has expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyPart<'a> {
    /// The rule of this name.
    Rule(&'a str),
    /// The route at this index.
    Route(usize),
}

impl fmt::Display for PolicyPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "rule `{name}`"),
            Self::Route(index) => write!(f, "routes[{index}]"),
        }
    }
}

impl PolicyGate {
    /// The limits with their conditions, for callers that need only limits.
    pub fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    /// Returns the first route that matches a request.
    pub fn find_route(&self, head: &dyn RequestHead) -> Option<&RouteSpec> {
        self.find_route_index(&self.view_request(head)).and_then(|index| self.inner.routes.routes.get(index))
    }

    /// Returns the index of the first matching route in [`routes`](Self::routes).
    pub fn find_route_index(&self, view: &RequestView<'_>) -> Option<usize> {
        self.inner.routes.find(view)
    }

    pub(crate) fn matcher(&self, index: usize) -> Option<&Matcher> {
        self.rule(index).map(|rule| &rule.matcher)
    }

    /// The rule at this index of the policy.
    pub(crate) fn rule(&self, index: usize) -> Option<&CompiledRule> {
        self.inner.rules.get(index)
    }

    /// Returns a view of a request, which computes the inputs of rules and routes only once.
    pub fn view_request<'a>(&'a self, head: &'a dyn RequestHead) -> RequestView<'a> {
        RequestView::new(head, &self.inner.proxies)
    }

    /// The values of the body that the rules for this request need; `None` if they need none.
    pub fn body_pointers(&self, view: &RequestView<'_>) -> Option<Arc<[JsonPointer]>> {
        let inner = &*self.inner;
        if inner.body_pointers.is_empty() {
            return None;
        }
        let mut matching = Vec::new();
        inner.index.find(view, &mut matching);
        let needs_body =
            |index: &usize| inner.rules.get(*index).is_some_and(|rule| !rule.body_pointers.is_empty());
        matching.iter().any(needs_body).then(|| inner.body_pointers.clone())
    }

    /// The index of the rule of this limit of the [gate](Self::gate).
    pub fn rule_of_limit(&self, limit: usize) -> Option<usize> {
        self.inner.limit_rules.get(limit).copied()
    }

    /// The rules that fall back to cached responses.
    pub fn cached_fallbacks(&self) -> &CachedFallbacks {
        &self.inner.cached_fallbacks
    }

    /// All routes, in order.
    pub fn routes(&self) -> &[RouteSpec] {
        &self.inner.routes.routes
    }

    /// The trusted proxies.
    pub fn proxies(&self) -> &TrustedProxies {
        &self.inner.proxies
    }

    /// The name of the user of a request, if the policy defines `user`.
    pub fn user_of<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        self.inner.user.as_ref()?.find(head)
    }

    /// Whether the name of a user may be a credential, which must not be shown.
    pub fn is_user_credential(&self) -> bool {
        self.inner.is_user_credential
    }

    /// Whether the keys of the rule of this name may be credentials.
    pub fn has_credential(&self, rule: &str) -> bool {
        self.views().any(|view| view.name() == rule && view.has_credential())
    }

    /// The address lists, whose files should be watched.
    pub fn lists(&self) -> &Lists {
        &self.inner.lists
    }

    /// Reloads the files of all lists. Lists with errors keep their content, and the errors are returned.
    pub fn reload_lists(&self) -> Result<(), PolicyError> {
        let mut problems = ProblemCollector::default();
        if let Err(errors) = self.inner.lists.reload() {
            errors.iter().for_each(|error| problems.add(None, error));
        }
        if let Some(Err(error)) = self.inner.identity.as_ref().map(|identity| identity.reload()) {
            problems.add(None, &error);
        }
        for rule in &self.inner.rules {
            if let Err(error) = rule.reload_lists(&self.inner.lists) {
                problems.add(Some(rule.name()), &error);
            }
        }
        problems.into_result()
    }

    /// The key set that must be fetched from a URL, and set at its verifier. Until then, no token is valid.
    pub fn remote_key_set(&self) -> Option<RemoteKeySet> {
        self.inner.identity.as_ref()?.remote_key_set()
    }

    /// Applies the schedules for the current time. Call it about once per second. A policy that follows the load of the machine
    /// reads the load by itself, at the interval of `load`.
    pub fn update_schedules(&self) {
        match &self.inner.monitor {
            Some(monitor) if monitor.is_started => monitor.monitor.notify_observers(),
            Some(monitor) => monitor.monitor.sample_once(),
            None => {}
        }
    }

    /// Whether [`update_schedules`](Self::update_schedules) must be called.
    pub fn has_schedules(&self) -> bool {
        self.inner.monitor.as_ref().is_some_and(|monitor| !monitor.is_started)
    }

    /// The load of the machine; `None` if the policy does not follow it.
    pub fn load(&self) -> Option<&LoadMonitor> {
        self.inner.monitor.as_ref().filter(|monitor| monitor.spec.is_some()).map(|monitor| &monitor.monitor)
    }

    /// The features of the policy.
    pub fn features(&self) -> &Features {
        &self.inner.features
    }

    /// Lets features and rules follow the load and the time.
    fn follow_load(&self) {
        let Some(monitor) = &self.inner.monitor else { return };
        self.inner.features.follow(&monitor.monitor);
        for shedder in self.inner.rules.iter().filter_map(|rule| rule.shedder.as_ref()) {
            load::follow(shedder, &monitor.monitor);
        }
        if !monitor.is_started {
            monitor.monitor.sample_once();
        }
    }

    /// The number of invalid credentials by reason; nothing if the policy verifies none.
    pub fn invalid_credentials(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.inner.identity.iter().flat_map(|identity| identity.invalid_credentials())
    }

    /// The number of failed expression evaluations of each rule and route with failures.
    pub fn expression_failures(&self) -> impl Iterator<Item = (PolicyPart<'_>, u64)> {
        let rules = self.inner.rules.iter().map(|rule| (PolicyPart::Rule(rule.name()), rule.failures()));
        let routes = self.inner.routes.index.matchers().iter().enumerate();
        let routes = routes.map(|(index, route)| (PolicyPart::Route(index), route.failures()));
        rules.chain(routes).filter(|(_, failures)| *failures > 0)
    }

    /// Applies the schedules of all rules from now on. Those that follow the load continue from the factors of `scalers`.
    fn attach_schedules(&self, scalers: &Scalers) {
        self.restore_unscaled_quotas();
        let Some(monitor) = &self.inner.monitor else { return };
        let mut scaled = self.inner.scaled_limits.lock().unwrap_or_else(PoisonError::into_inner);
        for rule in &self.inner.rules {
            let scale = rule.source.scale.as_ref().and_then(|scale| load::scale_policy(scale).ok());
            let schedule = &rule.source.schedule;
            if !rule.is_scaled() {
                continue;
            }
            for index in rule.limits_of(usize::MAX) {
                let Some(limit) = self.inner.gate.limits().get(index) else { continue };
                let mut builder = ScaledLimit::builder(Arc::new(limit.rule().clone()))
                    .with_base_limit(limit.rule().declared_quotas());
                if let Some(schedule) = schedule {
                    builder = builder.with_schedule(schedule.clone());
                }
                if let Some(scale) = scale {
                    builder = builder.with_load_policy(scale);
                }
                builder = builder.resume(scalers.get(limit.rule().name()).copied());
                // Cannot fail: the compiler has checked that the quotas can be scaled.
                scaled.limiters.extend(builder.start(&monitor.monitor).ok().map(|scaled| (index, scaled)));
            }
            let Some(schedule) = schedule else { continue };
            // Cannot fail: the compiler has checked that bandwidths can be scaled.
            scaled.bandwidths.extend(rule.scheduled_bandwidths().filter_map(|bandwidth| {
                let declared = bandwidth.declared;
                let builder = ScaledLimit::builder(Arc::new(bandwidth)).with_base_limit(declared);
                let builder = builder.with_schedule(schedule.clone());
                builder.start(&monitor.monitor).ok()
            }));
        }
    }

    /// Restores the declared quotas of rules that followed the load or a schedule under the gate before, and no longer do.
    fn restore_unscaled_quotas(&self) {
        for rule in self.inner.rules.iter().filter(|rule| !rule.is_scaled()) {
            for limit in rule.limits_of(usize::MAX).filter_map(|index| self.inner.gate.limits().get(index)) {
                let declared = limit.rule().declared_quotas();
                if declared != limit.rule().quotas() {
                    // The limiter had these quotas before, so it accepts them again.
                    let _error = limit.rule().set_limit(&declared);
                }
            }
        }
    }

    /// Stops the schedules and the scaling by load of all rules until the result is dropped. Their quotas stay scaled.
    fn pause_schedules(&self) -> PausedSchedules<'_> {
        let mut scaled = self.inner.scaled_limits.lock().unwrap_or_else(PoisonError::into_inner);
        let limits = std::mem::take(&mut *scaled).limiters.into_iter();
        let scalers = limits.filter_map(|(index, scaled)| {
            Some((self.inner.gate.limits().get(index)?.rule().shared_name(), scaled.detach()?))
        });
        PausedSchedules { gate: Some(self), scalers: scalers.collect() }
    }
}

/// A gate whose schedules are paused.
struct PausedSchedules<'a> {
    gate: Option<&'a PolicyGate>,
    scalers: Scalers,
}

/// The scalers of limits that follow the load, by the name of the rule.
type Scalers = HashMap<Arc<str>, Scaler>;

impl PausedSchedules<'_> {
    /// Leaves the schedules detached, because another gate applies its own, and continues from these.
    fn disarm(mut self) -> Scalers {
        self.gate = None;
        std::mem::take(&mut self.scalers)
    }
}

impl Drop for PausedSchedules<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.gate {
            gate.attach_schedules(&self.scalers);
        }
    }
}

impl fmt::Debug for PolicyGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyGate").field("rules", &self.inner.rules).finish_non_exhaustive()
    }
}

/// Checks that a policy can be applied, without its stores. File names are relative to the current directory.
pub fn check(policy: &Policy) -> Result<(), PolicyError> {
    CompiledPolicy::build(&without_stores(policy), &Compiler::new(Rules::new()), None).map(drop)
}

/// Checks a policy with its stores: environment variables must be set, and `connects` must accept each address. It does not
/// connect to a store.
pub fn check_with_stores(
    policy: &Policy,
    connects: &dyn Fn(&str) -> Result<(), String>,
) -> Result<(), PolicyError> {
    CompiledPolicy::build(policy, &Compiler::new(Rules::new()), None)?;
    let mut problems = ProblemCollector::default();
    let default = policy.stores.default.iter().map(|address| (vec!["store"], address));
    let named = policy.stores.named.iter().map(|(name, address)| (vec!["stores", name], address));
    for (at, address) in default.chain(named) {
        let address = StoreAddress::parse_expanded(address, &|name| env::var(name).ok());
        if let Ok(StoreAddress::Url(url)) = address
            && let Err(problem) = connects(&url)
        {
            let fix = "write `memory`, or a URL, as in `redis://127.0.0.1:6379`";
            problems.add_at(&at, &SettingError::new(problem, fix));
        }
    }
    problems.into_result()
}

/// Returns the policy with all counters in memory. Addresses of stores may refer to unset environment variables.
pub(crate) fn without_stores(policy: &Policy) -> Policy {
    let mut local_policy = Policy { stores: Stores::default(), ..policy.clone() };
    local_policy.rules.iter_mut().for_each(|rule| rule.store = None);
    local_policy.overrides.take_if(|location| *location == OverrideLocation::Store);
    local_policy
}

/// Checks that quotas can be scaled by every factor of a schedule.
fn check_scalable(
    quotas: &Vec<tidegate_core::Quota>,
    factors: impl Iterator<Item = Ratio>,
) -> Result<(), tidegate_limiter::BuildError> {
    for factor in factors {
        Limiter::scale(quotas, factor)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
