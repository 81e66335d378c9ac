//! The tower service contract for each layer: readiness is that of the inner service, `poll_ready` acquires nothing,
//! cancelled calls release everything, and clones share their state.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{TestService, TestServiceError, is_pending, request, send_request};
use http::{Request, Response};
use http_body::Body;
use std::{net::SocketAddr, sync::Arc, task::Poll, time::Duration};
use tidegate_access::{AccessControl, AccessList, Bans};
use tidegate_bandwidth::Bandwidth;
use tidegate_limiter::{Clock, Semaphore};
use tidegate_overload::{
    AdaptiveLimit, Breaker, BreakerSettings, PriorityLimit,
    adaptive::{Aimd, Bounds},
    priority::{PriorityClass, PriorityRequest},
};
use tidegate_tower::{
    AccessLayer, BandwidthLayer, ConcurrencyLayer, ContextLayer, GuardLayer, InFlightEnd, PriorityLayer,
    RequestAccess, RequestConcurrency, RequestGuard, RequestPriority, RetryAfterLayer,
};
use tower::{Layer, Service, ServiceExt as _};

fn zero() -> u32 {
    0
}

/// Checks a layer; `taken` returns the number of permits in use.
async fn check_service_contract<L, S, R>(name: &str, layer: L, taken: impl Fn() -> u32)
where
    L: Layer<TestService, Service = S>,
    S: Service<Request<()>, Response = Response<R>, Future: Unpin + Send> + Clone,
    S::Error: std::fmt::Debug,
    R: Body,
{
    let inner = TestService::new();
    let service = layer.layer(inner.clone());
    let request_from_peer = || {
        let mut request = request();
        request.extensions_mut().insert(SocketAddr::from(([192, 0, 2, 1], 80)));
        request
    };

    // `poll_ready` acquires nothing.
    for _ in 0..100 {
        service.clone().ready().await.unwrap();
    }
    assert_eq!(taken(), 0, "{name}");
    assert_eq!(inner.calls(), 0, "{name}");

    // `call` makes the decision, and a dropped future releases its permit, polled or not.
    inner.block();
    for polls in 0..2 {
        let mut ready = service.clone();
        ready.ready().await.unwrap();
        let mut answer = ready.call(request_from_peer());
        for _ in 0..polls {
            assert!(is_pending(&mut answer).await, "{name}");
        }
        drop(answer);
        assert_eq!(taken(), 0, "{name}");
    }
    inner.release();

    // A response releases its permit when it is read to its end or dropped.
    for _ in 0..20 {
        let response = send_request(&service, request_from_peer())
            .await
            .unwrap_or_else(|error| panic!("{name}: {error:?}"));
        assert_eq!(response.status(), 200, "{name}");
        drop(response);
        assert_eq!(taken(), 0, "{name}");
    }

    // An error of the service is returned unchanged.
    inner.set_status(0);
    assert!(send_request(&service, request_from_peer()).await.is_err(), "{name}");
    assert_eq!(taken(), 0, "{name}");

    // If the inner service is not ready, the layer is not ready.
    inner.set_unready();
    let mut unready = service.clone();
    let is_ready = std::future::poll_fn(|context| Poll::Ready(unready.poll_ready(context).is_ready())).await;
    assert!(!is_ready, "{name}");
}

#[tokio::test]
async fn every_layer_keeps_service_contract() {
    let breaker = Arc::new(Breaker::new(BreakerSettings::builder().count_window(1_000).build().unwrap()));
    check_service_contract("breaker", GuardLayer::new(breaker.clone()), || {
        u32::try_from(breaker.snapshot().counts.failures).unwrap().saturating_sub(1)
    })
    .await;

    for until in [InFlightEnd::Head, InFlightEnd::Body] {
        let limit = Arc::new(AdaptiveLimit::new(Aimd::new(Bounds::default())).unwrap());
        let layer = GuardLayer::new(RequestGuard::new(limit.clone()).in_flight_end(until));
        check_service_contract("adaptive", layer, || limit.in_flight()).await;
    }

    for patience in [Duration::ZERO, Duration::from_secs(1)] {
        let slots = Semaphore::new(1).unwrap();
        let layer = ConcurrencyLayer::new(RequestConcurrency::new(slots.clone()).wait(patience));
        check_service_contract("concurrency", layer, || slots.in_flight() + slots.waiters()).await;
    }

    let limit =
        Arc::new(PriorityLimit::new([PriorityClass::new("all", "100%".parse().unwrap())], 4).unwrap());
    let layer = PriorityLayer::new(RequestPriority::new(limit.clone(), |_, _| PriorityRequest::new(0)));
    check_service_contract("priority", layer, || limit.in_flight()).await;

    let control = AccessControl::new(AccessList::default(), Bans::builder().build().unwrap());
    check_service_contract("access", AccessLayer::new(RequestAccess::new(control).ban_on(|_| true)), zero)
        .await;
    let bandwidth = Bandwidth::builder().clock(Clock::tokio()).build("1MB/s").unwrap();
    check_service_contract("bandwidth", BandwidthLayer::new(bandwidth), zero).await;
    check_service_contract("context", ContextLayer::default(), zero).await;
    check_service_contract("client", RetryAfterLayer::new(), zero).await;
}

#[tokio::test]
async fn error_passes_through_unchanged() {
    let inner = TestService::new();
    inner.set_status(0);
    let slots = Semaphore::new(1).unwrap();
    let service = ConcurrencyLayer::new(slots).layer(inner);
    assert_eq!(send_request(&service, request()).await.unwrap_err(), TestServiceError);
}
