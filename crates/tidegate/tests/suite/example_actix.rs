//! The actix-web example over HTTP.

#![cfg(all(feature = "actix", feature = "macros"))]
#![allow(clippy::unwrap_used, reason = "this is how a test fails")]

#[path = "../../examples/actix.rs"]
mod actix;

use reqwest::{Client, Response};
use std::net::TcpListener;

#[test]
fn actix_example_limits_requests() {
    actix_web::rt::System::new().block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let shop = format!("http://{}", listener.local_addr().unwrap());
        let server = actix::run(listener, 4).unwrap();
        let handle = server.handle();
        actix_web::rt::spawn(server);
        check_shop(&shop).await;
        handle.stop(false).await;
    });
}

async fn check_shop(shop: &str) {
    // A new connection for each request: all workers share the rules.
    let client = || Client::builder().no_proxy().build().unwrap();
    let get = async |path: &str| client().get(format!("{shop}{path}")).send().await.unwrap();
    let login = async |password: &'static str| {
        client().post(format!("{shop}/login")).body(password).send().await.unwrap().status().as_u16()
    };

    let index = get("/").await;
    assert_eq!(header(&index, "ratelimit-policy"), r#""client";q=100;w=360"#);
    assert_eq!(header(&index, "ratelimit"), r#""client";r=99;t=4"#);
    assert_eq!(index.text().await.unwrap(), "welcome");

    let attempts = ["guess", "open sesame", "guess", "guess", "open sesame"];
    let mut answers = Vec::new();
    for password in attempts {
        answers.push(login(password).await);
    }
    assert_eq!(answers, [401, 200, 401, 401, 429]);

    // Sequential downloads are not limited.
    for _ in 0..5 {
        assert_eq!(get("/download/song").await.text().await.unwrap().len(), 4_000);
    }

    for status in [200, 200, 429] {
        assert_eq!(get("/search/limits").await.status(), status);
    }
    let rejected = get("/search/limits").await;
    assert_eq!(header(&rejected, "content-type"), "application/problem+json");
    assert!(header(&rejected, "retry-after").parse::<u64>().unwrap() > 1);
}

fn header<'a>(response: &'a Response, name: &str) -> &'a str {
    response.headers()[name].to_str().unwrap()
}
