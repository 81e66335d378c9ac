//! What the stories share: files that need no reading, and short ways to ask.

use std::{borrow::Cow, sync::Arc};
use tidegate_core::Micros;
use tidegate_limiter::{Clock, ManualClock, Store};
use tidegate_policy::descriptors::{
    CalendarUnit, DescriptorAmount, DescriptorEntry, DescriptorFlags, DescriptorLimit, DescriptorMatch,
    MetricName,
};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{
    AskedDescriptor, Counting, DescriptorService, DomainAsk, DomainLookup, DomainVerdict, Lookup, OverLimit,
    Override, ServiceSettings,
};
use tidegate_testkit::servers::RedisServer;

/// One domain of limits, each for one key with any value or with the one it says.
#[derive(Debug)]
pub(crate) struct Files {
    name: String,
    limits: Vec<(String, Option<String>, Arc<DescriptorLimit>)>,
}

/// Limits of the domain `shop`: `user` or `user=alice`, and what there is for it.
pub(crate) fn files(limits: &[(&str, DescriptorLimit)]) -> Arc<Files> {
    let limits = limits.iter().map(|(entry, limit)| {
        let (key, value) = match entry.split_once('=') {
            Some((key, value)) => (key, Some(value.to_owned())),
            None => (*entry, None),
        };
        let place = format!("shop.{}", entry.replace('=', "_"));
        (key.to_owned(), value, Arc::new(DescriptorLimit { path: place.into(), ..limit.clone() }))
    });
    Arc::new(Files { name: "shop".to_owned(), limits: limits.collect() })
}

impl Lookup for Files {
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

impl DomainLookup for Files {
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

pub(crate) fn per(requests: u32, unit: CalendarUnit) -> DescriptorLimit {
    of(DescriptorAmount::PerUnit { requests, unit })
}

pub(crate) fn quotas(quotas: &[&str]) -> DescriptorLimit {
    of(DescriptorAmount::Quotas(quotas.iter().map(|quota| quota.parse().unwrap()).collect()))
}

pub(crate) fn of(amount: DescriptorAmount) -> DescriptorLimit {
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

pub(crate) fn named(name: &str, replaces: &[&str], limit: DescriptorLimit) -> DescriptorLimit {
    let replaces = replaces.iter().map(|name| (*name).to_owned()).collect();
    DescriptorLimit { name: Some(name.into()), replaces, ..limit }
}

pub(crate) fn flagged(limit: DescriptorLimit, set: impl Fn(&mut DescriptorFlags)) -> DescriptorLimit {
    let mut limit = limit;
    set(&mut limit.flags);
    limit
}

pub(crate) fn shadow(limit: DescriptorLimit) -> DescriptorLimit {
    flagged(limit, |flags| flags.shadow_mode = true)
}

pub(crate) fn together(limit: DescriptorLimit) -> DescriptorLimit {
    flagged(limit, |flags| flags.quota_mode = true)
}

/// A request as text: `user=alice x3, path=/ x0 @5/MINUTE`: hits behind an `x`, a limit that comes along behind an `@`.
pub(crate) fn ask(text: &str) -> DomainAsk {
    let descriptors = text.split(", ").map(|text| {
        let mut words = text.split(' ');
        let (key, value) = words.next().unwrap().split_once('=').unwrap();
        let entries = vec![DescriptorEntry { key: key.to_owned(), value: value.to_owned() }];
        let mut asked = AskedDescriptor { entries, limit: None, hits: None };
        for word in words {
            match word.split_at(1) {
                ("x", hits) => asked.hits = Some(hits.parse().unwrap()),
                (_, limit) => {
                    let (requests, unit) = limit.split_once('/').unwrap();
                    let unit = CalendarUnit::from_name(unit).unwrap();
                    asked.limit = Some(Override { requests: requests.parse().unwrap(), unit });
                }
            }
        }
        asked
    });
    DomainAsk { domain: "shop".to_owned(), descriptors: descriptors.collect(), hits: 0, deadline: None }
}

/// What was said, as text: `RESPONSE_END: RESPONSE_END 3/5, OVER 0/5, -`; a dash where no limit applies.
pub(crate) fn said(verdict: &DomainVerdict) -> String {
    let word = |over| if over == OverLimit::Yes { "OVER" } else { "OK" };
    let status = verdict.statuses.iter().map(|status| match &status.limit {
        Some((requests, _, _)) => format!("{} {}/{requests}", word(status.over), status.remaining),
        None if status.remaining == u32::MAX => format!("{} unlimited", word(status.over)),
        None => "-".to_owned(),
    });
    format!("{}: {}", word(verdict.overall), status.collect::<Vec<_>>().join(", "))
}

pub(crate) async fn decide(service: &DescriptorService, text: &str) -> String {
    said(&service.decide(ask(text)).await.unwrap())
}

/// A service in memory whose clock stands still until it is moved.
pub(crate) fn in_memory(settings: ServiceSettings, files: Arc<Files>) -> (DescriptorService, ManualClock) {
    let (clock, hand) = Clock::manual();
    hand.set(Micros::from_secs(1_000_000_000));
    let service = DescriptorService::new(ServiceSettings { clock, ..settings }).unwrap();
    service.load(files);
    (service, hand)
}

pub(crate) async fn in_redis(
    server: &RedisServer,
    settings: ServiceSettings,
    files: Arc<Files>,
) -> DescriptorService {
    let store = RedisStore::builder().deadline(AMPLE).connect(&server.url()).await.unwrap();
    let store: Arc<dyn Store> = Arc::new(store);
    let settings = ServiceSettings { store: Some(store), deadline: AMPLE, ..settings };
    let service = DescriptorService::new(settings).unwrap();
    service.load(files);
    service
}

/// Where time is not the point.
pub(crate) const AMPLE: std::time::Duration = std::time::Duration::from_secs(5);

pub(crate) fn counting(counting: Counting) -> ServiceSettings {
    ServiceSettings { counting, ..ServiceSettings::default() }
}
