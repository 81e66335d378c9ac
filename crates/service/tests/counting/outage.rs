//! A store that is unavailable or times out.

use crate::common::{decide, parse_request, per_unit, test_config, with_quotas};
use std::{future::pending, sync::Arc, time::Duration};
use tidegate_limiter::{
    FailureMode, Store, StoreError,
    store::{StoreFuture, StoreReply, StoreRequest},
};
use tidegate_policy::descriptors::CalendarUnit;
use tidegate_service::descriptors::{
    DecisionError, DescriptorService, DomainRequest, OverLimitCounting, ServiceSettings,
};

#[derive(Debug)]
enum FailingStore {
    Unavailable,
    Hanging,
}

impl Store for FailingStore {
    fn execute(&self, _: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        match self {
            Self::Unavailable => Box::pin(async { Err(StoreError::Unavailable("gone".to_owned())) }),
            Self::Hanging => Box::pin(pending()),
        }
    }
}

fn start_service(
    store: FailingStore,
    outage: FailureMode,
    when_over: OverLimitCounting,
) -> DescriptorService {
    let store: Option<Arc<dyn Store>> = Some(Arc::new(store));
    let deadline = Duration::from_millis(15);
    let settings = ServiceSettings {
        store,
        outage,
        over_limit_counting: when_over,
        deadline,
        ..ServiceSettings::default()
    };
    let service = DescriptorService::new(settings).unwrap();
    service.load(test_config(&[
        ("user", per_unit(6, CalendarUnit::Year)),
        ("both", with_quotas(&["6 per 52w"])),
    ]));
    service
}

#[tokio::test]
async fn failing_store_is_handled_as_declared() {
    for when_over in [OverLimitCounting::CountAll, OverLimitCounting::CountOverLimit] {
        for broken in [|| FailingStore::Unavailable, || FailingStore::Hanging] {
            let closed = start_service(broken(), FailureMode::Closed, when_over);
            for request in ["user=alice", "both=alice", "user=alice, both=alice"] {
                let error = closed.decide(parse_request(request)).await.unwrap_err();
                assert!(matches!(error, DecisionError::Unavailable(_)), "{error:?}");
            }
            assert!(closed.stats().contains("should_rate_limit.redis_error: 3\n"), "{}", closed.stats());

            let open = start_service(broken(), FailureMode::Open, when_over);
            for _ in 0..10 {
                let verdict = decide(&open, "user=alice x5, both=alice x5").await;
                assert_eq!(verdict, "OK: OK 6/6, OK 6/6");
            }

            let local = start_service(broken(), FailureMode::Local { nodes: 2 }, when_over);
            if let FailingStore::Hanging = broken() {
                // A store that times out is not unavailable: the decision fails.
                let error = local.decide(parse_request("user=alice")).await.unwrap_err();
                assert!(matches!(error, DecisionError::Unavailable(_)), "{error:?}");
                continue;
            }
            for (request, expected) in [
                ("user=alice x2", "OK: OK 1/6"),
                ("user=alice", "OK: OK 0/6"),
                ("user=alice", "OVER: OVER 0/6"),
                ("both=alice x3", "OK: OK 0/6"),
                ("both=alice", "OVER: OVER 0/6"),
            ] {
                assert_eq!(decide(&local, request).await, expected, "{request}");
            }
        }
    }
}

/// The paused clock of Tokio advances when all tasks wait.
#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the clock of the runtime, which is virtual here")]
async fn shorter_caller_deadline_answers_earlier() {
    let store: Option<Arc<dyn Store>> = Some(Arc::new(FailingStore::Hanging));
    let service = DescriptorService::new(ServiceSettings { store, ..ServiceSettings::default() }).unwrap();
    service.load(test_config(&[("user", per_unit(6, CalendarUnit::Year))]));
    for (deadline, min, max) in [(Some(20), 0, 25), (None, 9_000, 11_000), (Some(60_000), 9_000, 11_000)] {
        let started = tokio::time::Instant::now();
        let request =
            DomainRequest { deadline: deadline.map(Duration::from_millis), ..parse_request("user=alice") };
        let error = service.decide(request).await.unwrap_err();
        assert!(matches!(error, DecisionError::Unavailable(_)), "{error:?}");
        let waited = started.elapsed().as_millis();
        assert!((min..max).contains(&waited), "{deadline:?}: {waited} ms");
    }
}
