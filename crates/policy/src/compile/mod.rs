//! A policy in force: what a surface evaluates for every request.
//!
//! ```text
//!   Policy ──compile──▶ PolicyGate          request ──check──▶ admitted ──response──▶ settle
//!      ▲                    │ swapped                     └──▶ refused: what to do instead
//!      └── a new file ──────┘ as a whole, or not at all
//! ```

mod code;
mod dry_run;
mod error;
mod evaluate;
mod guards;
mod keys;
mod live;
mod named;
mod reject;
mod rules;
mod view;

pub use dry_run::{DryRun, Prefetch};
pub use error::{PolicyError, PolicyProblem};
pub use evaluate::{DenyReason, PolicyAdmission, PolicyRefusal, PolicyResult, RuleDecision, RuleResult};
pub use guards::breaker_settings;
pub use live::LivePolicy;
pub use named::{NamedRule, QuotaKind};
pub use reject::RejectAction;
pub use view::{AdaptiveView, RuleView};

/// JSON that borrows its strings from the text where nothing in them is escaped.
pub use serde_json_borrow::{ObjectAsVec as JsonObject, Value as JsonValue};

use crate::{
    index::RuleIndex,
    matching::{Lists, Matcher, RequestView},
    model::{Policy, RouteSpec, Stores},
};
use error::ProblemCollector;
pub(crate) use guards::CompiledRule;
pub(crate) use keys::{CLASSES, is_always_present};
use rules::{CompiledPolicy, build_limits};
use std::{
    env, fmt,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
};
use tidegate_core::{Ratio, SettingError};
use tidegate_limiter::{Clock, Limiter};
use tidegate_overload::{LoadMonitor, ScaledLimit, load::Scalable as _};
use tidegate_rule::{
    Gate, Rules, StoreAddress,
    request::{KeyValue, RequestHead, RequestKey, TrustedProxies},
};

/// Makes gates of policies: where their rules are, and what names in a policy start from.
///
/// ```
/// use tidegate_policy::{compile::Compiler, model::Policy};
/// use tidegate_rule::Rules;
///
/// let compiler = Compiler::new(Rules::new());
/// let gate = compiler.compile(&Policy::default(), None)?;
/// let next = compiler.compile(&Policy::default(), Some(&gate))?;    // counters stay
/// # Ok::<(), tidegate_policy::compile::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Compiler {
    rules: Rules,
    base: PathBuf,
    clock: Option<Clock>,
    memory: u64,
}

impl Compiler {
    /// One whose rules are among these: of all policies that it compiles, rules of the same name share their counters.
    pub fn new(rules: Rules) -> Self {
        Self { rules, base: PathBuf::new(), clock: None, memory: rules::DEFAULT_MEMORY_BYTES }
    }

    /// The folder that names of files start from; the current one unless told otherwise.
    #[must_use]
    pub fn base(self, base: impl Into<PathBuf>) -> Self {
        Self { base: base.into(), ..self }
    }

    /// The clock of everything that is counted in memory; the machine's unless told otherwise.
    #[must_use]
    pub fn clock(self, clock: Clock) -> Self {
        Self { clock: Some(clock), ..self }
    }

    /// How many bytes the tables of all rules may take together, each its part within reason; 1 GiB unless told otherwise.
    #[must_use]
    pub fn memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }

    /// Connects to the stores of a policy that are not in use yet, before it is put in force; an error if one cannot be
    /// reached.
    pub async fn connect_stores(&self, policy: &Policy) -> Result<(), PolicyError> {
        let mut problems = ProblemCollector::default();
        let settings = rules::build_settings(policy, self, &mut problems);
        problems.into_result()?;
        self.rules.connect_stores(&settings).await.map_err(|error| PolicyError::from_settings_error(&error))
    }

    /// Puts a policy in force, in place of the one before. All that is wrong with it is told, and then nothing has changed.
    ///
    /// Counters of a rule that did not change stay, and those of one whose numbers did carry over what was used. Breakers,
    /// adaptive limits and bans stay as long as what is said of them does. Whoever still holds the gate before can go on
    /// asking it; it counts in the same rules.
    pub fn compile(&self, policy: &Policy, before: Option<&PolicyGate>) -> Result<PolicyGate, PolicyError> {
        let made = CompiledPolicy::build(policy, self, before.map(|before| &*before.inner))?;
        // A limiter is compared with what was declared, not with what a schedule has made of that.
        let paused = before.map(PolicyGate::pause_schedules);
        let declared = self.rules.redeclare(made.declarations, made.settings);
        let limits = match declared {
            Ok(rules) => build_limits(rules, &made.rules),
            Err(error) => {
                drop(paused);
                return Err(PolicyError::from_settings_error(&error));
            }
        };
        if let Some(paused) = paused {
            paused.disarm();
        }
        made.commits.into_iter().for_each(|commit| commit());
        let gate = Gate::new(limits).with_header_style(policy.headers);
        let limited = made.rules.iter().enumerate().filter(|(_, rule)| rule.limit.is_some());
        let inner = PolicyGateInner {
            gate,
            names: named::index_names(
                limited.clone().map(|(place, rule)| (place, &rule.source)),
                policy.user.as_ref(),
            ),
            limit_rules: limited.map(|(place, _)| place).collect(),
            index: made.index,
            rules: made.rules,
            routes: made.routes,
            route_index: made.route_index,
            proxies: made.proxies,
            lists: made.lists,
            monitor: made.monitor,
            user: made.user,
            is_user_credential: made.is_user_credential,
            scaled_limiters: Mutex::default(),
        };
        let gate = PolicyGate { inner: Arc::new(inner) };
        gate.attach_schedules();
        Ok(gate)
    }
}

/// A policy in force. Clones are the same gate.
#[derive(Clone)]
pub struct PolicyGate {
    inner: Arc<PolicyGateInner>,
}

pub(crate) struct PolicyGateInner {
    /// All limits, one for each rule that has some.
    gate: Gate,
    /// Rules with quotas, by their names.
    names: named::RuleNames,
    /// By the place of a limit, that of its rule.
    limit_rules: Vec<usize>,
    index: RuleIndex,
    rules: Vec<CompiledRule>,
    routes: Vec<RouteSpec>,
    route_index: RuleIndex,
    proxies: TrustedProxies,
    lists: Lists,
    /// What schedules follow; `None` where there are none.
    monitor: Option<LoadMonitor>,
    user: Option<RequestKey>,
    is_user_credential: bool,
    scaled_limiters: Mutex<Vec<ScaledLimit<Limiter>>>,
}

/// A part of a policy that has expressions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyPart<'a> {
    /// The rule of this name.
    Rule(&'a str),
    /// The route at this place, counted from zero.
    Route(usize),
}

impl fmt::Display for PolicyPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule(name) => write!(f, "rule `{name}`"),
            Self::Route(place) => write!(f, "routes[{place}]"),
        }
    }
}

impl PolicyGate {
    /// Its limits, each with the requests that it is about: to be asked by whoever needs nothing but limits.
    pub fn gate(&self) -> &Gate {
        &self.inner.gate
    }

    /// Where a request goes: the first route that matches.
    pub fn find_route(&self, head: &dyn RequestHead) -> Option<&RouteSpec> {
        self.find_route_index(&self.view_request(head)).and_then(|place| self.inner.routes.get(place))
    }

    /// The same, as its place among [`routes`](Self::routes).
    pub fn find_route_index(&self, view: &RequestView<'_>) -> Option<usize> {
        let index = &self.inner.route_index;
        match index.matchers().first().is_some_and(Matcher::is_unconditional) {
            true => Some(0),
            false => index.find_first(view),
        }
    }

    pub(crate) fn matcher(&self, place: usize) -> Option<&Matcher> {
        self.rule(place).map(|rule| &rule.matcher)
    }

    /// The rule at this place of the policy.
    pub(crate) fn rule(&self, place: usize) -> Option<&CompiledRule> {
        self.inner.rules.get(place)
    }

    /// A request as this policy sees it. What rules and routes look at is worked out once.
    pub fn view_request<'a>(&'a self, head: &'a dyn RequestHead) -> RequestView<'a> {
        RequestView::new(head, &self.inner.proxies)
    }

    /// All routes, in their order.
    pub fn routes(&self) -> &[RouteSpec] {
        &self.inner.routes
    }

    /// Whose word on addresses of clients counts.
    pub fn proxies(&self) -> &TrustedProxies {
        &self.inner.proxies
    }

    /// The name of the user of a request, where the policy says where it is found.
    pub fn user_of<'a>(&self, head: &'a dyn RequestHead) -> Option<KeyValue<'a>> {
        self.inner.user.as_ref()?.find(head)
    }

    /// Whether the name of a user may be a credential, which nobody is shown.
    pub fn is_user_credential(&self) -> bool {
        self.inner.is_user_credential
    }

    /// Whether the keys of the rule of this name may be credentials.
    pub fn has_credential(&self, rule: &str) -> bool {
        self.views().any(|view| view.name() == rule && view.has_credential())
    }

    /// Its lists, whose files should be watched.
    pub fn lists(&self) -> &Lists {
        &self.inner.lists
    }

    /// Reads the files of all lists again. What is wrong stays as it is, and is told.
    pub fn reload_lists(&self) -> Result<(), PolicyError> {
        let mut problems = ProblemCollector::default();
        if let Err(wrong) = self.inner.lists.reload() {
            wrong.iter().for_each(|error| problems.add(None, error));
        }
        for rule in &self.inner.rules {
            if let Err(error) = rule.reload_lists(&self.inner.lists) {
                problems.add(Some(rule.name()), &error);
            }
        }
        problems.into_result()
    }

    /// Has schedules follow the time; to be called every second or so. Nothing happens where there are none.
    pub fn update_schedules(&self) {
        if let Some(monitor) = &self.inner.monitor {
            monitor.sample_once();
        }
    }

    /// Whether there are schedules to follow.
    pub fn has_schedules(&self) -> bool {
        self.inner.monitor.is_some()
    }

    /// How often expressions of each rule and route failed; only of those where one did.
    pub fn expression_failures(&self) -> impl Iterator<Item = (PolicyPart<'_>, u64)> {
        let rules = self.inner.rules.iter().map(|rule| (PolicyPart::Rule(rule.name()), rule.failures()));
        let routes = self.inner.route_index.matchers().iter().enumerate();
        let routes = routes.map(|(place, route)| (PolicyPart::Route(place), route.failures()));
        rules.chain(routes).filter(|(_, failures)| *failures > 0)
    }

    /// Has all rules with a schedule follow it.
    fn attach_schedules(&self) {
        let Some(monitor) = &self.inner.monitor else { return };
        let mut scaled = self.inner.scaled_limiters.lock().unwrap_or_else(PoisonError::into_inner);
        for rule in &self.inner.rules {
            let limiter = rule.limit.and_then(|place| self.inner.gate.limits().get(place)?.rule().limiter());
            if let (Some(schedule), Some(limiter)) = (&rule.source.schedule, limiter) {
                // That its quotas can be multiplied was tried before.
                scaled.extend(
                    ScaledLimit::builder(Arc::new(limiter))
                        .with_schedule(schedule.clone())
                        .start(monitor)
                        .ok(),
                );
            }
        }
    }

    /// Has all rules be as they are declared, until this is dropped.
    fn pause_schedules(&self) -> PausedSchedules<'_> {
        self.inner.scaled_limiters.lock().unwrap_or_else(PoisonError::into_inner).clear();
        PausedSchedules(Some(self))
    }
}

/// A gate whose schedules are not followed for a moment.
struct PausedSchedules<'a>(Option<&'a PolicyGate>);

impl PausedSchedules<'_> {
    /// Another gate follows its own.
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for PausedSchedules<'_> {
    fn drop(&mut self) {
        if let Some(gate) = self.0 {
            gate.attach_schedules();
        }
    }
}

impl fmt::Debug for PolicyGate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PolicyGate").field("rules", &self.inner.rules).finish_non_exhaustive()
    }
}

/// Whether a policy can be put in force, as far as can be told without its stores. Names of files are as they were read.
pub fn check(policy: &Policy) -> Result<(), PolicyError> {
    CompiledPolicy::build(&without_stores(policy), &Compiler::new(Rules::new()), None).map(drop)
}

/// The same, with its stores: that variables of the environment are set, and that `connects` accepts each address. No store is asked.
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
            let fix = "write `memory`, or an address as in `redis://127.0.0.1:6379`";
            problems.add_at(&at, &SettingError::new(problem, fix));
        }
    }
    problems.into_result()
}

/// The same, counted in memory: stores are not asked, and their addresses may name what is not known here.
pub(crate) fn without_stores(policy: &Policy) -> Policy {
    let mut local_policy = Policy { stores: Stores::default(), ..policy.clone() };
    local_policy.rules.iter_mut().for_each(|rule| rule.store = None);
    local_policy
}

/// Whether quotas can be multiplied by every factor of a schedule.
fn check_scalable(
    quotas: &Vec<tidegate_core::Quota>,
    factors: impl Iterator<Item = Ratio>,
) -> Result<(), tidegate_limiter::BuildError> {
    for factor in factors {
        Limiter::scale(quotas, factor)?;
    }
    Ok(())
}
