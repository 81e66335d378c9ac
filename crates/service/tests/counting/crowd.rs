//! Many at once: exactly as many are let through as the limit says.

use crate::stage::{ask, counting, files, in_memory, in_redis, per, quotas};
use std::sync::Arc;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorLimit};
use tidegate_service::descriptors::{Counting, DescriptorService, OverLimit};
use tidegate_testkit::servers::RedisServer;

const LIMIT: usize = 50;
const CLIENTS: usize = 200;

/// One limit of every algorithm that grants so many at once, and then none for as long as a test runs.
fn limits() -> Vec<(&'static str, Counting, DescriptorLimit)> {
    let year = || per(50, CalendarUnit::Year);
    vec![
        ("counts of theirs", Counting::Theirs, year()),
        ("windows, all or none", Counting::Atomic, year()),
        ("token-bucket", Counting::Theirs, quotas(&["50 per 52w"])),
        ("leaky-bucket", Counting::Theirs, quotas(&["50 per 52w leaky-bucket queue 49 nodelay"])),
        ("fixed-window", Counting::Theirs, quotas(&["50 per 364d fixed-window from-first-hit"])),
        ("sliding-window", Counting::Theirs, quotas(&["50 per 52w sliding-window"])),
        ("sliding-strict", Counting::Theirs, quotas(&["50 per 52w sliding-strict 4"])),
        ("sliding-log", Counting::Theirs, quotas(&["50 per 52w sliding-log"])),
        ("several", Counting::Atomic, quotas(&["50 per 52w", "60 per 104w sliding-window"])),
    ]
}

/// Those that space calls out grant one at once, whatever their rate is.
fn spaced() -> Vec<(&'static str, Counting, DescriptorLimit)> {
    vec![
        ("smooth", Counting::Theirs, quotas(&["50 per 52w smooth"])),
        ("warm-up", Counting::Theirs, quotas(&["50 per 52w warm-up 4s cold 3"])),
    ]
}

/// All of them, with how many they grant.
fn every() -> impl Iterator<Item = ((&'static str, Counting, DescriptorLimit), usize)> {
    let of = |limit| (limit, LIMIT);
    limits().into_iter().map(of).chain(spaced().into_iter().map(|limit| (limit, 1)))
}

async fn admitted(service: Arc<DescriptorService>, request: &'static str) -> usize {
    let tasks: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move { service.decide(ask(request)).await.unwrap().overall })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += usize::from(task.await.unwrap() == OverLimit::No);
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_gets_the_limit_in_memory() {
    for ((name, way, limit), most) in every() {
        let (service, _hand) = in_memory(counting(way), files(&[("user", limit)]));
        assert_eq!(admitted(service.into(), "user=alice").await, most, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_gets_the_limit_in_redis() {
    let server = RedisServer::start().unwrap();
    for ((name, way, limit), most) in every() {
        server.command(&["FLUSHALL"]).unwrap();
        let service = in_redis(&server, counting(way), files(&[("user", limit)])).await;
        assert_eq!(admitted(service.into(), "user=alice").await, most, "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_crowd_with_a_limit_of_its_own_gets_it() {
    for way in [Counting::Theirs, Counting::Atomic] {
        let (service, _hand) = in_memory(counting(way), files(&[("user", per(1, CalendarUnit::Year))]));
        assert_eq!(admitted(service.into(), "user=alice @50/YEAR").await, LIMIT, "{way:?}");
    }
}
