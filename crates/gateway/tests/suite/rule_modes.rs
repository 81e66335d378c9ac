//! Changes of modes and numbers of rules through the admin API, and rollbacks.

use crate::{
    admin_api::AdminGateway,
    harness::{RawClient, TEST_TIMEOUT, TestBackend, open_gateway},
};
use serde_json::{Value, json};
use std::{fs, time::Duration};
use tempfile::TempDir;
use tidegate_gateway::PolicySource;
use tidegate_limiter::Clock;
use tidegate_policy::Policy;
use tidegate_rule::Rules;
use tokio::{sync::oneshot, time::timeout};

const SHADOW_POLICY: &str = "
# Ours.
observe: { denials: 100 }
user: header x-user
rules:
  - { name: login, key: user, match: { path: /login }, quota: 100/h }
  - name: watched   # for now
    mode: shadow
    key: user
    quota: 1/h
";

impl AdminGateway {
    fn policy_text(&self) -> String {
        fs::read_to_string(self.folder.path().join("policy.yaml")).unwrap()
    }

    /// Sends a change to the admin API.
    async fn post_change(&self, path: &str, body: &Value) -> (u16, Value) {
        let response = self.admin_request("POST", path, &body.to_string()).await;
        (response.status(), serde_json::from_str(&response.body).unwrap())
    }

    async fn shadow_rule_status(&self) -> Value {
        self.admin_json("/api/v1/status").await["rules"][1].clone()
    }
}

#[tokio::test]
async fn mode_change_and_rollback_keep_counters() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, SHADOW_POLICY);
    let before = gateway.policy_text();
    let bob = "x-user: bob\r\n";
    for _ in 0..3 {
        assert_eq!(gateway.get_with_header("/", bob).await.status(), 200);
    }
    let top = gateway.admin_json("/api/v1/top?rule=watched&by=shadow-denied").await;
    assert_eq!(
        top,
        json!({ "by": "shadow-denied", "keys": [{ "rule": "watched", "key": "bob", "count": 2, "error": 0, "share": 1.0 }] })
    );
    assert_eq!(gateway.admin_json("/api/v1/top?rule=watched").await["keys"], json!([]));
    assert_eq!(gateway.admin_json("/api/v1/status").await["requests"]["shadow-denied"], 2);

    let (status, reply) =
        gateway.post_change("/api/v1/rules/watched/mode", &json!({ "mode": "enforce" })).await;
    assert_eq!((status, &reply["changed"]), (200, &json!(true)), "{reply}");
    for (member, expected) in [
        ("id", json!(1)),
        ("by", json!("api")),
        ("rule", json!("watched")),
        ("key", json!("mode")),
        ("from", json!("shadow")),
        ("to", json!("enforce")),
        ("file", json!("policy.yaml")),
        ("reverts", Value::Null),
    ] {
        assert_eq!(reply["change"][member], expected, "{member}");
    }
    assert_eq!(gateway.policy_text(), before.replace("mode: shadow", "mode: enforce"));
    // The counters of shadow mode stay valid.
    assert_eq!(gateway.get_with_header("/", bob).await.status(), 429);
    let watched = gateway.shadow_rule_status().await;
    assert_eq!(watched["mode"], "enforce");
    assert_eq!(
        watched["counts"],
        json!({ "admitted": 1, "delayed": 0, "denied": 1, "shadow-denied": 2, "degraded": 0 })
    );
    let again = gateway
        .post_change("/api/v1/rules/watched/mode", &json!({ "mode": "enforce", "percent": 100 }))
        .await;
    assert_eq!((again.0, &again.1["changed"]), (200, &json!(false)));

    let changes = gateway.admin_json("/api/v1/changes").await;
    assert_eq!((&changes["changes"], &changes["last"]), (&json!([reply["change"]]), &json!(1)));
    assert_eq!(gateway.post_change("/api/v1/rollback", &json!({ "id": 7 })).await.0, 409);
    let (status, rejection) = gateway.post_change("/api/v1/rollback", &json!({})).await;
    assert_eq!(status, 409, "it weakens the rule: {rejection}");
    let (status, back) = gateway.post_change("/api/v1/rollback", &json!({ "confirm": true })).await;
    assert_eq!((status, &back["change"]["reverts"]), (200, &json!(1)), "{back}");
    assert_eq!(gateway.policy_text(), before);
    assert_eq!(gateway.get_with_header("/", bob).await.status(), 200);
    assert_eq!(gateway.shadow_rule_status().await["counts"]["shadow-denied"], 3);
    let (status, nothing) = gateway.post_change("/api/v1/rollback", &json!({})).await;
    assert_eq!(status, 409, "{nothing}");
    let changes = gateway.admin_json("/api/v1/changes").await;
    assert_eq!((changes["changes"].as_array().unwrap().len(), &changes["last"]), (2, &Value::Null));
    gateway.stop().await;
}

/// A quota is changed while it runs: its counters stay, and the next request is decided by the new number.
#[tokio::test]
async fn number_change_keeps_counters_and_is_rolled_back() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, SHADOW_POLICY);
    let before = gateway.policy_text();
    let place = "/api/v1/rules/login/settings";
    assert_eq!(
        gateway.admin_json(place).await,
        json!({ "rule": "login", "settings": [{ "key": "quota", "value": "100/h" }] })
    );
    let bob = "x-user: bob\r\n";
    assert_eq!(gateway.get_with_header("/login", bob).await.status(), 200);
    let body = json!({ "key": "quota", "value": "1/h", "from": "100/h" });
    let (status, reply) = gateway.post_change(place, &body).await;
    assert_eq!((status, &reply["changed"]), (200, &json!(true)), "{reply}");
    let change = &reply["change"];
    assert_eq!(
        (&change["key"], &change["from"], &change["to"], &change["by"]),
        (&json!("quota"), &json!("100/h"), &json!("1/h"), &json!("api"))
    );
    assert_eq!(gateway.policy_text(), before.replace("100/h", "1/h"));
    assert_eq!(gateway.get_with_header("/login", bob).await.status(), 429, "the counters stay");

    // Another operator has read the old value.
    let (status, reply) =
        gateway.post_change(place, &json!({ "key": "quota", "value": "50/h", "from": "100/h" })).await;
    let detail = reply["detail"].as_str().unwrap();
    assert_eq!(status, 409, "{reply}");
    assert!(detail.starts_with("`quota` of rule `login` is `1/h`, not `100/h` (change 1 of 20"), "{detail}");
    let again = gateway.post_change(place, &json!({ "key": "quota", "value": "1/h" })).await;
    assert_eq!(again, (200, json!({ "changed": false, "rule": "login", "key": "quota", "to": "1/h" })));
    let wait = json!({ "key": "wait", "value": "1ms", "from": null });
    assert_eq!(gateway.post_change(place, &wait).await.0, 200);
    assert!(
        gateway.policy_text().contains("{ name: login, wait: 1ms, key: user,"),
        "{}",
        gateway.policy_text()
    );
    for reverted in [2, 1] {
        let (status, back) = gateway.post_change("/api/v1/rollback", &json!({})).await;
        assert_eq!((status, &back["change"]["reverts"]), (200, &json!(reverted)), "{back}");
    }
    assert_eq!(gateway.policy_text(), before);
    gateway.stop().await;
}

/// Two operators set the same number at once: one of them is refused, with the change of the other.
#[tokio::test]
async fn one_of_two_operators_at_once_is_refused() {
    let server = TestBackend::start_echo().await;
    // Cargo sets these variables for every test, so they serve as tokens.
    let operators = [("ann", env!("CARGO_PKG_NAME")), ("bob", env!("CARGO_PKG_VERSION"))];
    let gateway = AdminGateway::start_policy(
        &format!(
            "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0, tokens: [{{ name: ann, token: $CARGO_PKG_NAME, role: admin }}, \
             {{ name: bob, token: $CARGO_PKG_VERSION, role: admin }}] }}\nupstreams: {{ app: http://{} }}\nroutes: app\n\
             rules: [{{ name: login, key: ip, quota: 1/h }}]\n",
            server.address
        ),
        Rules::new(),
    );
    for round in 1..=10 {
        let set = async |operator: usize| {
            let (_, token) = operators[operator];
            let from =
                gateway.policy_text().split("quota: ").nth(1).unwrap().split(' ').next().unwrap().to_owned();
            let body =
                json!({ "key": "quota", "value": format!("{}/h", 2 * round + operator), "from": from });
            let header = format!("authorization: Bearer {token}\r\n");
            let path = "/api/v1/rules/login/settings";
            gateway.admin_request_with_header("POST", path, &header, &body.to_string()).await
        };
        let (ann, bob) = tokio::join!(set(0), set(1));
        let (winner, loser, refused) = match ann.status() {
            200 => ("ann", &bob, 1),
            _ => ("bob", &ann, 0),
        };
        let number = 2 * round + 1 - refused;
        assert_eq!(
            (ann.status() + bob.status(), loser.status()),
            (200 + 409, 409),
            "{} {}",
            ann.body,
            bob.body
        );
        let detail =
            serde_json::from_str::<Value>(&loser.body).unwrap()["detail"].as_str().unwrap().to_owned();
        let expected = format!("`quota` of rule `login` is `{number}/h`, not ");
        assert!(detail.starts_with(&expected), "{detail}");
        assert!(
            detail.contains(&format!("(change {round} of ")) && detail.contains(&format!(", by {winner})")),
            "{detail}"
        );
        assert!(
            gateway.policy_text().contains(&format!("quota: {number}/h }}")),
            "{}",
            gateway.policy_text()
        );
    }
    // A ban has the name of the operator, too.
    let ban = r#"{"ip":"192.0.2.7","seconds":60}"#;
    let token = concat!("authorization: Bearer ", env!("CARGO_PKG_NAME"), "\r\n");
    assert_eq!(gateway.admin_request_with_header("POST", "/api/v1/bans", token, ban).await.status(), 201);
    assert_eq!(gateway.admin_json("/api/v1/bans").await["bans"][0]["author"], "ann");
    gateway.stop().await;
}

/// A preview counts what the rule would have done to the recorded requests, and changes nothing.
#[tokio::test]
async fn preview_reports_what_a_number_would_have_done() {
    let server = TestBackend::start_echo().await;
    let policy = SHADOW_POLICY.replace("denials: 100", "denials: 100, history: 100");
    let gateway = AdminGateway::start(&server, &policy);
    let before = gateway.policy_text();
    let place = "/api/v1/rules/login/preview";
    let body = json!({ "key": "quota", "value": "2/h" });
    let (status, reply) = gateway.post_change(place, &body).await;
    assert_eq!(status, 409, "{reply}");
    assert!(reply["detail"].as_str().unwrap().contains("observe: { history: 100000 }"), "{reply}");
    for user in ["bob", "bob", "bob", "bob", "ann"] {
        let user = format!("x-user: {user}\r\n");
        assert_eq!(gateway.get_with_header("/login", &user).await.status(), 200);
    }
    let (status, reply) = gateway.post_change(place, &body).await;
    assert_eq!(status, 200, "{reply}");
    for (member, expected) in [
        ("from", json!("100/h")),
        ("to", json!("2/h")),
        ("share", json!(1.0)),
        ("requests", json!(5)),
        ("before", json!({ "requests": 5, "delayed": 0, "denied": 0, "shadow-denied": 0 })),
        ("after", json!({ "requests": 5, "delayed": 0, "denied": 2, "shadow-denied": 0 })),
        ("keys", json!([{ "key": "bob", "newly-denied": 2, "no-longer-denied": 0 }])),
    ] {
        assert_eq!(reply[member], expected, "{member}");
    }
    assert_eq!(gateway.policy_text(), before);
    assert_eq!(
        gateway.get_with_header("/login", "x-user: bob\r\n").await.status(),
        200,
        "nothing is changed"
    );
    let invalid = gateway.post_change(place, &json!({ "key": "quota", "value": "2/hh" })).await;
    assert_eq!(invalid.0, 422, "{}", invalid.1);
    let unknown = gateway.post_change("/api/v1/rules/lgoin/preview", &body).await;
    assert_eq!(unknown.0, 404, "{}", unknown.1);
    gateway.stop().await;
}

/// A rule in shadow mode denies nothing, and a preview lists the keys that it would deny.
#[tokio::test]
async fn preview_of_a_rule_in_shadow_mode_lists_keys() {
    let server = TestBackend::start_echo().await;
    let policy = SHADOW_POLICY.replace("denials: 100", "denials: 100, history: 100");
    let gateway = AdminGateway::start(&server, &policy);
    for user in ["bob", "bob", "bob", "ann", "ann"] {
        assert_eq!(gateway.get_with_header("/", &format!("x-user: {user}\r\n")).await.status(), 200);
    }
    let body = json!({ "key": "quota", "value": "2/h" });
    let (status, reply) = gateway.post_change("/api/v1/rules/watched/preview", &body).await;
    assert_eq!(status, 200, "{reply}");
    for (member, expected) in [
        ("before", json!({ "requests": 5, "delayed": 0, "denied": 0, "shadow-denied": 3 })),
        ("after", json!({ "requests": 5, "delayed": 0, "denied": 0, "shadow-denied": 1 })),
        (
            "keys",
            json!([
                { "key": "ann", "newly-denied": 0, "no-longer-denied": 1 },
                { "key": "bob", "newly-denied": 0, "no-longer-denied": 1 },
            ]),
        ),
        ("notes", json!([])),
    ] {
        let mut found = reply[member].clone();
        if let Some(keys) = found.as_array_mut() {
            keys.sort_by_key(|key| key["key"].to_string());
        }
        assert_eq!(found, expected, "{member}");
    }
    gateway.stop().await;
}

/// Requests that were received more than an hour ago are not considered, even if they are the only ones.
#[tokio::test]
async fn preview_considers_the_last_hour() {
    let server = TestBackend::start_echo().await;
    let (clock, manual_clock) = Clock::manual();
    manual_clock.advance(Duration::from_secs(1_700_000_000));
    let policy = SHADOW_POLICY.replace("denials: 100", "denials: 100, history: 100");
    let gateway = AdminGateway::start_with_clock(&server, &policy, clock);
    let (place, body) = ("/api/v1/rules/login/preview", json!({ "key": "quota", "value": "2/h" }));
    for (advance, expected) in [(0, 1), (1_800, 2), (2_400, 2), (3_600, 2)] {
        manual_clock.advance(Duration::from_secs(advance));
        assert_eq!(gateway.get_with_header("/login", "x-user: bob\r\n").await.status(), 200);
        let (status, reply) = gateway.post_change(place, &body).await;
        assert_eq!((status, &reply["requests"]), (200, &json!(expected)), "{reply}");
    }
    manual_clock.advance(Duration::from_secs(3_601));
    let (status, reply) = gateway.post_change(place, &body).await;
    assert_eq!(status, 409, "{reply}");
    assert!(
        reply["detail"].as_str().unwrap().starts_with("no requests were recorded in the last hour"),
        "{reply}"
    );
    gateway.stop().await;
}

/// What the history cannot show is an error, or a note.
#[tokio::test]
async fn preview_reports_what_the_history_cannot_show() {
    let server = TestBackend::start_echo().await;
    let rules = "rules:
  - { name: total, quota: 1000/s }
  - { name: clients, key: ip, quota: 1000/day, wait: 1ms }
  - { name: slots, key: ip, quota: 3 at once, wait: 1ms }
";
    let sampled = AdminGateway::start(&server, &format!("observe: {{ history: 100, share: 10% }}\n{rules}"));
    let body = json!({ "key": "quota", "value": "5/s" });
    let (status, reply) = sampled.post_change("/api/v1/rules/total/preview", &body).await;
    assert_eq!(status, 422, "{reply}");
    let detail = reply["detail"].as_str().unwrap();
    assert!(
        detail.starts_with("the history has 10 % of the clients, and rule `total` does not count by"),
        "{detail}"
    );
    sampled.stop().await;

    let gateway = AdminGateway::start(&server, &format!("observe: {{ history: 100 }}\n{rules}"));
    assert_eq!(gateway.get("/").await.status(), 200);
    let (status, reply) = gateway
        .post_change("/api/v1/rules/slots/preview", &json!({ "key": "quota", "value": "2 at once" }))
        .await;
    assert_eq!(status, 422, "{reply}");
    assert!(reply["detail"].as_str().unwrap().starts_with("the history has no durations"), "{reply}");
    for (rule, key, value, expected) in [
        ("total", "quota", "5/s", json!([])),
        (
            "clients",
            "wait",
            "2ms",
            json!([
                "`1000/d` is longer than the history: its counters start empty, so there are too few denials"
            ]),
        ),
        // Not the advice for logs.
        (
            "slots",
            "wait",
            "2ms",
            json!(["the history has no durations: the replay does not evaluate `3 at once`"]),
        ),
    ] {
        let (status, reply) = gateway
            .post_change(&format!("/api/v1/rules/{rule}/preview"), &json!({ "key": key, "value": value }))
            .await;
        assert_eq!((status, &reply["notes"]), (200, &expected), "{reply}");
    }
    // No recorded request has a user.
    let users =
        "observe: { history: 100 }\nuser: header x-user\nrules: [{ name: users, key: user, quota: 5/min }]\n";
    let users = AdminGateway::start(&server, users);
    assert_eq!(users.get("/").await.status(), 200);
    let (status, reply) = users.post_change("/api/v1/rules/users/preview", &body).await;
    let detail = reply["detail"].as_str().unwrap();
    assert_eq!(status, 422, "{reply}");
    assert!(
        detail.starts_with("no recorded request has the key of rule `users` (user, by header x-user); "),
        "{detail}"
    );
    users.stop().await;
    gateway.stop().await;
}

#[tokio::test]
async fn rejected_number_change_names_the_reason() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, SHADOW_POLICY);
    let before = gateway.policy_text();
    let place = "/api/v1/rules/login/settings";
    let valid = r#"{"key":"quota","value":"5/s"}"#;
    assert_eq!(gateway.admin_request_with_header("POST", place, "", valid).await.status(), 401);
    assert_eq!(gateway.admin_request_with_header("GET", place, "", "").await.status(), 401);
    assert_eq!(gateway.admin_request("GET", "/api/v1/rules/lgoin/settings", "").await.status(), 404);
    for (path, body, status, detail) in [
        ("/api/v1/rules/lgoin/settings", valid, 404, "did you mean `login`?"),
        (place, r#"{"key":"quota"}"#, 400, "`value` is missing"),
        (place, r#"{"key":"quota","value":5}"#, 400, "`value` is not a string"),
        (place, r#"{"key":"quota","value":"5/s","from":5}"#, 400, "`from` is not a string"),
        (place, r#"{"key":"mode","value":"off"}"#, 400, "use `/api/v1/rules/login/mode` for the mode"),
        (place, r#"{"key":"match","value":"/"}"#, 422, "`match` cannot be set"),
        (place, r#"{"key":"queue.max","value":"5"}"#, 422, "rule `login` has no `queue.max`"),
        (place, r#"{"key":"quota","value":"5/mni"}"#, 422, "policy.yaml:"),
        (place, r#"{"key":"quota","value":"-5/s"}"#, 422, "policy.yaml:"),
        (place, r#"{"key":"quota","value":"5/s\n  - x"}"#, 422, "control character"),
    ] {
        let response = gateway.admin_request("POST", path, body).await;
        assert_eq!(response.status(), status, "{body} {}", response.body);
        assert!(response.body.contains(detail), "{}", response.body);
    }
    assert_eq!(gateway.policy_text(), before);
    gateway.stop().await;
}

#[tokio::test]
async fn percentage_mode_enforces_part_of_the_keys() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, SHADOW_POLICY);
    let body = json!({ "mode": "enforce", "percent": 50 });
    assert_eq!(gateway.post_change("/api/v1/rules/watched/mode", &body).await.0, 200);
    assert!(gateway.policy_text().contains("mode: enforce 50%\n"), "{}", gateway.policy_text());
    let watched = gateway.shadow_rule_status().await;
    assert_eq!((&watched["mode"], &watched["percent"]), (&json!("enforce"), &json!(50.0)));
    let mut denied = Vec::new();
    for user in 0..32 {
        let user_header = format!("x-user: user-{user}\r\n");
        gateway.get_with_header("/", &user_header).await;
        let response = gateway.get_with_header("/", &user_header).await;
        denied.push(response.status() == 429);
        let chosen = tidegate_rule::is_in_rollout("watched", &format!("user-{user}"), "50%".parse().unwrap());
        assert_eq!(denied.last(), Some(&chosen), "user-{user}");
    }
    assert!(denied.contains(&true) && denied.contains(&false));
    gateway.stop().await;
}

#[tokio::test]
async fn weakening_a_rule_needs_a_confirmation() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, SHADOW_POLICY);
    let before = gateway.policy_text();
    let login = "/api/v1/rules/login/mode";
    for weaker in [
        json!({ "mode": "shadow" }),
        json!({ "mode": "off", "confirm": false }),
        json!({ "mode": "enforce", "percent": 99, "confirm": null }),
    ] {
        let (status, reply) = gateway.post_change(login, &weaker).await;
        let detail = reply["detail"].as_str().unwrap();
        assert_eq!(status, 409, "{reply}");
        assert!(
            detail.contains("enforced for fewer keys") && detail.contains("\"confirm\": true"),
            "{detail}"
        );
    }
    assert_eq!(gateway.policy_text(), before);
    let (status, reply) = gateway.post_change(login, &json!({ "mode": "shadow", "confirm": "yes" })).await;
    assert_eq!(status, 400, "{reply}");
    // A change that does not weaken a rule needs no confirmation.
    assert_eq!(gateway.post_change("/api/v1/rules/watched/mode", &json!({ "mode": "off" })).await.0, 200);
    assert_eq!(gateway.post_change(login, &json!({ "mode": "shadow", "confirm": true })).await.0, 200);
    assert_eq!(gateway.admin_json("/api/v1/status").await["rules"][0]["mode"], "shadow");
    gateway.stop().await;
}

#[tokio::test]
async fn rejected_mode_change_names_the_reason() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start(&server, SHADOW_POLICY);
    let before = gateway.policy_text();
    let enforce = r#"{"mode":"enforce"}"#;
    let place = "/api/v1/rules/watched/mode";
    assert_eq!(gateway.admin_request_with_header("POST", place, "", enforce).await.status(), 401);
    assert_eq!(gateway.admin_request_with_header("POST", "/api/v1/rollback", "", "{}").await.status(), 401);
    for (path, body, status, detail) in [
        ("/api/v1/rules/wathced/mode", enforce, 404, "did you mean `watched`?"),
        (place, r#"{"mode":"on"}"#, 400, "use one of enforce, shadow, off"),
        (place, r#"{"percent":5}"#, 400, "`mode` is missing"),
        (place, r#"{"mode":"shadow","percent":5}"#, 400, "remove it, or use `enforce`"),
        (place, r#"{"mode":"enforce","percent":0}"#, 400, "use `shadow`"),
        (place, r#"{"mode":"enforce","percent":101}"#, 400, "give a number from 0 to 100"),
        (place, r#"{"mode":"enforce","percent":"5"}"#, 400, "`percent` must be a number"),
        (place, r#"{"modus":"enforce"}"#, 400, "unknown member `modus`"),
        ("/api/v1/rollback", "", 409, "no change to revert"),
    ] {
        let response = gateway.admin_request("POST", path, body).await;
        assert_eq!(response.status(), status, "{body} {}", response.body);
        assert!(response.body.contains(detail), "{}", response.body);
    }
    // The file is incomplete, as during an edit.
    let file = gateway.folder.path().join("policy.yaml");
    fs::write(&file, format!("{before}  - {{ name: half")).unwrap();
    assert_eq!(gateway.admin_request("POST", place, enforce).await.status(), 409);
    fs::write(&file, &before).unwrap();
    // A symbolic link, as Kubernetes mounts it.
    fs::rename(&file, gateway.folder.path().join("data.yaml")).unwrap();
    std::os::unix::fs::symlink("data.yaml", &file).unwrap();
    let response = gateway.admin_request("POST", place, enforce).await;
    assert_eq!(response.status(), 422);
    assert!(
        response.body.contains("is a symbolic link") && response.body.contains("ConfigMap"),
        "{}",
        response.body
    );
    assert_eq!(gateway.policy_text(), before);
    assert_eq!(gateway.shadow_rule_status().await["mode"], "shadow");
    gateway.stop().await;
}

/// A list file disappears: the policy is valid, but cannot be put in force.
#[tokio::test]
async fn rejected_policy_file_is_restored() {
    let server = TestBackend::start_echo().await;
    let folder = TempDir::new().unwrap();
    let list = folder.path().join("bad.txt");
    fs::write(&list, "192.0.2.0/24\n").unwrap();
    let lists = format!("lists: {{ bad: {{ files: {} }} }}", list.display());
    let rules = SHADOW_POLICY.replace("mode: shadow", "mode:   'shadow'    # not yet\r");
    let gateway = AdminGateway::start(&server, &format!("{lists}{rules}  - {{ name: closed, deny: bad }}\n"));
    let (before, place) = (gateway.policy_text(), "/api/v1/rules/watched/mode");
    let bob = "x-user: bob\r\n";
    for _ in 0..2 {
        assert_eq!(gateway.get_with_header("/", bob).await.status(), 200);
    }
    let version = gateway.admin_json("/api/v1/status").await["policy"]["version"].clone();

    fs::remove_file(&list).unwrap();
    let (status, reply) = gateway.post_change(place, &json!({ "mode": "enforce" })).await;
    let detail = reply["detail"].as_str().unwrap();
    assert_eq!(status, 422, "{reply}");
    assert!(detail.starts_with("the gateway rejected the change, and the file is restored: "), "{detail}");
    assert!(detail.contains("bad.txt"), "{detail}");
    assert_eq!(gateway.policy_text(), before);
    assert_eq!(gateway.shadow_rule_status().await["mode"], "shadow");
    assert_eq!(gateway.get_with_header("/", bob).await.status(), 200, "the previous policy is in force");
    let now = gateway.admin_json("/api/v1/status").await;
    assert_eq!(now["policy"]["version"], version);
    assert!(now["policy"]["error"].as_str().unwrap().contains("bad.txt"), "{now}");
    let changes = gateway.admin_json("/api/v1/changes").await;
    assert_eq!((&changes["changes"][0]["reverts"], &changes["last"]), (&json!(1), &Value::Null));

    // The same for a rollback.
    fs::write(&list, "192.0.2.0/24\n").unwrap();
    assert_eq!(gateway.post_change(place, &json!({ "mode": "enforce" })).await.0, 200);
    let enforced = gateway.policy_text();
    assert_eq!(enforced, before.replace("'shadow'", "'enforce'"));
    fs::remove_file(&list).unwrap();
    let (status, reply) = gateway.post_change("/api/v1/rollback", &json!({ "confirm": true })).await;
    assert_eq!(status, 422, "{reply}");
    assert_eq!(gateway.policy_text(), enforced);
    assert_eq!(gateway.get_with_header("/", bob).await.status(), 429, "the previous policy is in force");

    fs::write(&list, "192.0.2.0/24\n").unwrap();
    let (status, reply) = gateway.post_change("/api/v1/rollback", &json!({ "confirm": true })).await;
    assert_eq!(status, 200, "{reply}");
    assert_eq!(
        (gateway.policy_text(), gateway.shadow_rule_status().await["mode"].clone()),
        (before, json!("shadow"))
    );
    assert_eq!(gateway.admin_json("/api/v1/status").await["policy"]["error"], Value::Null);
    gateway.stop().await;
}

#[tokio::test]
async fn inline_policy_rejects_mode_change() {
    let policy: Policy =
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nrules: [{ name: a, quota: 1/h, mode: shadow }]"
            .parse()
            .unwrap();
    let gateway = open_gateway(PolicySource::inline(policy), Rules::new());
    let admin = gateway.admin_address().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let end = tokio::spawn(gateway.run(async {
        let _ = stopped.await;
    }));
    let body = r#"{"mode":"enforce"}"#;
    let request = format!(
        "POST /api/v1/rules/a/mode HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let response = timeout(TEST_TIMEOUT, RawClient::connect(admin).await.request(&request)).await.unwrap();
    assert_eq!(response.status(), 422);
    assert!(response.body.contains("has no file to write the change to"), "{}", response.body);
    let request = "GET /api/v1/changes HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let response = timeout(TEST_TIMEOUT, RawClient::connect(admin).await.request(request)).await.unwrap();
    let reply: Value = serde_json::from_str(&response.body).unwrap();
    assert_eq!(reply, json!({ "file": null, "changes": [], "last": null, "reason": null }));
    drop(stop);
    timeout(TEST_TIMEOUT, end).await.unwrap().unwrap().unwrap();
}
