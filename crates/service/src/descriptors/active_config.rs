//! The active configuration, with the counters of each of its limits.

use super::{
    ConfigLookup, DomainLookup, DomainRequest, LimitOverride,
    counters::{CounterStores, LazyLimiter, LazyLimiterSettings, LimitAction, StoreKind, unit_window},
    metrics::{LimitCounters, LimitMetrics, ServiceMetrics},
    settings::{CountingMode, QuotaMode, ServiceSettings},
};
use foldhash::fast::RandomState;
use std::{
    borrow::Cow,
    collections::HashMap,
    sync::{Arc, OnceLock},
};
use tidegate_core::{Quota, header::PolicyField};
use tidegate_limiter::Capacity;
use tidegate_policy::descriptors::{
    CalendarUnit, DescriptorAmount, DescriptorEntry, DescriptorLimit, DescriptorMatch,
};

/// The active configuration.
#[derive(Debug)]
pub(super) struct ActiveConfig {
    pub(super) set: Arc<dyn ConfigLookup>,
    /// Keyed by the address of the limit, which `set` keeps alive: two nodes of a tree may have the same path.
    states: HashMap<usize, LimitState, RandomState>,
    /// Reused by the next configuration. The number distinguishes limits with the same path.
    limiters: HashMap<(Arc<str>, usize), LazyLimiter>,
}

/// The state of one limit. Most of many thousand limits never match, so the first request creates the lazy fields.
#[derive(Debug)]
pub(super) struct LimitState {
    limit: Arc<DescriptorLimit>,
    method: CountingMethod,
    metrics: OnceLock<Arc<LimitMetrics>>,
    client_info: OnceLock<Box<ClientLimitInfo>>,
}

/// The parts of a limit that clients see.
#[derive(Debug)]
struct ClientLimitInfo {
    /// The number of requests and the unit of each quota.
    amounts: Vec<(u32, CalendarUnit)>,
    /// The `RateLimit-Policy` item of each quota.
    policies: Vec<String>,
}

/// How a limit is counted.
#[derive(Clone, Debug)]
pub(super) enum CountingMethod {
    /// No limit applies.
    Unlimited,
    /// A counter per unit is compared with this number.
    Count { requests: u32, unit: CalendarUnit },
    /// Every request is denied.
    Ban { unit: CalendarUnit },
    /// A limiter decides.
    Limiter(LazyLimiter),
}

/// The limit that applies to one descriptor of a request.
#[derive(Debug)]
pub(super) enum LimitMatch<'a> {
    /// No limit.
    Unmatched(QuotaGroup),
    /// An `unlimited` entry. It belongs to no group.
    Unlimited,
    /// A limit.
    Limited(MatchedLimit<'a>),
}

/// Whether a descriptor belongs to the quota group, which denies a request only if every member is over its limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaGroup {
    Member,
    NotMember,
}

impl LimitMatch<'_> {
    /// Whether it is a group member that never exceeds its limit: it has no limit, or one in shadow mode.
    pub(super) fn always_has_capacity(&self) -> bool {
        match self {
            Self::Unmatched(group) => *group == QuotaGroup::Member,
            Self::Limited(limited) => {
                limited.action == LimitAction::Shadow && limited.group == QuotaGroup::Member
            }
            Self::Unlimited => false,
        }
    }
}

/// A limit that applies to a descriptor.
#[derive(Debug)]
pub(super) struct MatchedLimit<'a> {
    pub(super) counted_entries: Cow<'a, [DescriptorEntry]>,
    pub(super) method: CountingMethod,
    pub(super) action: LimitAction,
    pub(super) group: QuotaGroup,
    pub(super) counters: Arc<LimitCounters>,
    /// `None` for a limit override of the request.
    pub(super) state: Option<&'a LimitState>,
}

impl MatchedLimit<'_> {
    /// The name that clients see.
    pub(super) fn label(&self) -> &str {
        self.state.map_or(super::metrics::OVERRIDE_NAME, LimitState::label)
    }
}

impl LimitState {
    pub(super) fn name(&self) -> Option<&Arc<str>> {
        self.limit.name.as_ref()
    }

    pub(super) fn metadata(&self) -> Option<&serde_json::Value> {
        self.limit.metadata.as_deref()
    }

    /// The unit of its counter, if it has one.
    pub(super) fn unit(&self) -> Option<CalendarUnit> {
        limit_unit(&self.limit)
    }

    /// The number of requests and the unit of each quota, as clients see them.
    pub(super) fn amounts(&self) -> &[(u32, CalendarUnit)] {
        &self.client_info().amounts
    }

    /// The `RateLimit-Policy` item of each quota.
    pub(super) fn policies(&self) -> &[String] {
        &self.client_info().policies
    }

    fn client_info(&self) -> &ClientLimitInfo {
        self.client_info.get_or_init(|| Box::new(ClientLimitInfo::new(&self.limit)))
    }

    fn label(&self) -> &str {
        self.limit.name.as_ref().unwrap_or(&self.limit.path)
    }
}

impl ActiveConfig {
    /// Activates a configuration and keeps the counters of limits that `previous` had too.
    pub(super) fn new(
        set: Arc<dyn ConfigLookup>,
        previous: Option<&Self>,
        (stores, settings, metrics): (&CounterStores, &ServiceSettings, &ServiceMetrics),
    ) -> Self {
        let limits = set.limits();
        let limit_names = limits.iter().map(|limit| &limit.path);
        metrics.retain(limit_names, |domain| set.domain(domain).is_some());
        let capacity = split_capacity(settings.capacity, limits.len() as u64);
        let mut states = HashMap::with_capacity_and_hasher(limits.len(), RandomState::default());
        let mut limiters = HashMap::new();
        for limit in limits {
            let method = match counting_plan(&limit.amount, settings.counting) {
                CountingPlan::Method(method) => method,
                CountingPlan::Limiter(quotas) => {
                    let duplicate =
                        (0..).find(|number| !limiters.contains_key(&(limit.path.clone(), *number)));
                    let name = (limit.path.clone(), duplicate.unwrap_or(0));
                    let previous_limiter = previous.and_then(|before| before.limiters.get(&name));
                    let limiter_settings = LazyLimiterSettings {
                        capacity,
                        store_kind: StoreKind::for_unit(limit_unit(&limit)),
                        lease: limit.lease,
                    };
                    let limiter = previous_limiter
                        .and_then(|old| old.with_quotas(limiter_settings, &quotas))
                        .unwrap_or_else(|| LazyLimiter::new(stores, &limit.path, limiter_settings, &quotas));
                    limiters.insert(name, limiter.clone());
                    CountingMethod::Limiter(limiter)
                }
            };
            let (metrics, client_info) = (OnceLock::new(), OnceLock::new());
            states.insert(address(&limit), LimitState { limit, method, metrics, client_info });
        }
        Self { set, states, limiters }
    }

    /// Resolves the limit that applies to each descriptor of a request.
    pub(super) fn resolve<'a>(
        &'a self,
        domain: &'a dyn DomainLookup,
        request: &'a DomainRequest,
        (settings, metrics): (&ServiceSettings, &ServiceMetrics),
    ) -> Vec<LimitMatch<'a>> {
        enum MatchResult<'a> {
            None,
            Override(LimitOverride),
            Matched(DescriptorMatch<'a>, &'a LimitState),
        }
        let find = |descriptor: &'a super::RequestDescriptor| match descriptor.limit {
            Some(limit) => MatchResult::Override(limit),
            None => match domain.find(&descriptor.entries) {
                Some(matched) => match self.states.get(&address(matched.limit)) {
                    Some(state) => MatchResult::Matched(matched, state),
                    None => MatchResult::None,
                },
                None => MatchResult::None,
            },
        };
        let found: Vec<MatchResult<'a>> = request.descriptors.iter().map(find).collect();
        let replaced_names: Vec<&str> = found
            .iter()
            .filter_map(|found| if let MatchResult::Matched(_, state) = found { Some(state) } else { None })
            .flat_map(|state| state.limit.replaces.iter().map(String::as_str))
            .collect();
        let is_replaced =
            |state: &LimitState| state.name().is_some_and(|name| replaced_names.contains(&name.as_ref()));
        let default_group = quota_group(false, settings);
        let matches = found.into_iter().zip(&request.descriptors).map(|(found, descriptor)| match found {
            MatchResult::None => LimitMatch::Unmatched(default_group),
            MatchResult::Matched(_, state) if matches!(state.method, CountingMethod::Unlimited) => {
                LimitMatch::Unlimited
            }
            MatchResult::Matched(_, state) if is_replaced(state) => LimitMatch::Unmatched(default_group),
            MatchResult::Matched(matched, state) => {
                match_limit(matched, state, &request.domain, (settings, metrics))
            }
            MatchResult::Override(LimitOverride { requests, unit }) => LimitMatch::Limited(MatchedLimit {
                counted_entries: Cow::Borrowed(&descriptor.entries),
                method: CountingMethod::Count { requests, unit },
                action: limit_action(false, default_group),
                group: default_group,
                counters: metrics.for_override(&request.domain, &descriptor.entries),
                state: None,
            }),
        });
        matches.collect()
    }
}

fn match_limit<'a>(
    matched: DescriptorMatch<'a>,
    state: &'a LimitState,
    domain: &str,
    (settings, metrics): (&ServiceSettings, &ServiceMetrics),
) -> LimitMatch<'a> {
    let flags = state.limit.flags;
    let group = quota_group(flags.quota_mode, settings);
    LimitMatch::Limited(MatchedLimit {
        counters: state
            .metrics
            .get_or_init(|| metrics.for_limit(&state.limit.path))
            .counters_for(domain, &matched.metric),
        counted_entries: matched.counter_entries,
        method: state.method.clone(),
        action: limit_action(flags.shadow_mode, group),
        group,
        state: Some(state),
    })
}

fn quota_group(is_quota: bool, settings: &ServiceSettings) -> QuotaGroup {
    match is_quota || settings.quota_mode == QuotaMode::All {
        true => QuotaGroup::Member,
        false => QuotaGroup::NotMember,
    }
}

fn limit_action(is_shadow: bool, group: QuotaGroup) -> LimitAction {
    match (is_shadow, group) {
        (true, _) => LimitAction::Shadow,
        (false, QuotaGroup::Member) => LimitAction::DenyWithGroup,
        (false, QuotaGroup::NotMember) => LimitAction::Deny,
    }
}

enum CountingPlan {
    Method(CountingMethod),
    Limiter(Vec<Quota>),
}

/// Selects how an amount is counted: by a counter per unit, or by a limiter with quotas.
fn counting_plan(amount: &DescriptorAmount, counting: CountingMode) -> CountingPlan {
    match (amount, counting) {
        (DescriptorAmount::Unlimited, _) => CountingPlan::Method(CountingMethod::Unlimited),
        (DescriptorAmount::Quotas(quotas), _) => CountingPlan::Limiter(quotas.clone()),
        (DescriptorAmount::PerUnit { requests, unit }, CountingMode::Reference) => {
            CountingPlan::Method(CountingMethod::Count { requests: *requests, unit: *unit })
        }
        (DescriptorAmount::PerUnit { requests, unit }, CountingMode::Atomic) => {
            match unit_window((*requests).into(), *unit) {
                Ok(quota) => CountingPlan::Limiter(vec![quota]),
                // Zero is the only number that is not a valid quota.
                Err(_) => CountingPlan::Method(CountingMethod::Ban { unit: *unit }),
            }
        }
    }
}

fn limit_unit(limit: &DescriptorLimit) -> Option<CalendarUnit> {
    match limit.amount {
        DescriptorAmount::PerUnit { unit, .. } => Some(unit),
        DescriptorAmount::Unlimited | DescriptorAmount::Quotas(_) => None,
    }
}

impl ClientLimitInfo {
    fn new(limit: &DescriptorLimit) -> Self {
        let name = limit.name.as_ref().unwrap_or(&limit.path);
        let (amounts, policies) = match &limit.amount {
            DescriptorAmount::Unlimited => (Vec::new(), Vec::new()),
            DescriptorAmount::PerUnit { requests, unit } => {
                (vec![(*requests, *unit)], vec![policy_item(name, *requests, *unit)])
            }
            DescriptorAmount::Quotas(quotas) => quotas
                .iter()
                .enumerate()
                .map(|(index, quota)| {
                    let label = PolicyField::for_indexed_quota(name, index, quota);
                    let limit = u32::try_from(label.limit()).unwrap_or(u32::MAX);
                    ((limit, closest_unit(label.window().unwrap_or(1))), label.policy().to_owned())
                })
                .unzip(),
        };
        Self { amounts, policies }
    }
}

/// Formats the `RateLimit-Policy` item for a number of requests per unit; 0 is allowed.
pub(super) fn policy_item(name: &str, requests: u32, unit: CalendarUnit) -> String {
    format!("{};q={requests};w={}", quote_name(name), unit.seconds())
}

/// Quotes a name as a structured field string.
pub(super) fn quote_name(name: &str) -> String {
    let Ok(any) = Quota::per_second(1).quota() else { return String::new() };
    let label = PolicyField::new(name, &any);
    label.policy().rsplit_once(";q=").map(|(name, _)| name.to_owned()).unwrap_or_default()
}

/// Returns the unit whose length is closest to `seconds`, by ratio.
fn closest_unit(seconds: u64) -> CalendarUnit {
    let ratio = |unit: &CalendarUnit| {
        let (a, b) = (unit.seconds().max(seconds), unit.seconds().min(seconds).max(1));
        // Thousandths are precise enough to distinguish units.
        a.saturating_mul(1_000) / b
    };
    CalendarUnit::ALL.into_iter().min_by_key(ratio).unwrap_or(CalendarUnit::Second)
}

/// Divides a capacity into `parts`, with a useful minimum for each.
fn split_capacity(capacity: Capacity, parts: u64) -> Capacity {
    match capacity {
        Capacity::Bytes(bytes) => Capacity::Bytes((bytes / parts.max(1)).max(1 << 20)),
        Capacity::Keys(keys) => Capacity::Keys((keys / parts.max(1)).max(1_024)),
    }
}

fn address(limit: &Arc<DescriptorLimit>) -> usize {
    Arc::as_ptr(limit).addr()
}

#[cfg(test)]
mod tests {
    use super::{closest_unit, policy_item, quote_name};
    use tidegate_policy::descriptors::CalendarUnit;

    #[test]
    fn windows_map_to_closest_unit() {
        let table = [
            (1, CalendarUnit::Second),
            (7, CalendarUnit::Second),
            (10, CalendarUnit::Minute),
            (90, CalendarUnit::Minute),
            (600, CalendarUnit::Hour),
            (43_200, CalendarUnit::Day),
            (1_209_600, CalendarUnit::Week),
            (31_536_000, CalendarUnit::Year),
        ];
        for (seconds, unit) in table {
            assert_eq!(closest_unit(seconds), unit, "{seconds} s");
        }
    }

    #[test]
    fn policy_item_quotes_name() {
        assert_eq!(quote_name(r#"a"b"#), r#""a\"b""#);
        assert_eq!(policy_item("shop.user", 0, CalendarUnit::Minute), r#""shop.user";q=0;w=60"#);
    }
}
