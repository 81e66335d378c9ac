//! Facts of a request in nested functions and inner layers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::send_request;
use http::{Request, Response};
use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
};
use tidegate_limiter::Clock;
use tidegate_rule::{
    Facts, Limited, Rule, RuleConfig, Rules, Settings,
    request::{TrustedProxies, key},
    site,
};
use tidegate_tower::{FactsLayer, GuardLayer, Guards, RequestFacts, RequestGuard};
use tower::{Layer as _, service_fn};

static RULE: LazyLock<Rule> = LazyLock::new(|| {
    let rules = Rules::new();
    rules.apply(Settings::new().clock(Clock::manual().0)).unwrap();
    rules.declare(RuleConfig::new("deep").quota("2/min").unwrap()).unwrap()
});

/// Does the same as an attribute with `key = ip`, two calls below the handler.
async fn check_nested() -> Result<(), Limited> {
    tokio::task::yield_now().await;
    RULE.admit(&site::ip(), 1).await
}

async fn handler(_: Request<()>) -> Result<Response<String>, Limited> {
    check_nested().await?;
    Ok(Response::new(site::user().to_string()))
}

fn request_from(peer: [u8; 4], forwarded: &str) -> Request<()> {
    let mut request = Request::builder().uri("/").header("x-user", "alice");
    if !forwarded.is_empty() {
        request = request.header("x-forwarded-for", forwarded);
    }
    let mut request = request.body(()).unwrap();
    request.extensions_mut().insert(SocketAddr::from((peer, 80)));
    request
}

#[tokio::test]
async fn nested_function_sees_facts() {
    let facts = RequestFacts::new()
        .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"]).unwrap())
        .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
    let service = FactsLayer::new(facts).layer(service_fn(handler));
    for _ in 0..2 {
        let answer = send_request(&service, request_from([10, 0, 0, 1], "203.0.113.7")).await.unwrap();
        assert_eq!(answer.body(), "alice");
    }
    let limited = send_request(&service, request_from([10, 0, 0, 2], "203.0.113.7")).await.unwrap_err();
    assert_eq!(limited.rule(), "deep");
    assert!(
        send_request(&service, request_from([10, 0, 0, 1], "203.0.113.8")).await.is_ok(),
        "another client"
    );
    assert!(
        send_request(&service, request_from([198, 51, 100, 1], "203.0.113.7")).await.is_ok(),
        "a forged header"
    );
    assert!(Facts::current().is_none(), "the facts do not outlive the request");
}

#[tokio::test]
async fn inner_layer_sees_facts() {
    let guards = Arc::new(Guards::builder().build(|| {
        tidegate_overload::AdaptiveLimit::new(tidegate_overload::adaptive::Aimd::new(Default::default()))
            .unwrap()
    }));
    let facts = RequestFacts::new().extend(|_, facts| facts.with_user("from-a-token").with("tenant", "acme"));
    let facts = FactsLayer::new(facts);
    let inner = GuardLayer::new(RequestGuard::by_key(guards.clone(), key::user()))
        .layer(crate::support::TestService::new());
    let service = facts.layer(inner);
    assert_eq!(crate::support::status(&service).await, 200);
    assert_eq!(guards.count(), 1);

    let inspect = service_fn(|request: Request<()>| async move {
        let beside = request.extensions().get::<Facts>().cloned();
        Ok::<_, crate::support::TestServiceError>((beside, Facts::current()))
    });
    let (beside, around) =
        send_request(&facts.layer(inspect), request_from([192, 0, 2, 1], "")).await.unwrap();
    assert_eq!(beside.as_ref(), around.as_deref());
    assert_eq!(beside.unwrap().get("tenant"), Some("acme"));
}
