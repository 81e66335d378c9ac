//! Concurrency limits: admission, waiting, and the release of slots.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{TestService, header, is_pending, request, send_request, start, status};
use http::Request;
use http_body_util::BodyExt as _;
use std::{sync::atomic::Ordering, time::Duration};
use tidegate_limiter::{Clock, Semaphore, WaitPriority};
use tidegate_tower::{ConcurrencyLayer, InFlightEnd, RequestConcurrency};
use tokio::task::JoinSet;
use tower::Layer as _;

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_slots_admit_ten_of_hundred_requests() {
    let inner = TestService::new();
    inner.block();
    let service = ConcurrencyLayer::new(Semaphore::new(10).unwrap()).layer(inner.clone());
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let service = service.clone();
        tasks.spawn(async move { status(&service).await });
    }
    let mut rejected = 0;
    while rejected < 90 {
        assert_eq!(tasks.join_next().await.unwrap().unwrap(), 503);
        rejected += 1;
    }
    inner.release();
    while let Some(status) = tasks.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
    assert_eq!(inner.calls(), 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_requests_run_ten_at_a_time() {
    let inner = TestService::new();
    let slots = Semaphore::new(10).unwrap();
    let service =
        ConcurrencyLayer::new(RequestConcurrency::new(slots.clone()).wait(SECOND * 60)).layer(inner.clone());
    let mut tasks = JoinSet::new();
    for _ in 0..100 {
        let service = service.clone();
        tasks.spawn(async move {
            let answer = send_request(&service, request()).await.unwrap();
            tokio::task::yield_now().await;
            (answer.status().as_u16(), answer.into_body().collect().await.unwrap().to_bytes())
        });
    }
    while let Some(answer) = tasks.join_next().await {
        assert_eq!(answer.unwrap(), (200, "hello".into()));
    }
    assert_eq!(inner.calls(), 100);
    assert!(inner.max_in_flight.load(Ordering::SeqCst) <= 10);
    assert_eq!((slots.in_flight(), slots.waiters()), (0, 0));
}

#[tokio::test]
async fn slot_is_in_use_until_body_ends() {
    for (until, in_flight) in [(InFlightEnd::Body, 1), (InFlightEnd::Head, 0)] {
        let slots = Semaphore::new(1).unwrap();
        let service = ConcurrencyLayer::new(RequestConcurrency::new(slots.clone()).in_flight_end(until))
            .layer(TestService::new());
        let answer = send_request(&service, request()).await.unwrap();
        assert_eq!(slots.in_flight(), in_flight);
        drop(answer);
        assert_eq!(slots.in_flight(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn wait_timeout_is_rejected() {
    let inner = TestService::new();
    inner.block();
    let clock = Clock::tokio();
    let slots = Semaphore::builder().clock(clock.clone()).max_waiters(1).build(1).unwrap();
    let service =
        ConcurrencyLayer::new(RequestConcurrency::new(slots.clone()).wait(SECOND * 3).name("narrow"))
            .layer(inner.clone());

    let mut inside = start(&service, request()).await;
    assert!(is_pending(&mut inside).await);
    let began = clock.now();
    let mut waiting = start(&service, request()).await;
    assert!(is_pending(&mut waiting).await);
    let overflow = send_request(&service, request()).await.unwrap();
    assert_eq!((overflow.status().as_u16(), clock.now()), (503, began), "the queue is full");

    let timed_out = waiting.await.unwrap();
    assert_eq!((timed_out.status().as_u16(), header(&timed_out, "retry-after")), (503, Some("1")));
    assert_eq!(clock.now().saturating_sub(began).to_duration(), SECOND * 3);
    assert_eq!(inner.calls(), 1);
    assert_eq!(slots.waiters(), 0);
}

#[tokio::test]
async fn cancelled_request_leaves_queue() {
    let inner = TestService::new();
    inner.block();
    let slots = Semaphore::new(1).unwrap();
    let service =
        ConcurrencyLayer::new(RequestConcurrency::new(slots.clone()).wait(SECOND * 3)).layer(inner.clone());
    let mut inside = start(&service, request()).await;
    assert!(is_pending(&mut inside).await);
    let mut waiting = start(&service, request()).await;
    assert!(is_pending(&mut waiting).await);
    assert_eq!(slots.waiters(), 1);
    drop(waiting);
    assert_eq!(slots.waiters(), 0);
    drop(inside);
    assert_eq!(slots.in_flight(), 0);
    assert_eq!(inner.calls(), 1);
}

#[tokio::test]
async fn waiting_requests_run_by_priority() {
    let inner = TestService::new();
    inner.block();
    let slots = Semaphore::new(1).unwrap();
    let slots = RequestConcurrency::new(slots)
        .wait(SECOND * 3)
        .priority(|head| WaitPriority(if head.path() == "/health" { 9 } else { 0 }));
    let service = ConcurrencyLayer::new(slots).layer(inner.clone());
    let to = |path: &str| Request::builder().uri(path).body(()).unwrap();
    let mut inside = start(&service, to("/")).await;
    assert!(is_pending(&mut inside).await);
    let mut usual = start(&service, to("/")).await;
    assert!(is_pending(&mut usual).await);
    let mut urgent = start(&service, to("/health")).await;
    assert!(is_pending(&mut urgent).await);

    inner.release();
    drop(inside);
    assert!(is_pending(&mut usual).await, "the earlier request has a lower priority");
    let answer = urgent.await.unwrap();
    drop(answer);
    assert_eq!(usual.await.unwrap().status(), 200);
}
