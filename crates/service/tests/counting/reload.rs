//! Files that change while requests are decided.

use crate::stage::{ask, counting, decide, files, in_memory, per, quotas};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tidegate_policy::descriptors::CalendarUnit;
use tidegate_service::descriptors::{Counting, OverLimit};

#[tokio::test]
async fn what_was_counted_stays_counted() {
    for way in [Counting::Theirs, Counting::Atomic] {
        let (service, _hand) = in_memory(counting(way), files(&[("user", per(5, CalendarUnit::Year))]));
        assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 2/5", "{way:?}");
        service.load(files(&[("user", per(10, CalendarUnit::Year)), ("path", per(1, CalendarUnit::Year))]));
        assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 4/10", "{way:?}");
        service.load(files(&[("user", per(6, CalendarUnit::Year))]));
        assert_eq!(decide(&service, "user=alice").await, "OVER: OVER 0/6", "{way:?}");
    }
    let (service, _hand) = in_memory(counting(Counting::Theirs), files(&[("user", quotas(&["5 per 52w"]))]));
    assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 2/5");
    service.load(files(&[("user", quotas(&["6 per 52w"]))]));
    assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 0/6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_reload_under_load_fails_no_call_and_admits_no_more() {
    let limits = [per(1_000, CalendarUnit::Year), quotas(&["1000 per 52w"])];
    for (limit, way) in limits.into_iter().zip([Counting::Theirs, Counting::Atomic]) {
        let same = || files(&[("user", limit.clone()), ("path", per(7, CalendarUnit::Day))]);
        let (service, _hand) = in_memory(counting(way), same());
        let (service, is_done) = (Arc::new(service), Arc::new(AtomicBool::new(false)));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let service = service.clone();
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..1_000 {
                        let verdict = service.decide(ask("user=alice")).await.unwrap();
                        admitted += usize::from(verdict.overall == OverLimit::No);
                        tokio::task::yield_now().await;
                    }
                    admitted
                })
            })
            .collect();
        let reloads = {
            let (service, is_done, other) =
                (service.clone(), is_done.clone(), files(&[("user", limit.clone())]));
            let same = same();
            tokio::spawn(async move {
                let mut reloads = 0;
                while !is_done.load(Relaxed) {
                    service.load(if reloads % 2 == 0 { other.clone() } else { same.clone() });
                    reloads += 1;
                    tokio::task::yield_now().await;
                }
                reloads
            })
        };
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.unwrap();
        }
        is_done.store(true, Relaxed);
        assert!(reloads.await.unwrap() > 0);
        assert_eq!(admitted, 1_000, "{way:?}");
    }
}
