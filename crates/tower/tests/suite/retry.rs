//! Retries, time limits and hedges of clients, in paused time.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]
#![allow(clippy::disallowed_methods, reason = "the time is paused")]

use http::{Method, Request, Response, StatusCode};
use std::{
    future::pending,
    io,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_core::Micros;
use tidegate_limiter::Clock;
use tidegate_overload::{Breaker, BreakerSettings, CallError, Retrier, RetryBuilder};
use tidegate_rule::{Limited, RuleConfig, Rules};
use tidegate_tower::{GuardLayer, HttpRetries, RequestGuard, RetryAfterError, RetryAfterLayer, RetryLayer};
use tokio::time::sleep;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

fn retrier() -> RetryBuilder {
    Retrier::builder().clock(Clock::tokio()).max(2).backoff(Duration::from_millis(10))
}

fn request(method: Method) -> Request<String> {
    Request::builder().method(method).uri("http://a.test/").body("text".to_owned()).unwrap()
}

fn response(status: u16, retry_after: Option<&str>) -> Response<String> {
    let mut response = Response::new(String::new());
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    if let Some(wait) = retry_after {
        response.headers_mut().insert("retry-after", wait.parse().unwrap());
    }
    response
}

/// A service that answers each request with the next result, and counts them.
fn scripted(
    results: &'static [Result<(u16, Option<&'static str>), io::ErrorKind>],
) -> (
    impl Service<Request<String>, Response = Response<String>, Error = io::Error, Future: Send>
    + Clone
    + Send
    + 'static,
    Arc<AtomicUsize>,
) {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let service = service_fn(move |request: Request<String>| {
        assert_eq!(request.body(), "text");
        let result = results[counted.fetch_add(1, Ordering::SeqCst)];
        async move { result.map(|(status, wait)| response(status, wait)).map_err(io::Error::from) }
    });
    (service, calls)
}

#[tokio::test(start_paused = true)]
async fn idempotent_requests_are_retried_after_transient_results() {
    const FAILED: Result<(u16, Option<&str>), io::ErrorKind> = Err(io::ErrorKind::ConnectionRefused);
    const GOOD: Result<(u16, Option<&str>), io::ErrorKind> = Ok((200, None));
    type Results = &'static [Result<(u16, Option<&'static str>), io::ErrorKind>];
    const PAST: Option<&str> = Some("Sun, 06 Nov 1994 08:49:37 GMT");
    let table: [(Method, Results, usize, u16); 16] = [
        (Method::GET, &[GOOD], 1, 200),
        (Method::GET, &[FAILED, GOOD], 2, 200),
        (Method::PUT, &[Ok((502, None)), Ok((504, None)), GOOD], 3, 200),
        (Method::DELETE, &[Ok((503, None)), GOOD], 2, 200),
        (Method::GET, &[Ok((503, None)), Ok((503, None)), Ok((503, None))], 3, 503),
        (Method::GET, &[Ok((429, Some("3"))), GOOD], 2, 200),
        (Method::GET, &[Ok((503, Some("3"))), GOOD], 2, 200),
        (Method::GET, &[Ok((429, Some("0"))), GOOD], 2, 200),
        (Method::GET, &[Ok((503, Some("0"))), GOOD], 2, 200),
        (Method::GET, &[Ok((429, PAST)), GOOD], 2, 200),
        (Method::GET, &[Ok((429, Some("60")))], 1, 429),
        (Method::GET, &[Ok((429, None))], 1, 429),
        (Method::GET, &[Ok((500, None))], 1, 500),
        (Method::GET, &[Ok((404, None))], 1, 404),
        (Method::POST, &[Ok((503, None))], 1, 503),
        (Method::PATCH, &[Ok((429, Some("1")))], 1, 429),
    ];
    for (method, results, calls, status) in table {
        let (service, counted) = scripted(results);
        let layer = RetryLayer::new(retrier().time_limit(Duration::from_secs(10)).build().unwrap());
        let start = tokio::time::Instant::now();
        let answer = layer.layer(service).oneshot(request(method.clone())).await.unwrap();
        assert_eq!(
            (counted.load(Ordering::SeqCst), answer.status().as_u16()),
            (calls, status),
            "{method} {results:?}"
        );
        let requested = if matches!(results[0], Ok((_, Some("3")))) { 3 } else { 0 };
        assert_eq!(start.elapsed().as_secs(), requested, "{method} {results:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn failed_request_that_must_not_be_repeated_returns_its_error() {
    let (service, calls) = scripted(&[Err(io::ErrorKind::ConnectionReset)]);
    let service = RetryLayer::new(retrier().build().unwrap()).layer(service);
    let error = service.send(request(Method::POST)).await.unwrap_err();
    assert!(matches!(&error, CallError::Failed(error) if error.kind() == io::ErrorKind::ConnectionReset));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn application_decides_which_requests_are_repeatable() {
    let (service, calls) = scripted(&[Ok((503, None)), Ok((200, None)), Ok((503, None))]);
    let http = HttpRetries::new().repeat_if(|method, request| {
        method == Method::POST && request.headers().contains_key("idempotency-key")
    });
    let service = RetryLayer::with_classifier(retrier().build().unwrap(), http).layer(service);
    let mut keyed = request(Method::POST);
    keyed.headers_mut().insert("idempotency-key", "7".parse().unwrap());
    assert_eq!(service.send(keyed).await.unwrap().status(), 200);
    assert_eq!(service.send(request(Method::GET)).await.unwrap().status(), 503);
    assert_eq!(calls.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn last_response_is_returned_when_request_cannot_be_copied_again() {
    let slow_second = |calls: Arc<AtomicUsize>| {
        service_fn(move |_: Request<String>| {
            let call = calls.fetch_add(1, Ordering::SeqCst);
            async move {
                sleep(Duration::from_secs(if call == 0 { 0 } else { 5 })).await;
                Ok::<_, io::Error>(response(503, None))
            }
        })
    };
    // The copies that the application allows are those of the retries.
    for copies in 1..=2 {
        let (calls, allowed) = (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(copies));
        let http = HttpRetries::new().repeat_if(move |_, _| {
            allowed.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1)).is_ok()
        });
        let retrier = retrier().max(9).hedge_after(Duration::from_secs(1)).build().unwrap();
        let layer = RetryLayer::with_classifier(retrier.clone(), http);
        let answer = layer.layer(slow_second(calls.clone())).send(request(Method::GET)).await.unwrap();
        assert_eq!((answer.status().as_u16(), calls.load(Ordering::SeqCst)), (503, copies + 1));
        // The second attempt is hedged if there is another copy.
        let counts = retrier.counts();
        assert_eq!((counts.retries, counts.hedges), (1, copies as u64 - 1), "{counts:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn time_limits_cancel_requests() {
    let started = Arc::new(AtomicUsize::new(0));
    let counted = started.clone();
    let stuck = service_fn(move |_: Request<String>| {
        counted.fetch_add(1, Ordering::SeqCst);
        pending::<Result<Response<String>, io::Error>>()
    });
    let layer = RetryLayer::new(retrier().attempt_time_limit(Duration::from_secs(1)).build().unwrap());
    let service = layer.layer(stuck);
    for (method, attempts) in [(Method::POST, 1), (Method::GET, 3)] {
        started.store(0, Ordering::SeqCst);
        let error = service.send(request(method)).await.unwrap_err();
        assert!(
            matches!(error, CallError::TimeLimitExceeded(limit) if limit == Micros::from_secs(1)),
            "{error}"
        );
        assert_eq!(started.load(Ordering::SeqCst), attempts);
    }
}

#[tokio::test(start_paused = true)]
async fn slow_idempotent_request_is_hedged() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let slow_first = service_fn(move |_: Request<String>| {
        let call = counted.fetch_add(1, Ordering::SeqCst);
        async move {
            sleep(Duration::from_secs(if call == 0 { 5 } else { 1 })).await;
            Ok::<_, io::Error>(response(200, None))
        }
    });
    for (method, attempts, seconds) in [(Method::GET, 2, 2), (Method::POST, 1, 5)] {
        calls.store(0, Ordering::SeqCst);
        let retrier = retrier().hedge_after(Duration::from_secs(1)).build().unwrap();
        let service = RetryLayer::new(retrier.clone()).layer(slow_first.clone());
        let start = tokio::time::Instant::now();
        service.send(request(method)).await.unwrap();
        assert_eq!((calls.load(Ordering::SeqCst), start.elapsed().as_secs()), (attempts, seconds));
        assert_eq!(retrier.counts().hedge_wins, attempts as u64 - 1);
    }
}

#[tokio::test(start_paused = true)]
async fn rejections_of_inner_layers_are_retried_after_their_time() {
    // The rule of the client admits one call per second.
    let (service, calls) =
        scripted(&[Ok((200, None)), Ok((200, None)), Ok((429, Some("2"))), Ok((200, None))]);
    let rules = Rules::new();
    rules.apply(tidegate_rule::Settings::new().clock(Clock::tokio())).unwrap();
    let rule = rules.declare(RuleConfig::new("outbound").quota("1/s").unwrap()).unwrap();
    let inner = RetryAfterLayer::new().rule(rule).clock(Clock::tokio()).layer(service);
    let service = RetryLayer::new(retrier().time_limit(Duration::from_secs(9)).build().unwrap()).layer(inner);
    let start = tokio::time::Instant::now();
    for (status, seconds) in [(200, 0), (200, 1), (200, 4)] {
        assert_eq!(service.send(request(Method::GET)).await.unwrap().status(), status);
        assert_eq!(start.elapsed().as_secs(), seconds);
    }
    assert_eq!(calls.load(Ordering::SeqCst), 4);
}

#[tokio::test(start_paused = true)]
async fn retry_time_of_server_backoff_is_honoured() {
    let (service, calls) = scripted(&[Ok((429, Some("2"))), Ok((200, None))]);
    let inner = RetryAfterLayer::new().clock(Clock::tokio()).layer(service);
    assert_eq!(inner.send(request(Method::POST)).await.unwrap().status(), 429);
    let rejected = inner.send(request(Method::POST)).await.unwrap_err();
    assert!(matches!(rejected, RetryAfterError::Backoff(_)), "{rejected}");
    let service = RetryLayer::new(retrier().time_limit(Duration::from_secs(9)).build().unwrap()).layer(inner);
    let start = tokio::time::Instant::now();
    assert_eq!(service.send(request(Method::GET)).await.unwrap().status(), 200);
    assert_eq!((calls.load(Ordering::SeqCst), start.elapsed().as_secs()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn breaker_inside_counts_each_attempt() {
    let (service, calls) = scripted(&[Ok((503, None)), Ok((503, None)), Ok((200, None))]);
    let settings =
        BreakerSettings::builder().count_window(2).open_duration(Micros::from_secs(5)).half_open_calls(1);
    let breaker = Arc::new(Breaker::with_clock(settings.build().unwrap(), Clock::tokio()));
    let guarded = GuardLayer::new(RequestGuard::new(breaker).for_client_calls()).layer(service);
    let layer = RetryLayer::new(retrier().max(3).time_limit(Duration::from_secs(20)).build().unwrap());
    let start = tokio::time::Instant::now();
    let answer = layer.layer(guarded).oneshot(request(Method::GET)).await.unwrap();
    // Two failures open the breaker; the third attempt is rejected, and the fourth is its probe.
    assert_eq!((answer.status().as_u16(), calls.load(Ordering::SeqCst)), (200, 3));
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn rejection_without_retry_time_is_not_retried() {
    let breaker = Arc::new(Breaker::new(BreakerSettings::builder().build().unwrap()));
    breaker.force_open();
    let (service, calls) = scripted(&[]);
    let guarded = GuardLayer::new(RequestGuard::new(breaker).for_client_calls()).layer(service);
    let retrier = retrier().build().unwrap();
    let answer = RetryLayer::new(retrier.clone()).layer(guarded).oneshot(request(Method::GET)).await.unwrap();
    // The response has the `Retry-After` for clients of a server.
    assert_eq!((answer.status().as_u16(), &answer.headers()["retry-after"]), (503, &"1".parse().unwrap()));
    assert_eq!((calls.load(Ordering::SeqCst), retrier.counts().retries), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn breaker_inside_opens_for_server_that_hangs() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let stuck = service_fn(move |_: Request<String>| {
        counted.fetch_add(1, Ordering::SeqCst);
        pending::<Result<Response<String>, io::Error>>()
    });
    let settings = BreakerSettings::builder().count_window(2).open_duration(Micros::from_secs(60));
    let breaker = Arc::new(Breaker::with_clock(settings.build().unwrap(), Clock::tokio()));
    let guarded = GuardLayer::new(RequestGuard::new(breaker).for_client_calls()).layer(stuck);
    let retrier = retrier().max(9).attempt_time_limit(Duration::from_secs(1)).build().unwrap();
    let answer = RetryLayer::new(retrier).layer(guarded).oneshot(request(Method::GET)).await.unwrap();
    assert_eq!((answer.status().as_u16(), calls.load(Ordering::SeqCst)), (503, 2));
    assert!(answer.extensions().get::<Limited>().is_some(), "a rejection by the breaker");
}

#[tokio::test(start_paused = true)]
async fn any_service_with_clone_requests_is_retried() {
    let service = service_fn(|number: Arc<AtomicUsize>| async move {
        match number.fetch_add(1, Ordering::SeqCst) {
            0 | 1 => Err("failed"),
            calls => Ok(calls),
        }
    });
    let mut service = RetryLayer::for_clone(retrier().build().unwrap()).layer(service);
    assert_eq!(service.ready().await.unwrap().call(Arc::default()).await, Ok(2));
}
