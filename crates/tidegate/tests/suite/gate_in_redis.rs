//! Gates with rules in Redis: atomic charges, settlement with the response, and counters that servers share.

#![cfg(all(feature = "redis", feature = "axum", target_os = "linux"))]
#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use axum::{Router, body::Body, http::Request, response::Response, routing::get};
use std::{
    future::poll_fn,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tidegate::{
    FailureMode, Gate, RequestLimit, RuleConfig, Rules,
    rule::{ChargePolicy, Settings, request::ResponseHead},
    tower::{LimitLayer, TowerRequestHead, TowerResponseHead},
};
use tidegate_policy::{
    Policy, PolicyFormat,
    compile::{Compiler, PolicyResult},
};
use tidegate_rule::{Evaluation, Verdict};
use tidegate_testkit::servers::RedisServer;
use tokio::{net::TcpListener, sync::Notify};

/// Returns rules in this server, connected and with a long deadline.
async fn rules(server: &RedisServer, outage: FailureMode) -> Rules {
    let rules = tidegate::rules();
    let settings =
        Settings::new().store_url(server.url()).deadline(Duration::from_secs(5)).failure_mode(outage);
    rules.apply(settings).unwrap();
    let probe = rules.declare(RuleConfig::new("probe").quota("1000000 per 52w").unwrap()).unwrap();
    loop {
        probe.admit("", 1).await.ok();
        let limiter = probe.limiter().unwrap();
        let before = limiter.degraded_count();
        if probe.admit("", 1).await.is_ok() && limiter.degraded_count() == before {
            return rules;
        }
    }
}

fn limit(rules: &Rules, name: &'static str, quota: &str) -> RequestLimit {
    RequestLimit::new(rules.declare(RuleConfig::new(name).quota(quota).unwrap()).unwrap())
}

/// Returns the remaining quota or slots of a rule without a key.
async fn quota_remaining(limit: &RequestLimit) -> u64 {
    limit.rule().limiter().unwrap().key("").peek(0).await.remaining()
}

/// Waits until the remaining quota is as expected, because refunds are sent in the background.
async fn wait_for_remaining(limit: &RequestLimit, expected: u64) {
    let mut last = 0;
    for _ in 0..2_000 {
        last = quota_remaining(limit).await;
        if last == expected {
            return;
        }
    }
    panic!("{last} remaining of {limit:?} instead of {expected}");
}

fn request() -> Request<()> {
    Request::builder().uri("/").body(()).unwrap()
}

async fn check_gate(gate: &Gate) -> Verdict {
    match gate.check(&TowerRequestHead::new(&request())) {
        Evaluation::Ready(_) => panic!("a check in Redis is asynchronous"),
        Evaluation::Pending(pending) => pending.await,
    }
}

/// Returns the number of script calls of a server.
fn script_calls(server: &RedisServer) -> u64 {
    let stats = format!("{:?}", server.command(&["INFO", "commandstats"]).unwrap());
    let calls = |name: &str| {
        let rest = stats.split(&format!("cmdstat_{name}:calls=")).nth(1)?;
        rest.split(',').next()?.parse::<u64>().ok()
    };
    ["evalsha", "eval", "fcall"].iter().filter_map(|name| calls(name)).sum()
}

#[tokio::test(flavor = "multi_thread")]
async fn stacked_limits_take_one_round_trip() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server, FailureMode::Closed).await;
    let gate = Gate::new([
        limit(&rules, "wide", "100 per 52w"),
        limit(&rules, "narrow", "2 per 52w"),
        limit(&rules, "jobs", "5 at once"),
    ]);
    // The first call loads the script into Redis.
    let first = check_gate(&gate).await;
    let before = script_calls(&server);
    let second = check_gate(&gate).await;
    assert_eq!(script_calls(&server) - before, 1);
    assert!(first.is_admitted() && second.is_admitted());
    drop((first, second));
    for _ in 0..3 {
        assert!(!check_gate(&gate).await.is_admitted());
    }
    let [wide, narrow, jobs] = gate.limits() else { panic!("three") };
    wait_for_remaining(jobs, 5).await;
    assert_eq!(
        (quota_remaining(wide).await, quota_remaining(narrow).await),
        (98, 0),
        "a denied request is not charged"
    );
}

/// A rule with `prefetch` decides most requests without a call to the store.
#[tokio::test(flavor = "multi_thread")]
async fn prefetch_saves_store_calls() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server, FailureMode::Closed).await;
    let policy = |prefetch: &str| {
        let url = server.url();
        let text =
            format!("store: {url}\ndeadline: 5s\nrules: [{{ name: busy, quota: 1000 per 52w{prefetch} }}]");
        Policy::parse(&text, PolicyFormat::Yaml).unwrap()
    };
    let mut calls = Vec::new();
    for prefetch in ["", ", prefetch: 60s"] {
        let gate = Compiler::new(rules.clone()).compile(&policy(prefetch), None).unwrap();
        let before = script_calls(&server);
        for _ in 0..300 {
            let result = match gate.check(&TowerRequestHead::new(&request())) {
                Evaluation::Ready(result) => result,
                Evaluation::Pending(pending) => pending.await,
            };
            assert!(matches!(result, PolicyResult::Admitted(_)), "{result:?}");
        }
        calls.push(script_calls(&server) - before);
    }
    let [without, with] = calls.as_slice() else { panic!("two runs") };
    assert!(*without >= 300 && with * 2 < *without, "{without} and {with} calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn charge_depends_on_response() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server, FailureMode::Closed).await;
    let is = |status: u16| move |reply: &dyn ResponseHead| reply.status() == status;
    let actual_cost = |reply: &dyn ResponseHead| str::from_utf8(reply.header("x-price")?).ok()?.parse().ok();
    let gate = Gate::new([
        limit(&rules, "failures", "50 per 52w").charge(ChargePolicy::only_if(is(401))),
        limit(&rules, "no-errors", "50 per 52w").charge(ChargePolicy::refund_if(is(500))),
        limit(&rules, "priced", "50 per 52w").cost(|_| 4).charge(ChargePolicy::actual(actual_cost)),
    ]);
    let mut expected = [50, 50, 50];
    let answers = [(200, None, [0, 1, 4]), (401, Some("9"), [1, 1, 9]), (500, Some("1"), [0, 0, 1])];
    for (status, priced, due) in answers {
        let mut answer = Response::builder().status(status);
        if let Some(price) = priced {
            answer = answer.header("x-price", price);
        }
        let verdict = check_gate(&gate).await;
        assert!(verdict.settle(&gate, &TowerResponseHead::new(&answer.body(()).unwrap())).is_empty());
        for ((limit, left), due) in gate.limits().iter().zip(&mut expected).zip(due) {
            *left -= due;
            wait_for_remaining(limit, *left).await;
        }
    }
}

/// The check is cancelled after Redis has decided and before its reply arrives.
#[tokio::test(flavor = "multi_thread")]
async fn cancelled_redis_check_holds_nothing() {
    let server = RedisServer::start().unwrap();
    let rules = rules(&server, FailureMode::Closed).await;
    let gate = Gate::new([limit(&rules, "jobs", "2 at once"), limit(&rules, "calls", "50 per 52w")]);
    for _ in 0..20 {
        let Evaluation::Pending(pending) = gate.check(&TowerRequestHead::new(&request())) else {
            panic!("later")
        };
        let mut pending = Box::pin(pending);
        let is_done = poll_fn(|context| Poll::Ready(pending.as_mut().poll(context).is_ready())).await;
        assert!(!is_done, "the reply has not arrived");
    }
    wait_for_remaining(&gate.limits()[0], 2).await;
    wait_for_remaining(&gate.limits()[1], 50).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn outage_mode_applies_per_rule() {
    for (outage, expected) in
        [(FailureMode::Open, 15), (FailureMode::Local { nodes: 2 }, 5), (FailureMode::Closed, 0)]
    {
        let server = RedisServer::start().unwrap();
        let rules = rules(&server, outage).await;
        let gate = Gate::new([limit(&rules, "calls", "10 per 52w"), limit(&rules, "more", "100 per 52w")]);
        let verdict = check_gate(&gate).await;
        assert!(verdict.is_admitted());
        server.kill();
        drop(verdict);
        let mut admitted = 0;
        for _ in 0..15 {
            admitted += usize::from(check_gate(&gate).await.is_admitted());
        }
        assert_eq!(admitted, expected, "{outage:?}");
    }
}

async fn serve(app: Router) -> String {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

/// A stream that sends its second part when the test resumes it.
struct TwoPartStream(u8, Pin<Box<dyn Future<Output = ()> + Send>>);

impl futures_core::Stream for TwoPartStream {
    type Item = Result<&'static str, std::convert::Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0 += 1;
        match self.0 {
            1 => Poll::Ready(Some(Ok("half"))),
            _ => self.1.as_mut().poll(context).map(|()| None),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slot_is_released_when_body_is_sent() {
    let server = RedisServer::start().unwrap();
    let downloads = limit(&rules(&server, FailureMode::Closed).await, "downloads", "2 at once");
    let resume = Arc::new(Notify::new());
    let resumed = resume.clone();
    let download = get(async move || {
        let resumed = resumed.clone();
        Body::from_stream(TwoPartStream(0, Box::pin(async move { resumed.notified().await })))
    });
    let address = serve(Router::new().route("/", download).layer(LimitLayer::new(downloads.clone()))).await;
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let send_request = async || client.get(&address).send().await.unwrap();
    let (first, second) = (send_request().await, send_request().await);
    let third = send_request().await;
    assert_eq!([&first, &second, &third].map(|answer| answer.status().as_u16()), [200, 200, 429]);
    resume.notify_waiters();
    assert_eq!(first.text().await.unwrap(), "half");
    assert_eq!(second.text().await.unwrap(), "half");
    wait_for_remaining(&downloads, 2).await;
    // The slot is also released when the client disconnects during the download.
    drop(send_request().await);
    wait_for_remaining(&downloads, 2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_servers_admit_ten_of_hundred_clients() {
    let redis = RedisServer::start().unwrap();
    let mut servers = Vec::new();
    for _ in 0..2 {
        let ten = limit(&rules(&redis, FailureMode::Closed).await, "ten", "10 per 52w");
        let app = Router::new().route("/", get(async || "hello")).layer(LimitLayer::new(ten));
        servers.push(serve(app).await);
    }
    let requests: Vec<_> = servers
        .iter()
        .cycle()
        .take(100)
        .map(|server| {
            // A new client has its own connection.
            let client = reqwest::Client::builder().no_proxy().build().unwrap();
            tokio::spawn(client.get(server).send())
        })
        .collect();
    let mut admitted = 0;
    for request in requests {
        let status = request.await.unwrap().unwrap().status().as_u16();
        assert!([200, 429].contains(&status), "{status}");
        admitted += usize::from(status == 200);
    }
    assert_eq!(admitted, 10);
}
