//! Proxies that use the decision API for forward authentication.

use super::DecisionServer;
use crate::harness::{RawClient, TEST_TIMEOUT, TestBackend};
use tidegate_identity::api_key::ApiKeyFile;
use tidegate_testkit::servers::{AppServer, NginxServer};
use tokio::time::timeout;

#[tokio::test]
async fn forward_auth_allows_or_denies_request() {
    let api = DecisionServer::start(
        "
decisions: 127.0.0.1:0
rules:
  - { name: bad, deny: [192.0.2.66/32] }
  - { name: posts, match: { method: POST, path: /login, host: shop.example }, key: ip, quota: 1/h }
",
    );
    let nginx = "x-original-uri: /login?a=b\r\nx-original-method: POST\r\nx-real-ip: 192.0.2.1\r\nhost: shop.example\r\n";
    let nginx = |query: &str| format!("GET /v1/auth{query} HTTP/1.1\r\n{nginx}\r\n");
    let mut proxy = RawClient::connect(api.decisions).await;
    let allowed = proxy.request(&nginx("")).await;
    assert_eq!((allowed.status(), allowed.header("ratelimit-policy")), (200, Some(r#""posts";q=1;w=3600"#)));
    for (query, status) in [("", 403), ("?deny=policy", 429), ("?deny=503&proxy=nginx", 503)] {
        let denied = proxy.request(&nginx(query)).await;
        assert_eq!((denied.status(), denied.header("x-tidegate-status")), (status, Some("429")), "{query}");
        assert_eq!(denied.header("x-tidegate-rule"), Some("posts"));
        assert!(denied.header("retry-after").is_some() && denied.header("ratelimit").is_some());
    }
    let forwarded =
        "x-forwarded-uri: /login\r\nx-forwarded-method: POST\r\nx-forwarded-host: shop.example\r\n";
    let from = |client: &str| format!("{forwarded}x-forwarded-for: 10.0.0.1, {client}\r\n");
    assert_eq!(api.forward_auth("", &from("192.0.2.1")).await.status(), 403, "it is the same client");
    assert_eq!(api.forward_auth("", &from("192.0.2.2")).await.status(), 200);
    let banned = api.forward_auth("?deny=451", &from("192.0.2.66")).await;
    assert_eq!((banned.status(), banned.header("x-tidegate-status")), (451, Some("403")));
    // A client may send the headers of another proxy.
    let both = format!("{}x-original-uri: /free\r\n", from("192.0.2.2"));
    assert_eq!(api.forward_auth("", &both).await.status(), 400);
    assert_eq!(api.forward_auth("?proxy=forwarded", &both).await.status(), 403);
    for (query, headers) in
        [("", ""), ("?proxy=nginx", "x-original-uri: /\r\n"), ("?proxy=apache", ""), ("?deny=200", "")]
    {
        assert_eq!(api.forward_auth(query, headers).await.status(), 400, "{query} {headers}");
    }
    api.stop().await;
}

/// The credential of the client is in the headers that the proxy passes on. The token of the API is in its own header.
#[tokio::test]
async fn forward_auth_verifies_credentials_of_the_client() {
    let mut file = ApiKeyFile::default();
    let acme = file.add("acme", Some("gold"), 0, None).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.json");
    std::fs::write(&keys, file.to_json()).unwrap();
    let api = DecisionServer::start(&format!(
        "decisions: {{ listen: 127.0.0.1:0, tokens: [{{ name: web, token: $CARGO_PKG_NAME }}] }}\n\
         identity: {{ api-keys: {{ file: '{}', from: header authorization }} }}\n\
         rules: [{{ name: keys, key: api-key, quota: 2/h, missing: reject }}, {{ name: gold, match: {{ path: /gold, api-key: {{ tier: gold }} }}, deny: all }}]\n",
        keys.display()
    ));
    let send = async |path: &str, credential: &str| {
        let token = env!("CARGO_PKG_NAME");
        let proxy =
            format!("x-tidegate-token: {token}\r\nx-original-uri: {path}\r\nx-real-ip: 192.0.2.1\r\n");
        api.forward_auth("?deny=policy", &format!("{proxy}{credential}")).await
    };
    let valid = format!("authorization: Bearer {acme}\r\n");
    for (path, expected) in [("/", 200), ("/gold", 403), ("/", 200), ("/", 429)] {
        assert_eq!(send(path, &valid).await.status(), expected, "{path}");
    }
    for credential in ["", "authorization: Bearer guess\r\n"] {
        let denied = send("/", credential).await;
        assert_eq!(
            (denied.status(), denied.header("www-authenticate")),
            (401, Some("ApiKey")),
            "{credential}"
        );
    }
    // A caller that has verified the client itself names the key and the tier.
    let token = concat!("x-tidegate-token: ", env!("CARGO_PKG_NAME"), "\r\n");
    let known = api.send("check", token, r#"{"rule":"keys","key":"acme"}"#).await;
    assert_eq!(known.status(), 429);
    api.stop().await;
}

#[tokio::test]
async fn nginx_auth_request_returns_429_with_headers() {
    let server = TestBackend::start_echo().await;
    let api =
        DecisionServer::start("decisions: 127.0.0.1:0\nrules:\n  - { name: each, key: ip, quota: 2/h }\n");
    let example = include_str!("../../../../../examples/nginx/tidegate.conf")
        .replace("listen 8080;", "listen 127.0.0.1:PORT;")
        .replace("127.0.0.1:8090", &api.decisions.to_string())
        .replace("127.0.0.1:9000", &server.address.to_string());
    let nginx = NginxServer::start(&example).unwrap();
    let mut client = RawClient::connect(nginx.address()).await;
    for left in [1, 0] {
        let passed = timeout(TEST_TIMEOUT, client.get("/a?b=c")).await.unwrap();
        assert_eq!(passed.status(), 200, "{}", nginx.log());
        assert!(
            passed.header("ratelimit").unwrap().starts_with(&format!(r#""each";r={left}"#)),
            "{}",
            passed.head
        );
    }
    let limited = timeout(TEST_TIMEOUT, client.get("/a?b=c")).await.unwrap();
    assert_eq!(limited.status(), 429, "{}", nginx.log());
    assert!(limited.header("retry-after").is_some(), "{}", limited.head);
    assert!(limited.header("ratelimit").unwrap().starts_with(r#""each";r=0"#), "{}", limited.head);
    api.stop().await;
}

/// Traefik and Caddy send `GET`, the headers of the client, and the request in `X-Forwarded-*`.
#[tokio::test]
async fn traefik_and_caddy_forward_auth_uses_client_request() {
    let api = DecisionServer::start(
        "
decisions: 127.0.0.1:0
rules:
  - { name: posts, match: { method: POST, path: /login, host: shop.example }, key: [ip, header x-user], quota: 1/h }
  - { name: reads, match: { method: GET }, key: ip, quota: 1/h }
",
    );
    let traefik = |client: &str, user: &str| {
        format!(
            "GET /v1/auth?proxy=forwarded&deny=policy HTTP/1.1\r\nhost: 127.0.0.1:8090\r\nuser-agent: curl/8\r\n\
             accept-encoding: gzip\r\nx-user: {user}\r\nx-forwarded-for: {client}\r\nx-forwarded-host: shop.example\r\n\
             x-forwarded-method: POST\r\nx-forwarded-port: 443\r\nx-forwarded-proto: https\r\n\
             x-forwarded-server: edge\r\nx-forwarded-uri: /login?next=%2F\r\nx-real-ip: {client}\r\n\r\n"
        )
    };
    let caddy = |client: &str, method: &str| {
        format!(
            "GET /v1/auth?proxy=forwarded&deny=policy HTTP/1.1\r\nhost: shop.example\r\nuser-agent: curl/8\r\naccept: */*\r\n\
             x-user: ann\r\nx-forwarded-for: {client}\r\nx-forwarded-host: shop.example\r\nx-forwarded-method: {method}\r\n\
             x-forwarded-proto: http\r\nx-forwarded-uri: /login?next=%2F\r\naccept-encoding: gzip\r\n\r\n"
        )
    };
    let mut proxy = RawClient::connect(api.decisions).await;
    for (request, status) in [
        (traefik("192.0.2.1", "ann"), 200),
        (traefik("192.0.2.1", "ann"), 429),
        (traefik("192.0.2.1", "bob"), 200),
        (caddy("192.0.2.1", "POST"), 429),
        (caddy("192.0.2.2", "POST"), 200),
        (caddy("2001:db8::1", "POST"), 200),
        (caddy("192.0.2.1", "GET"), 200),
        (caddy("192.0.2.1", "GET"), 429),
    ] {
        let response = timeout(TEST_TIMEOUT, proxy.request(&request)).await.unwrap();
        assert_eq!(response.status(), status, "{request}");
        let reply = (response.header("retry-after").is_some(), response.header("ratelimit").is_some());
        assert_eq!(reply, (status == 429, true), "{}", response.head);
        assert_eq!(response.body.contains("quota-exceeded"), status == 429, "{}", response.body);
    }
    api.stop().await;

    // The address in the example has the path that is tested above.
    let example = include_str!("../../../../../examples/traefik/tidegate.yaml");
    assert!(example.contains("http://127.0.0.1:8090/v1/auth?proxy=forwarded&deny=policy"));
}

#[tokio::test]
async fn caddy_enforces_policy() {
    let server = TestBackend::start_echo().await;
    let api = DecisionServer::start(
        "decisions: 127.0.0.1:0\nrules:\n  - { name: each, key: header x-user, quota: 2/h }\n",
    );
    let example = include_str!("../../../../../examples/caddy/Caddyfile")
        .replace(":8080 {", ":PORT {\n\tbind 127.0.0.1")
        .replace("127.0.0.1:8090", &api.decisions.to_string())
        .replace("127.0.0.1:9000", &server.address.to_string());
    let Some(caddy) = AppServer::start_caddy(&example).unwrap() else {
        tidegate_testkit::servers::skip_without("caddy");
        return;
    };
    let mut client = RawClient::connect(caddy.address()).await;
    let query = "GET /a?b=c HTTP/1.1\r\nhost: shop.example\r\nx-user: ann\r\nratelimit: mine\r\n\r\n";
    for left in [1, 0] {
        let passed = timeout(TEST_TIMEOUT, client.request(query)).await.unwrap();
        assert_eq!(passed.status(), 200, "{}", caddy.log());
        assert!(
            passed.header("ratelimit").unwrap().starts_with(&format!(r#""each";r={left}"#)),
            "{}",
            passed.head
        );
        assert!(passed.body.starts_with("GET /a?b=c"), "{}", passed.body);
    }
    let limited = timeout(TEST_TIMEOUT, client.request(query)).await.unwrap();
    assert_eq!((limited.status(), limited.header("x-tidegate-rule")), (429, Some("each")), "{}", caddy.log());
    assert!(limited.header("retry-after").is_some(), "{}", limited.head);
    assert!(limited.header("ratelimit").unwrap().starts_with(r#""each";r=0"#), "{}", limited.head);
    assert!(limited.body.contains("quota-exceeded"), "{}", limited.body);
    drop(caddy);
    api.stop().await;
}
