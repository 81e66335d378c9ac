//! Layers in real servers with real clients, over HTTP/1.1 and HTTP/2.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use axum::{Router, body::Body, extract::ConnectInfo, routing::get};
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tidegate_access::{AccessControl, Bans};
use tidegate_bandwidth::KeyedBandwidth;
use tidegate_limiter::{Semaphore, Waiter};
use tidegate_overload::{
    AdaptiveLimit, Breaker, BreakerSettings, PriorityLimit,
    adaptive::{Aimd, Bounds},
    priority::{PriorityClass, PriorityRequest},
};
use tidegate_rule::{
    Gate, RequestLimit, RuleConfig, Rules,
    request::{TrustedProxies, key},
    site,
};
use tidegate_tower::{
    AccessLayer, BandwidthLayer, ConcurrencyLayer, ContextExtractor, ContextLayer, GuardLayer, Guards,
    InFlightEnd, LimitLayer, PriorityLayer, RequestAccess, RequestBandwidth, RequestConcurrency,
    RequestGuard, RequestPriority,
};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

type TestHttpClient = Client<HttpConnector, Empty<Bytes>>;

/// Returns a client for HTTP/1.1 and one for HTTP/2.
fn clients() -> [(Version, TestHttpClient); 2] {
    let client = |http2| {
        let mut builder = Client::builder(TokioExecutor::new());
        builder.http2_only(http2).build_http()
    };
    [(Version::HTTP_11, client(false)), (Version::HTTP_2, client(true))]
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = router.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await });
    address
}

async fn get_from(
    client: &TestHttpClient,
    address: SocketAddr,
    headers: &[(&str, &str)],
) -> Response<Incoming> {
    let mut request = Request::builder().uri(format!("http://{address}/"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    client.request(request.body(Empty::new()).unwrap()).await.unwrap()
}

/// The limit does not depend on the number of connections.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_slots_admit_ten_of_hundred_clients() {
    for (version, client) in clients() {
        let (open, gate) = watch::channel(false);
        let calls = Arc::new(AtomicUsize::new(0));
        let counted = calls.clone();
        let handler = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            let mut gate = gate.clone();
            async move {
                gate.wait_for(|open| *open).await.unwrap();
                "served"
            }
        };
        let layer = ConcurrencyLayer::new(Semaphore::new(10).unwrap());
        let address = serve(Router::new().route("/", get(handler)).layer(layer)).await;

        let mut tasks = JoinSet::new();
        for _ in 0..100 {
            let client = client.clone();
            tasks.spawn(async move {
                let answer = get_from(&client, address, &[]).await;
                (answer.version(), answer.status().as_u16())
            });
        }
        for _ in 0..90 {
            assert_eq!(tasks.join_next().await.unwrap().unwrap(), (version, 503));
        }
        open.send_replace(true);
        while let Some(answer) = tasks.join_next().await {
            assert_eq!(answer.unwrap(), (version, 200));
        }
        assert_eq!(calls.load(Ordering::SeqCst), 10);
    }
}

/// A body that never ends.
struct EndlessBody;

impl http_body::Body for EndlessBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Self::Error>>> {
        std::task::ready!(tokio::task::coop::poll_proceed(context)).made_progress();
        std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(&[b'x'; 1_024])))))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_client_releases_slot() {
    for (version, client) in clients() {
        let slots = Semaphore::new(1).unwrap();
        let endless = || async { Response::new(Body::new(EndlessBody)) };
        let layer = ConcurrencyLayer::new(slots.clone());
        let address = serve(Router::new().route("/", get(endless)).layer(layer)).await;

        let mut download = get_from(&client, address, &[]).await;
        download.body_mut().frame().await.unwrap().unwrap();
        assert_eq!(slots.in_flight(), 1, "{version:?}");
        assert_eq!(get_from(&client, address, &[]).await.status(), 503, "{version:?}");
        drop(download);
        let waiter = Waiter::new(1).deadline(Duration::from_secs(60));
        assert!(slots.acquire(waiter).await.is_ok(), "{version:?}");
    }
}

/// All layers on one router, outermost last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_layers_compose() {
    let rules = Rules::new();
    let rule = |name: &'static str| rules.declare(RuleConfig::new(name).quota("3/h").unwrap()).unwrap();
    let proxies = TrustedProxies::loopback();
    let gate = Gate::new([RequestLimit::new(rule("layer")).key(key::client(proxies.clone()))]);
    let rule = rule("handler");
    let handler = move |ConnectInfo(_): ConnectInfo<SocketAddr>| {
        let rule = rule.clone();
        async move {
            rule.admit(&site::ip(), 1)
                .await
                .map_err(|limited| (http::StatusCode::TOO_MANY_REQUESTS, limited.to_string()))?;
            Ok::<_, (http::StatusCode, String)>(format!("hello {}", site::user()))
        }
    };
    let settings = BreakerSettings::builder().count_window(100).build().unwrap();
    let breakers = Guards::builder().build(move || Breaker::new(settings.clone()));
    let adaptive = Arc::new(AdaptiveLimit::new(Aimd::new(Bounds::default())).unwrap());
    let priority = PriorityLimit::new([PriorityClass::new("all", "100%".parse().unwrap())], 10).unwrap();
    let bans = Bans::builder().rule("2/min for 1h".parse().unwrap()).build().unwrap();
    let control = Arc::new(AccessControl::new(Default::default(), bans));
    let router = Router::new()
        .route("/", get(handler))
        .layer(GuardLayer::new(RequestGuard::by_key(breakers, key::route())))
        .layer(LimitLayer::new(gate))
        .layer(PriorityLayer::new(RequestPriority::new(priority, |_, _| PriorityRequest::new(0))))
        .layer(ConcurrencyLayer::new(
            RequestConcurrency::new(Semaphore::new(10).unwrap()).wait(Duration::from_secs(60)),
        ))
        .layer(GuardLayer::new(RequestGuard::new(adaptive.clone()).in_flight_end(InFlightEnd::Body)))
        .layer(BandwidthLayer::new(RequestBandwidth::by_key(
            KeyedBandwidth::new("10MB/s").unwrap(),
            key::peer(),
        )))
        .layer(AccessLayer::new(
            RequestAccess::new(control)
                .trusted_proxies(proxies.clone())
                .ban_on(|reply| reply.status() == 429),
        ))
        .layer(ContextLayer::new(
            ContextExtractor::new().trusted_proxies(proxies).user(|_| Some("alice".into())),
        ));
    let address = serve(router).await;

    for ((version, client), ip) in clients().iter().zip(["203.0.113.1", "203.0.113.2"]) {
        let headers = [("x-forwarded-for", ip)];
        for _ in 0..3 {
            let answer = get_from(client, address, &headers).await;
            assert_eq!((answer.version(), answer.status().as_u16()), (*version, 200));
            assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "hello alice");
        }
        let mut statuses = Vec::new();
        for _ in 0..3 {
            statuses.push(get_from(client, address, &headers).await.status().as_u16());
        }
        assert_eq!(statuses, [429, 429, 403], "limited twice, then banned");
    }
    assert_eq!(adaptive.in_flight(), 0);
}
