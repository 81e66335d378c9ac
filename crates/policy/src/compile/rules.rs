//! Compiles the rules of a policy to those of `tidegate-rule`.

use super::{
    Compiler, PolicyGateInner, check_scalable,
    error::{PolicyError, ProblemCollector},
    guards::{CompiledRule, RuleCompiler},
    identity::CompiledIdentity,
    keys::{CLASSES, CostFn, IndexFn, KeyCompiler, RouteTable, class_priority, client_address_key},
    load::{PreparedMonitor, build_features, scale_policy},
    overrides::check_location,
    settle::compile_charge,
};
use crate::{
    credentials::key_has_credential,
    index::RuleIndex,
    matching::{Lists, Matcher, to_setting_error},
    model::{
        KeyPart, KeySpec, Match, Policy, PrioritySpec, QueueOrder, Quotas, RuleEnforcement, RuleSpec,
        ShedSpec,
    },
};
use std::{
    cell::{Cell, RefCell},
    env,
    sync::Arc,
};
use tidegate_core::{Percent, Quota, Ratio, SettingError};
use tidegate_limiter::TokenPrefetch;
use tidegate_overload::{Features, Schedule};
use tidegate_rule::{
    ChargePolicy, RequestLimit, RuleConfig, RuleSettings, Settings, StoreAddress,
    request::{DuplicateKeys, RequestHead, RequestKey, TrustedProxies},
};

/// A compiled policy before it is applied.
pub(crate) struct CompiledPolicy {
    pub(crate) rules: Vec<CompiledRule>,
    pub(super) index: RuleIndex,
    pub(super) routes: Arc<RouteTable>,
    pub(crate) proxies: TrustedProxies,
    pub(super) lists: Lists,
    pub(super) declarations: Vec<RuleConfig>,
    pub(super) settings: Settings,
    pub(super) commits: Vec<Box<dyn FnOnce()>>,
    pub(super) monitor: Option<PreparedMonitor>,
    pub(super) features: Features,
    pub(super) identity: Option<Arc<CompiledIdentity>>,
    /// The key of the user name.
    pub(super) user: Option<RequestKey>,
    /// Whether the user name may be a credential.
    pub(super) is_user_credential: bool,
}

/// The default total memory of the limiters of all rules.
pub(super) const DEFAULT_MEMORY_BYTES: u64 = 1 << 30;

/// The default `capacity` of a rule, unless there are many rules.
pub(crate) const MAX_RULE_BYTES: u64 = 64 << 20;

impl CompiledPolicy {
    pub(crate) fn build(
        policy: &Policy,
        compiler: &Compiler,
        before: Option<&PolicyGateInner>,
    ) -> Result<Self, PolicyError> {
        let none = Features::default();
        Self::build_after(policy, compiler, before, before.map_or(&none, |before| &before.features))
    }

    /// Like [`build`](Self::build), with the overrides of these features.
    pub(crate) fn build_after(
        policy: &Policy,
        compiler: &Compiler,
        before: Option<&PolicyGateInner>,
        features_before: &Features,
    ) -> Result<Self, PolicyError> {
        let mut problems = ProblemCollector::default();
        let (lists, errors) = Lists::read_all(policy, &compiler.base);
        errors.iter().for_each(|(list, error)| problems.add_at(&["lists", list], error));
        let proxies = TrustedProxies::from(policy.trusted_proxies.clone());
        let memory = compiler.memory / u64::try_from(policy.rules.len().max(1)).unwrap_or(u64::MAX);
        let memory = memory.clamp(1 << 20, MAX_RULE_BYTES);
        let mut commits = Vec::new();
        let features = build_features(policy, features_before);
        let features = match features {
            Ok(features) => features,
            Err(error) => {
                problems.add_at(&["features"], &error);
                Features::default()
            }
        };
        let client = client_address_key(&proxies, policy.trusted_proxies.is_empty());
        let identity_before = before.and_then(|before| before.identity.as_ref());
        let identity = CompiledIdentity::build(policy, compiler, client, identity_before, &mut problems);
        let mut route_matchers = Vec::new();
        for route in &policy.routes {
            route_matchers.extend(
                problems.ok_or_record(None, Matcher::for_route(&route.matching, &lists, identity.as_ref())),
            );
        }
        let routes =
            Arc::new(RouteTable { routes: policy.routes.clone(), index: RuleIndex::new(route_matchers) });
        let (mut rules, mut declarations) = (Vec::new(), Vec::new());
        for source in &policy.rules {
            let name = Some(source.name.as_str());
            let compiled =
                Matcher::for_rule(&source.matching, &lists, identity.as_ref()).and_then(|matcher| {
                    let keys = KeyCompiler {
                        proxies: &proxies,
                        uses_peer_address: policy.trusted_proxies.is_empty(),
                        user: policy.user.as_ref(),
                        identity: identity.as_deref(),
                        credentials: Cell::default(),
                        has_descriptors: policy.envoy.is_some(),
                        matcher: &matcher,
                        routes: &routes,
                        duplicates: source.duplicates,
                        single_value_keys: RefCell::default(),
                        expressions: RefCell::default(),
                        body_pointers: RefCell::default(),
                    };
                    let before =
                        before.and_then(|before| before.rules.iter().find(|rule| rule.name() == source.name));
                    let clock = compiler.clock.as_ref();
                    let mut rule_compiler = RuleCompiler {
                        previous: before,
                        lists: &lists,
                        proxies: &proxies,
                        clock,
                        load: policy.load.as_ref(),
                        features: &features,
                        memory,
                        commits: &mut commits,
                    };
                    let mut rule = rule_compiler.compile(source, matcher.clone(), &keys)?;
                    if let Some((mut declaration, limiting)) = declare_limit(source, memory, &keys)? {
                        if policy.check_overrides(source).is_ok() {
                            declaration = declaration.overridable();
                        }
                        rule.limit = Some(declarations.len());
                        rule.limiting = Some(limiting);
                        let reserves = declare_reserves(source, &declaration)?;
                        declarations.push(declaration);
                        for (class, declaration) in reserves {
                            rule.reserve_limits.push((class, declarations.len()));
                            declarations.push(declaration);
                        }
                    }
                    check_rule(source, policy)?;
                    rule.single_value_keys = keys.single_value_keys.take();
                    rule.expressions = keys.expressions.take();
                    rule.body_pointers = keys.body_pointers.take();
                    rule.credentials = keys.credentials.get();
                    rule.verified_credentials = rule.credentials.union(rule.matcher.credentials());
                    Ok(rule)
                });
            rules.extend(problems.ok_or_record(name, compiled));
        }
        // Its errors are reported by the rules that use it.
        let user = policy.user.as_ref().and_then(|user| {
            compile_user_key(user, policy, identity.as_deref(), &lists, &proxies, &routes).ok()
        });
        if let Err(error) = check_location(policy) {
            problems.add_at(&["overrides"], &error);
        }
        let settings = build_settings(policy, compiler, &mut problems);
        let monitor = PreparedMonitor::new(policy, compiler, before, &mut problems);
        problems.into_result()?;
        Ok(Self {
            index: RuleIndex::new(rules.iter().map(|rule| rule.matcher.clone())),
            rules,
            routes,
            proxies,
            lists,
            declarations,
            settings,
            commits,
            monitor,
            features,
            identity,
            user,
            is_user_credential: policy.user.as_ref().is_some_and(|user| key_has_credential(user, None)),
        })
    }
}

/// Compiles the key of the user name, independently of a rule.
fn compile_user_key(
    spec: &KeySpec,
    policy: &Policy,
    identity: Option<&CompiledIdentity>,
    lists: &Lists,
    proxies: &TrustedProxies,
    routes: &Arc<RouteTable>,
) -> Result<RequestKey, SettingError> {
    let matcher = Matcher::new(&Match::default(), lists)?;
    let keys = KeyCompiler {
        proxies,
        uses_peer_address: policy.trusted_proxies.is_empty(),
        user: Some(spec),
        identity,
        credentials: Cell::default(),
        has_descriptors: false,
        matcher: &matcher,
        routes,
        duplicates: DuplicateKeys::default(),
        single_value_keys: RefCell::default(),
        expressions: RefCell::default(),
        body_pointers: RefCell::default(),
    };
    keys.compile(spec)
}

/// The functions of a request that its limit uses.
pub(crate) struct RuleLimiting {
    cost: Option<Arc<CostFn>>,
    charge: ChargePolicy,
    tier: Option<Arc<IndexFn>>,
    class: Option<Arc<IndexFn>>,
}

impl RuleLimiting {
    /// The cost of this request.
    pub(crate) fn cost_of(&self, head: &dyn RequestHead) -> u64 {
        self.cost.as_ref().map_or(1, |cost| cost(head))
    }

    /// The index of this request's tier, if the rule has tiers.
    pub(crate) fn tier_of(&self, head: &dyn RequestHead) -> Option<usize> {
        self.tier.as_ref().map(|tier| tier(head))
    }
}

/// Combines the declared rules with their conditions.
pub(super) fn build_limits(declared: Vec<tidegate_rule::Rule>, rules: &[CompiledRule]) -> Vec<RequestLimit> {
    // In the order of their declarations.
    let limiting = rules.iter().filter_map(|rule| Some((rule, rule.limiting.as_ref()?)));
    let owners = limiting.flat_map(|owner| std::iter::repeat_n(owner, 1 + owner.0.reserve_limits.len()));
    declared
        .into_iter()
        .zip(owners)
        .map(|(declared, (rule, limiting))| build_limit(declared, rule, limiting))
        .collect()
}

/// The share of a quota that is reserved for each class above a request's own, if the policy does not set it.
pub(crate) const DEFAULT_RESERVE: Percent = Percent::from_millionths(100_000);

/// The shares of the quotas of a rule that are reserved for each class; `None` if nothing is reserved.
pub(crate) fn reserved_shares(source: &RuleSpec) -> Option<[Percent; CLASSES.len()]> {
    let PrioritySpec::FromRequest { reserve, .. } = source.priority.as_ref()? else { return None };
    let is_used_otherwise = source.adaptive.is_some()
        || matches!(source.shed, Some(ShedSpec::Classes(_)))
        || source.queue.as_ref().is_some_and(|queue| queue.order == QueueOrder::Priority);
    match reserve {
        Some(shares) => Some(shares.map(|share| share.unwrap_or(Percent::ZERO))),
        None if is_used_otherwise => None,
        None => Some([DEFAULT_RESERVE; CLASSES.len()]),
    }
}

/// Declares the limits that keep a part of the quotas free for higher classes: one for all requests of a class and below.
fn declare_reserves(
    source: &RuleSpec,
    declaration: &RuleConfig,
) -> Result<Vec<(usize, RuleConfig)>, SettingError> {
    let (Some(shares), Quotas::All(quotas)) = (reserved_shares(source), &source.quotas) else {
        return Ok(Vec::new());
    };
    let mut reserved = 0_u64;
    let mut declared = Vec::new();
    for (class, share) in (1..CLASSES.len()).zip(shares) {
        reserved += u64::from(share.millionths());
        let rest = u64::from(Percent::FULL.millionths()).saturating_sub(reserved);
        if share == Percent::ZERO || rest == 0 {
            continue;
        }
        let ratio = Ratio::new(rest, Percent::FULL.millionths().into())?;
        let scaled: Result<Vec<Quota>, _> = quotas.iter().map(|quota| quota.scale(ratio)).collect();
        let scaled = scaled.map_err(|error| to_setting_error(&error.to_string(), "use other quotas"))?;
        let name = CLASSES.get(class).map_or("", |(name, _)| *name);
        let declaration = declaration.derive(format!("{}/{name}", source.name), scaled);
        declared.push((class, declaration));
    }
    Ok(declared)
}

fn build_limit(declared: tidegate_rule::Rule, rule: &CompiledRule, limiting: &RuleLimiting) -> RequestLimit {
    let source = &rule.source;
    let mut limit = RequestLimit::new(declared).key(rule.counter_key.clone()).missing(source.missing);
    if !rule.matcher.is_unconditional() {
        let (matcher, proxies) = (rule.matcher.clone(), rule.proxies.clone());
        limit =
            limit.condition(move |head| matcher.matches(&crate::matching::RequestView::new(head, &proxies)));
    }
    if let Some(cost) = limiting.cost.clone() {
        limit = limit.cost(move |head| cost(head));
    }
    if let Some(tier) = limiting.tier.clone() {
        limit = limit.tier(move |head| tier(head));
    }
    if let Some(class) = limiting.class.clone() {
        limit = limit.priority(move |head| class_priority(class(head)));
    }
    if let Some(queue) = &rule.queue {
        limit = limit.queue(queue.clone());
    }
    limit = limit.charge(limiting.charge.clone());
    match source.enforcement {
        RuleEnforcement::All(_) => limit,
        RuleEnforcement::Percent(share) => limit.rollout(share),
    }
}

/// Builds the declaration of a rule with quotas.
fn declare_limit(
    source: &RuleSpec,
    memory: u64,
    keys: &KeyCompiler<'_>,
) -> Result<Option<(RuleConfig, RuleLimiting)>, SettingError> {
    let mut declaration = RuleConfig::new(source.name.clone()).unit(source.unit());
    let mut limiting = RuleLimiting {
        cost: keys.compile_cost(&source.name, &source.cost)?,
        charge: compile_charge(source.charge.as_ref(), source.settle.as_ref())?,
        tier: None,
        class: None,
    };
    let quotas = match &source.quotas {
        Quotas::All(quotas) if quotas.is_empty() => return Ok(None),
        Quotas::All(quotas) => {
            for quota in quotas {
                declaration = declaration.quota(*quota).map_err(|error| quota_error(&error))?;
            }
            quotas.clone()
        }
        Quotas::Tiers(tiers) => {
            limiting.tier = Some(keys.compile_tier(tiers)?);
            let quotas = tiers.all_quotas();
            declaration = declaration.tiers(quotas.clone());
            quotas
        }
    };
    if source.key == KeySpec::Part(KeyPart::Request) {
        let fix = "use another key, such as `ip`; `request` is for `bandwidth`";
        return Err(SettingError::new("quota with the key `request` limits nothing", fix));
    }
    source.check_scaled_totals().map_err(|(_, error)| error)?;
    let factors: Vec<Ratio> =
        source.schedule.iter().flat_map(Schedule::factors).chain([Ratio::ONE]).collect();
    check_scalable(&quotas, factors.iter().copied()).map_err(|error| quota_error(&error))?;
    if let Some(scale) = &source.scale {
        let min = scale_policy(scale)?.floor();
        let scaled = factors.iter().map(|factor| factor.multiply(min));
        check_scalable(&quotas, scaled).map_err(|error| quota_error(&error))?;
    }
    if let (Some(queue), Some(class)) = (&source.queue, &source.priority)
        && queue.order == QueueOrder::Priority
    {
        limiting.class = Some(keys.compile_class(class)?);
    }
    declaration = declaration.memory(memory).overflow(source.overflow).wait(source.effective_wait());
    if let Some(capacity) = source.capacity {
        declaration = declaration.capacity(capacity);
    }
    // The queue of the rule limits the number of waiting requests, and can change at run time.
    declaration = declaration.max_waiters(usize::MAX).carry_over(source.carry_over);
    if let Some(message) = &source.message {
        declaration = declaration.message(message.as_str());
    }
    if let RuleEnforcement::All(mode) = source.enforcement {
        declaration = declaration.mode(mode);
    }
    Ok(Some((declaration, limiting)))
}

/// Checks references to other parts of the policy.
fn check_rule(source: &RuleSpec, policy: &Policy) -> Result<(), SettingError> {
    let first = policy.rules.iter().find(|rule| rule.name == source.name);
    if first.is_some_and(|first| !std::ptr::eq(first, source)) {
        return Err(SettingError::new("duplicate rule name", "rename one of the rules"));
    }
    if let Some(name) = source.on_limit.fallback_upstream()
        && !policy.upstreams.contains_key(name)
    {
        let known: Vec<_> = policy.upstreams.keys().map(String::as_str).collect();
        let fix = format!("use one of {}", known.join(", "));
        return Err(SettingError::new(format!("unknown upstream `{name}`"), fix));
    }
    Ok(())
}

/// Builds the settings of stores, and of each rule.
pub(super) fn build_settings(
    policy: &Policy,
    compiler: &Compiler,
    problems: &mut ProblemCollector,
) -> Settings {
    let variable = |name: &str| env::var(name).ok();
    let stores = &policy.stores;
    let mut settings = Settings::new();
    match stores.default.as_deref().map(|text| StoreAddress::parse_expanded(text, &variable)) {
        Some(Ok(StoreAddress::Url(url))) => settings = settings.store_url(url),
        Some(Err(error)) => problems.add_at(&["store"], &error),
        Some(Ok(_)) | None => {}
    }
    for (name, address) in &stores.named {
        match StoreAddress::parse_expanded(address, &variable) {
            Ok(address) => settings = settings.named_store(name, address),
            Err(error) => problems.add_at(&["stores", name], &error),
        }
    }
    if let Some(prefix) = &stores.prefix {
        settings = settings.prefix(prefix);
    }
    if let Some(deadline) = stores.deadline {
        settings = settings.deadline(deadline);
    }
    if let Some(failure_mode) = stores.failure_mode {
        settings = settings.failure_mode(failure_mode);
    }
    if let Some(clock) = &compiler.clock {
        settings = settings.clock(clock.clone());
    }
    policy.rules.iter().fold(settings, |settings, rule| {
        let names = CLASSES.iter().map(|(class, _)| format!("{}/{class}", rule.name));
        let names = names.filter(|_| reserved_shares(rule).is_some()).chain([rule.name.clone()]);
        names.fold(settings, |settings, name| settings.rule(&name, build_rule_settings(rule)))
    })
}

/// Builds the store settings of a rule.
pub(super) fn build_rule_settings(rule: &RuleSpec) -> RuleSettings {
    let mut settings = RuleSettings::new();
    if let Some(store) = &rule.store {
        settings = settings.store(store);
    }
    if let Some(failure_mode) = rule.failure_mode {
        settings = settings.failure_mode(failure_mode);
    }
    settings.prefetch = rule.prefetch.map(|ttl| TokenPrefetch::default().ttl(ttl));
    settings
}

fn quota_error(error: &tidegate_limiter::BuildError) -> SettingError {
    to_setting_error(&error.to_string(), "use other quotas")
}
