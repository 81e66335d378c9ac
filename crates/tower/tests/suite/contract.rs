//! The contract of a tower service: readiness, clones, cancellation, errors.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{get, get_from, header, quota_remaining, test_rules, test_rules_without_store};
use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full, channel::Channel};
use std::{
    convert::Infallible,
    future::{Future as _, Pending, Ready, pending, ready},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};
use tidegate_rule::{
    ChargePolicy, Gate, RuleConfig,
    request::{KeyValue, MissingKey, RequestKey, ResponseHead, TrustedProxies, key},
};
use tidegate_tower::{LimitLayer, LimitService};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

type FullResponse = Response<Full<Bytes>>;

fn ok(_: Request<()>) -> Ready<Result<FullResponse, Infallible>> {
    ready(Ok(Response::new(Full::from("hello"))))
}

fn context() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[tokio::test]
async fn decision_is_made_in_call() {
    let program = test_rules();
    let limit = program.limit("one", "1/min");
    let service = LimitLayer::new(limit.clone()).layer(service_fn(ok));
    for _ in 0..100 {
        let mut clone = service.clone();
        assert!(matches!(
            Service::<Request<()>>::poll_ready(&mut clone, &mut context()),
            Poll::Ready(Ok(()))
        ));
    }
    assert_eq!(quota_remaining(&limit), 1);
    let statuses = [service.clone().oneshot(get("/")).await, service.oneshot(get("/")).await];
    assert_eq!(statuses.map(|response| response.unwrap().status().as_u16()), [200, 429]);
}

/// A service that panics if an instance is called that is not ready.
struct ReadyCheckedService {
    is_ready: bool,
    calls: Arc<AtomicU64>,
}

impl Clone for ReadyCheckedService {
    fn clone(&self) -> Self {
        Self { is_ready: false, calls: self.calls.clone() }
    }
}

impl Service<Request<()>> for ReadyCheckedService {
    type Response = FullResponse;
    type Error = Infallible;
    type Future = Ready<Result<FullResponse, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "called before it was ready");
        self.calls.fetch_add(1, Ordering::Relaxed);
        ok(request)
    }
}

#[tokio::test]
async fn ready_clone_is_called() {
    let program = test_rules();
    let at_once = program.limit("at once", "10/s burst 1");
    let waits = RuleConfig::new("waits").quota("10/s burst 1").unwrap().wait(Duration::from_secs(1));
    for limit in [at_once, program.add_rule(waits)] {
        let calls = Arc::new(AtomicU64::new(0));
        let strict = ReadyCheckedService { is_ready: false, calls: calls.clone() };
        let mut service = LimitService::new(limit, strict);
        let first = service.ready().await.unwrap().call(get("/"));
        let second = service.ready().await.unwrap().call(get("/"));
        let third = service.ready().await.unwrap().call(get("/"));
        program.advance(Duration::from_secs(1));
        let answers = [first.await.unwrap(), second.await.unwrap(), third.await.unwrap()];
        let passed = answers.iter().filter(|answer| answer.status() == 200).count() as u64;
        assert_eq!(calls.load(Ordering::Relaxed), passed);
        assert!(passed >= 1);
    }
}

/// A service that is never ready, or that has failed.
#[derive(Clone)]
struct UnreadyService(Result<(), &'static str>);

impl Service<Request<()>> for UnreadyService {
    type Response = FullResponse;
    type Error = &'static str;
    type Future = Pending<Result<FullResponse, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        match self.0 {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        panic!("called before it was ready")
    }
}

#[test]
fn poll_ready_forwards_to_service() {
    let program = test_rules();
    let limit = program.limit("any", "1/min");
    let mut pending = LimitService::new(limit.clone(), UnreadyService(Ok(())));
    assert!(pending.poll_ready(&mut context()).is_pending());
    let mut failed = LimitService::new(limit.clone(), UnreadyService(Err("broken")));
    assert!(matches!(failed.poll_ready(&mut context()), Poll::Ready(Err("broken"))));
    assert_eq!(quota_remaining(&limit), 1);
}

#[tokio::test]
async fn service_error_passes_through_and_is_charged() {
    let program = test_rules();
    let counted = program
        .limit("counted", "5/min")
        .charge(ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401));
    let slots = program.limit("slots", "1 at once");
    let gate = Gate::new([counted.clone(), slots.clone()]);
    let broken = service_fn(|_: Request<()>| ready(Err::<FullResponse, _>("broken")));
    let service = LimitService::new(gate, broken);
    assert_eq!(service.clone().oneshot(get("/")).await.unwrap_err(), "broken");
    assert_eq!((quota_remaining(&counted), quota_remaining(&slots)), (4, 1));
    assert_eq!(service.oneshot(get("/")).await.unwrap_err(), "broken", "the slot is released");
}

#[tokio::test]
async fn cancelled_call_releases_slots_and_keeps_charge() {
    let program = test_rules();
    let charges = [
        ("ahead", ChargePolicy::upfront()),
        ("only failures", ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401)),
        ("no faults of ours", ChargePolicy::refund_if(|reply: &dyn ResponseHead| reply.status() >= 500)),
        ("actual", ChargePolicy::actual(|_: &dyn ResponseHead| Some(0))),
    ];
    for (name, charge) in charges {
        let tokens = program.limit(name, "5/min").charge(charge);
        let slots = program.limit("slots", "1 at once");
        let gate = Gate::new([tokens.clone(), slots.clone()]);
        let never = service_fn(|_: Request<()>| pending::<Result<FullResponse, Infallible>>());
        let mut service = LimitService::new(gate, never);
        let mut call = Box::pin(service.ready().await.unwrap().call(get("/")));
        assert!(call.as_mut().poll(&mut context()).is_pending());
        assert_eq!((quota_remaining(&tokens), quota_remaining(&slots)), (4, 0), "{name}");
        drop(call);
        assert_eq!((quota_remaining(&tokens), quota_remaining(&slots)), (4, 1), "{name}");
    }
}

#[tokio::test]
async fn cancelled_wait_is_not_charged() {
    let program = test_rules();
    let waits = RuleConfig::new("waits").quota("1/s burst 1").unwrap().wait(Duration::from_secs(5));
    let waits = program.add_rule(waits);
    let other = program.limit("beside", "10/min");
    let mut service = LimitService::new(Gate::new([waits.clone(), other.clone()]), service_fn(ok));
    assert_eq!(service.ready().await.unwrap().call(get("/")).await.unwrap().status(), 200);
    let mut second = Box::pin(service.ready().await.unwrap().call(get("/")));
    assert!(second.as_mut().poll(&mut context()).is_pending());
    assert_eq!(quota_remaining(&other), 8);
    drop(second);
    assert_eq!(quota_remaining(&other), 9);
    // If the cancelled request had been charged, this one would wait for two seconds.
    let mut third = Box::pin(service.ready().await.unwrap().call(get("/")));
    program.advance(Duration::from_secs(1));
    let Poll::Ready(third) = third.as_mut().poll(&mut context()) else {
        panic!("still pending after a second")
    };
    assert_eq!(third.unwrap().status(), 200);
}

#[tokio::test]
async fn clones_share_one_gate() {
    let program = test_rules();
    let layer = LimitLayer::new(program.per_peer("per peer", "2/min"));
    let services = [layer.layer(service_fn(ok)), layer.clone().layer(service_fn(ok))];
    let mut statuses = Vec::new();
    for service in services.iter().cycle().take(4) {
        let response = service.clone().oneshot(get_from("/", [192, 0, 2, 1])).await.unwrap();
        statuses.push(response.status().as_u16());
    }
    assert_eq!(statuses, [200, 200, 429, 429]);
    let other = services[0].clone().oneshot(get_from("/", [192, 0, 2, 2])).await.unwrap();
    assert_eq!(other.status(), 200);
}

/// Not a body: the layer must not read it.
struct OpaqueBody;

#[tokio::test]
async fn request_body_is_not_read() {
    let program = test_rules();
    let inner = service_fn(|request: Request<OpaqueBody>| {
        let OpaqueBody = request.into_body();
        ready(Ok::<_, Infallible>(Response::new(())))
    });
    let service = LimitService::new(program.limit("any", "1/min"), inner);
    let statuses = [
        service.clone().oneshot(Request::new(OpaqueBody)).await.unwrap().status(),
        service.oneshot(Request::new(OpaqueBody)).await.unwrap().status(),
    ];
    assert_eq!(statuses.map(|status| status.as_u16()), [200, 429]);
}

#[tokio::test]
async fn response_body_holds_slot_until_end() {
    let program = test_rules();
    let slots = program.limit("downloads", "1 at once");
    for ending in ["end", "error", "drop"] {
        let (mut sender, body) = Channel::<Bytes, &str>::new(4);
        let body = Arc::new(Mutex::new(Some(body)));
        let inner = service_fn(move |_: Request<()>| {
            let body = body.lock().unwrap().take().unwrap();
            ready(Ok::<_, Infallible>(Response::new(body)))
        });
        let service = LimitService::new(slots.clone(), inner);
        let mut body = service.clone().oneshot(get("/")).await.unwrap().into_body();
        let rejected = service.oneshot(get("/")).await.unwrap();
        assert_eq!(
            (rejected.status().as_u16(), header(&rejected, "retry-after")),
            (429, None),
            "a slot has no retry time"
        );

        sender.send_data(Bytes::from_static(b"part")).await.unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        assert_eq!(quota_remaining(&slots), 0, "the body has not ended");
        match ending {
            "end" => {
                drop(sender);
                assert!(body.frame().await.is_none());
            }
            "error" => {
                sender.abort("broken");
                assert!(body.frame().await.unwrap().is_err());
            }
            _ => drop(body),
        }
        assert_eq!(quota_remaining(&slots), 1, "{ending}");
    }
}

#[tokio::test]
async fn body_size_hint_is_forwarded() {
    let program = test_rules();
    let service = LimitService::new(program.limit("one", "1/min"), service_fn(ok));
    let hello = service.clone().oneshot(get("/")).await.unwrap().into_body();
    assert_eq!((hello.size_hint().exact(), hello.is_end_stream()), (Some(5), false));
    let rejection = service.oneshot(get("/")).await.unwrap().into_body();
    let size = rejection.size_hint().exact().unwrap();
    assert_eq!(rejection.collect().await.unwrap().to_bytes().len() as u64, size);
}

/// A configured rejection response is sent unchanged.
#[tokio::test]
async fn configured_response_is_sent_unchanged() {
    let program = test_rules();
    let gate = Gate::from(program.limit("none", "1/min"))
        .with_rejection(|_, _| tidegate_rule::RejectionResponse::new(503).header("x-note", "später"));
    let service = LimitService::new(gate, service_fn(ok));
    let _ = service.clone().oneshot(get("/")).await.unwrap();
    let rejected = service.oneshot(get("/")).await.unwrap();
    assert_eq!(rejected.headers()["x-note"].as_bytes(), "später".as_bytes());
}

/// A store failure is not the fault of the client, so the status is 503 instead of 429.
#[tokio::test]
async fn closed_rule_without_store_returns_503() {
    let program = test_rules_without_store();
    let service = LimitLayer::new(program.limit("calls", "5/min")).layer(service_fn(ok));
    let rejected = service.clone().oneshot(get("/")).await.unwrap();
    assert_eq!((rejected.status().as_u16(), header(&rejected, "retry-after")), (503, Some("1")));
    assert_eq!(header(&rejected, "ratelimit"), None, "the remaining quota is unknown");

    let mut call = get("/");
    call.headers_mut().insert("content-type", "application/grpc".parse().unwrap());
    let rejected = service.oneshot(call).await.unwrap();
    assert_eq!((rejected.status().as_u16(), header(&rejected, "grpc-status")), (200, Some("14")));
    assert_eq!(header(&rejected, "grpc-retry-pushback-ms"), Some("1000"));
}

/// A layer uses the clock of its rules.
#[tokio::test]
async fn manual_clock_wakes_waiters() {
    let program = test_rules();
    let waiting = RuleConfig::new("waiting").quota("1/s").unwrap().quota("1 at once").unwrap();
    let limit = program.add_rule(waiting.wait(Duration::from_secs(5)));
    let mut service = LimitLayer::new(limit).layer(service_fn(ok));
    let first = service.call(get("/")).await.unwrap();
    let mut second = Box::pin(service.call(get("/")));
    assert!(second.as_mut().poll(&mut context()).is_pending());
    program.advance(Duration::from_secs(1));
    assert!(second.as_mut().poll(&mut context()).is_pending(), "there is a token but no slot");
    drop(first);
    let Poll::Ready(second) = second.as_mut().poll(&mut context()) else {
        panic!("still pending with a token and a slot")
    };
    assert_eq!(second.unwrap().status(), 200);
}

/// Keys that a server would reject or that no server passes on.
#[tokio::test]
async fn unusual_keys_never_return_500() {
    let long = || KeyValue::from("k".repeat(1 << 20));
    let with = |name: &'static str, value: &[u8]| {
        let mut request = get_from("/", [10, 0, 0, 1]);
        request.headers_mut().insert(name, http::HeaderValue::from_bytes(value).unwrap());
        request
    };
    let token = || key::header("x-token").unwrap();
    let proxies = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    let client = || key::client(proxies.clone());
    let forwarded = || key::client(proxies.clone().forwarded());
    let megabyte = || with("x-token", &vec![b'k'; 1 << 20]);
    let without_peer = || get("/");
    type MakeRequest<'a> = &'a dyn Fn() -> Request<()>;
    let table: [(&str, RequestKey, MakeRequest<'_>, MakeRequest<'_>, [u16; 2]); 8] = [
        ("a key of a megabyte is hashed", token(), &megabyte, &megabyte, [200, 429]),
        (
            "a custom key of a megabyte is hashed",
            key::custom(move |_| Some(long())),
            &without_peer,
            &without_peer,
            [200, 429],
        ),
        ("bytes", token(), &|| with("x-token", b"\xff"), &|| with("x-token", b"\xfe"), [200, 200]),
        ("the same bytes", token(), &|| with("x-token", b"\xff"), &|| with("x-token", b"\xff"), [200, 429]),
        ("without a peer", key::peer(), &without_peer, &without_peer, [400, 400]),
        (
            "forwarded headers without a peer address are ignored",
            client(),
            &without_peer,
            &|| {
                let mut request = get("/");
                request.headers_mut().insert("x-forwarded-for", "192.0.2.1".parse().unwrap());
                request
            },
            [400, 400],
        ),
        (
            "a malformed header of a proxy counts for the proxy",
            client(),
            &|| with("x-forwarded-for", b"\xff, ;;,, 999.0.0.1"),
            &|| with("x-forwarded-for", &[b','; 1 << 16]),
            [200, 429],
        ),
        (
            "also in the Forwarded header",
            forwarded(),
            &|| with("forwarded", b"for=\"[::1"),
            &|| with("forwarded", b"=;,\"\\\xff"),
            [200, 429],
        ),
    ];
    for (what, key, first, second, rejected) in table {
        // With `MissingKey::Shared`, requests without a key share one.
        let shared = if rejected == [400, 400] { [200, 429] } else { rejected };
        for (missing, expected) in [(MissingKey::Reject, rejected), (MissingKey::Shared, shared)] {
            let program = test_rules();
            let limit = program.limit("key", "1/h").key(key.clone()).missing(missing);
            let service = LimitLayer::new(limit).layer(service_fn(ok));
            let answers = [service.clone().oneshot(first()).await, service.oneshot(second()).await];
            let statuses = answers.map(|answer| answer.unwrap().status().as_u16());
            assert_eq!(statuses, expected, "{what}, {missing:?}");
        }
    }
}
