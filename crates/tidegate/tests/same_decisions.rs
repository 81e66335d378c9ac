//! One policy makes the same decisions in a function, in a layer, in the gateway, over HTTP and over gRPC, in memory and in
//! Redis.
//!
//! A random trace of times, users and costs is sent through all of them. Time is a manual clock, also in Redis.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail")]

use axum::{Router, routing::get};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};
use tidegate::{
    Limited, Rules,
    core::header::ceil_seconds,
    limit,
    limiter::{
        Clock, ManualClock, Store,
        store::{StoreError, StoreFuture, StoreReply, StoreRequest},
    },
    policy::{
        Policy,
        compile::{Compiler, LivePolicy},
        model::CostSpec,
    },
    redis::RedisStore,
    tower::PolicyLayer,
};
use tidegate_gateway::{Gateway, PolicySource};
use tidegate_proto::rls::{Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use tidegate_testkit::servers::RedisServer;
use tokio::net::TcpListener;
use tonic::transport::Channel;

/// The burst of the rule with the smallest one. Calls of a higher cost are never admitted.
const MAX_BURST: u64 = 5;
/// The names of the rules that are enforced.
const RULES: [&str; 7] = ["bucket", "initial", "window", "calendar", "sliding", "log", "total"];
/// In Kolkata, 10 minutes before midnight: a day of the calendar ends during the trace.
const START: Duration = Duration::from_secs(1_699_986_000);

#[limit("1/h", rule = "bucket", key = user, cost = cost)]
#[limit("1/h", rule = "initial", key = user, cost = cost)]
#[limit("1/h", rule = "window", key = user, cost = cost)]
#[limit("1/h", rule = "calendar", key = user, cost = cost)]
#[limit("1/h", rule = "sliding", key = user, cost = cost)]
#[limit("1/h", rule = "log", cost = cost)]
#[limit("1/h", rule = "total", key = user, cost = cost)]
#[limit("1/h", rule = "trial", key = user, cost = cost)]
async fn function(user: &str, cost: u64) -> Result<(), Limited> {
    Ok(())
}

/// Each surface has its own prefix in the store, and so its own counters.
fn policy_text(surface: &str, app: SocketAddr, store: &str) -> String {
    format!(
        r#"
listen: 127.0.0.1:0
decisions: 127.0.0.1:0
envoy: 127.0.0.1:0
upstreams: {{ app: "http://{app}" }}
routes: app
store: {store}
prefix: {surface}
deadline: 20s
failure-mode: closed
user: {{ first: [header x-user, descriptor user] }}
templates: {{ usual: {{ key: user, cost: {{ from: header x-cost, max: 9 }} }} }}
rules:
  - {{ name: bucket, use: usual, quota: 8/min burst 5 }}
  - {{ name: initial, use: usual, quota: 8/min burst 6 initial 1 }}
  - {{ name: window, use: usual, quota: 9/min fixed-window }}
  - {{ name: calendar, use: usual, quota: 45/d fixed-window in Asia/Kolkata }}
  - {{ name: sliding, use: usual, quota: 20 per 5min sliding-window }}
  - {{ name: log, use: usual, key: all, quota: 15/min sliding-log }}
  - {{ name: total, use: usual, quota: 55 total }}
  - {{ name: trial, use: usual, quota: 1/h, mode: shadow }}
"#
    )
}

/// One call of the trace.
#[derive(Clone, Copy, Debug)]
struct Step {
    pause: Duration,
    user: &'static str,
    cost: u64,
}

fn trace() -> Vec<Step> {
    let mut random = fastrand::Rng::with_seed(7);
    let pauses = [0, 0, 0, 1, 400_000, 1_000_000, 4_999_999, 9_000_000, 31_000_000, 60_000_000];
    let step = |random: &mut fastrand::Rng| Step {
        pause: Duration::from_micros(*random.choice(&pauses).unwrap()),
        user: random.choice(["ann", "bob", "eve"]).unwrap(),
        cost: *random.choice(&[1, 1, 1, 2, 3, 7]).unwrap(),
    };
    (0..200).map(|_| step(&mut random)).collect()
}

/// A decision as a caller sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Observed {
    is_allowed: bool,
    /// The remaining tokens of each enforced rule, where the caller sees them.
    remaining: Option<BTreeMap<String, u64>>,
    /// The seconds after which a denied call can succeed.
    retry_after: Option<u64>,
}

/// Reads `ratelimit: "bucket";r=5;t=5, "window";r=9;t=60`.
fn parse_remaining(header: &str) -> BTreeMap<String, u64> {
    let item = |item: &str| {
        let mut parts = item.trim().split(';');
        let name = parts.next().unwrap().trim_matches('"').to_owned();
        let remaining = parts.find_map(|part| part.strip_prefix("r=")).unwrap().parse().unwrap();
        (name, remaining)
    };
    header.split(',').map(item).collect()
}

/// A store that uses the clock of the test instead of that of its server.
#[derive(Debug)]
struct ManualTimeStore(Arc<RedisStore>);

static REDIS_CLOCK: OnceLock<Clock> = OnceLock::new();

impl Store for ManualTimeStore {
    fn execute(&self, request: StoreRequest) -> StoreFuture<Result<StoreReply, StoreError>> {
        let (store, now) = (self.0.clone(), REDIS_CLOCK.get().unwrap().now());
        Box::pin(async move { store.execute_at(&[request], now).await.pop().unwrap() })
    }

    fn ready(&self) -> StoreFuture<Result<(), StoreError>> {
        self.0.ready()
    }
}

fn connect_manual_time(rules: &Rules) {
    rules.set_connect(|connection| {
        let builder = RedisStore::builder().bind_to_runtime().prefix(connection.prefix.unwrap());
        let store = builder.deadline(connection.deadline.unwrap()).open(connection.url)?;
        Ok(Arc::new(ManualTimeStore(Arc::new(store))))
    });
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

fn observe_http(response: &Response) -> Observed {
    let status = response.status().as_u16();
    assert!([200, 429].contains(&status), "{response:?}");
    let header = |name: &str| response.headers().get(name).map(|value| value.to_str().unwrap());
    Observed {
        is_allowed: status == 200,
        remaining: header("ratelimit").map(parse_remaining),
        retry_after: header("retry-after").map(|seconds| seconds.parse().unwrap()),
    }
}

/// All surfaces, with the same policy and clock.
struct Surfaces {
    http: Client,
    layer: SocketAddr,
    gateway: SocketAddr,
    auth: SocketAddr,
    checks: SocketAddr,
    grpc: RateLimitServiceClient<Channel>,
}

impl Surfaces {
    async fn open(folder: &Path, store: &str, clock: &Clock) -> Self {
        let hello = || Router::new().route("/", get(async || "hello"));
        let app = serve(hello()).await;
        let policy = |surface: &str| policy_text(surface, app, store);
        let parse = |surface: &str| -> Policy { policy(surface).parse().unwrap() };

        connect_manual_time(Rules::global());
        let compiler = Compiler::new(Rules::global().clone()).clock(clock.clone());
        let mut of_function = parse("function");
        // The code of a function has the cost.
        of_function.rules.iter_mut().for_each(|rule| rule.cost = CostSpec::Fixed(1));
        compiler.connect_stores(&of_function).await.unwrap();
        compiler.apply(&of_function).unwrap();

        let rules = Rules::new();
        connect_manual_time(&rules);
        let compiler = Compiler::new(rules).clock(clock.clone());
        compiler.connect_stores(&parse("layer")).await.unwrap();
        let live = Arc::new(LivePolicy::new(compiler, &parse("layer")).unwrap());
        let layer = serve(hello().layer(PolicyLayer::new(live).unwrap())).await;

        let start = async |surface: &str| {
            let rules = Rules::new();
            connect_manual_time(&rules);
            Compiler::new(rules.clone()).connect_stores(&parse(surface)).await.unwrap();
            let path = folder.join(format!("{surface}.yaml"));
            std::fs::write(&path, policy(surface)).unwrap();
            let gateway = Gateway::open_with_clock(PolicySource::file(path), rules, clock.clone()).unwrap();
            let addresses = (
                gateway.addresses()[0],
                gateway.decisions_address().unwrap(),
                gateway.envoy_address().unwrap(),
            );
            tokio::spawn(gateway.run(std::future::pending()));
            addresses
        };
        let grpc = start("grpc").await.2;
        let grpc = Channel::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        Self {
            http: Client::builder().no_proxy().build().unwrap(),
            layer,
            gateway: start("gateway").await.0,
            auth: start("auth").await.1,
            checks: start("checks").await.1,
            grpc: RateLimitServiceClient::new(grpc),
        }
    }

    /// The decisions of all surfaces, each with its name.
    async fn decide(&mut self, step: Step) -> [(&'static str, Observed); 6] {
        [
            ("layer", self.request(self.layer, step).await),
            ("gateway", self.request(self.gateway, step).await),
            ("decision API, /v1/auth", self.auth(step).await),
            ("decision API, /v1/check", self.check(step).await),
            ("gRPC", self.should_rate_limit(step).await),
            ("function", call_function(step).await),
        ]
    }

    async fn request(&self, address: SocketAddr, step: Step) -> Observed {
        let request = self.http.get(format!("http://{address}/")).header("x-user", step.user);
        observe_http(&request.header("x-cost", step.cost).send().await.unwrap())
    }

    async fn auth(&self, step: Step) -> Observed {
        let request = self.http.get(format!("http://{}/v1/auth?proxy=nginx&deny=policy", self.auth));
        let request = request.header("x-original-uri", "/").header("x-real-ip", "192.0.2.1");
        let request = request.header("x-user", step.user).header("x-cost", step.cost);
        observe_http(&request.send().await.unwrap())
    }

    async fn check(&self, step: Step) -> Observed {
        let query = |rule: &str| match rule {
            "log" => json!({ "rule": rule, "cost": step.cost }),
            _ => json!({ "rule": rule, "key": step.user, "cost": step.cost }),
        };
        let queries: Vec<_> = RULES.into_iter().chain(["trial"]).map(query).collect();
        let body = json!({ "queries": queries, "all-or-nothing": true }).to_string();
        let request = self.http.post(format!("http://{}/v1/check", self.checks)).body(body);
        let answer: Value =
            serde_json::from_str(&request.send().await.unwrap().text().await.unwrap()).unwrap();
        let results: Vec<&Value> = answer["results"].as_array().unwrap().iter().take(RULES.len()).collect();
        let remaining = results.iter().map(|result| result["remaining"].as_u64().unwrap());
        // If one rule never admits the cost, there is no time to retry.
        let denied = results.iter().filter(|result| result["allowed"] == false);
        let retries: Option<Vec<f64>> = denied.map(|result| result["retry-after"].as_f64()).collect();
        let retry = retries.and_then(|retries| retries.into_iter().reduce(f64::max));
        Observed {
            is_allowed: answer["allowed"].as_bool().unwrap(),
            remaining: Some(RULES.map(str::to_owned).into_iter().zip(remaining).collect()),
            retry_after: retry.map(|seconds| ceil_seconds(Duration::from_secs_f64(seconds).into())),
        }
    }

    async fn should_rate_limit(&mut self, step: Step) -> Observed {
        let entry = Entry { key: "user".to_owned(), value: step.user.to_owned() };
        let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor],
            hits_addend: u32::try_from(step.cost).unwrap(),
        };
        let response = self.grpc.should_rate_limit(request).await.unwrap().into_inner();
        let header = |name: &str| {
            let found = response.response_headers_to_add.iter().find(|header| header.key == name);
            found.map(|header| header.value.clone())
        };
        let is_allowed = response.overall_code() == Code::Ok;
        let remaining = header("ratelimit").map(|header| parse_remaining(&header));
        let retry_after = header("retry-after").map(|seconds| seconds.parse().unwrap());
        let [status] = &response.statuses[..] else { panic!("{response:?}") };
        assert_eq!(status.code() == Code::Ok, is_allowed);
        if is_allowed {
            let lowest = remaining.as_ref().unwrap().values().min().copied();
            assert_eq!(Some(u64::from(status.limit_remaining)), lowest, "{response:?}");
        } else {
            let reset =
                status.duration_until_reset.as_ref().map(|reset| u64::try_from(reset.seconds).unwrap());
            assert_eq!(reset, retry_after, "{response:?}");
        }
        Observed { is_allowed, remaining, retry_after }
    }
}

async fn call_function(step: Step) -> Observed {
    let result = function(step.user, step.cost).await;
    let retry = result.as_ref().err().and_then(Limited::retry_after);
    Observed {
        is_allowed: result.is_ok(),
        remaining: None,
        retry_after: retry.map(|wait| ceil_seconds(wait.into())),
    }
}

/// A function does not see the remaining tokens. Its attributes are checked one after the other, so of several rules that deny
/// a call it knows the time to retry of the first only.
fn assert_function(function: &Observed, expected: &Observed, step: Step, message: &str) {
    assert_eq!(function.is_allowed, expected.is_allowed, "{message}");
    let remaining = expected.remaining.as_ref().unwrap().values();
    match remaining.filter(|remaining| **remaining < step.cost).count() {
        0 | 1 => assert_eq!(function.retry_after, expected.retry_after, "{message}"),
        _ => assert!(
            expected.retry_after.is_none_or(|longest| function.retry_after.is_some_and(|own| own <= longest)),
            "{function:?} {expected:?} {message}"
        ),
    }
}

/// Sends the trace through all surfaces, which must agree, and returns their decisions.
async fn run(store: &str, clock: &Clock, time: &ManualClock) -> Vec<Observed> {
    let folder = tempfile::tempdir().unwrap();
    let mut surfaces = Surfaces::open(folder.path(), store, clock).await;
    let mut decisions = Vec::new();
    for (index, step) in trace().into_iter().enumerate() {
        time.advance(step.pause);
        let observed = surfaces.decide(step).await;
        let expected = observed[0].1.clone();
        for (surface, observed) in observed {
            let message = format!("{surface} in {store}, step {index}: {step:?}");
            match observed.remaining {
                Some(_) => assert_eq!(observed, expected, "{message}"),
                None => assert_function(&observed, &expected, step, &message),
            }
        }
        decisions.push(expected);
    }
    decisions
}

#[tokio::test(flavor = "multi_thread")]
async fn one_policy_decides_alike_everywhere() {
    let (clock, time) = Clock::manual();
    time.advance(START);
    let in_memory = run("memory", &clock, &time).await;

    let redis = RedisServer::start().unwrap();
    let (clock, time) = Clock::manual();
    time.advance(START);
    REDIS_CLOCK.set(clock.clone()).unwrap();
    let in_redis = run(&redis.url(), &clock, &time).await;
    assert_eq!(in_memory, in_redis);

    // The trace reaches each rule: some calls cost more than it has left.
    let calls = || trace().into_iter().zip(&in_memory);
    let reached = RULES.map(|rule| {
        let lacks = |(step, observed): &(Step, &Observed)| {
            !observed.is_allowed && observed.remaining.as_ref().unwrap()[rule] < step.cost.min(MAX_BURST)
        };
        (rule, calls().filter(lacks).count())
    });
    assert!(reached.iter().all(|(_, count)| *count > 0), "{reached:?}");
    assert!(in_memory.iter().any(|observed| observed.is_allowed));

    // A day of the calendar ends.
    let remaining = |user: &str| -> Vec<u64> {
        let of_user = calls().filter(|(step, _)| step.user == user);
        of_user.map(|(_, observed)| observed.remaining.as_ref().unwrap()["calendar"]).collect()
    };
    for user in ["ann", "bob", "eve"] {
        assert!(remaining(user).windows(2).any(|pair| pair[0] < pair[1]), "{user}: {:?}", remaining(user));
    }
}
