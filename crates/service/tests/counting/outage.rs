//! A store that is away, or takes too long.

use crate::stage::{ask, decide, files, per, quotas};
use std::{future::pending, sync::Arc, time::Duration};
use tidegate_limiter::{
    FailureMode, Store, StoreError,
    store::{StoreFuture, StoreReply, StoreRequest},
};
use tidegate_policy::descriptors::CalendarUnit;
use tidegate_service::descriptors::{
    DescriptorFault, DescriptorService, DomainAsk, ServiceSettings, WhenOver,
};

#[derive(Debug)]
enum Broken {
    Away,
    Hanging,
}

impl Store for Broken {
    fn execute(&self, _: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        match self {
            Self::Away => Box::pin(async { Err(StoreError::Unavailable("gone".to_owned())) }),
            Self::Hanging => Box::pin(pending()),
        }
    }
}

fn service(broken: Broken, outage: FailureMode, when_over: WhenOver) -> DescriptorService {
    let store: Option<Arc<dyn Store>> = Some(Arc::new(broken));
    let deadline = Duration::from_millis(15);
    let settings = ServiceSettings { store, outage, when_over, deadline, ..ServiceSettings::default() };
    let service = DescriptorService::new(settings).unwrap();
    service.load(files(&[("user", per(6, CalendarUnit::Year)), ("both", quotas(&["6 per 52w"]))]));
    service
}

#[tokio::test]
async fn a_store_that_is_away_or_hangs_is_answered_as_declared() {
    for when_over in [WhenOver::CountAll, WhenOver::CountOver] {
        for broken in [|| Broken::Away, || Broken::Hanging] {
            let closed = service(broken(), FailureMode::Closed, when_over);
            for request in ["user=alice", "both=alice", "user=alice, both=alice"] {
                let fault = closed.decide(ask(request)).await.unwrap_err();
                assert!(matches!(fault, DescriptorFault::Unavailable(_)), "{fault:?}");
            }
            assert!(closed.stats().contains("should_rate_limit.redis_error: 3\n"), "{}", closed.stats());

            let open = service(broken(), FailureMode::Open, when_over);
            for _ in 0..10 {
                let said = decide(&open, "user=alice x5, both=alice x5").await;
                assert_eq!(said, "OK: OK 6/6, OK 6/6");
            }

            let local = service(broken(), FailureMode::Local { nodes: 2 }, when_over);
            if let Broken::Hanging = broken() {
                // One that answers late is not unavailable: the decision is not made.
                let fault = local.decide(ask("user=alice")).await.unwrap_err();
                assert!(matches!(fault, DescriptorFault::Unavailable(_)), "{fault:?}");
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

/// Time is virtual here: it passes when everybody waits.
#[tokio::test(start_paused = true)]
#[allow(clippy::disallowed_methods, reason = "the clock of the runtime, which is virtual here")]
async fn caller_that_waits_for_less_gets_its_answer_earlier() {
    let store: Option<Arc<dyn Store>> = Some(Arc::new(Broken::Hanging));
    let service = DescriptorService::new(ServiceSettings { store, ..ServiceSettings::default() }).unwrap();
    service.load(files(&[("user", per(6, CalendarUnit::Year))]));
    for (deadline, least, most) in [(Some(20), 0, 25), (None, 9_000, 11_000), (Some(60_000), 9_000, 11_000)] {
        let started = tokio::time::Instant::now();
        let asked = DomainAsk { deadline: deadline.map(Duration::from_millis), ..ask("user=alice") };
        let fault = service.decide(asked).await.unwrap_err();
        assert!(matches!(fault, DescriptorFault::Unavailable(_)), "{fault:?}");
        let waited = started.elapsed().as_millis();
        assert!((least..most).contains(&waited), "{deadline:?}: {waited} ms");
    }
}
