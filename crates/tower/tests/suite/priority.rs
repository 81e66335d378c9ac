//! Load shedding by priority.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{TestService, header, is_pending, start};
use http::Request;
use std::sync::Arc;
use tidegate_limiter::Clock;
use tidegate_overload::{
    PriorityLimit,
    priority::{PriorityClass, PriorityRequest},
};
use tidegate_tower::{PriorityLayer, RequestPriority};
use tower::Layer as _;

const USER_CLASS: usize = 0;
const BATCH_CLASS: usize = 1;

#[tokio::test]
async fn full_limit_sheds_batch_before_user() {
    let (clock, _manual_clock) = Clock::manual();
    let classes = [
        PriorityClass::new("user", "80%".parse().unwrap()),
        PriorityClass::new("batch", "10%".parse().unwrap()),
    ];
    let limit = Arc::new(PriorityLimit::builder(classes).clock(clock).build(10).unwrap());
    let priority = RequestPriority::new(limit.clone(), |head, limit| match head.header("x-batch") {
        Some(_) => PriorityRequest::new(BATCH_CLASS),
        None => {
            PriorityRequest::new(USER_CLASS).user(limit.hash_user(head.header("x-user").unwrap_or_default()))
        }
    });
    let inner = TestService::new();
    inner.block();
    let service = PriorityLayer::new(priority).layer(inner.clone());
    let user = || Request::builder().uri("/").header("x-user", "alice").body(()).unwrap();
    let batch = || Request::builder().uri("/").header("x-batch", "1").body(()).unwrap();

    let mut inside = Vec::new();
    while inside.len() < 8 {
        let mut call = start(&service, user()).await;
        assert!(is_pending(&mut call).await, "users have their guaranteed share: {}", inside.len());
        inside.push(call);
    }
    let mut shed = None;
    for _ in 0..10 {
        let mut call = start(&service, batch()).await;
        if is_pending(&mut call).await {
            inside.push(call);
        } else {
            let rejected = start(&service, batch()).await.await.unwrap();
            shed = Some((rejected.status().as_u16(), header(&rejected, "retry-after") == Some("1")));
            break;
        }
    }
    assert_eq!(shed, Some((503, true)));
    assert!(limit.in_flight_of(BATCH_CLASS) <= 2, "batch requests only borrow unused capacity");
    assert_eq!(limit.in_flight_of(USER_CLASS), 8);

    inner.release();
    for call in inside {
        let answer = call.await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(limit.in_flight() > 0, "in flight until the body has ended");
        drop(answer);
    }
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn unknown_class_is_rejected() {
    let limit = PriorityLimit::new([PriorityClass::new("all", "100%".parse().unwrap())], 10).unwrap();
    let service = PriorityLayer::new(RequestPriority::new(limit, |_, _| PriorityRequest::new(7)))
        .layer(TestService::new());
    assert_eq!(crate::support::status(&service).await, 503);
}
