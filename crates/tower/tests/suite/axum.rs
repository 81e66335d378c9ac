//! The layer in a real axum server, with real clients over HTTP/1.1 and HTTP/2.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{
    header,
    http_server::{ClientProtocol, PROTOCOLS, client, send, serve, status},
    log, quota_remaining, test_rules,
};
use axum::{
    Extension, Router,
    body::Body,
    http::StatusCode,
    response::IntoResponse as _,
    routing::{get, post},
};
use bytes::Bytes;
use http::{HeaderMap, Method, Response};
use http_body_util::{BodyExt as _, channel::Channel};
use std::{
    collections::BTreeMap,
    future::Future as _,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};
use tidegate_limiter::Clock;
use tidegate_rule::{
    ChargePolicy, Gate, HeaderStyle, Mode, RejectionResponse, RuleConfig,
    request::{MissingKey, RequestHead, ResponseHead, TrustedProxies, key},
};
use tidegate_tower::{LimitLayer, key::extension};

async fn hello() -> &'static str {
    "hello"
}

/// Counts the statuses of concurrent GETs, each on its own connection.
async fn count_statuses(
    speaks: ClientProtocol,
    server: std::net::SocketAddr,
    clients: usize,
) -> BTreeMap<u16, usize> {
    let calls: Vec<_> = (0..clients).map(|_| tokio::spawn(status(speaks, server, "/"))).collect();
    let mut counts = BTreeMap::new();
    for call in calls {
        *counts.entry(call.await.unwrap()).or_default() += 1;
    }
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn limit_of_ten_admits_ten_of_hundred_clients() {
    for speaks in PROTOCOLS {
        let program = test_rules();
        let app = Router::new().route("/", get(hello));
        let server = serve(app.layer(LimitLayer::new(program.per_peer("ten", "10/min")))).await;
        assert_eq!(
            count_statuses(speaks, server, 100).await,
            BTreeMap::from([(200, 10), (429, 90)]),
            "{speaks:?}"
        );
    }
}

#[tokio::test]
async fn documented_rejection_is_sent() {
    let document = include_str!("../../../../docs/library.md");
    let (_, rest) = document.split_once("```text\nHTTP/1.1 ").unwrap();
    let (status_line, rest) = rest.split_once('\n').unwrap();
    let (headers, _) = rest.split_once("```").unwrap();
    let program = test_rules();
    let layer = LimitLayer::new(program.per_peer("login", "5/min"));
    let server = serve(Router::new().route("/", get(hello)).layer(layer)).await;
    for _ in 0..5 {
        assert_eq!(status(ClientProtocol::Http1, server, "/").await, 200);
    }
    let rejected = send(ClientProtocol::Http1, server, Method::GET, "/", &[]).await;
    assert_eq!(rejected.status().to_string(), status_line);
    for line in headers.lines() {
        let (name, value) = line.split_once(": ").unwrap();
        assert_eq!(header(&rejected, name), Some(value), "{name}");
    }
}

/// `axum::serve(listener, app)` records no address: `missing` applies to every request, and the log has the reason.
#[tokio::test]
async fn server_without_connect_info_is_reported_once_per_layer() {
    let log = log::capture();
    let program = test_rules();
    let shared = program.per_peer("shared", "2/min");
    let client = key::client(TrustedProxies::private());
    let rejected = program.limit("rejected", "9/min").key(client).missing(MissingKey::Reject);
    let app = Router::new()
        .route("/shared", get(hello).layer(LimitLayer::new(shared)))
        .route("/rejected", get(hello).layer(LimitLayer::new(rejected)));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let server = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    for expected in [200, 200, 429] {
        assert_eq!(status(ClientProtocol::Http1, server, "/shared").await, expected);
    }
    let lines = log.lines();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("ERROR"), "{lines:?}");
    assert!(lines[0].contains("into_make_service_with_connect_info::<SocketAddr>()"), "{lines:?}");
    for _ in 0..3 {
        assert_eq!(status(ClientProtocol::Http1, server, "/rejected").await, 400);
    }
    assert_eq!(log.lines().len(), 2, "each layer reports: {:?}", log.lines());
}

#[tokio::test]
async fn server_with_connect_info_logs_nothing() {
    let log = log::capture();
    let app =
        Router::new().route("/", get(hello)).layer(LimitLayer::new(test_rules().per_peer("one", "1/min")));
    let server = serve(app).await;
    assert_eq!(
        [status(ClientProtocol::Http1, server, "/").await, status(ClientProtocol::Http1, server, "/").await],
        [200, 429]
    );
    assert!(log.lines().is_empty(), "{:?}", log.lines());
}

/// The `RateLimitLayer::new(5, …)` of tower has a state per service, and axum clones the service for each connection, so it
/// would admit 5 requests on each of 50 connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn connections_share_limit() {
    let program = test_rules();
    let app = Router::new().route("/", get(hello)).layer(LimitLayer::new(program.limit("five", "5/min")));
    let server = serve(app).await;
    let mut admitted = 0;
    for _ in 0..50 {
        let client = client(ClientProtocol::Http1);
        for _ in 0..5 {
            let uri = format!("http://{server}/").parse().unwrap();
            let response = client.get(uri).await.unwrap();
            admitted += usize::from(response.status() == 200);
            response.into_body().collect().await.unwrap();
        }
    }
    assert_eq!(admitted, 5);
}

#[tokio::test]
async fn request_tier_selects_quota() {
    let program = test_rules();
    let tiers = ["1/min".parse().unwrap(), "3/min".parse().unwrap()];
    let api = program
        .add_rule(RuleConfig::new("api").tiers(tiers))
        .key(key::header("x-user").unwrap())
        .tier(|head: &dyn RequestHead| usize::from(head.header("x-plan") == Some(b"pro")));
    let server = serve(Router::new().route("/", get(hello)).layer(LimitLayer::new(api))).await;
    let ask = async |user: &'static [u8], plan: &'static [u8]| {
        let headers = [("x-user", user), ("x-plan", plan)];
        let response = send(ClientProtocol::Http1, server, Method::GET, "/", &headers).await;
        (response.status().as_u16(), header(&response, "ratelimit-policy").unwrap().to_owned())
    };
    let free = r#""api";q=1;w=60"#.to_owned();
    let pro = r#""api.2";q=3;w=60"#.to_owned();
    assert_eq!(ask(b"alice", b"free").await, (200, free.clone()));
    assert_eq!(ask(b"alice", b"free").await, (429, free));
    assert_eq!(ask(b"bob", b"pro").await, (200, pro.clone()));
    assert_eq!(ask(b"bob", b"pro").await, (200, pro.clone()));
    assert_eq!(ask(b"bob", b"pro").await, (200, pro.clone()));
    assert_eq!(ask(b"bob", b"pro").await, (429, pro));
}

#[tokio::test]
async fn rules_match_methods_and_routes() {
    let program = test_rules();
    let gate = Gate::new([
        program.limit("writes", "1/min").methods(["POST", "PUT"]),
        program.limit("users", "2/min").routes(["/users/{id}"]),
        program.limit("admin", "1/min").routes(["/admin/*"]),
        program.limit("debug", "1/min").condition(|head: &dyn RequestHead| head.header("x-debug").is_some()),
    ]);
    let app = Router::new()
        .route("/", get(hello).post(hello))
        .route("/users/{id}", get(hello))
        .route("/admin/a", get(hello))
        .route("/admin/{id}/b", get(hello));
    let server = serve(app.layer(LimitLayer::new(gate))).await;
    let debug: &[(&str, &[u8])] = &[("x-debug", b"1")];
    let cases = [
        (Method::POST, "/", &[][..], 200),
        (Method::POST, "/", &[], 429),
        (Method::GET, "/", &[], 200),
        (Method::GET, "/users/1", &[], 200),
        (Method::GET, "/users/2", &[], 200),
        (Method::GET, "/users/3", &[], 429),
        (Method::GET, "/admin/a", &[], 200),
        (Method::GET, "/admin/7/b", &[], 429),
        (Method::GET, "/administration", &[], 404),
        (Method::GET, "/", debug, 200),
        (Method::GET, "/", debug, 429),
    ];
    for (place, (method, path, headers, expected)) in cases.into_iter().enumerate() {
        let response = send(ClientProtocol::Http1, server, method, path, headers).await;
        assert_eq!(response.status().as_u16(), expected, "case {place}: {path}");
    }
}

#[tokio::test]
async fn stacked_limits_are_charged_atomically() {
    let program = test_rules();
    let (minute, hour) = (program.limit("minute", "2/min"), program.limit("hour", "5/h"));
    let slots = program.limit("slots", "1 at once");
    let gate = Gate::new([hour.clone(), minute.clone(), slots.clone()]);
    let server = serve(Router::new().route("/", get(hello)).layer(LimitLayer::new(gate))).await;
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(status(ClientProtocol::Http1, server, "/").await);
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    assert_eq!(
        (quota_remaining(&minute), quota_remaining(&hour), quota_remaining(&slots)),
        (0, 3, 1),
        "a rejected request is not charged"
    );

    let rejected = send(ClientProtocol::Http1, server, Method::GET, "/", &[]).await;
    assert_eq!(header(&rejected, "retry-after"), Some("30"));
    let policies = r#""hour";q=5;w=3600, "minute";q=2;w=60, "slots";q=1;qu="concurrent-requests""#;
    assert_eq!(header(&rejected, "ratelimit-policy"), Some(policies));
    let body = String::from_utf8(rejected.into_body().to_vec()).unwrap();
    assert!(body.contains(r#""violated-policies":["minute"]"#), "{body}");
}

#[tokio::test]
async fn cost_comes_from_function() {
    let program = test_rules();
    let limit = program
        .limit("costs", "10/min")
        .cost(|head: &dyn RequestHead| if head.path() == "/deep" { 8 } else { 1 });
    let app = Router::new().route("/deep", get(hello)).route("/", get(hello));
    let server = serve(app.layer(LimitLayer::new(limit.clone()))).await;
    assert_eq!(status(ClientProtocol::Http1, server, "/deep").await, 200);
    assert_eq!(status(ClientProtocol::Http1, server, "/deep").await, 429);
    assert_eq!(status(ClientProtocol::Http1, server, "/").await, 200);
    assert_eq!(quota_remaining(&limit), 1);
}

/// Responds with the status and the headers that the request names.
async fn respond_as_requested(headers: HeaderMap) -> Response<Body> {
    let status = headers.get("x-answer").map_or(200, |status| status.to_str().unwrap().parse().unwrap());
    let mut response = StatusCode::from_u16(status).unwrap().into_response();
    if let Some(cost) = headers.get("x-cost") {
        response.headers_mut().insert("x-cost", cost.clone());
    }
    response
}

#[tokio::test]
async fn charge_depends_on_response() {
    let program = test_rules();
    let failed = program
        .limit("failed logins", "2/min")
        .charge(ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401));
    let ours = program
        .limit("our faults", "9/min")
        .charge(ChargePolicy::refund_if(|reply: &dyn ResponseHead| reply.status() >= 500));
    let actual =
        program.limit("actual", "99/min").charge(ChargePolicy::actual(|reply: &dyn ResponseHead| {
            std::str::from_utf8(reply.header("x-cost")?).ok()?.parse().ok()
        }));
    let gate = Gate::new([failed.clone(), ours.clone(), actual.clone()]);
    let server =
        serve(Router::new().route("/", post(respond_as_requested)).layer(LimitLayer::new(gate))).await;
    type ChargeCase = (&'static [(&'static str, &'static [u8])], u16, [u64; 3]);
    let cases: [ChargeCase; 6] = [
        (&[], 200, [2, 8, 98]),
        (&[("x-answer", b"401")], 401, [1, 7, 97]),
        (&[("x-answer", b"503")], 503, [1, 7, 96]),
        (&[("x-cost", b"40")], 200, [1, 6, 56]),
        (&[("x-answer", b"401"), ("x-cost", b"0")], 401, [0, 5, 56]),
        (&[], 429, [0, 5, 56]),
    ];
    for (place, (headers, expected, remaining)) in cases.into_iter().enumerate() {
        let response = send(ClientProtocol::Http1, server, Method::POST, "/", headers).await;
        assert_eq!(response.status().as_u16(), expected, "case {place}");
        assert_eq!(
            [quota_remaining(&failed), quota_remaining(&ours), quota_remaining(&actual)],
            remaining,
            "case {place}"
        );
    }
}

#[tokio::test]
async fn rule_can_wait_instead_of_denying() {
    let program = test_rules();
    let waits = RuleConfig::new("waits").quota("10/s burst 1").unwrap().wait(Duration::from_millis(250));
    let app: Router = Router::new().route("/", get(hello)).layer(LimitLayer::new(program.add_rule(waits)));
    let call = || {
        let request = crate::support::get("/").map(|()| Body::empty());
        Some(Box::pin(tower::ServiceExt::oneshot(app.clone(), request)))
    };
    let mut calls = [call(), call(), call(), call()];
    let mut answered = Vec::new();
    for millis in [0, 100, 200] {
        for (place, waiting) in calls.iter_mut().enumerate() {
            let Some(call) = waiting else { continue };
            if let Poll::Ready(answer) = call.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                answered.push((millis, place, answer.unwrap().status().as_u16()));
                *waiting = None;
            }
        }
        program.advance(Duration::from_millis(100));
    }
    assert_eq!(answered, [(0, 0, 200), (0, 3, 429), (100, 1, 200), (200, 2, 200)]);
}

#[tokio::test]
async fn shadow_rule_counts_without_denying() {
    let program = test_rules();
    let shadow = program.add_rule(RuleConfig::new("shadow").quota("1/min").unwrap().mode(Mode::Shadow));
    let real = program.limit("real", "3/min");
    let decisions = Arc::new(Mutex::new(Vec::new()));
    let recorder = decisions.clone();
    let gate = Gate::new([shadow.clone(), real]).with_rejection(move |gate, verdict| {
        recorder
            .lock()
            .unwrap()
            .extend(verdict.decisions().map(|one| (one.rule(gate).unwrap().name().to_owned(), one.mode)));
        verdict.rejection_response(gate)
    });
    let server = serve(Router::new().route("/", get(hello)).layer(LimitLayer::new(gate))).await;
    let first = send(ClientProtocol::Http1, server, Method::GET, "/", &[]).await;
    assert_eq!(
        header(&first, "ratelimit-policy"),
        Some(r#""real";q=3;w=60"#),
        "shadow rules are not in headers"
    );
    assert_eq!(quota_remaining(&shadow), 0);
    let mut statuses = Vec::new();
    for _ in 0..3 {
        statuses.push(status(ClientProtocol::Http1, server, "/").await);
    }
    assert_eq!(statuses, [200, 200, 429]);
    assert_eq!(
        *decisions.lock().unwrap(),
        [("real".to_owned(), Mode::Enforce)],
        "a rejected request is not counted"
    );
}

#[tokio::test]
async fn response_is_function_of_verdict() {
    let program = test_rules();
    let gate = Gate::from(program.limit("pages", "1/min")).with_rejection(|gate, verdict| {
        match verdict.to_limited(gate) {
            Some(limited) => RejectionResponse::redirect(format!("/later?rule={}", limited.rule())),
            None => RejectionResponse::missing_key(),
        }
    });
    let server = serve(Router::new().route("/", get(hello)).layer(LimitLayer::new(gate))).await;
    for speaks in PROTOCOLS {
        let response = send(speaks, server, Method::GET, "/", &[]).await;
        if response.status() == 200 {
            continue;
        }
        assert_eq!(
            (response.status().as_u16(), header(&response, "location")),
            (303, Some("/later?rule=pages"))
        );
    }
}

#[tokio::test]
async fn headers_follow_configured_style() {
    type ExpectedHeaders = &'static [(&'static str, &'static str)];
    let table: [(HeaderStyle, ExpectedHeaders, ExpectedHeaders); 6] = [
        (
            HeaderStyle::Ietf,
            &[("ratelimit-policy", r#""api";q=2;w=60"#), ("ratelimit", r#""api";r=1;t=30"#)],
            &[
                ("ratelimit-policy", r#""api";q=2;w=60"#),
                ("ratelimit", r#""api";r=0;t=30"#),
                ("retry-after", "30"),
            ],
        ),
        (
            HeaderStyle::Legacy,
            &[("x-ratelimit-limit", "2"), ("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "30")],
            &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "30"), ("retry-after", "30")],
        ),
        (
            HeaderStyle::Draft03,
            &[("ratelimit-limit", "2, 2;w=60"), ("ratelimit-remaining", "1"), ("ratelimit-reset", "30")],
            &[("ratelimit-remaining", "0"), ("retry-after", "30")],
        ),
        (
            HeaderStyle::OpenAi,
            &[
                ("x-ratelimit-limit-requests", "2"),
                ("x-ratelimit-remaining-requests", "1"),
                ("x-ratelimit-reset-requests", "30s"),
            ],
            &[("x-ratelimit-remaining-requests", "0"), ("x-ratelimit-reset-requests", "1m0s")],
        ),
        (
            HeaderStyle::Anthropic,
            &[
                ("anthropic-ratelimit-requests-limit", "2"),
                ("anthropic-ratelimit-requests-remaining", "1"),
                ("anthropic-ratelimit-requests-reset", "1970-01-01T00:00:30Z"),
            ],
            &[("anthropic-ratelimit-requests-remaining", "0"), ("retry-after", "30")],
        ),
        (HeaderStyle::None, &[], &[("retry-after", "30")]),
    ];
    for (fields, on_success, on_rejection) in table {
        let program = test_rules();
        let gate = Gate::from(program.limit("api", "2/min")).with_header_style(fields);
        let gate = gate.with_wall_clock(Clock::manual().0);
        let server = serve(Router::new().route("/", get(hello)).layer(LimitLayer::new(gate))).await;
        for expected in [on_success, &[], on_rejection] {
            let response = send(ClientProtocol::Http1, server, Method::GET, "/", &[]).await;
            for (name, value) in expected {
                assert_eq!(header(&response, name), Some(*value), "{fields:?}: {name}");
            }
            let others = response.headers().keys().filter(|name| name.as_str().contains("ratelimit")).count();
            assert_eq!(others == 0, fields == HeaderStyle::None, "{fields:?}");
        }
        // One microsecond before the refill, `Retry-After` is rounded up to one second.
        program.advance(Duration::from_micros(29_999_999));
        let response = send(ClientProtocol::Http1, server, Method::GET, "/", &[]).await;
        assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (429, Some("1")));
    }
}

#[tokio::test]
async fn download_holds_slot_until_end() {
    for speaks in PROTOCOLS {
        let program = test_rules();
        let slots = program.limit("downloads", "1 at once");
        let (mut sender, body) = Channel::<Bytes, std::io::Error>::new(4);
        let body = Arc::new(Mutex::new(Some(body)));
        let download = move || {
            let body = body.lock().unwrap().take();
            async move { body.map_or_else(Body::empty, Body::new) }
        };
        let server =
            serve(Router::new().route("/", get(download)).layer(LimitLayer::new(slots.clone()))).await;
        let client = client(speaks);
        let uri: http::Uri = format!("http://{server}/").parse().unwrap();
        let mut first = client.get(uri.clone()).await.unwrap();
        sender.send_data(Bytes::from_static(b"part")).await.unwrap();
        assert!(first.body_mut().frame().await.unwrap().is_ok());
        assert_eq!(client.get(uri.clone()).await.unwrap().status(), 429, "{speaks:?}");
        drop(sender);
        while first.body_mut().frame().await.is_some() {}
        assert_eq!(client.get(uri).await.unwrap().status(), 200, "{speaks:?}");
    }
}

/// Malformed requests get their documented responses.
#[tokio::test]
async fn malformed_requests_never_return_500() {
    let program = test_rules();
    let megabyte = vec![b'k'; 1 << 20];
    let proxies = TrustedProxies::new(["127.0.0.0/8"]).unwrap();
    let token = || key::header("x-token").unwrap();
    let app = Router::new()
        .route("/shared", get(hello).layer(LimitLayer::new(program.limit("shared", "2/min").key(token()))))
        .route(
            "/skipped",
            get(hello).layer(LimitLayer::new(
                program.limit("skipped", "1/min").key(token()).missing(MissingKey::Skip),
            )),
        )
        .route(
            "/wanted",
            get(hello).layer(LimitLayer::new(
                program.limit("wanted", "1/min").key(token()).missing(MissingKey::Reject),
            )),
        )
        .route(
            "/client",
            get(hello).layer(LimitLayer::new(program.limit("client", "100/min").key(key::client(proxies)))),
        );
    let server = serve(app).await;
    let ask = async |path: &str, headers: &[(&str, &[u8])]| {
        send(ClientProtocol::Http2, server, Method::GET, path, headers).await.status().as_u16()
    };
    // Bytes that are not UTF-8 are a valid key.
    assert_eq!(ask("/shared", &[("x-token", b"\xff\xfe")]).await, 200);
    assert_eq!(ask("/shared", &[("x-token", b"\xff\xfe")]).await, 200);
    assert_eq!(ask("/shared", &[("x-token", b"\xff\xfe")]).await, 429);
    assert_eq!(ask("/shared", &[("x-token", b"\xff\xfd")]).await, 200);
    // A long key is hashed. A missing or empty key is shared, skips the rule, or returns 400, as configured.
    let long: &[(&str, &[u8])] = &[("x-token", &megabyte[..5_000])];
    for expected in [200, 200, 429] {
        assert_eq!(ask("/shared", long).await, expected);
    }
    for path in ["/skipped", "/wanted"] {
        assert_eq!((ask(path, long).await, ask(path, long).await), (200, 429), "{path}");
    }
    assert_eq!(ask("/shared", &[]).await, 200);
    assert_eq!(ask("/shared", &[]).await, 200);
    assert_eq!(ask("/shared", &[("x-token", b"")]).await, 429);
    for headers in [&[][..], &[("x-token", &b""[..])]] {
        assert_eq!(ask("/skipped", headers).await, 200);
        assert_eq!(ask("/wanted", headers).await, 400);
    }
    // The server rejects a megabyte of headers before the layer is called.
    let huge = send(ClientProtocol::Http1, server, Method::GET, "/shared", &[("x-token", &megabyte)]).await;
    assert_eq!(huge.status().as_u16(), 431);
    let malformed: [(&str, &[u8]); 6] = [
        ("x-forwarded-for", b"not an address"),
        ("x-forwarded-for", b",,,,"),
        ("x-forwarded-for", b"\xff\xff"),
        ("forwarded", b"for=\"[::1"),
        ("forwarded", b"for=_hidden;;;by="),
        ("forwarded", b"=;,\"\\"),
    ];
    for header in malformed {
        assert_eq!(ask("/client", &[header]).await, 200, "{header:?}");
    }
}

#[derive(Clone)]
struct JwtClaims {
    subject: &'static str,
}

#[tokio::test]
async fn key_can_be_application_extension() {
    let program = test_rules();
    let limit =
        program.limit("by subject", "1/min").key(extension(|claims: &JwtClaims| Some(claims.subject.into())));
    let layer = LimitLayer::new(limit);
    let app = |subject: &'static str| {
        Router::new().route("/", get(hello)).layer(layer.clone()).layer(Extension(JwtClaims { subject }))
    };
    let (alice, bob) = (serve(app("alice")).await, serve(app("bob")).await);
    assert_eq!(status(ClientProtocol::Http1, alice, "/").await, 200);
    assert_eq!(status(ClientProtocol::Http1, bob, "/").await, 200);
    assert_eq!(status(ClientProtocol::Http1, alice, "/").await, 429);
}
