//! Guards, concurrency limits, priorities, access lists, request context and bandwidths.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use crate::support::RuleFixture;
use actix_http::Request;
use actix_web::{
    App, Error, HttpResponse,
    body::{BodySize, MessageBody as _},
    dev::{Service, ServiceResponse},
    test::{self, TestRequest},
    web,
};
use futures_core::Stream as _;
use std::{
    future::{pending, poll_fn},
    net::IpAddr,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};
use tidegate_access::{AccessControl, Bans, ListAction};
use tidegate_actix::{
    AccessMiddleware, BandwidthMiddleware, ConcurrencyMiddleware, ContextExtractor, ContextMiddleware,
    GuardMiddleware, Guards, InFlightEnd, LimitMiddleware, PriorityMiddleware, RequestAccess,
    RequestConcurrency, RequestGuard, RequestPriority, UploadMiddleware,
};
use tidegate_bandwidth::Bandwidth;
use tidegate_core::Micros;
use tidegate_limiter::{Clock, Semaphore};
use tidegate_overload::{
    Breaker, BreakerSettings, BreakerState, PriorityLimit,
    priority::{PriorityClass, PriorityRequest},
};
use tidegate_rule::{
    RejectionResponse, RequestContext,
    request::{TrustedProxies, key},
};

async fn send_request<S, B>(app: &S, request: TestRequest) -> ServiceResponse<B>
where
    S: Service<Request, Response = ServiceResponse<B>, Error = Error>,
{
    app.call(request.to_request()).await.unwrap()
}

fn request_to(path: &str) -> TestRequest {
    TestRequest::with_uri(path)
}

fn header<'a, B>(response: &'a ServiceResponse<B>, name: &str) -> Option<&'a str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

/// Responds to `/503` with 503, and likewise for other statuses; never responds to `/for-ever`.
fn routes(config: &mut web::ServiceConfig) {
    let status = |status: web::Path<u16>| async move {
        HttpResponse::build(status.into_inner().try_into().unwrap()).body("text")
    };
    config
        .route("/for-ever", web::to(|| async { pending::<&str>().await }))
        .route("/{status}", web::to(status));
}

#[tokio::test]
async fn breaker_opens_on_failures_and_recovers() {
    let (clock, manual_clock) = Clock::manual();
    let settings =
        BreakerSettings::builder().count_window(2).open_duration(Duration::from_secs(5)).build().unwrap();
    let breaker = Arc::new(Breaker::with_clock(settings, clock));
    let guard = GuardMiddleware::new(RequestGuard::new(breaker.clone()).name("backend"));
    let app = test::init_service(App::new().wrap(guard).configure(routes)).await;
    for path in ["/503", "/429", "/500"] {
        assert_ne!(send_request(&app, request_to(path)).await.status(), 200);
    }
    assert_eq!(breaker.state(), BreakerState::Open);

    let rejected = send_request(&app, request_to("/200")).await;
    assert_eq!((rejected.status().as_u16(), header(&rejected, "retry-after")), (503, Some("5")));
    assert_eq!(header(&rejected, "content-type"), Some("application/problem+json"));
    manual_clock.advance(Duration::from_secs(5));
    assert_eq!(send_request(&app, request_to("/200")).await.status(), 200);
}

#[tokio::test]
async fn each_tenant_has_own_breaker() {
    let breaker = || {
        let settings = BreakerSettings::builder().count_window(1).build().unwrap();
        Arc::new(Breaker::with_clock(settings, Clock::manual().0))
    };
    let breakers = [breaker(), breaker()];
    let guard =
        RequestGuard::by_request(move |head| breakers[usize::from(head.header("x-b").is_some())].clone());
    let app =
        test::init_service(App::new().wrap(GuardMiddleware::new(guard.for_client_calls())).configure(routes))
            .await;
    assert_eq!(
        send_request(&app, request_to("/429")).await.status(),
        429,
        "429 counts as a failure of the backend"
    );
    assert_eq!(send_request(&app, request_to("/200")).await.status(), 503);
    assert_eq!(send_request(&app, request_to("/200").insert_header(("x-b", "1"))).await.status(), 200);
}

/// Requests without a key share one breaker.
#[tokio::test]
async fn keyed_breakers_are_separate() {
    let settings = BreakerSettings::builder().count_window(1).build().unwrap();
    let (clock, _manual_clock) = Clock::manual();
    let breakers = Guards::builder().build(move || Breaker::with_clock(settings.clone(), clock.clone()));
    let guard = GuardMiddleware::new(RequestGuard::by_key(breakers, key::header("x-tenant").unwrap()));
    let app = test::init_service(App::new().wrap(guard).configure(routes)).await;
    let by = |tenant| request_to("/503").insert_header(("x-tenant", tenant));
    assert_eq!(
        header(&send_request(&app, by("a")).await, "retry-after"),
        None,
        "rejected by the application"
    );
    assert!(header(&send_request(&app, by("a")).await, "retry-after").is_some(), "rejected by the breaker");
    assert_eq!(header(&send_request(&app, by("b")).await, "retry-after"), None);
    assert_eq!(send_request(&app, request_to("/200")).await.status(), 200);
}

#[tokio::test]
async fn slots_are_limited_and_queued() {
    let slots = Semaphore::builder().max_waiters(8).build(1).unwrap();
    for (until, while_unsent) in [(InFlightEnd::Body, 503), (InFlightEnd::Head, 200)] {
        let at_once = ConcurrencyMiddleware::new(RequestConcurrency::new(slots.clone()).in_flight_end(until));
        let app = test::init_service(App::new().wrap(at_once).configure(routes)).await;
        let response = send_request(&app, request_to("/200")).await;
        assert_eq!(response.status(), 200);
        let second = send_request(&app, request_to("/200")).await;
        assert_eq!(second.status(), while_unsent, "{until:?}");
        drop((response, second));
        assert_eq!(slots.in_flight(), 0);

        let mut given_up = Box::pin(app.call(request_to("/for-ever").to_request()));
        assert!(given_up.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(slots.in_flight(), 1);
        drop(given_up);
        assert_eq!(slots.in_flight(), 0);
    }

    let patient =
        ConcurrencyMiddleware::new(RequestConcurrency::new(slots.clone()).wait(Duration::from_secs(60)));
    let app = test::init_service(App::new().wrap(patient).configure(routes)).await;
    let first = send_request(&app, request_to("/200")).await;
    let mut waiting = Box::pin(app.call(request_to("/200").to_request()));
    let mut given_up = Box::pin(app.call(request_to("/200").to_request()));
    for waiting in [&mut waiting, &mut given_up] {
        assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    assert_eq!(slots.waiters(), 2);
    drop((first, given_up));
    assert_eq!(waiting.await.unwrap().status(), 200);
    assert_eq!((slots.in_flight(), slots.waiters()), (0, 0));
}

#[tokio::test]
async fn low_priority_is_shed_first() {
    let classes = [
        PriorityClass::new("user", "50%".parse().unwrap()),
        PriorityClass::new("batch", "0%".parse().unwrap()),
    ];
    let limit = Arc::new(PriorityLimit::new(classes, 2).unwrap());
    let shed = RequestPriority::new(limit.clone(), |head, _| {
        PriorityRequest::new(usize::from(head.header("x-batch").is_some()))
    })
    .with_response(|limited| RejectionResponse::from(limited).status(529));
    let app = test::init_service(App::new().wrap(PriorityMiddleware::new(shed)).configure(routes)).await;
    let (first, second) =
        (send_request(&app, request_to("/200")).await, send_request(&app, request_to("/200")).await);
    assert_eq!((first.status().as_u16(), second.status().as_u16(), limit.in_flight()), (200, 200, 2));
    let rejected = send_request(&app, request_to("/200").insert_header(("x-batch", "1"))).await;
    assert_eq!(rejected.status().as_u16(), 529);
    drop((first, second));
    assert_eq!(limit.in_flight(), 0);
}

#[tokio::test]
async fn repeatedly_denied_client_is_banned() {
    let fixture = RuleFixture::new();
    let (clock, manual_clock) = Clock::manual();
    let bans = Bans::builder().clock(clock).rule("2/min for 1h".parse().unwrap()).build().unwrap();
    let control = Arc::new(AccessControl::new("deny 192.0.2.0/24".parse().unwrap(), bans));
    let access = RequestAccess::new(control.clone())
        .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"]).unwrap())
        .ban_on(|reply| reply.status() == 429);
    let access = AccessMiddleware::new(access);
    let limit = LimitMiddleware::new(
        fixture.limit("api", "1/h").key(key::client(TrustedProxies::new(["10.0.0.0/8"]).unwrap())),
    );
    let app = test::init_service(App::new().wrap(limit).wrap(access).configure(routes)).await;
    let from = |address: &str| {
        let peer = "10.0.0.1:4711".parse().unwrap();
        request_to("/200").peer_addr(peer).insert_header(("x-forwarded-for", address.to_owned()))
    };
    let mut answers = Vec::new();
    for address in ["192.0.2.1", "2001:db8::1", "2001:db8::2", "2001:db8::3", "2001:db8::4", "2001:db8::5"] {
        answers.push(send_request(&app, from(address)).await.status().as_u16());
    }
    assert_eq!(answers, [403, 200, 429, 429, 403, 403], "an IPv6 network is one client");
    let banned = send_request(&app, from("2001:db8::6")).await;
    assert_eq!(header(&banned, "retry-after"), Some("3600"));
    manual_clock.advance(Duration::from_secs(3_600));
    assert_eq!(send_request(&app, from("2001:db8::6")).await.status(), 429, "not banned, but limited again");

    // A request without an address is rejected by default.
    assert_eq!(send_request(&app, request_to("/200")).await.status(), 403);
    let open = AccessMiddleware::new(RequestAccess::new(control).on_unknown(ListAction::Allow));
    let app = test::init_service(App::new().wrap(open).configure(routes)).await;
    assert_eq!(send_request(&app, request_to("/200")).await.status(), 200);
}

#[tokio::test]
async fn request_context_reaches_handlers_and_inner_middleware() {
    let fixture = RuleFixture::new();
    let limit = fixture.limit("per-user", "1/h").key(key::user());
    let context = ContextExtractor::new()
        .trusted_proxies(TrustedProxies::new(["10.0.0.0/8"]).unwrap())
        .user(|head| str::from_utf8(head.header("x-user")?).ok().map(Into::into))
        .extend(|head, context| context.with("path", head.path()));
    let handler = || async {
        let format = |context: &RequestContext| {
            format!("{:?} {:?} {:?}", context.ip(), context.user(), context.get("path"))
        };
        RequestContext::with_current(format).unwrap()
    };
    let app = App::new()
        .wrap(LimitMiddleware::new(limit))
        .wrap(ContextMiddleware::new(context))
        .route("/{any}", web::to(handler));
    let app = test::init_service(app).await;
    let by = |user: &'static str| {
        let request = request_to("/context").peer_addr("10.0.0.1:4711".parse().unwrap());
        request.insert_header(("x-forwarded-for", "198.51.100.7")).insert_header(("x-user", user))
    };
    let response = send_request(&app, by("alice")).await;
    let address: IpAddr = "198.51.100.7".parse().unwrap();
    let expected = format!("{:?} {:?} {:?}", Some(address), Some("alice"), Some("/context"));
    assert_eq!(test::read_body(response).await, expected);
    assert_eq!(send_request(&app, by("alice")).await.status(), 429);
    assert_eq!(send_request(&app, by("bob")).await.status(), 200);
    assert!(RequestContext::current().is_none());
}

/// The most bytes in any second, of pieces with their time.
fn worst_second(pieces: &[(Micros, usize)]) -> usize {
    let second = |from: Micros| {
        let within =
            pieces.iter().filter(|(at, _)| (from..from.saturating_add(Micros::from_secs(1))).contains(at));
        within.map(|(_, bytes)| bytes).sum()
    };
    pieces.iter().map(|(from, _)| second(*from)).max().unwrap_or(0)
}

const BODY_BYTES: usize = 1_000_000;

/// A handler that responds with a vector yields all of it in one chunk.
#[tokio::test(start_paused = true)]
async fn response_chunks_are_cut_to_the_bandwidth() {
    let time = Clock::tokio();
    let bandwidth = Bandwidth::builder().clock(time.clone()).build("100kB/s").unwrap();
    let app = App::new()
        .wrap(BandwidthMiddleware::new(bandwidth))
        .route("/down", web::get().to(|| async { vec![7_u8; BODY_BYTES] }));
    let app = test::init_service(app).await;
    let mut body = pin!(send_request(&app, request_to("/down")).await.into_body());
    assert_eq!(body.as_ref().size(), BodySize::Sized(BODY_BYTES as u64));
    let (mut pieces, mut content) = (Vec::new(), Vec::new());
    while let Some(piece) = poll_fn(|context| body.as_mut().poll_next(context)).await {
        let piece = piece.unwrap();
        pieces.push((time.now(), piece.len()));
        content.extend_from_slice(&piece);
    }
    assert_eq!(content, vec![7; BODY_BYTES]);
    let worst = worst_second(&pieces);
    assert!((99_000..=101_000).contains(&worst), "{worst} bytes in one second");
}

#[tokio::test(start_paused = true)]
async fn request_chunks_are_cut_to_the_bandwidth() {
    let time = Clock::tokio();
    let bandwidth = Bandwidth::builder().clock(time.clone()).build("100kB/s").unwrap();
    let clock = time.clone();
    let read = move |mut payload: web::Payload| {
        let clock = clock.clone();
        async move {
            let mut pieces = Vec::new();
            while let Some(piece) = poll_fn(|context| Pin::new(&mut payload).poll_next(context)).await {
                pieces.push((clock.now(), piece.unwrap().len()));
            }
            let total: usize = pieces.iter().map(|(_, bytes)| bytes).sum();
            format!("{total} {}", worst_second(&pieces))
        }
    };
    let app = App::new().wrap(UploadMiddleware::new(bandwidth)).route("/up", web::post().to(read));
    let app = test::init_service(app).await;
    let upload = TestRequest::post().uri("/up").set_payload(vec![7_u8; BODY_BYTES]);
    let text = test::read_body(send_request(&app, upload).await).await;
    let text = String::from_utf8(text.to_vec()).unwrap();
    let (total, worst) = text.split_once(' ').unwrap();
    assert_eq!(total.parse(), Ok(BODY_BYTES));
    let worst: usize = worst.parse().unwrap();
    assert!((99_000..=101_000).contains(&worst), "{worst} bytes in one second");
}
