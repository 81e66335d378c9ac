//! The files that are in force, with what is counted for each of their limits.

use super::{
    DomainAsk, DomainLookup, Lookup, Override,
    counters::{Home, Manner, PlaceLimiter, PlaceTerms, Shelf, window},
    metrics::{Counts, LimitMetrics, ServiceMetrics},
    settings::{Counting, QuotaMode, ServiceSettings},
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

/// The files that are in force.
#[derive(Debug)]
pub(super) struct Force {
    pub(super) set: Arc<dyn Lookup>,
    /// By where the limit is in memory, which the set keeps it at: two places of a tree may be written alike.
    states: HashMap<usize, LimitState, RandomState>,
    /// For the files that follow; the number tells those apart that are written alike.
    limiters: HashMap<(Arc<str>, usize), PlaceLimiter>,
}

/// What there is for one limit. Of many thousands most are never asked for: what a request needs of one is made by the first.
#[derive(Debug)]
pub(super) struct LimitState {
    limit: Arc<DescriptorLimit>,
    how: How,
    metrics: OnceLock<Arc<LimitMetrics>>,
    told: OnceLock<Box<Told>>,
}

/// What clients are told of a limit.
#[derive(Debug)]
struct Told {
    /// Of each of its quotas: how many, and in which time.
    amounts: Vec<(u32, CalendarUnit)>,
    /// The same as `RateLimit-Policy` has it.
    policies: Vec<String>,
}

/// How a limit is counted.
#[derive(Clone, Debug)]
pub(super) enum How {
    /// It is none.
    Unlimited,
    /// Counts of a unit are compared with this number.
    Compare { requests: u32, unit: CalendarUnit },
    /// Nothing is let through.
    Ban { unit: CalendarUnit },
    /// A limiter decides.
    Charge(PlaceLimiter),
}

/// What applies to one descriptor of a request.
#[derive(Debug)]
pub(super) enum Subject<'a> {
    /// Nothing.
    Free(QuotaGroup),
    /// A limit that is none. It belongs to no group.
    Unlimited,
    /// A limit.
    Limited(Limited<'a>),
}

/// Whether a descriptor is one of those that refuse a request only together: while one of them has room, none does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QuotaGroup {
    Member,
    Outside,
}

impl Subject<'_> {
    /// Whether it is one of the group and always has room: it has no limit, or one in shadow mode.
    pub(super) fn keeps_group_open(&self) -> bool {
        match self {
            Self::Free(group) => *group == QuotaGroup::Member,
            Self::Limited(limited) => limited.manner == Manner::Watch && limited.group == QuotaGroup::Member,
            Self::Unlimited => false,
        }
    }
}

/// A limit that applies to a descriptor.
#[derive(Debug)]
pub(super) struct Limited<'a> {
    pub(super) counted: Cow<'a, [DescriptorEntry]>,
    pub(super) how: How,
    pub(super) manner: Manner,
    pub(super) group: QuotaGroup,
    pub(super) counts: Arc<Counts>,
    /// None of one that came with the request.
    pub(super) state: Option<&'a LimitState>,
}

impl Limited<'_> {
    /// What it is called where clients are told of it.
    pub(super) fn label(&self) -> &str {
        self.state.map_or(super::metrics::OVERRIDE, LimitState::label)
    }
}

impl LimitState {
    pub(super) fn name(&self) -> Option<&Arc<str>> {
        self.limit.name.as_ref()
    }

    pub(super) fn metadata(&self) -> Option<&serde_json::Value> {
        self.limit.metadata.as_deref()
    }

    /// The unit that it is counted in, where that is one.
    pub(super) fn unit(&self) -> Option<CalendarUnit> {
        unit(&self.limit)
    }

    /// What clients are told of each of its quotas: how many, and in which time.
    pub(super) fn amounts(&self) -> &[(u32, CalendarUnit)] {
        &self.told().amounts
    }

    /// The same as `RateLimit-Policy` has it.
    pub(super) fn policies(&self) -> &[String] {
        &self.told().policies
    }

    fn told(&self) -> &Told {
        self.told.get_or_init(|| Box::new(Told::of(&self.limit)))
    }

    fn label(&self) -> &str {
        self.limit.name.as_ref().unwrap_or(&self.limit.path)
    }
}

impl Force {
    /// These files, with what has been counted for those before them.
    pub(super) fn new(
        set: Arc<dyn Lookup>,
        before: Option<&Self>,
        (home, settings, metrics): (&Home, &ServiceSettings, &ServiceMetrics),
    ) -> Self {
        let limits = set.limits();
        let places = limits.iter().map(|limit| &limit.path);
        metrics.keep(places, |domain| set.domain(domain).is_some());
        let capacity = part(settings.capacity, limits.len() as u64);
        let mut states = HashMap::with_capacity_and_hasher(limits.len(), RandomState::default());
        let mut limiters = HashMap::new();
        for limit in limits {
            let how = match quotas(&limit.amount, settings.counting) {
                Counted::As(how) => how,
                Counted::By(quotas) => {
                    let twins = (0..).find(|twin| !limiters.contains_key(&(limit.path.clone(), *twin)));
                    let name = (limit.path.clone(), twins.unwrap_or(0));
                    let old = before.and_then(|before| before.limiters.get(&name));
                    let terms = PlaceTerms { capacity, shelf: Shelf::of(unit(&limit)), lease: limit.lease };
                    let limiter = old
                        .and_then(|old| old.changed(terms, &quotas))
                        .unwrap_or_else(|| PlaceLimiter::new(home, &limit.path, terms, &quotas));
                    limiters.insert(name, limiter.clone());
                    How::Charge(limiter)
                }
            };
            let (metrics, told) = (OnceLock::new(), OnceLock::new());
            states.insert(address(&limit), LimitState { limit, how, metrics, told });
        }
        Self { set, states, limiters }
    }

    /// What applies to each descriptor of a request.
    pub(super) fn resolve<'a>(
        &'a self,
        domain: &'a dyn DomainLookup,
        ask: &'a DomainAsk,
        (settings, metrics): (&ServiceSettings, &ServiceMetrics),
    ) -> Vec<Subject<'a>> {
        enum Found<'a> {
            Nothing,
            Brought(Override),
            Matched(DescriptorMatch<'a>, &'a LimitState),
        }
        let find = |asked: &'a super::AskedDescriptor| match asked.limit {
            Some(brought) => Found::Brought(brought),
            None => match domain.find(&asked.entries) {
                Some(matched) => match self.states.get(&address(matched.limit)) {
                    Some(state) => Found::Matched(matched, state),
                    None => Found::Nothing,
                },
                None => Found::Nothing,
            },
        };
        let found: Vec<Found<'a>> = ask.descriptors.iter().map(find).collect();
        let replaced: Vec<&str> = found
            .iter()
            .filter_map(|found| if let Found::Matched(_, state) = found { Some(state) } else { None })
            .flat_map(|state| state.limit.replaces.iter().map(String::as_str))
            .collect();
        let is_replaced =
            |state: &LimitState| state.name().is_some_and(|name| replaced.contains(&name.as_ref()));
        let outside = group(false, settings);
        let subjects = found.into_iter().zip(&ask.descriptors).map(|(found, asked)| match found {
            Found::Nothing => Subject::Free(outside),
            Found::Matched(_, state) if matches!(state.how, How::Unlimited) => Subject::Unlimited,
            Found::Matched(_, state) if is_replaced(state) => Subject::Free(outside),
            Found::Matched(matched, state) => of_state(matched, state, &ask.domain, (settings, metrics)),
            Found::Brought(Override { requests, unit }) => Subject::Limited(Limited {
                counted: Cow::Borrowed(&asked.entries),
                how: How::Compare { requests, unit },
                manner: manner(false, outside),
                group: outside,
                counts: metrics.of_override(&ask.domain, &asked.entries),
                state: None,
            }),
        });
        subjects.collect()
    }
}

fn of_state<'a>(
    matched: DescriptorMatch<'a>,
    state: &'a LimitState,
    domain: &str,
    (settings, metrics): (&ServiceSettings, &ServiceMetrics),
) -> Subject<'a> {
    let flags = state.limit.flags;
    let group = group(flags.quota_mode, settings);
    Subject::Limited(Limited {
        counts: state.metrics.get_or_init(|| metrics.of_place(&state.limit.path)).of(domain, &matched.metric),
        counted: matched.counter_entries,
        how: state.how.clone(),
        manner: manner(flags.shadow_mode, group),
        group,
        state: Some(state),
    })
}

fn group(is_quota: bool, settings: &ServiceSettings) -> QuotaGroup {
    match is_quota || settings.quota_mode == QuotaMode::Every {
        true => QuotaGroup::Member,
        false => QuotaGroup::Outside,
    }
}

fn manner(is_shadow: bool, group: QuotaGroup) -> Manner {
    match (is_shadow, group) {
        (true, _) => Manner::Watch,
        (false, QuotaGroup::Member) => Manner::RefuseTogether,
        (false, QuotaGroup::Outside) => Manner::Refuse,
    }
}

enum Counted {
    As(How),
    By(Vec<Quota>),
}

/// What is counted by: in units and compared, or by a limiter with quotas.
fn quotas(amount: &DescriptorAmount, counting: Counting) -> Counted {
    match (amount, counting) {
        (DescriptorAmount::Unlimited, _) => Counted::As(How::Unlimited),
        (DescriptorAmount::Quotas(quotas), _) => Counted::By(quotas.clone()),
        (DescriptorAmount::PerUnit { requests, unit }, Counting::Theirs) => {
            Counted::As(How::Compare { requests: *requests, unit: *unit })
        }
        (DescriptorAmount::PerUnit { requests, unit }, Counting::Atomic) => {
            match window((*requests).into(), *unit) {
                Ok(quota) => Counted::By(vec![quota]),
                // The only number that makes no quota is none.
                Err(_) => Counted::As(How::Ban { unit: *unit }),
            }
        }
    }
}

fn unit(limit: &DescriptorLimit) -> Option<CalendarUnit> {
    match limit.amount {
        DescriptorAmount::PerUnit { unit, .. } => Some(unit),
        DescriptorAmount::Unlimited | DescriptorAmount::Quotas(_) => None,
    }
}

impl Told {
    fn of(limit: &DescriptorLimit) -> Self {
        let name = limit.name.as_ref().unwrap_or(&limit.path);
        let (amounts, policies) = match &limit.amount {
            DescriptorAmount::Unlimited => (Vec::new(), Vec::new()),
            DescriptorAmount::PerUnit { requests, unit } => {
                (vec![(*requests, *unit)], vec![policy(name, *requests, *unit)])
            }
            DescriptorAmount::Quotas(quotas) => quotas
                .iter()
                .enumerate()
                .map(|(place, quota)| {
                    let label = PolicyField::for_indexed_quota(name, place, quota);
                    let most = u32::try_from(label.limit()).unwrap_or(u32::MAX);
                    ((most, closest(label.window().unwrap_or(1))), label.policy().to_owned())
                })
                .unzip(),
        };
        Self { amounts, policies }
    }
}

/// The item of `RateLimit-Policy` for so many in a unit; a quota of none has one too.
pub(super) fn policy(name: &str, requests: u32, unit: CalendarUnit) -> String {
    format!("{};q={requests};w={}", quoted(name), unit.seconds())
}

/// A name as structured fields have it.
pub(super) fn quoted(name: &str) -> String {
    let Ok(any) = Quota::per_second(1).quota() else { return String::new() };
    let label = PolicyField::new(name, &any);
    label.policy().rsplit_once(";q=").map(|(name, _)| name.to_owned()).unwrap_or_default()
}

/// The unit whose length is closest to so many seconds, as a ratio.
fn closest(seconds: u64) -> CalendarUnit {
    let ratio = |unit: &CalendarUnit| {
        let (a, b) = (unit.seconds().max(seconds), unit.seconds().min(seconds).max(1));
        // Whole thousandths are fine enough to tell units apart.
        a.saturating_mul(1_000) / b
    };
    CalendarUnit::ALL.into_iter().min_by_key(ratio).unwrap_or(CalendarUnit::Second)
}

/// One of so many parts, and enough of it to be of use.
fn part(capacity: Capacity, parts: u64) -> Capacity {
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
    use super::{closest, policy, quoted};
    use tidegate_policy::descriptors::CalendarUnit;

    #[test]
    fn windows_are_told_as_the_closest_unit() {
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
            assert_eq!(closest(seconds), unit, "{seconds} s");
        }
    }

    #[test]
    fn names_are_quoted() {
        assert_eq!(quoted(r#"a"b"#), r#""a\"b""#);
        assert_eq!(policy("shop.user", 0, CalendarUnit::Minute), r#""shop.user";q=0;w=60"#);
    }
}
