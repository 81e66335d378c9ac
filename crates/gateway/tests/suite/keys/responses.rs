//! Responses to denied requests, and rate limit headers.

use crate::{admin_api::AdminGateway, harness::TestBackend, load_balancing::start_named};

#[tokio::test]
async fn denied_request_gets_the_declared_response() {
    let server = start_named("app").await;
    let rules = "rules:
  - name: text
    match: { path: /text }
    quota: 1/h
    on-limit:
      status: 503
      headers: { x-reason: load }
      bodies: { application/json: '{}', text/html: <p>Later.</p> }
      body: Later.
  - { name: moved, match: { path: /moved }, quota: 1/h, on-limit: { redirect: 'https://example.org/', status: 307 } }
  - name: stale
    match: { path: /stale }
    quota: 1/h
    on-limit: { fallback: { status: 203, headers: { x-age: old }, body: stale } }
";
    let gateway = AdminGateway::start(&server, rules);
    for path in ["/text", "/moved", "/stale"] {
        assert_eq!(gateway.get(path).await.body, "app", "{path}");
    }
    for (accept, body) in
        [("application/json", "{}"), ("text/html", "<p>Later.</p>"), ("image/png", "Later.")]
    {
        let denied = gateway.get_with_header("/text", &format!("accept: {accept}\r\n")).await;
        assert_eq!((denied.status(), denied.header("x-reason")), (503, Some("load")), "{accept}");
        assert_eq!(denied.body, body, "{accept}");
    }
    let moved = gateway.get("/moved").await;
    assert_eq!((moved.status(), moved.header("location")), (307, Some("https://example.org/")));
    let stale = gateway.get("/stale").await;
    assert_eq!((stale.status(), stale.header("x-age"), stale.body.as_str()), (203, Some("old"), "stale"));
    gateway.stop().await;
}

#[tokio::test]
async fn rate_limit_headers_have_the_declared_style() {
    let server = TestBackend::start_echo().await;
    let names = [
        "ratelimit-policy",
        "ratelimit",
        "ratelimit-limit",
        "x-ratelimit-limit",
        "x-ratelimit-limit-requests",
        "anthropic-ratelimit-requests-limit",
    ];
    for (style, expected) in [
        ("ietf", [true, true, false, false, false, false]),
        ("draft-03", [false, false, true, false, false, false]),
        ("legacy", [false, false, false, true, false, false]),
        ("openai", [false, false, false, false, true, false]),
        ("anthropic", [false, false, false, false, false, true]),
        ("none", [false; 6]),
    ] {
        let policy = format!("headers: {style}\nrules: [{{ name: all, quota: 9/h }}]");
        let gateway = AdminGateway::start(&server, &policy);
        let response = gateway.get("/").await;
        assert_eq!(names.map(|name| response.header(name).is_some()), expected, "{style}: {}", response.head);
        gateway.stop().await;
    }
}
