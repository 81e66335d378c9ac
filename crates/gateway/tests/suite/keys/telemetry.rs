//! Records of requests, and callers of the APIs.

use crate::{
    admin_api::AdminGateway,
    harness::{RawClient, TestBackend},
};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use tidegate_rule::Rules;

#[tokio::test]
async fn history_contains_a_share_of_the_clients() {
    let server = TestBackend::start_echo().await;
    let gateway =
        AdminGateway::start(&server, "trusted-proxies: 127.0.0.0/8\nobserve: { history: 1000, share: 50% }");
    let mut proxy = gateway.connect().await;
    for _ in 0..2 {
        for client in 0..100 {
            let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 192.0.2.{client}\r\n\r\n");
            assert_eq!(proxy.request(&request).await.status(), 200);
        }
    }
    let history = gateway.admin_request("GET", "/api/v1/history", "").await.body;
    let clients: Vec<Value> =
        history.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()["ip"].clone()).collect();
    let distinct: BTreeSet<String> = clients.iter().map(Value::to_string).collect();
    assert!((1..100).contains(&distinct.len()), "{} of 100 clients", distinct.len());
    assert_eq!(clients.len(), 2 * distinct.len(), "all requests of a client are recorded, or none");
    gateway.stop().await;
}

#[tokio::test]
async fn history_names_the_user() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, "user: header x-user\nobserve: { history: 10 }");
    assert_eq!(gateway.status_of("/", "x-user: ann\r\n").await, 200);
    let history = gateway.admin_request("GET", "/api/v1/history", "").await.body;
    assert_eq!(serde_json::from_str::<Value>(&history).unwrap()["user"], "ann", "{history}");
    gateway.stop().await;
}

#[tokio::test]
async fn admin_api_accepts_the_declared_host_names() {
    let server = TestBackend::start_echo().await;
    let policy = format!(
        "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0, hosts: gateway.internal }}\n\
         upstreams: {{ app: http://{} }}\nroutes: app",
        server.address
    );
    let gateway = AdminGateway::start_policy(&policy, Rules::new());
    for (host, status) in [("localhost", 200), ("gateway.internal", 200), ("gateway.example", 421)] {
        let request = format!("GET /api/v1/status HTTP/1.1\r\nhost: {host}\r\n\r\n");
        assert_eq!(
            RawClient::connect(gateway.admin).await.request(&request).await.status(),
            status,
            "{host}"
        );
    }
    gateway.stop().await;
}

#[tokio::test]
async fn reservation_belongs_to_the_caller_with_its_name() {
    let policy = "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
        decisions: { listen: 127.0.0.1:0, tokens: [{ name: web, token: $CARGO_PKG_NAME }, { name: jobs, token: $CARGO_PKG_VERSION }] }\n\
        rules: [{ name: all, quota: 9/h }]";
    let gateway = AdminGateway::start_policy(policy, Rules::new());
    let post = async |token: &str, path: &str, body: &Value| {
        let body = body.to_string();
        let length = body.len();
        let request = format!(
            "POST /v1/{path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {token}\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        RawClient::connect(gateway.decisions.unwrap()).await.request(&request).await
    };
    let (web, jobs) = (env!("CARGO_PKG_NAME"), env!("CARGO_PKG_VERSION"));
    let reserved = post(web, "reserve", &json!({ "rule": "all" })).await;
    let reservation: Value = serde_json::from_str(&reserved.body).unwrap();
    let id = json!({ "id": reservation["id"] });
    assert_eq!(post(jobs, "cancel", &id).await.status(), 404);
    assert_eq!(post(web, "cancel", &id).await.status(), 200);
    gateway.stop().await;
}
