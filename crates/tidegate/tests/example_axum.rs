//! The axum example over HTTP.

#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

#[path = "../examples/axum.rs"]
#[allow(dead_code, reason = "its main is not used")]
mod shop;

use reqwest::{Client, Response};
use std::net::{Ipv4Addr, SocketAddr};
use tidegate::{Clock, Rules, rule::Settings};
use tokio::net::TcpListener;

/// Serves the shop with a manual clock, and returns its address.
async fn serve_shop() -> String {
    let rules = Rules::global();
    let (clock, _manual_clock) = Clock::manual();
    rules.apply(Settings::new().clock(clock)).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = shop::app(rules).unwrap().into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    format!("http://{address}")
}

#[tokio::test]
async fn axum_example_limits_requests() {
    let shop = serve_shop().await;
    let client = Client::builder().no_proxy().build().unwrap();
    let get = async |path: &str, key: &str| {
        client.get(format!("{shop}{path}")).header("x-api-key", key).send().await.unwrap()
    };
    let login = async |password: &'static str| {
        client.post(format!("{shop}/login")).body(password).send().await.unwrap().status().as_u16()
    };

    // Successful logins are not charged; five failed ones exhaust the quota.
    for password in ["open sesame", "1", "2", "open sesame", "3", "4", "open sesame", "5"] {
        assert_eq!(login(password).await, if password == "open sesame" { 200 } else { 401 });
    }
    assert_eq!(login("6").await, 429);
    assert_eq!(login("open sesame").await, 429);

    // Each customer has a plan.
    for left in ["2", "1", "0"] {
        let items = get("/api/items", "free-1").await;
        assert_eq!(items.status(), 200);
        assert!(header(&items, "ratelimit").starts_with(&format!("\"api\";r={left};")), "{items:?}");
    }
    let rejected = get("/api/items", "free-1").await;
    assert_eq!(rejected.status(), 429);
    assert_eq!(header(&rejected, "retry-after"), "20");
    assert!(rejected.text().await.unwrap().contains(r#""violated-policies":["api"]"#));
    assert_eq!(get("/api/items", "free-2").await.status(), 200);
    for _ in 0..20 {
        assert_eq!(get("/api/items", "pro-1").await.status(), 200);
    }

    // The nested function has its own limit and message.
    assert_eq!(get("/api/export", "pro-1").await.status(), 200);
    let rejected = get("/api/export", "pro-1").await;
    assert_eq!(rejected.status(), 429);
    assert!(rejected.text().await.unwrap().contains("one export per hour"));
    assert_eq!(get("/api/export", "pro-2").await.status(), 200);
}

/// A download holds its slot until the last byte is sent or the client disconnects.
#[tokio::test]
async fn two_downloads_run_at_once() {
    let shop = serve_shop().await;
    let client = || Client::builder().no_proxy().build().unwrap();
    let download = async || client().get(format!("{shop}/download")).send().await.unwrap();

    let (one, two) = (download().await, download().await);
    assert_eq!((one.status().as_u16(), two.status().as_u16()), (200, 200));
    let third = download().await;
    assert_eq!(third.status(), 429);
    assert!(third.headers().get("retry-after").is_none(), "a slot has no retry time");
    drop(one);
    // The server detects the disconnect with its next write.
    while download().await.status() != 200 {
        tokio::task::yield_now().await;
    }
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    // The outermost gate is the last one in the list.
    response.headers()[name].to_str().unwrap()
}
