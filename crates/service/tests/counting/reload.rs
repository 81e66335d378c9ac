//! Configuration reloads during requests.

use crate::common::{
    decide, memory_service, parse_request, per_unit, settings_with_counting, test_config, with_quotas,
};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};
use tidegate_policy::descriptors::CalendarUnit;
use tidegate_service::descriptors::{CountingMode, LimitCode};

#[tokio::test]
async fn reload_keeps_counters() {
    for counting in [CountingMode::Reference, CountingMode::Atomic] {
        let (service, _manual_clock) = memory_service(
            settings_with_counting(counting),
            test_config(&[("user", per_unit(5, CalendarUnit::Year))]),
        );
        assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 2/5", "{counting:?}");
        service.load(test_config(&[
            ("user", per_unit(10, CalendarUnit::Year)),
            ("path", per_unit(1, CalendarUnit::Year)),
        ]));
        assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 4/10", "{counting:?}");
        service.load(test_config(&[("user", per_unit(6, CalendarUnit::Year))]));
        assert_eq!(decide(&service, "user=alice").await, "OVER: OVER 0/6", "{counting:?}");
    }
    let (service, _manual_clock) = memory_service(
        settings_with_counting(CountingMode::Reference),
        test_config(&[("user", with_quotas(&["5 per 52w"]))]),
    );
    assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 2/5");
    service.load(test_config(&[("user", with_quotas(&["6 per 52w"]))]));
    assert_eq!(decide(&service, "user=alice x3").await, "OK: OK 0/6");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reload_under_load_admits_exactly_the_limit() {
    let limits = [per_unit(1_000, CalendarUnit::Year), with_quotas(&["1000 per 52w"])];
    for (limit, counting) in limits.into_iter().zip([CountingMode::Reference, CountingMode::Atomic]) {
        let same = || test_config(&[("user", limit.clone()), ("path", per_unit(7, CalendarUnit::Day))]);
        let (service, _manual_clock) = memory_service(settings_with_counting(counting), same());
        let (service, is_done) = (Arc::new(service), Arc::new(AtomicBool::new(false)));
        let callers: Vec<_> = (0..4)
            .map(|_| {
                let service = service.clone();
                tokio::spawn(async move {
                    let mut admitted = 0;
                    for _ in 0..1_000 {
                        let verdict = service.decide(parse_request("user=alice")).await.unwrap();
                        admitted += usize::from(verdict.overall_code == LimitCode::Ok);
                        tokio::task::yield_now().await;
                    }
                    admitted
                })
            })
            .collect();
        let reloads = {
            let (service, is_done, other) =
                (service.clone(), is_done.clone(), test_config(&[("user", limit.clone())]));
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
        assert_eq!(admitted, 1_000, "{counting:?}");
    }
}
