//! Costs in the access log, in the history, in previews and in the admin API; and of rules in shadow mode.

use super::{ESTIMATE, post, remaining, start_server};
use crate::{
    admin_api::AdminGateway,
    harness::{TestBackend, text_body},
};
use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::{Value, json};
use std::fs;

const RECORDED_POLICY: &str = "log: { format: json, file: access.log }
observe: { history: 100 }
user: header x-user
rules:
  - { name: requests, key: user, quota: 1000/h }
  - name: tokens
    key: user
    quota: 100 per 1000h fixed-window
    cost: { from: body /max_tokens, default: 10, max: 100 }
    settle: body /usage/total_tokens
";

#[tokio::test]
async fn log_and_history_have_the_costs() {
    let server = start_server().await;
    let gateway = AdminGateway::start(&server, RECORDED_POLICY);
    let mut client = gateway.connect().await;
    let body = r#"{"max_tokens": 20}"#;
    for (path, body, status) in
        [("/usage", body, 200), ("/none", "", 200), ("/usage", r#"{"max_tokens": 90}"#, 429)]
    {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nx-user: ann\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        assert_eq!(client.request(&request).await.status(), status, "{path}");
    }
    let expected = [
        json!({ "tokens": { "reserved": 20, "stated": 7 } }),
        json!({ "tokens": { "reserved": 10 } }),
        json!({ "tokens": { "reserved": 90 } }),
    ];
    let costs = |lines: &str| -> Vec<Value> {
        let lines = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        lines.map(|line| line["costs"].clone()).collect()
    };
    let history = gateway.admin_request("GET", "/api/v1/history", "").await.body;
    assert_eq!(costs(&history), expected);
    let folder = gateway.stop_and_keep_files().await;
    let log = fs::read_to_string(folder.path().join("access.log")).unwrap();
    assert_eq!(costs(&log), expected, "{log}");
}

/// Without the recorded costs, each request would cost the default, and the other quota would deny none of them.
#[tokio::test]
async fn preview_charges_the_recorded_costs() {
    let server = TestBackend::start(|_: Request<Incoming>| async {
        Response::new(text_body(r#"{"usage": {"total_tokens": 30}}"#))
    })
    .await;
    let gateway = AdminGateway::start(&server, &RECORDED_POLICY.replace("100 per", "1000 per"));
    for _ in 0..5 {
        let response = post(&mut gateway.connect().await, "x-user: ann\r\n", r#"{"max_tokens": 20}"#).await;
        assert_eq!(response.status(), 200);
    }
    let body = r#"{"key": "quota", "value": "100 per 1000h fixed-window"}"#;
    let preview = gateway.admin_request("POST", "/api/v1/rules/tokens/preview", body).await;
    let preview: Value = serde_json::from_str(&preview.body).unwrap();
    // Three requests are charged 30 each; the fourth one finds no room for its estimate.
    assert_eq!(
        (&preview["before"]["denied"], &preview["after"]["denied"]),
        (&json!(0), &json!(2)),
        "{preview}"
    );
    gateway.stop().await;
}

#[tokio::test]
async fn status_has_the_settlements_of_a_rule() {
    let server = start_server().await;
    let gateway = AdminGateway::start(&server, RECORDED_POLICY);
    for path in ["/usage", "/much", "/none"] {
        gateway.get_with_header(path, &format!("x-user: {path}\r\n")).await;
    }
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!(status["rules"][0]["settlements"], Value::Null);
    assert_eq!(
        status["rules"][1]["settlements"],
        json!({
            "requests": { "stated": 2, "unstated": 1, "aborted": 0 },
            "tokens": { "refunded": 3, "debt": 50, "uncharged": 0 },
        })
    );
    gateway.stop().await;
}

/// A rule in shadow mode settles costs, so that it shows what it would deny, and denies nothing.
#[tokio::test]
async fn shadow_rule_settles_costs() {
    let server = start_server().await;
    let rules = RECORDED_POLICY.replace("name: tokens", "name: tokens\n    mode: shadow")
        + "  - { name: visible, key: header x-user, quota: 100 per 1000h fixed-window, cost: 10, settle: body /usage/total_tokens }\n";
    let gateway = AdminGateway::start(&server, &rules);
    let ann = "x-user: ann\r\n";
    assert_eq!(gateway.get_with_header("/much", ann).await.status(), 200);
    // 60 tokens are used, so this estimate has no room in the rule in shadow mode, which takes nothing.
    let mut client = gateway.connect().await;
    let body = r#"{"max_tokens": 41}"#;
    let request =
        format!("POST /usage HTTP/1.1\r\nhost: a\r\n{ann}content-length: {}\r\n\r\n{body}", body.len());
    let response = client.request(&request).await;
    assert_eq!(response.status(), 200);
    assert!(response.header("ratelimit").unwrap().contains("\"visible\";r=30;"), "{}", response.head);
    let status = gateway.admin_json("/api/v1/status").await;
    let rule = &status["rules"][1];
    assert_eq!((&rule["counts"]["admitted"], &rule["counts"]["shadow-denied"]), (&json!(1), &json!(1)));
    assert_eq!(rule["settlements"]["tokens"]["debt"], 50);
    assert_eq!(rule["settlements"]["requests"]["stated"], 1);
    // With 40 left, the estimate of 10 is admitted.
    assert_eq!(gateway.get_with_header("/none", ann).await.status(), 200);
    let status = gateway.admin_json("/api/v1/status").await;
    assert_eq!(status["rules"][1]["counts"]["admitted"], 2);
    gateway.stop().await;
}

/// An admitted request of a rule without `settle` is charged the number in its body.
#[tokio::test]
async fn cost_without_settle_is_charged() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(
        &server,
        "rules: [{ name: tokens, key: header x-user, quota: 100 per 1000h, cost: { from: body /max_tokens, default: 10, max: 100 } }]",
    );
    let user = "x-user: ann\r\n";
    let response = post(&mut gateway.connect().await, user, r#"{"max_tokens": 60}"#).await;
    assert_eq!(remaining(&response), 40);
    let response = post(&mut gateway.connect().await, user, "{}").await;
    assert_eq!(remaining(&response), 40 - ESTIMATE);
    gateway.stop().await;
}
