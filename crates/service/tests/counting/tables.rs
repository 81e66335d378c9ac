//! What is counted and what is said, request by request: in memory and in Redis.

use crate::stage::{
    Files, ask, counting, decide, files, in_memory, in_redis, named, of, per, quotas, said, shadow, together,
};
use std::sync::Arc;
use tidegate_policy::descriptors::{CalendarUnit, DescriptorAmount};
use tidegate_service::descriptors::{
    Counting, DescriptorFault, DescriptorService, DomainAsk, Enforcement, QuotaMode, ServiceSettings,
    WhenOver,
};
use tidegate_testkit::servers::RedisServer;

/// A name, settings, and requests with what is said to them.
type Story = (&'static str, ServiceSettings, &'static [(&'static str, &'static str)]);

/// So long that no window ends while a story is told.
fn limits() -> Arc<Files> {
    let year = |requests| per(requests, CalendarUnit::Year);
    files(&[
        ("user", year(3)),
        ("path=/big", year(10)),
        ("path=/old", named("old", &[], year(1))),
        ("path=/new", named("new", &["old"], year(5))),
        ("path=/free", named("free", &["old"], of(DescriptorAmount::Unlimited))),
        ("ban", year(0)),
        ("watched", shadow(year(1))),
        ("model=a", together(year(1))),
        ("model=b", together(year(2))),
        ("model=any", together(of(DescriptorAmount::Unlimited))),
        ("both", quotas(&["3 per 52w", "5 per 104w"])),
    ])
}

fn theirs() -> ServiceSettings {
    ServiceSettings::default()
}

fn stories() -> Vec<Story> {
    let atomic = || counting(Counting::Atomic);
    let only_over = || ServiceSettings { when_over: WhenOver::CountOver, ..theirs() };
    vec![
        (
            "theirs: a limit, and no limit",
            theirs(),
            &[
                ("user=alice", "OK: OK 2/3"),
                ("user=bob, nobody=knows", "OK: OK 2/3, -"),
                ("user=alice", "OK: OK 1/3"),
                ("user=alice", "OK: OK 0/3"),
                ("user=alice", "OVER: OVER 0/3"),
                ("path=/free", "OK: OK unlimited"),
            ],
        ),
        (
            "theirs: hits that say how many, and none looks only",
            theirs(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice x0", "OK: OK 0/3"),
                ("user=alice x1", "OVER: OVER 0/3"),
                ("user=alice x0", "OVER: OVER 0/3"),
                ("user=bob x4", "OVER: OVER 0/3"),
                ("user=carol x0", "OK: OK 3/3"),
                ("user=dave x18446744073709551615", "OVER: OVER 0/3"),
            ],
        ),
        (
            "theirs: all are counted, whatever comes of it",
            theirs(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 9/10"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 8/10"),
                ("path=/big", "OK: OK 7/10"),
            ],
        ),
        (
            "theirs: the same descriptor twice counts twice",
            theirs(),
            &[("user=alice, user=alice, user=alice, user=alice", "OVER: OK 2/3, OK 1/3, OK 0/3, OVER 0/3")],
        ),
        (
            "theirs: only what is over is counted",
            only_over(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 10/10"),
                ("user=bob, path=/big", "OK: OK 2/3, OK 9/10"),
            ],
        ),
        (
            "a name that is replaced does not apply",
            theirs(),
            &[
                ("path=/old, path=/new", "OK: -, OK 4/5"),
                ("path=/old, path=/free", "OK: -, OK unlimited"),
                ("path=/old", "OK: OK 0/1"),
                ("path=/old", "OVER: OVER 0/1"),
                ("path=/old, path=/new", "OK: -, OK 3/5"),
            ],
        ),
        (
            "none at all is a ban",
            theirs(),
            &[("ban=it", "OVER: OVER 0/0"), ("ban=it x0", "OVER: OVER 0/0"), ("ban=other x0", "OK: OK 0/0")],
        ),
        (
            "a limit in shadow says OK, with nothing left",
            theirs(),
            &[
                ("watched=it", "OK: OK 0/1"),
                ("watched=it", "OK: OK 0/1"),
                ("watched=it, user=alice x4", "OVER: OK 0/1, OVER 0/3"),
            ],
        ),
        (
            "quota mode denies when all of them do",
            theirs(),
            &[
                ("model=a, model=b", "OK: OK 0/1, OK 1/2"),
                ("model=a, model=b", "OK: OVER 0/1, OK 0/2"),
                ("model=a, model=b", "OVER: OVER 0/1, OVER 0/2"),
                ("model=a, model=any", "OVER: OVER 0/1, OK unlimited"),
                ("model=a", "OVER: OVER 0/1"),
                ("model=a, user=alice", "OVER: OVER 0/1, OK 2/3"),
                ("model=b x0, user=alice x9", "OVER: OVER 0/2, OVER 0/3"),
            ],
        ),
        (
            "quota mode for all",
            ServiceSettings { quota_mode: QuotaMode::Every, ..theirs() },
            &[
                ("user=alice x4, path=/big", "OK: OVER 0/3, OK 9/10"),
                ("user=alice, path=/big x11", "OVER: OVER 0/3, OVER 0/10"),
            ],
        ),
        (
            "shadow for all",
            ServiceSettings { enforcement: Enforcement::Shadow, ..theirs() },
            &[("user=alice x4, path=/big", "OK: OVER 0/3, OK 9/10")],
        ),
        (
            "a limit that comes along counts as one of the files",
            theirs(),
            &[
                ("user=alice @5/YEAR", "OK: OK 4/5"),
                ("user=alice", "OK: OK 1/3"),
                ("user=alice @2/YEAR", "OVER: OVER 0/2"),
                ("user=alice @9/YEAR", "OK: OK 5/9"),
                ("user=alice @9/MONTH", "OK: OK 8/9"),
                ("unknown=it @1/YEAR, unknown=it", "OK: OK 0/1, -"),
            ],
        ),
        (
            "atomic: what is refused costs nothing",
            atomic(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, path=/big", "OVER: OVER 0/3, OK 10/10"),
                ("path=/big", "OK: OK 9/10"),
                ("user=bob x4", "OVER: OVER 0/3"),
                ("user=bob x0", "OK: OK 3/3"),
                ("user=bob x3", "OK: OK 0/3"),
                ("user=bob x0", "OK: OK 0/3"),
                ("ban=it", "OVER: OVER 0/0"),
                ("ban=it, user=carol", "OVER: OVER 0/0, OK 3/3"),
                ("ban=it x0", "OK: OK 0/0"),
            ],
        ),
        (
            "atomic: a limit that comes along is given back too",
            atomic(),
            &[
                ("user=alice x3", "OK: OK 0/3"),
                ("user=alice, guest=it @5/YEAR", "OVER: OVER 0/3, OK 5/5"),
                ("guest=it x6 @5/YEAR", "OVER: OVER 0/5"),
                ("guest=it x5 @5/YEAR", "OK: OK 0/5"),
            ],
        ),
        (
            "atomic: quota mode and shadow",
            atomic(),
            &[
                ("model=a, model=b, user=alice", "OK: OK 0/1, OK 1/2, OK 2/3"),
                ("model=a, model=b, user=alice", "OK: OVER 0/1, OK 0/2, OK 1/3"),
                ("model=a, model=b, user=alice", "OVER: OVER 0/1, OVER 0/2, OK 1/3"),
                ("model=a, model=any, user=alice", "OVER: OVER 0/1, OK unlimited, OK 1/3"),
                ("watched=it, user=bob", "OK: OK 0/1, OK 2/3"),
                ("watched=it, user=bob", "OK: OK 0/1, OK 1/3"),
            ],
        ),
        (
            "several quotas are charged together, in either way",
            theirs(),
            &[
                ("both=it x3", "OK: OK 0/3"),
                ("both=it", "OVER: OVER 0/3"),
                ("both=it, user=alice", "OVER: OVER 0/3, OK 2/3"),
                ("user=alice x3, both=other", "OVER: OVER 0/3, OK 3/3"),
                ("both=other", "OK: OK 2/3"),
            ],
        ),
    ]
}

async fn tell(service: &DescriptorService, story: &Story, place: &str) {
    for (number, (request, expected)) in story.2.iter().enumerate() {
        let heard = decide(service, request).await;
        assert_eq!(&heard, expected, "{} in {place}, request {number}: {request}", story.0);
    }
}

#[tokio::test]
async fn stories_are_true_in_memory() {
    for story in stories() {
        let (service, _hand) = in_memory(story.1.clone(), limits());
        tell(&service, &story, "memory").await;
    }
}

#[tokio::test]
async fn stories_are_true_in_redis() {
    let server = RedisServer::start().unwrap();
    for story in stories() {
        server.command(&["FLUSHALL"]).unwrap();
        let service = in_redis(&server, story.1.clone(), limits()).await;
        tell(&service, &story, "Redis").await;
    }
}

#[tokio::test]
async fn a_domain_that_is_not_loaded_limits_nothing() {
    let (service, _hand) = in_memory(theirs(), limits());
    let asked = DomainAsk { domain: "other".to_owned(), ..ask("user=alice @0/YEAR, user=bob") };
    assert_eq!(said(&service.decide(asked).await.unwrap()), "OK: -, -");
    assert!(service.stats().contains("ratelimit.service.rate_limit.other.domain_not_found: 2\n"));
}

#[tokio::test]
async fn hits_of_a_request_are_at_least_one() {
    let (service, _hand) = in_memory(theirs(), limits());
    for (hits, expected) in [(0, "OK: OK 9/10"), (1, "OK: OK 8/10"), (5, "OK: OK 3/10")] {
        let asked = DomainAsk { hits, ..ask("path=/big") };
        assert_eq!(said(&service.decide(asked).await.unwrap()), expected);
    }
    let asked = DomainAsk { hits: 5, ..ask("path=/big x1") };
    assert_eq!(said(&service.decide(asked).await.unwrap()), "OK: OK 2/10");
}

#[tokio::test]
async fn what_makes_no_sense_is_refused_with_a_sentence() {
    let (service, _hand) = in_memory(theirs(), limits());
    let many = vec!["user=alice"; 10_000].join(", ");
    let mut deep = ask("user=");
    deep.descriptors[0].entries = vec![deep.descriptors[0].entries[0].clone(); 65];
    let table = [
        (DomainAsk { domain: String::new(), ..ask("user=alice") }, "rate limit domain must not be empty"),
        (
            DomainAsk { descriptors: Vec::new(), ..ask("user=alice") },
            "rate limit descriptor list must not be empty",
        ),
        (ask(&many), "10000 descriptors are too many; send at most 1000 at once"),
        (deep, "descriptors[0] has 65 entries, which are too many; send at most 64"),
    ];
    for (asked, expected) in table {
        let fault = service.decide(asked).await.unwrap_err();
        assert_eq!(fault, DescriptorFault::Invalid(expected.to_owned()));
    }
    let empty = DescriptorService::new(theirs()).unwrap();
    assert_eq!(empty.decide(ask("user=alice")).await, Err(DescriptorFault::NoConfiguration));
}
