//! An attribute, a layer, the gateway and the decision service make the same decisions with the same policy file.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use axum::{Router, routing::get};
use reqwest::Client;
use serde_json::{Value, json};
use std::{
    fs,
    net::{IpAddr, SocketAddr},
    time::Duration,
};
use tidegate::{Limited, limit, rule::RequestContext, tower::LimitLayer};
use tidegate_gateway::{Gateway, PolicySource};
use tokio::{net::TcpListener, time};

#[limit("1/h", rule = "client", key = ip)]
#[limit("1/h", rule = "total")]
#[limit("1/h", rule = "trial", key = ip)]
#[limit("1/h", rule = "retired")]
async fn attribute() -> Result<(), Limited> {
    Ok(())
}

/// Returns a policy with long periods, so that nothing refills during the test.
fn policy(app: SocketAddr, total: u32) -> String {
    format!(
        "
listen: 127.0.0.1:0
decisions: 127.0.0.1:0
upstreams: {{ app: 'http://{app}' }}
routes: [{{ upstream: app }}]
trusted-proxies: [127.0.0.0/8]
rules:
  - {{ name: client, key: ip, quota: 3 per 52w }}
  - {{ name: total, quota: {total} per 52w }}
  - {{ name: trial, key: ip, quota: 1 per 52w, mode: shadow }}
  - {{ name: retired, quota: 1 per 52w, mode: off }}
"
    )
}

/// Returns a client for each letter: `a` is 192.0.2.97.
fn clients(letters: &str) -> impl Iterator<Item = IpAddr> {
    letters.bytes().map(|letter| IpAddr::from([192, 0, 2, letter]))
}

/// Returns `+` for an admitted request and `-` for a denied one.
fn decision_sign(is_admitted: bool) -> char {
    if is_admitted { '+' } else { '-' }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

async fn send(address: SocketAddr, client: IpAddr) -> reqwest::Response {
    let http = Client::builder().no_proxy().build().unwrap();
    let request = http.get(format!("http://{address}/")).header("x-forwarded-for", client.to_string());
    request.send().await.unwrap()
}

async fn decisions_of_attribute(letters: &str) -> String {
    let mut signs = String::new();
    for client in clients(letters) {
        signs.push(decision_sign(RequestContext::default().with_ip(client).scope(attribute()).await.is_ok()));
    }
    signs
}

/// Returns the decisions of a gateway or of a service with the layer.
async fn decisions_at(address: SocketAddr, letters: &str) -> String {
    let mut signs = String::new();
    for client in clients(letters) {
        let status = send(address, client).await.status().as_u16();
        assert!([200, 429].contains(&status), "{status}");
        signs.push(decision_sign(status == 200));
    }
    signs
}

async fn decisions_of_api(address: SocketAddr, letters: &str) -> String {
    let mut signs = String::new();
    for client in clients(letters) {
        let client = client.to_string();
        let queries = json!({
            "queries": [
                { "rule": "client", "key": client },
                { "rule": "total" },
                { "rule": "trial", "key": client },
                { "rule": "retired" },
            ],
            "all-or-nothing": true,
        });
        let http = Client::builder().no_proxy().build().unwrap();
        let request = http.post(format!("http://{address}/v1/check")).body(queries.to_string());
        let body = request.send().await.unwrap().text().await.unwrap();
        let answer: Value = serde_json::from_str(&body).unwrap();
        signs.push(decision_sign(answer["allowed"].as_bool().ok_or(body).unwrap()));
    }
    signs
}

#[tokio::test(flavor = "multi_thread")]
async fn attribute_layer_gateway_and_api_decide_alike() {
    let app = serve(Router::new().route("/", get(async || "hello"))).await;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, policy(app, 7)).unwrap();

    tidegate::init(&path).unwrap();
    let layer = LimitLayer::from_policy(&path).unwrap();
    let layer = serve(Router::new().route("/", get(async || "hello")).layer(layer)).await;
    // Two gateways, because a gateway and its API share counters.
    let [gateway, service] =
        [(); 2].map(|()| Gateway::open(PolicySource::file(&path), tidegate::rules()).unwrap());
    let (listener, api) = (gateway.addresses()[0], service.decisions_address().unwrap());
    let handles = [gateway.handle(), service.handle()];
    tokio::spawn(gateway.run(std::future::pending()));
    tokio::spawn(service.run(std::future::pending()));

    let decide = async |letters: &str| {
        [
            decisions_of_attribute(letters).await,
            decisions_at(layer, letters).await,
            decisions_at(listener, letters).await,
            decisions_of_api(api, letters).await,
        ]
    };
    // The limit per client denies the fifth and the ninth request, and the total limit those after the eighth.
    assert_eq!(decide("aabaabcbbcac").await, ["++++-+++----"; 4]);

    // A larger total limit; the counters of the clients stay.
    fs::write(&path, policy(app, 9)).unwrap();
    tidegate::policy::reload().unwrap();
    for handle in handles {
        handle.reload().await.unwrap();
    }
    let client = clients("a").next().unwrap();
    let reloaded = async {
        while !send(layer, client).await.headers()["ratelimit-policy"].to_str().unwrap().contains("q=9") {
            time::sleep(Duration::from_millis(50)).await;
        }
    };
    time::timeout(Duration::from_secs(20), reloaded).await.unwrap();
    assert_eq!(decide("cacbcc").await, ["+-+---"; 4]);
}
