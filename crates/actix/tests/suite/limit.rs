//! Gates: admission, charges and response headers.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use crate::support::RuleFixture;
use actix_web::{
    App, Error, HttpMessage as _, HttpRequest, HttpResponse,
    dev::{Service, ServiceResponse},
    error::ErrorBadGateway,
    http::header::{HeaderName, HeaderValue},
    test::{self, TestRequest},
    web,
};
use std::{
    future::pending,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tidegate_actix::{LimitMiddleware, key::extension};
use tidegate_identity::{
    CredentialSource,
    jwt::{JwtAuthenticator, JwtKeySet, JwtSettings, JwtVerifier},
};
use tidegate_rule::{
    ChargePolicy, Gate, HeaderStyle, RejectionResponse, RequestLimit, RuleConfig,
    request::{CertificateName, ClientCertificate, MissingKey, ResponseHead, TrustedProxies, key},
};
use tidegate_testkit::tokens::TokenIssuer;

/// An application with a gate, whose handler responds as requested.
macro_rules! app {
    ($gate:expr) => {
        test::init_service(
            App::new().wrap(LimitMiddleware::new($gate)).default_service(web::to(respond_as_requested)),
        )
        .await
    };
}

/// Responds with the status and the price in the query.
async fn respond_as_requested(request: HttpRequest) -> HttpResponse {
    let query = request.query_string();
    let query_value =
        |name: &str| query.split('&').find_map(|part| part.strip_prefix(name)?.strip_prefix('='));
    let status: u16 = query_value("status").map_or(200, |status| status.parse().unwrap());
    let mut response = HttpResponse::build(status.try_into().unwrap());
    if let Some(cost) = query_value("price") {
        response.insert_header(("x-price", cost));
    }
    response.body("served")
}

async fn send_request<S, B>(app: &S, request: TestRequest) -> ServiceResponse<B>
where
    S: Service<actix_http::Request, Response = ServiceResponse<B>, Error = Error>,
{
    app.call(request.to_request()).await.unwrap()
}

fn header<'a, B>(response: &'a ServiceResponse<B>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn headers_report_remaining_and_reset() {
    let fixture = RuleFixture::new();
    let app = app!(fixture.limit("api", "2/min"));

    let response = send_request(&app, TestRequest::get()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(header(&response, "ratelimit-policy"), Some(r#""api";q=2;w=60"#));
    assert_eq!(header(&response, "ratelimit"), Some(r#""api";r=1;t=30"#));
    assert_eq!(header(&response, "retry-after"), None);
    assert_eq!(send_request(&app, TestRequest::get()).await.status(), 200);

    let response = send_request(&app, TestRequest::get()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(header(&response, "retry-after"), Some("30"));
    assert_eq!(header(&response, "ratelimit"), Some(r#""api";r=0;t=30"#));
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
    let body = test::read_body(response).await;
    assert!(str::from_utf8(&body).unwrap().contains(r#""violated-policies":["api"]"#), "{body:?}");

    fixture.clock.advance(Duration::from_millis(29_999));
    let response = send_request(&app, TestRequest::get()).await;
    assert_eq!((response.status().as_u16(), header(&response, "retry-after")), (429, Some("1")));
    fixture.clock.advance(Duration::from_millis(1));
    assert_eq!(send_request(&app, TestRequest::get()).await.status(), 200);
}

#[tokio::test]
async fn headers_and_response_are_configurable() {
    let fixture = RuleFixture::new();
    let legacy = Gate::from(fixture.limit("legacy", "1/min")).with_header_style(HeaderStyle::Legacy);
    let app = app!(legacy);
    let response = send_request(&app, TestRequest::get()).await;
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("0"));
    assert_eq!(header(&response, "ratelimit"), None);

    let silent = Gate::from(fixture.limit("silent", "1/min"))
        .with_header_style(HeaderStyle::None)
        .with_rejection(|_, verdict| {
            RejectionResponse::new(303).header("location", format!("/wait/{:?}", verdict.retry_after()))
        });
    let app = app!(silent);
    let response = send_request(&app, TestRequest::get()).await;
    assert_eq!((response.status().as_u16(), header(&response, "ratelimit-policy")), (200, None));
    let response = send_request(&app, TestRequest::get()).await;
    assert_eq!(response.status(), 303);
    assert_eq!(header(&response, "location"), Some("/wait/Some(60s)"));
    assert_eq!(test::read_body(response).await, "");
}

#[tokio::test]
async fn charge_depends_on_response() {
    let fixture = RuleFixture::new();
    let failed = ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401);
    let refund = ChargePolicy::refund_if(|reply: &dyn ResponseHead| reply.status() >= 500);
    let actual_cost = ChargePolicy::actual(|reply: &dyn ResponseHead| {
        str::from_utf8(reply.header("x-price")?).ok()?.parse().ok()
    });
    // A quota of five, a sequence of requests, and the expected statuses.
    type StatusSequence = &'static [(&'static str, u16)];
    let sequences: [(&str, ChargePolicy, StatusSequence); 3] = [
        (
            "login",
            failed,
            &[
                ("/?status=200", 200),
                ("/?status=401", 401),
                ("/?status=401", 401),
                ("/?status=200", 200),
                ("/?status=401", 401),
                ("/?status=401", 401),
                ("/?status=401", 401),
                ("/?status=200", 429),
            ],
        ),
        (
            "refund",
            refund,
            &[
                ("/?status=500", 500),
                ("/?status=503", 503),
                ("/?status=200", 200),
                ("/?status=404", 404),
                ("/?status=500", 500),
                ("/", 200),
                ("/", 200),
                ("/", 200),
                ("/", 429),
            ],
        ),
        (
            "price",
            actual_cost,
            &[("/?price=3", 200), ("/?price=0", 200), ("/?price=2", 200), ("/?price=0", 429)],
        ),
    ];
    for (name, charge, steps) in sequences {
        let app = app!(fixture.limit(name, "5/h").charge(charge));
        for (step, (path, status)) in steps.iter().enumerate() {
            let response = send_request(&app, TestRequest::post().uri(path)).await;
            assert_eq!(response.status().as_u16(), *status, "{name}, step {step}");
        }
    }
}

#[tokio::test]
async fn inner_middleware_error_counts_as_response() {
    let fixture = RuleFixture::new();
    let refund = ChargePolicy::refund_if(|reply: &dyn ResponseHead| reply.status() == 502);
    let limit = fixture.limit("refund", "1 at once").charge(refund.clone());
    let tokens = fixture.limit("tokens", "1/h").charge(refund);
    let app = App::new()
        .wrap_fn(|request, service| {
            let is_down = request.path() == "/down";
            let served = service.call(request);
            async move { if is_down { Err(ErrorBadGateway("down")) } else { served.await } }
        })
        .wrap(LimitMiddleware::new(Gate::new([limit, tokens])))
        .default_service(web::to(respond_as_requested));
    let app = test::init_service(app).await;
    for _ in 0..3 {
        let error = app.call(TestRequest::with_uri("/down").to_request()).await.unwrap_err();
        assert_eq!(error.error_response().status(), 502);
    }
    let served = send_request(&app, TestRequest::with_uri("/")).await;
    assert_eq!(served.status(), 200);
    drop(served);
    assert_eq!(send_request(&app, TestRequest::with_uri("/")).await.status(), 429);
}

#[tokio::test]
async fn all_rules_are_charged_or_none() {
    let fixture = RuleFixture::new();
    let everybody = fixture.limit("everybody", "10/h");
    let tenant = fixture.limit("tenant", "1/h").key(key::header("x-tenant").unwrap());
    let app = app!(Gate::new([everybody, tenant]));
    let by = |tenant: &'static str| TestRequest::get().insert_header(("x-tenant", tenant));

    let response = send_request(&app, by("a")).await;
    assert_eq!(header(&response, "ratelimit"), Some(r#""everybody";r=9;t=360, "tenant";r=0;t=3600"#));
    for _ in 0..5 {
        assert_eq!(send_request(&app, by("a")).await.status(), 429);
    }
    let response = send_request(&app, by("b")).await;
    assert_eq!(header(&response, "ratelimit"), Some(r#""everybody";r=8;t=360, "tenant";r=0;t=3600"#));
}

/// Malformed requests get their documented responses: a request without a valid key shares a bucket, is not counted, or
/// gets 400, as the rule defines.
#[tokio::test]
async fn malformed_requests_never_return_500() {
    type MakeRequest<'a> = &'a dyn Fn() -> TestRequest;
    let header_of = |value: &[u8]| {
        let value = HeaderValue::from_bytes(value).unwrap();
        TestRequest::get().insert_header((HeaderName::from_static("x-key"), value))
    };
    let proxies = || TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    let other = |value: &'static [u8]| {
        let value = HeaderValue::from_bytes(value).unwrap();
        let from = "10.0.0.1:80".parse().unwrap();
        TestRequest::get().peer_addr(from).insert_header((HeaderName::from_static("forwarded"), value))
    };
    let (open, bytes): (MakeRequest<'_>, MakeRequest<'_>) =
        (&|| other(b"for=\"[::1"), &|| other(b"=;,\"\\\xff"));
    let forwarded = |value: &'static str| {
        let from = "10.0.0.1:80".parse().unwrap();
        TestRequest::get().peer_addr(from).insert_header(("x-forwarded-for", value))
    };
    let by_header = || key::header("x-key").unwrap();
    let by_client = || key::client(proxies());
    let by_other = || key::client(proxies().forwarded());
    let by_function = || key::custom(|_| Some("k".repeat(1 << 20).into()));
    let (latin, nul, plain): (MakeRequest<'_>, MakeRequest<'_>, MakeRequest<'_>) =
        (&|| header_of(b"caf\xe9"), &|| header_of(b"\xff\xfe"), &TestRequest::get);
    let (huge, large): (MakeRequest<'_>, MakeRequest<'_>) =
        (&|| header_of(&[b'a'; 1 << 20]), &|| header_of(&[b'b'; 4_097]));
    let (garbage, wild): (MakeRequest<'_>, MakeRequest<'_>) =
        (&|| forwarded("unknown, ;;=\"\t,,"), &|| forwarded("1.2.3.4.5, [::1, 999.0.0.1"));
    // The expected statuses of two requests with `MissingKey::Shared` and with `MissingKey::Reject`.
    let table = [
        ("bytes that are not UTF-8 are a key", by_header(), latin, latin, [200, 429], [200, 429]),
        ("different bytes are different keys", by_header(), latin, nul, [200, 200], [200, 200]),
        ("without a header", by_header(), plain, plain, [200, 429], [400, 400]),
        ("a key of a megabyte is hashed", by_header(), huge, huge, [200, 429], [200, 429]),
        ("a key of 4097 bytes is hashed", by_header(), large, huge, [200, 200], [200, 200]),
        ("without an address", key::peer(), plain, plain, [200, 429], [400, 400]),
        ("a custom key of a megabyte is hashed", by_function(), plain, plain, [200, 429], [200, 429]),
        (
            "a malformed header of a proxy counts for the proxy",
            by_client(),
            garbage,
            wild,
            [200, 429],
            [200, 429],
        ),
        ("also in the Forwarded header", by_other(), open, bytes, [200, 429], [200, 429]),
    ];
    for (what, key, first, second, shared, rejected) in table {
        for (missing, answers) in [(MissingKey::Shared, shared), (MissingKey::Reject, rejected)] {
            let fixture = RuleFixture::new();
            let app = app!(fixture.limit("key", "1/h").key(key.clone()).missing(missing));
            let statuses = [send_request(&app, first()).await, send_request(&app, second()).await];
            assert_eq!(statuses.map(|response| response.status().as_u16()), answers, "{what}, {missing:?}");
        }
    }
}

/// A store failure is not the fault of the client, so the status is 503 instead of 429.
#[tokio::test]
async fn closed_rule_without_store_returns_503() {
    let fixture = RuleFixture::without_store();
    let app = app!(fixture.limit("calls", "5/min"));
    let rejected = send_request(&app, TestRequest::get()).await;
    assert_eq!((rejected.status().as_u16(), header(&rejected, "retry-after")), (503, Some("1")));
    assert_eq!(header(&rejected, "ratelimit"), None, "the remaining quota is unknown");
    assert_eq!(header(&rejected, "content-type"), Some("application/problem+json"));
}

#[tokio::test]
async fn app_level_middleware_knows_routes() {
    let fixture = RuleFixture::new();
    let users = fixture.limit("users", "2/h").key(key::route()).routes(["/api/users/{id}"]);
    let login = fixture.limit("login", "1/h").methods(["POST"]).routes(["/login"]);
    let app = App::new()
        .wrap(LimitMiddleware::new(Gate::new([users, login])))
        .service(web::scope("/api").route("/users/{id}", web::get().to(respond_as_requested)))
        .route("/login", web::post().to(respond_as_requested))
        .route("/{page}", web::to(respond_as_requested));
    let app = test::init_service(app).await;
    let steps = [
        (TestRequest::with_uri("/api/users/1"), 200),
        (TestRequest::with_uri("/api/users/2"), 200),
        (TestRequest::with_uri("/api/users/3"), 429),
        (TestRequest::with_uri("/%61pi/users/3"), 429),
        (TestRequest::with_uri("/users"), 200),
        (TestRequest::get().uri("/about"), 200),
        (TestRequest::post().uri("/%6Cogin"), 200),
        (TestRequest::post().uri("/login"), 429),
        (TestRequest::post().uri("/%6cogin"), 429),
    ];
    for (step, (request, status)) in steps.into_iter().enumerate() {
        assert_eq!(send_request(&app, request).await.status().as_u16(), status, "step {step}");
    }
}

#[tokio::test]
async fn scopes_and_resources_have_own_gates() {
    let fixture = RuleFixture::new();
    let scope = fixture.limit("scope", "2/h").key(key::route());
    let resource = fixture.limit("resource", "1/h").key(key::route());
    let app = App::new()
        .service(
            web::scope("/scope")
                .wrap(LimitMiddleware::new(scope))
                .route("/a", web::to(respond_as_requested))
                .service(
                    web::resource("/b/{id}")
                        .wrap(LimitMiddleware::new(resource))
                        .route(web::to(respond_as_requested)),
                ),
        )
        .default_service(web::to(respond_as_requested));
    let app = test::init_service(app).await;
    let both = send_request(&app, TestRequest::with_uri("/scope/b/1")).await;
    let remaining: Vec<_> =
        both.headers().get_all("ratelimit").map(|value| value.to_str().unwrap()).collect();
    assert_eq!(
        remaining,
        [r#""resource";r=0;t=3600"#, r#""scope";r=1;t=1800"#],
        "each gate adds its own item"
    );
    let steps = [
        ("/scope/a", 200),
        ("/scope/a", 200),
        ("/scope/a", 429),
        ("/scope/b/2", 429),
        ("/elsewhere", 200),
        ("/elsewhere", 200),
        ("/elsewhere", 200),
    ];
    for (step, (path, status)) in steps.into_iter().enumerate() {
        assert_eq!(send_request(&app, TestRequest::with_uri(path)).await.status(), status, "step {step}");
    }
}

#[tokio::test]
async fn extension_of_earlier_middleware_is_key() {
    struct SubjectClaims {
        subject: String,
    }
    let fixture = RuleFixture::new();
    let limit = fixture
        .limit("claims", "1/h")
        .key(extension(|claims: &SubjectClaims| Some(claims.subject.as_str().into())));
    let app = App::new()
        .wrap(LimitMiddleware::new(limit))
        .wrap_fn(|request, service| {
            let subject = request.path().to_owned();
            request.extensions_mut().insert(SubjectClaims { subject });
            service.call(request)
        })
        .default_service(web::to(respond_as_requested));
    let app = test::init_service(app).await;
    for (path, status) in [("/alice", 200), ("/alice", 429), ("/bob", 200)] {
        assert_eq!(send_request(&app, TestRequest::with_uri(path)).await.status(), status);
    }
}

#[tokio::test]
async fn request_waits_for_quota() {
    let fixture = RuleFixture::new();
    let waiting_rule = RuleConfig::new("waiting_rule").quota("1/s").unwrap().wait(Duration::from_secs(1));
    let app = app!(fixture.add_rule(waiting_rule));
    assert_eq!(send_request(&app, TestRequest::get()).await.status(), 200);
    // A request that is cancelled while it waits is not charged.
    for _ in 0..3 {
        let mut waiting = Box::pin(app.call(TestRequest::get().to_request()));
        assert!(poll(waiting.as_mut()).is_pending());
    }
    let mut waiting = Box::pin(app.call(TestRequest::get().to_request()));
    assert!(poll(waiting.as_mut()).is_pending());
    fixture.clock.advance(Duration::from_micros(999_999));
    assert!(poll(waiting.as_mut()).is_pending());
    fixture.clock.advance(Duration::from_micros(1));
    let Poll::Ready(response) = poll(waiting.as_mut()) else { panic!("still pending after the wait") };
    assert_eq!(response.unwrap().status(), 200);
}

/// A rule with a rate and a concurrency limit waits for both.
#[tokio::test]
async fn request_waits_for_slot() {
    let fixture = RuleFixture::new();
    let waiting_rule = RuleConfig::new("waiting_rule").quota("10/s").unwrap().quota("1 at once").unwrap();
    let app = app!(fixture.add_rule(waiting_rule.wait(Duration::from_secs(1))));
    let first = send_request(&app, TestRequest::get()).await;
    let mut waiting = Box::pin(app.call(TestRequest::get().to_request()));
    assert!(poll(waiting.as_mut()).is_pending());
    drop(first);
    let Poll::Ready(response) = poll(waiting.as_mut()) else { panic!("still pending with a free slot") };
    assert_eq!(response.unwrap().status(), 200);
}

#[tokio::test]
async fn slot_is_in_use_until_body_ends() {
    let fixture = RuleFixture::new();
    let app = App::new()
        .wrap(LimitMiddleware::new(fixture.limit("slots", "1 at once")))
        .route("/for-ever", web::to(|| async { pending::<&str>().await }))
        .route("/empty", web::to(|| async { HttpResponse::NoContent().finish() }))
        .default_service(web::to(respond_as_requested));
    let app = test::init_service(app).await;
    let at = TestRequest::with_uri;

    // Cancelling a request in the handler releases its slot.
    let mut served = Box::pin(app.call(at("/for-ever").to_request()));
    assert!(matches!(poll(served.as_mut()), Poll::Pending));
    assert_eq!(send_request(&app, at("/")).await.status(), 429);
    drop(served);

    // Dropping the response body releases the slot, and so does its end.
    let response = send_request(&app, at("/")).await;
    assert_eq!(response.status(), 200);
    assert_eq!(send_request(&app, at("/")).await.status(), 429);
    drop(response);
    let response = send_request(&app, at("/")).await;
    assert_eq!(test::read_body(response).await, "served");

    // A boxed body still holds the slot.
    let boxed = send_request(&app, at("/")).await.map_into_boxed_body();
    assert_eq!(send_request(&app, at("/")).await.status(), 429);
    drop(boxed);

    // A response without a body releases the slot immediately.
    let empty = send_request(&app, at("/empty")).await;
    assert_eq!(send_request(&app, at("/")).await.status(), 200);
    drop(empty);
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    let mut context = Context::from_waker(Waker::noop());
    pin!(future).as_mut().poll(&mut context)
}

#[tokio::test]
async fn claims_and_client_certificates_are_keys() {
    let issuer = TokenIssuer::new("ES256", "one").unwrap();
    let keys = JwtKeySet::parse(issuer.key_set().as_bytes()).unwrap();
    let verifier = Arc::new(JwtVerifier::new(JwtSettings::default(), keys));
    let subject =
        Arc::new(JwtAuthenticator::new(CredentialSource::default(), verifier)).key("/sub".parse().unwrap());
    let limit = |name: &'static str, key| {
        let config = RuleConfig::new(name).quota("1/h").unwrap();
        RequestLimit::from_config(config).unwrap().key(key).missing(MissingKey::Reject)
    };
    let app = app!(Gate::from(limit("subject", subject)));
    let with_token = |claims: &str| {
        let token = issuer.sign(&format!(r#"{{{claims},"exp":4102444800}}"#));
        TestRequest::get().uri("/").insert_header(("authorization", format!("Bearer {token}")))
    };
    for (request, status) in [
        (with_token(r#""sub":"ada""#), 200),
        (with_token(r#""sub":"ada","jti":"2""#), 429),
        (with_token(r#""sub":"bob""#), 200),
        (TestRequest::get().uri("/").insert_header(("authorization", "Bearer a.b.c")), 400),
        (TestRequest::get().uri("/"), 400),
    ] {
        assert_eq!(send_request(&app, request).await.status(), status);
    }

    let app = app!(Gate::from(limit("san", key::client_certificate(CertificateName::San))));
    for (name, status) in [("ada.example.org", 200), ("ada.example.org", 429), ("bob.example.org", 200)] {
        let request = TestRequest::get().uri("/").to_request();
        request.extensions_mut().insert(ClientCertificate::new("", [name.to_owned()]));
        assert_eq!(app.call(request).await.unwrap().status(), status, "{name}");
    }
    assert_eq!(send_request(&app, TestRequest::get().uri("/")).await.status(), 400);
}
