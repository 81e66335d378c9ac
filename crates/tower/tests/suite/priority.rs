//! Shedding load: the least important first.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::stage::{Player, header, is_pending, start};
use http::Request;
use std::sync::Arc;
use tidegate_limiter::Clock;
use tidegate_overload::{
    PriorityLimit,
    priority::{Arrival, Class},
};
use tidegate_tower::{PriorityLayer, RequestPriority};
use tower::Layer as _;

const USER: usize = 0;
const BATCH: usize = 1;

#[tokio::test]
async fn when_it_is_full_the_batch_is_shed_and_the_user_is_not() {
    let (clock, _hand) = Clock::manual();
    let classes = [Class::new("user", "80%".parse().unwrap()), Class::new("batch", "10%".parse().unwrap())];
    let limit = Arc::new(PriorityLimit::builder(classes).clock(clock).build(10).unwrap());
    let priority = RequestPriority::new(limit.clone(), |head, limit| match head.header("x-batch") {
        Some(_) => Arrival::of(BATCH),
        None => Arrival::of(USER).user(limit.user(head.header("x-user").unwrap_or_default())),
    });
    let player = Player::new();
    player.hold();
    let service = PriorityLayer::new(priority).layer(player.clone());
    let user = || Request::builder().uri("/").header("x-user", "alice").body(()).unwrap();
    let batch = || Request::builder().uri("/").header("x-batch", "1").body(()).unwrap();

    let mut inside = Vec::new();
    while inside.len() < 8 {
        let mut call = start(&service, user()).await;
        assert!(is_pending(&mut call).await, "the share of users is theirs: {}", inside.len());
        inside.push(call);
    }
    let mut shed = None;
    for _ in 0..10 {
        let mut call = start(&service, batch()).await;
        if is_pending(&mut call).await {
            inside.push(call);
        } else {
            let refused = start(&service, batch()).await.await.unwrap();
            shed = Some((refused.status().as_u16(), header(&refused, "retry-after") == Some("1")));
            break;
        }
    }
    assert_eq!(shed, Some((503, true)));
    assert!(limit.in_flight_of(BATCH) <= 2, "what is not theirs is lent to them at most");
    assert_eq!(limit.in_flight_of(USER), 8);

    player.release();
    for call in inside {
        let answer = call.await.unwrap();
        assert_eq!(answer.status(), 200);
        assert!(limit.in_flight() > 0, "in flight until the body has ended");
        drop(answer);
    }
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn a_class_that_there_is_not_is_an_answer_too() {
    let limit = PriorityLimit::new([Class::new("all", "100%".parse().unwrap())], 10).unwrap();
    let service = PriorityLayer::new(RequestPriority::new(limit, |_, _| Arrival::of(7))).layer(Player::new());
    assert_eq!(crate::stage::status(&service).await, 503);
}
