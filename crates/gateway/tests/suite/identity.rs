//! Verified identities of clients.

use crate::{
    admin_api::AdminGateway,
    harness::{LogCapture, RawResponse, TEST_TIMEOUT, TestBackend, text_body},
};
use http::{Request, Response};
use hyper::body::Incoming;
use serde_json::Value;
use std::{
    fs,
    sync::{Arc, Mutex},
};
use tidegate_identity::api_key::ApiKeyFile;
use tidegate_rule::Rules;
use tidegate_testkit::tokens::{TokenIssuer, key_set};
use tokio::time::timeout;

/// In the year 2100.
const EXPIRY: &str = r#""exp":4102444800"#;

fn issuer(algorithm: &str, key_id: &str) -> TokenIssuer {
    TokenIssuer::new(algorithm, key_id).unwrap()
}

/// The header with a token of these claims.
fn bearer(issuer: &TokenIssuer, claims: &str) -> String {
    format!("authorization: Bearer {}\r\n", issuer.sign(&format!("{{{claims},{EXPIRY}}}")))
}

/// Starts a gateway with the keys of this issuer in a file, and these keys of `jwt`, of `identity` and of the only rule.
fn start(server: &TestBackend, issuer: &TokenIssuer, [jwt, identity, rule]: [&str; 3]) -> AdminGateway {
    start_with_keys(server, &issuer.key_set(), &format!("keys: jwks.json, {jwt}"), identity, rule)
}

fn start_with_keys(server: &TestBackend, keys: &str, jwt: &str, identity: &str, rule: &str) -> AdminGateway {
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0 }}\nupstreams: {{ app: 'http://{}' }}\nroutes: app\n\
         observe: {{ denials: 100, history: 100 }}\nidentity: {{ jwt: {{ {jwt} }}, {identity} }}\nrules: [{{ name: users, {rule} }}]\n",
        server.address
    );
    AdminGateway::start_with_files(&text, &[("jwks.json", keys)], Rules::new())
}

async fn status(gateway: &AdminGateway, header: &str) -> u16 {
    gateway.get_with_header("/", header).await.status()
}

fn challenge(response: &RawResponse) -> (u16, Option<&str>) {
    (response.status(), response.header("www-authenticate"))
}

#[tokio::test]
async fn claim_is_the_key_of_a_rule() {
    let (server, issuer) = (TestBackend::start_echo().await, issuer("ES256", "one"));
    let gateway = start(&server, &issuer, ["", "", "key: jwt sub, quota: 2 per 1000h, missing: reject"]);
    let (alice, bob) = (bearer(&issuer, r#""sub":"alice""#), bearer(&issuer, r#""sub":"bob""#));
    for expected in [200, 200, 429] {
        assert_eq!(status(&gateway, &alice).await, expected);
    }
    assert_eq!(status(&gateway, &bob).await, 200);
    // Another token of the same subject has the same key.
    assert_eq!(status(&gateway, &bearer(&issuer, r#""sub":"alice","jti":"2""#)).await, 429);

    let without = gateway.get_with_header("/", "").await;
    assert_eq!(challenge(&without), (401, Some("Bearer")));
    let other_scheme = gateway.get_with_header("/", "authorization: Basic YTpi\r\n").await;
    assert_eq!(challenge(&other_scheme), (401, Some("Bearer")));
    let invalid = gateway.get_with_header("/", "authorization: Bearer a.b.c\r\n").await;
    assert_eq!(challenge(&invalid), (401, Some(r#"Bearer error="invalid_token""#)));
    let twice = gateway.get_with_header("/", &format!("{bob}{bob}")).await;
    assert_eq!(challenge(&twice), (401, Some(r#"Bearer error="invalid_token""#)));
    // A valid token without the claim.
    assert_eq!(status(&gateway, &bearer(&issuer, r#""name":"alice""#)).await, 400);
    let metrics = gateway.metrics().await;
    let series = r#"tidegate_decisions_total{rule="users",outcome="unauthenticated"} 4"#;
    assert!(metrics.contains(series), "{metrics}");
    gateway.stop().await;
}

#[tokio::test]
async fn claim_selects_the_tier_and_clients_without_token_count_by_address() {
    let (server, issuer) = (TestBackend::start_echo().await, issuer("EdDSA", "one"));
    let rule =
        "key: jwt sub, tiers: { key: jwt /plan/name, quotas: { gold: 4 per 1000h }, default: 1 per 1000h }";
    let gateway = start(&server, &issuer, ["", "", rule]);
    let gold = bearer(&issuer, r#""sub":"alice","plan":{"name":"gold"}"#);
    for expected in [200, 200, 200, 200, 429] {
        assert_eq!(status(&gateway, &gold).await, expected);
    }
    for header in ["", "authorization: Bearer a.b.c\r\n"] {
        assert_eq!(status(&gateway, header).await, if header.is_empty() { 200 } else { 429 }, "{header}");
    }
    assert_eq!(status(&gateway, &bearer(&issuer, r#""sub":"bob","plan":{"name":"free"}"#)).await, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn rule_applies_only_to_credentials_that_match() {
    let (server, issuer) = (TestBackend::start_echo().await, issuer("ES256", "one"));
    let mut file = ApiKeyFile::default();
    let acme = file.add("acme", Some("gold"), 0, None).unwrap();
    let other = file.add("other", Some("free"), 0, None).unwrap();
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0 }}\nupstreams: {{ app: 'http://{}' }}\n\
         routes: [{{ path: /route, jwt: {{ plan: gold }}, respond: {{ status: 204 }} }}, app]\n\
         identity: {{ jwt: {{ keys: jwks.json }}, api-keys: keys.json }}\n\
         rules:\n\
         - {{ name: plan, match: {{ path: /plan, jwt: {{ plan: gold }} }}, deny: all }}\n\
         - {{ name: anonymous, match: {{ path: /anonymous, not: {{ jwt: {{ sub: '*' }} }} }}, deny: all }}\n\
         - {{ name: name, match: {{ path: /name, api-key: {{ name: 'ac*' }} }}, deny: all }}\n\
         - {{ name: tier, match: {{ path: /tier, api-key: {{ tier: gold }} }}, deny: all }}\n",
        server.address
    );
    let files = [("jwks.json", &*issuer.key_set()), ("keys.json", &file.to_json())];
    let gateway = AdminGateway::start_with_files(&text, &files, Rules::new());
    let gold = bearer(&issuer, r#""sub":"a","plan":"gold""#);
    let free = bearer(&issuer, r#""sub":"a","plan":"free""#);
    let api_key = |secret: &str| format!("x-api-key: {secret}\r\n");
    let unsigned = "authorization: Bearer eyJhbGciOiJub25lIn0.eyJwbGFuIjoiZ29sZCJ9.\r\n";
    for (path, header, expected) in [
        ("/plan", &*gold, 403),
        ("/plan", &free, 200),
        ("/plan", "", 200),
        ("/plan", unsigned, 200),
        ("/anonymous", "", 403),
        ("/anonymous", unsigned, 403),
        ("/anonymous", &free, 200),
        ("/route", &gold, 204),
        ("/route", &free, 200),
        ("/name", &api_key(&acme), 403),
        ("/name", &api_key(&other), 200),
        ("/tier", &api_key(&acme), 403),
        ("/tier", &api_key(&other), 200),
        ("/tier", &api_key("guess"), 200),
        ("/tier", "", 200),
    ] {
        assert_eq!(gateway.get_with_header(path, header).await.status(), expected, "{path} {header}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn tokens_follow_the_settings() {
    let server = TestBackend::start_echo().await;
    let issuer = issuer("RS256", "one");
    let valid = bearer(&issuer, r#""sub":"alice","iss":"https://one","aud":"api""#);
    let other = bearer(&issuer, r#""sub":"alice","iss":"https://two","aud":["web"]"#);
    let token = |header: &str| header.trim_end().rsplit(' ').next().unwrap().to_owned();
    let cookie = format!("cookie: session={}\r\n", token(&valid));
    let plain = format!("x-token: {}\r\n", token(&valid));
    // It expired in 2001.
    let expired = format!("authorization: Bearer {}\r\n", issuer.sign(r#"{"sub":"alice","exp":1000000000}"#));
    for (jwt, header, expected) in [
        ("", &valid, 200),
        ("", &other, 200),
        ("issuer: https://one", &valid, 200),
        ("issuer: https://one", &other, 401),
        ("audience: [api, more]", &valid, 200),
        ("audience: [api, more]", &other, 401),
        ("algorithms: [RS256, ES256]", &valid, 200),
        ("algorithms: [RS512, ES256]", &valid, 401),
        ("from: cookie session", &cookie, 200),
        ("from: cookie session", &valid, 401),
        ("from: header x-token", &plain, 200),
        ("", &expired, 401),
        ("leeway: 1000000h", &expired, 200),
    ] {
        let gateway = start(&server, &issuer, [jwt, "", "key: jwt sub, quota: 9/h, missing: reject"]);
        assert_eq!(status(&gateway, header).await, expected, "{jwt}: {header}");
        gateway.stop().await;
    }
}

#[tokio::test]
async fn invalid_tokens_of_an_address_are_limited() {
    let (server, issuer) = (TestBackend::start_echo().await, issuer("ES256", "one"));
    let rule = "key: jwt sub, quota: 99 per 1000h, missing: reject";
    let gateway = start(&server, &issuer, ["", "invalid-quota: 2 per 1000h", rule]);
    let (alice, bob) = (bearer(&issuer, r#""sub":"alice""#), bearer(&issuer, r#""sub":"bob""#));
    assert_eq!(status(&gateway, &alice).await, 200);
    for (number, expected) in [(1, 401), (2, 401), (3, 429), (4, 429)] {
        let guess = format!("authorization: Bearer guess.{number}.x\r\n");
        let response = gateway.get_with_header("/", &guess).await;
        assert_eq!(response.status(), expected, "{number}");
        assert_eq!(response.header("retry-after").is_some(), expected == 429, "{number}");
    }
    // A token that was verified before is accepted; another one could be a guess.
    assert_eq!(status(&gateway, &alice).await, 200);
    assert_eq!(status(&gateway, &bob).await, 429);
    assert_eq!(status(&gateway, "").await, 401);
    gateway.stop().await;
}

#[tokio::test]
async fn changed_key_file_is_reloaded() {
    let server = TestBackend::start_echo().await;
    let (old, new) = (issuer("ES256", "old"), issuer("ES256", "new"));
    let gateway = start(&server, &old, ["", "", "key: jwt sub, quota: 99/h, missing: reject"]);
    let (with_old, with_new) = (bearer(&old, r#""sub":"a""#), bearer(&new, r#""sub":"a""#));
    assert_eq!((status(&gateway, &with_old).await, status(&gateway, &with_new).await), (200, 401));
    let file = gateway.folder.path().join("jwks.json");
    fs::write(&file, new.key_set()).unwrap();
    gateway.reload().await.unwrap();
    assert_eq!((status(&gateway, &with_old).await, status(&gateway, &with_new).await), (401, 200));
    // An invalid file changes nothing.
    fs::write(&file, "{}").unwrap();
    let error = gateway.reload().await.unwrap_err();
    assert!(error.contains("key set without `keys`") && error.contains("jwks.json"), "{error}");
    assert_eq!(status(&gateway, &with_new).await, 200);
    gateway.stop().await;
}

async fn last_denial(gateway: &AdminGateway) -> Value {
    let list = gateway.admin_request("GET", "/api/v1/denials?limit=1", "").await.body;
    serde_json::from_str::<Value>(&list).unwrap()["denials"][0].take()
}

#[tokio::test]
async fn invalid_credentials_are_counted_by_reason() {
    let server = TestBackend::start_echo().await;
    let (own, other) = (issuer("ES256", "one"), issuer("ES256", "two"));
    let impostor = issuer("ES256", "one");
    let mut file = ApiKeyFile::default();
    let expired_key = file.add("old", None, 0, Some(1)).unwrap();
    let text = format!(
        "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0 }}\nupstreams: {{ app: 'http://{}' }}\nroutes: app\n\
         observe: {{ denials: 100 }}\n\
         identity: {{ jwt: {{ keys: jwks.json, issuer: us, audience: api }}, api-keys: keys.json, invalid-quota: 13 per 1000h }}\n\
         rules: [{{ name: users, key: {{ first: [jwt sub, api-key] }}, quota: 99/h, missing: reject }}, {{ name: match, match: {{ jwt: {{ sub: a }} }}, deny: all }}]\n",
        server.address
    );
    let files = [("jwks.json", &*own.key_set()), ("keys.json", &file.to_json())];
    let gateway = AdminGateway::start_with_files(&text, &files, Rules::new());
    let token = |claims: &str| format!("authorization: Bearer {}\r\n", own.sign(claims));
    let valid = r#""iss":"us","aud":"api""#;
    let unsigned = own.sign_with_header(r#"{"alg":"none"}"#, "{}");
    let cases = [
        ("expired", token(&format!(r#"{{{valid},"exp":1000000000}}"#))),
        ("not-yet-valid", token(&format!(r#"{{{valid},"nbf":4102444000,{EXPIRY}}}"#))),
        ("no-expiry", token(&format!("{{{valid}}}"))),
        ("wrong-signature", bearer(&impostor, valid)),
        ("unknown-key", bearer(&other, valid)),
        ("wrong-algorithm", format!("authorization: Bearer {unsigned}\r\n")),
        ("wrong-issuer", bearer(&own, r#""iss":"them","aud":"api""#)),
        ("wrong-audience", bearer(&own, r#""iss":"us","aud":"web""#)),
        ("malformed", "authorization: Bearer a.b\r\n".to_owned()),
        ("too-large", format!("authorization: Bearer {}\r\n", "a".repeat(20_000))),
        ("several", format!("{0}{0}", bearer(&own, valid))),
        ("unknown-api-key", "x-api-key: guess\r\n".to_owned()),
        ("expired-api-key", format!("x-api-key: {expired_key}\r\n")),
        ("missing", String::new()),
    ];
    for (reason, header) in &cases {
        assert_eq!(status(&gateway, header).await, 401, "{reason}");
        let denial = last_denial(&gateway).await;
        assert_eq!(denial["credential"], *reason, "{denial}");
        let summary = denial["summary"].as_str().unwrap();
        assert!(
            summary.starts_with("Denied by rule `users`: the request has no valid credential"),
            "{summary}"
        );
    }
    // The quota of the address has one left: an unknown key is no guess.
    for (header, expected) in [("authorization: Bearer a.b\r\n", 401), ("authorization: Bearer a.b\r\n", 429)]
    {
        assert_eq!(status(&gateway, header).await, expected);
    }
    let denial = last_denial(&gateway).await;
    assert_eq!(denial["credential"], "limited", "{denial}");
    let metrics = gateway.metrics().await;
    for (reason, count) in cases.iter().map(|(reason, _)| (*reason, 1)).chain([("limited", 1)]) {
        let count = match reason {
            "missing" => continue,
            "malformed" => 2,
            _ => count,
        };
        let series = format!(r#"tidegate_invalid_credentials_total{{reason="{reason}"}} {count}"#);
        assert!(metrics.contains(&series), "{series}: {metrics}");
    }
    // The counters stay when the policy changes.
    gateway.reload().await.unwrap();
    assert!(gateway.metrics().await.contains(r#"reason="expired"} 1"#));
    gateway.stop().await;
}

/// A server of a key set; an empty one is an error 500.
async fn start_key_server(keys: Arc<Mutex<String>>) -> TestBackend {
    TestBackend::start(move |request: Request<Incoming>| {
        let keys = keys.lock().unwrap().clone();
        async move {
            assert_eq!(request.uri(), "/keys?v=1");
            let mut response = Response::new(text_body(keys.clone()));
            if keys.is_empty() {
                *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            }
            response
        }
    })
    .await
}

#[tokio::test]
async fn key_set_survives_failures_of_its_server() {
    let server = TestBackend::start_echo().await;
    let (old, new) = (issuer("ES256", "old"), issuer("ES256", "new"));
    let keys = Arc::new(Mutex::new(old.key_set()));
    let key_server = start_key_server(keys.clone()).await;
    let jwt = format!("keys: 'http://{}/keys?v=1', refresh: 1s", key_server.address);
    let mut logs = LogCapture::start();
    let gateway = start_with_keys(&server, "", &jwt, "", "key: jwt sub, quota: 999/h, missing: reject");
    let (with_old, with_new) = (bearer(&old, r#""sub":"a""#), bearer(&new, r#""sub":"a""#));
    let wait_for = async |header: &str, expected: u16| {
        let waiting = async { while status(&gateway, header).await != expected {} };
        timeout(TEST_TIMEOUT, waiting).await.unwrap_or_else(|_| panic!("never {expected}"));
    };
    wait_for(&with_old, 200).await;
    assert_eq!(status(&gateway, &with_new).await, 401);
    *keys.lock().unwrap() = key_set(&[&old, &new]);
    wait_for(&with_new, 200).await;
    assert_eq!(status(&gateway, &with_old).await, 200);
    keys.lock().unwrap().clear();
    logs.wait_for("key set unavailable, keeping the previous keys").await;
    assert_eq!((status(&gateway, &with_old).await, status(&gateway, &with_new).await), (200, 200));
    *keys.lock().unwrap() = new.key_set();
    logs.wait_for("key set recovered").await;
    wait_for(&with_old, 401).await;
    assert_eq!(status(&gateway, &with_new).await, 200);
    gateway.stop().await;
}

/// A set of 10 MB is neither read nor used, also at the start.
#[tokio::test]
async fn oversized_key_set_keeps_the_previous_keys() {
    let server = TestBackend::start_echo().await;
    let issuer = issuer("ES256", "one");
    let oversized = format!("{}{}", issuer.key_set(), " ".repeat(10 * 1024 * 1024));
    let keys = Arc::new(Mutex::new(oversized.clone()));
    let key_server = start_key_server(keys.clone()).await;
    let jwt = format!("keys: 'http://{}/keys?v=1', refresh: 1s", key_server.address);
    let mut logs = LogCapture::start();
    let gateway = start_with_keys(&server, "", &jwt, "", "key: jwt sub, quota: 999/h, missing: reject");
    logs.wait_for("key set unavailable, keeping the previous keys").await;
    let token = bearer(&issuer, r#""sub":"a""#);
    assert_eq!(status(&gateway, &token).await, 401);
    *keys.lock().unwrap() = issuer.key_set();
    logs.wait_for("key set recovered").await;
    assert_eq!(status(&gateway, &token).await, 200);
    *keys.lock().unwrap() = oversized;
    logs.wait_for("key set unavailable, keeping the previous keys").await;
    assert_eq!(status(&gateway, &token).await, 200);
    gateway.stop().await;
}

#[tokio::test]
async fn token_of_a_megabyte_is_rejected() {
    let (server, issuer) = (TestBackend::start_echo().await, issuer("ES256", "one"));
    let gateway = start(&server, &issuer, ["", "", "key: jwt sub, quota: 9/h, missing: reject"]);
    let token = |length: usize| bearer(&issuer, &format!(r#""sub":"a","padding":"{}""#, "x".repeat(length)));
    assert_eq!(status(&gateway, &token(8_000)).await, 200);
    // The first is longer than a token may be, the second than the head of a request.
    let too_large = gateway.get_with_header("/", &token(18_000)).await;
    assert_eq!(challenge(&too_large), (401, Some(r#"Bearer error="invalid_token""#)));
    assert_eq!(status(&gateway, &token(1024 * 1024)).await, 431);
    gateway.stop().await;
}

/// Tokens must not reach an operator's pages.
#[tokio::test]
async fn tokens_are_not_shown() {
    let (server, issuer) = (TestBackend::start_echo().await, issuer("ES256", "one"));
    let gateway = start(&server, &issuer, ["", "", "key: jwt sub, quota: 1 per 1000h, missing: reject"]);
    let alice = bearer(&issuer, r#""sub":"alice""#);
    for header in [&*alice, &alice, "authorization: Bearer guess.guess.guess\r\n"] {
        gateway.get_with_header("/", header).await;
    }
    let signature = alice.trim_end().rsplit('.').next().unwrap();
    for page in
        ["/api/v1/status", "/api/v1/history", "/api/v1/denials", "/api/v1/top", "/api/v1/policy", "/metrics"]
    {
        let text = gateway.admin_request("GET", page, "").await.body;
        assert!(!text.contains(signature) && !text.contains("guess"), "{page}: {text}");
    }
    gateway.stop().await;
}

#[tokio::test]
async fn api_key_is_the_key_of_a_rule_until_it_is_revoked() {
    let server = TestBackend::start_echo().await;
    let mut file = ApiKeyFile::default();
    let acme = file.add("acme", Some("gold"), 0, None).unwrap();
    let other = file.add("other", None, 0, None).unwrap();
    let expired = file.add("expired", None, 0, Some(1)).unwrap();
    let text = |from: &str| {
        format!(
            "listen: 127.0.0.1:0\nadmin: {{ listen: 127.0.0.1:0 }}\nupstreams: {{ app: 'http://{}' }}\nroutes: app\n\
             identity: {{ api-keys: {{ file: keys.json, {from} }} }}\n\
             rules: [{{ name: users, key: api-key, missing: reject, \
               tiers: {{ key: api-key tier, quotas: {{ gold: 2 per 1000h }}, default: 1 per 1000h }} }}]\n",
            server.address
        )
    };
    let gateway = AdminGateway::start_with_files(&text(""), &[("keys.json", &file.to_json())], Rules::new());
    let header = |secret: &str| format!("x-api-key: {secret}\r\n");
    for (secret, expected) in [(&acme, 200), (&acme, 200), (&acme, 429), (&other, 200), (&other, 429)] {
        assert_eq!(status(&gateway, &header(secret)).await, expected);
    }
    for secret in [&*expired, "guess", ""] {
        let response = gateway.get_with_header("/", &header(secret)).await;
        assert_eq!(challenge(&response), (401, Some("ApiKey")), "{secret}");
    }
    assert_eq!(challenge(&gateway.get_with_header("/", "").await), (401, Some("ApiKey")));
    file.revoke("other");
    fs::write(gateway.folder.path().join("keys.json"), file.to_json()).unwrap();
    gateway.reload().await.unwrap();
    assert_eq!((status(&gateway, &header(&acme)).await, status(&gateway, &header(&other)).await), (429, 401));
    gateway.stop().await;

    let from_query = text("from: query key");
    let gateway =
        AdminGateway::start_with_files(&from_query, &[("keys.json", &file.to_json())], Rules::new());
    assert_eq!(gateway.get(&format!("/?key={acme}")).await.status(), 200);
    assert_eq!(status(&gateway, &header(&acme)).await, 401);
    gateway.stop().await;
}
