//! The context of a request in nested functions and inner layers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::send_request;
use http::{Request, Response};
use std::{
    net::SocketAddr,
    sync::{Arc, LazyLock},
};
use tidegate_limiter::Clock;
use tidegate_rule::{
    Limited, RequestContext, Rule, RuleConfig, Rules, Settings,
    request::{TrustedProxies, key},
    site,
};
use tidegate_tower::{ContextExtractor, ContextLayer, GuardLayer, Guards, RequestGuard};
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
async fn nested_function_sees_request_context() {
    let context = ContextExtractor::new()
        .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"]).unwrap())
        .user(|head| head.header("x-user").and_then(|user| str::from_utf8(user).ok()).map(Into::into));
    let service = ContextLayer::new(context).layer(service_fn(handler));
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
    assert!(RequestContext::current().is_none(), "the context does not outlive the request");
}

#[tokio::test]
async fn inner_layer_sees_request_context() {
    let guards = Arc::new(Guards::builder().build(|| {
        tidegate_overload::AdaptiveLimit::new(tidegate_overload::adaptive::Aimd::new(Default::default()))
            .unwrap()
    }));
    let context =
        ContextExtractor::new().extend(|_, context| context.with_user("from-a-token").with("tenant", "acme"));
    let context = ContextLayer::new(context);
    let inner = GuardLayer::new(RequestGuard::by_key(guards.clone(), key::user()))
        .layer(crate::support::TestService::new());
    let service = context.layer(inner);
    assert_eq!(crate::support::status(&service).await, 200);
    assert_eq!(guards.count(), 1);

    let inspect = service_fn(|request: Request<()>| async move {
        let from_extensions = request.extensions().get::<RequestContext>().cloned();
        Ok::<_, crate::support::TestServiceError>((from_extensions, RequestContext::current()))
    });
    let (from_extensions, from_task) =
        send_request(&context.layer(inspect), request_from([192, 0, 2, 1], "")).await.unwrap();
    assert_eq!(from_extensions.as_ref(), from_task.as_deref());
    assert_eq!(from_extensions.unwrap().get("tenant"), Some("acme"));
}
