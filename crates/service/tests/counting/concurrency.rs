//! Concurrent requests: exactly the limit is admitted.

use crate::common::{
    memory_service, parse_request, per_unit, redis_service, settings_with_counting, test_config, with_quotas,
};
use std::sync::Arc;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorLimit};
use tidegate_service::descriptors::{CountingMode, DescriptorService, LimitCode};
use tidegate_testkit::servers::RedisServer;

const LIMIT: usize = 50;
const CLIENTS: usize = 200;

/// One limit of every algorithm with bursts: it grants [`LIMIT`] at once, and nothing else during a test.
fn burst_limits() -> Vec<(&'static str, CountingMode, DescriptorLimit)> {
    let year = || per_unit(50, CalendarUnit::Year);
    vec![
        ("reference counters", CountingMode::Reference, year()),
        ("atomic windows", CountingMode::Atomic, year()),
        ("token-bucket", CountingMode::Reference, with_quotas(&["50 per 52w"])),
        ("leaky-bucket", CountingMode::Reference, with_quotas(&["50 per 52w leaky-bucket queue 49 nodelay"])),
        ("fixed-window", CountingMode::Reference, with_quotas(&["50 per 364d fixed-window from-first-hit"])),
        ("sliding-window", CountingMode::Reference, with_quotas(&["50 per 52w sliding-window"])),
        ("sliding-strict", CountingMode::Reference, with_quotas(&["50 per 52w sliding-strict 4"])),
        ("sliding-log", CountingMode::Reference, with_quotas(&["50 per 52w sliding-log"])),
        ("several", CountingMode::Atomic, with_quotas(&["50 per 52w", "60 per 104w sliding-window"])),
    ]
}

/// Shapers grant one at once, at any rate.
fn spaced_limits() -> Vec<(&'static str, CountingMode, DescriptorLimit)> {
    vec![
        ("smooth", CountingMode::Reference, with_quotas(&["50 per 52w smooth"])),
        ("warm-up", CountingMode::Reference, with_quotas(&["50 per 52w warm-up 4s cold 3"])),
    ]
}

/// All limits, with the number of requests that they grant.
fn all_limits() -> impl Iterator<Item = ((&'static str, CountingMode, DescriptorLimit), usize)> {
    let of = |limit| (limit, LIMIT);
    burst_limits().into_iter().map(of).chain(spaced_limits().into_iter().map(|limit| (limit, 1)))
}

async fn count_admitted(service: Arc<DescriptorService>, request: &'static str) -> usize {
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { service.decide(parse_request(request)).await.unwrap().overall_code })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += usize::from(task.await.unwrap() == LimitCode::Ok);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_get_exactly_the_limit_in_memory() {
    for ((name, counting, limit), expected) in all_limits() {
        let (service, _manual_clock) =
            memory_service(settings_with_counting(counting), test_config(&[("user", limit)]));
        assert_eq!(count_admitted(service.into(), "user=alice").await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_get_exactly_the_limit_in_redis() {
    let server = RedisServer::start().unwrap();
    for ((name, counting, limit), expected) in all_limits() {
        server.command(&["FLUSHALL"]).unwrap();
        let service =
            redis_service(&server, settings_with_counting(counting), test_config(&[("user", limit)])).await;
        assert_eq!(count_admitted(service.into(), "user=alice").await, expected, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_get_exactly_their_override() {
    for counting in [CountingMode::Reference, CountingMode::Atomic] {
        let (service, _manual_clock) = memory_service(
            settings_with_counting(counting),
            test_config(&[("user", per_unit(1, CalendarUnit::Year))]),
        );
        assert_eq!(count_admitted(service.into(), "user=alice @50/YEAR").await, LIMIT, "{counting:?}");
    }
}
