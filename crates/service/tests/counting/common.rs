//! Test helpers: configurations built in code, and short notations for requests and verdicts.

use std::{borrow::Cow, sync::Arc};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, ManualClock, Store};
use tidegate_policy::descriptors::{
    CalendarUnit, DescriptorAmount, DescriptorEntry, DescriptorFlags, DescriptorLimit, DescriptorMatch,
    MetricName,
};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{
    ConfigLookup, CountingMode, DescriptorService, DomainLookup, DomainRequest, DomainVerdict, LimitCode,
    LimitOverride, RequestDescriptor, ServiceSettings,
};
use tidegate_testkit::servers::RedisServer;

/// One domain of limits, each for one key with any value or with a given one.
#[derive(Debug)]
pub(crate) struct TestConfig {
    name: String,
    limits: Vec<(String, Option<String>, Arc<DescriptorLimit>)>,
}

/// Limits of the domain `shop`, each for an entry: `user` or `user=alice`.
pub(crate) fn test_config(limits: &[(&str, DescriptorLimit)]) -> Arc<TestConfig> {
    let limits = limits.iter().map(|(entry, limit)| {
        let (key, value) = match entry.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (*entry, None),
        };
        let path = format!("shop.{}", entry.replace('=', "_"));
        (key.to_owned(), value, Arc::new(DescriptorLimit { path: path.into(), ..limit.clone() }))
    });
    Arc::new(TestConfig { name: "shop".to_owned(), limits: limits.collect() })
}

impl ConfigLookup for TestConfig {
    fn is_empty(&self) -> bool {
        false
    }

    fn domain(&self, name: &str) -> Option<&dyn DomainLookup> {
        (name == self.name).then_some(self)
    }

    fn limits(&self) -> Vec<Arc<DescriptorLimit>> {
        self.limits.iter().map(|(_, _, limit)| limit.clone()).collect()
    }

    fn lines(&self) -> Vec<String> {
        self.limits.iter().map(|(_, _, limit)| limit.path.to_string()).collect()
    }
}

impl DomainLookup for TestConfig {
    fn find<'a>(&'a self, entries: &'a [DescriptorEntry]) -> Option<DescriptorMatch<'a>> {
        let [entry] = entries else { return None };
        let is_this = |(key, value, _): &&(String, Option<String>, _)| {
            *key == entry.key && value.as_ref().is_none_or(|value| *value == entry.value)
        };
        let (_, _, limit) = self.limits.iter().find(is_this)?;
        let metric = match limit.flags.detailed_metric {
            true => MetricName::Detailed(format!("shop.{}_{}", entry.key, entry.value)),
            false => MetricName::Path,
        };
        Some(DescriptorMatch { limit, counter_entries: Cow::Borrowed(entries), metric })
    }
}

pub(crate) fn per_unit(requests: u32, unit: CalendarUnit) -> DescriptorLimit {
    limit_of_amount(DescriptorAmount::PerUnit { requests, unit })
}

pub(crate) fn with_quotas(quotas: &[&str]) -> DescriptorLimit {
    limit_of_amount(DescriptorAmount::Quotas(quotas.iter().map(|quota| quota.parse().unwrap()).collect()))
}

pub(crate) fn limit_of_amount(amount: DescriptorAmount) -> DescriptorLimit {
    DescriptorLimit {
        path: "".into(),
        amount,
        name: None,
        replaces: Vec::new(),
        lease: None,
        flags: DescriptorFlags::default(),
        metadata: None,
    }
}

pub(crate) fn named_limit(name: &str, replaces: &[&str], limit: DescriptorLimit) -> DescriptorLimit {
    let replaces = replaces.iter().map(|name| (*name).to_owned()).collect();
    DescriptorLimit { name: Some(name.into()), replaces, ..limit }
}

pub(crate) fn with_flags(limit: DescriptorLimit, set: impl Fn(&mut DescriptorFlags)) -> DescriptorLimit {
    let mut limit = limit;
    set(&mut limit.flags);
    limit
}

pub(crate) fn shadow_limit(limit: DescriptorLimit) -> DescriptorLimit {
    with_flags(limit, |flags| flags.shadow_mode = true)
}

pub(crate) fn quota_mode_limit(limit: DescriptorLimit) -> DescriptorLimit {
    with_flags(limit, |flags| flags.quota_mode = true)
}

/// Parses a request: `user=alice x3, path=/ x0 @5/MINUTE`, with hits after an `x` and a limit override after an `@`.
pub(crate) fn parse_request(text: &str) -> DomainRequest {
    let descriptors = text.split(", ").map(|text| {
        let mut words = text.split(' ');
        let (key, value) = words.next().unwrap().split_once('=').unwrap();
        let entries = vec![DescriptorEntry { key: key.to_owned(), value: value.to_owned() }];
        let mut descriptor = RequestDescriptor { entries, limit: None, hits: None };
        for word in words {
            match word.split_at(1) {
                ("x", hits) => descriptor.hits = Some(hits.parse().unwrap()),
                (_, limit) => {
                    let (requests, unit) = limit.split_once('/').unwrap();
                    let unit = CalendarUnit::from_name(unit).unwrap();
                    descriptor.limit = Some(LimitOverride { requests: requests.parse().unwrap(), unit });
                }
            }
        }
        descriptor
    });
    DomainRequest { domain: "shop".to_owned(), descriptors: descriptors.collect(), hits: 0, deadline: None }
}

/// Formats a verdict: `OK: OK 3/5, OVER 0/5, -`, with a dash if no limit applies.
pub(crate) fn verdict_text(verdict: &DomainVerdict) -> String {
    let code = |over| if over == LimitCode::OverLimit { "OVER" } else { "OK" };
    let status = verdict.statuses.iter().map(|status| match &status.limit {
        Some((requests, _, _)) => format!("{} {}/{requests}", code(status.code), status.remaining),
        None if status.remaining == u32::MAX => format!("{} unlimited", code(status.code)),
        None => "-".to_owned(),
    });
    format!("{}: {}", code(verdict.overall_code), status.collect::<Vec<_>>().join(", "))
}

pub(crate) async fn decide(service: &DescriptorService, text: &str) -> String {
    verdict_text(&service.decide(parse_request(text)).await.unwrap())
}

/// A service in memory with a manual clock.
pub(crate) fn memory_service(
    settings: ServiceSettings,
    config: Arc<TestConfig>,
) -> (DescriptorService, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    manual_clock.set(Micros::from_secs(1_000_000_000));
    let service = DescriptorService::new(ServiceSettings { clock, ..settings }).unwrap();
    service.load(config);
    (service, manual_clock)
}

pub(crate) async fn redis_service(
    server: &RedisServer,
    settings: ServiceSettings,
    config: Arc<TestConfig>,
) -> DescriptorService {
    let store = RedisStore::builder().deadline(TEST_TIMEOUT).connect(&server.url()).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let settings = ServiceSettings { store: Some(store), deadline: TEST_TIMEOUT, ..settings };
    let service = DescriptorService::new(settings).unwrap();
    service.load(config);
    service
}

/// A deadline that a passing test does not reach.
pub(crate) const TEST_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) fn settings_with_counting(counting: CountingMode) -> ServiceSettings {
    ServiceSettings { counting, ..ServiceSettings::default() }
}
