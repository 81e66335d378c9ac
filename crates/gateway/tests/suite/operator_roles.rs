//! What operators may do: every route of the admin API with every role.

use crate::{admin_api::AdminGateway, harness::TestBackend};
use serde_json::{Value, json};
use tidegate_rule::Rules;

/// Cargo sets these variables for every test, so they serve as tokens.
const TOKENS: [(&str, &str); 3] = [
    ("read", env!("CARGO_PKG_NAME")),
    ("operate", env!("CARGO_MANIFEST_DIR")),
    ("admin", env!("CARGO_PKG_VERSION")),
];

fn policy(server: &TestBackend) -> String {
    format!(
        "listen: 127.0.0.1:0
admin:
  listen: 127.0.0.1:0
  tokens:
    - {{ name: grafana, token: $CARGO_PKG_NAME }}
    - {{ name: ann, token: $CARGO_MANIFEST_DIR, role: operate }}
    - {{ name: root, token: $CARGO_PKG_VERSION, role: admin }}
observe: {{ denials: 10, history: 10 }}
overrides: {{ file: overrides.jsonl }}
features: {{ similar: manual }}
upstreams: {{ app: http://{} }}
routes: app
rules:
  - {{ name: login, key: ip, quota: 100/h }}
  - {{ name: search, key: ip, quota: 100/h, mode: shadow }}
",
        server.address
    )
}

/// The routes, with a body, and the role that each needs.
const ROUTES: [(&str, &str, &str, &str); 26] = [
    ("GET", "/api/v1/status", "", "read"),
    ("GET", "/api/v1/series", "", "read"),
    ("GET", "/api/v1/top", "", "read"),
    ("GET", "/api/v1/denials", "", "read"),
    ("GET", "/api/v1/policy", "", "read"),
    ("GET", "/api/v1/history", "", "read"),
    ("GET", "/api/v1/token", "", "read"),
    ("GET", "/api/v1/features", "", "read"),
    ("GET", "/api/v1/bans", "", "read"),
    ("GET", "/api/v1/changes", "", "read"),
    ("GET", "/api/v1/overrides", "", "read"),
    ("GET", "/api/v1/overrides/changes", "", "read"),
    ("GET", "/api/v1/rules/login/settings", "", "read"),
    ("POST", "/api/v1/simulate", r#"{"quota":"5/s","arrivals":[0]}"#, "read"),
    ("POST", "/api/v1/rules/login/preview", r#"{"key":"quota","value":"9/h"}"#, "read"),
    ("POST", "/reload", "", "operate"),
    ("POST", "/api/v1/reset", r#"{"rule":"login","key":"192.0.2.1"}"#, "operate"),
    ("POST", "/api/v1/bans", r#"{"ip":"192.0.2.7","seconds":60}"#, "operate"),
    ("DELETE", "/api/v1/bans/BAN", "", "operate"),
    (
        "PUT",
        "/api/v1/overrides",
        r#"{"rule":"login","key":"192.0.2.1","quota":"9/h","seconds":60}"#,
        "operate",
    ),
    ("DELETE", "/api/v1/overrides/OVERRIDE", "", "operate"),
    ("POST", "/api/v1/features/similar", r#"{"state":"off"}"#, "operate"),
    ("POST", "/api/v1/rules/search/mode", r#"{"mode":"enforce"}"#, "operate"),
    ("POST", "/api/v1/rollback", r#"{"confirm":true}"#, "operate"),
    ("POST", "/api/v1/rules/login/settings", r#"{"key":"quota","value":"9/h"}"#, "admin"),
    // The last change is that of a number.
    ("POST", "/api/v1/rollback", r#"{"confirm":true}"#, "admin"),
];

#[tokio::test]
async fn every_route_needs_its_role() {
    let server = TestBackend::start_echo().await;
    let gateway = AdminGateway::start_policy(&policy(&server), Rules::new());
    let send = async |method: &str, path: &str, body: &str, token: Option<&str>| {
        let header = token.map(|token| format!("authorization: Bearer {token}\r\n")).unwrap_or_default();
        gateway.admin_request_with_header(method, path, &header, body).await
    };
    assert_eq!(gateway.get("/").await.status(), 200);
    let (mut ban, mut set) = (String::new(), String::new());
    for (method, path, body, needed) in ROUTES {
        let path = &path.replace("BAN", &ban).replace("OVERRIDE", &set);
        let rank = |role: &str| TOKENS.iter().position(|(name, _)| *name == role).unwrap();
        for token in [None, Some("wrong")] {
            assert_eq!(send(method, path, body, token).await.status(), 401, "{method} {path} {token:?}");
        }
        // The weakest role is first, so that each refusal comes before the change.
        for (role, token) in TOKENS {
            let response = send(method, path, body, Some(token)).await;
            let is_allowed = rank(role) >= rank(needed);
            assert_eq!(response.status() != 403, is_allowed, "{method} {path} {role}: {}", response.body);
            if is_allowed {
                // A change was made by the weakest role that may make it.
                assert!(matches!(response.status(), 200..=204), "{method} {path} {role}: {}", response.body);
                if path.ends_with("/bans") && method == "POST" {
                    ban = serde_json::from_str::<Value>(&response.body).unwrap()["id"]
                        .as_str()
                        .unwrap()
                        .to_owned();
                }
                if method == "PUT" {
                    let reply: Value = serde_json::from_str(&response.body).unwrap();
                    reply["override"]["id"].as_str().unwrap().clone_into(&mut set);
                }
                break;
            }
            // A rollback needs `operate`, and that of a number `admin`.
            let detail = format!("has the role `{role}`; this needs the role `");
            assert!(response.body.contains(&detail), "{method} {path}: {}", response.body);
        }
    }
    let changes = send("GET", "/api/v1/changes", "", Some(TOKENS[0].1)).await;
    let changes: Value = serde_json::from_str(&changes.body).unwrap();
    let authors: Vec<&Value> =
        changes["changes"].as_array().unwrap().iter().map(|change| &change["by"]).collect();
    assert_eq!(authors, ["root", "root", "ann", "ann"], "{changes}");
    let token = send("GET", "/api/v1/token", "", Some(TOKENS[1].1)).await;
    assert_eq!(
        serde_json::from_str::<Value>(&token.body).unwrap(),
        json!({ "name": "ann", "role": "operate" })
    );
    gateway.stop().await;
}
