//! Middleware in real servers with several workers, and real clients over HTTP/1.1 and HTTP/2.

#![allow(clippy::unwrap_used, reason = "a test may fail")]

use crate::support::{RuleFixture, serve};
use actix_web::{App, HttpResponse, web};
use bytes::Bytes;
use reqwest::{Client, Version};
use std::{
    collections::BTreeMap,
    convert::Infallible,
    pin::Pin,
    sync::Mutex,
    task::{Context, Poll},
    time::Duration,
};
use tidegate_actix::LimitMiddleware;
use tidegate_rule::{
    ChargePolicy, Gate, Limited, Rule,
    request::{ResponseHead, key},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    sync::mpsc,
    task::JoinSet,
};

/// A client with its own connection for each protocol.
const HTTP_CLIENTS: [(Version, fn() -> Client); 2] = [
    (Version::HTTP_11, || Client::builder().no_proxy().build().unwrap()),
    (Version::HTTP_2, || Client::builder().no_proxy().http2_prior_knowledge().build().unwrap()),
];

#[actix_web::test]
async fn workers_and_connections_share_limit() {
    for (version, client) in HTTP_CLIENTS {
        let fixture = RuleFixture::new();
        let gate = Gate::from(fixture.limit("api", "10/h").key(key::peer()));
        let app = move || {
            let limit = LimitMiddleware::new(gate.clone());
            App::new().wrap(limit).route("/", web::get().to(|| async { "served" }))
        };
        let served = serve!(4, app);

        let mut asks = JoinSet::new();
        for connection in 0..50 {
            // Two clients on each of fifty connections.
            let client = client();
            for _ in 0..2 {
                let ask = client.get(served.url("/")).send();
                asks.spawn(async move {
                    let response = ask.await.unwrap();
                    assert_eq!(response.version(), version, "connection {connection}");
                    response.status().as_u16()
                });
            }
        }
        let mut answers = BTreeMap::<u16, u32>::new();
        for status in asks.join_all().await {
            *answers.entry(status).or_default() += 1;
        }
        assert_eq!(answers, BTreeMap::from([(200, 10), (429, 90)]), "{version:?}");
        served.stop().await;
    }
}

/// A body whose chunks the test sends.
struct ChannelStream(mpsc::UnboundedReceiver<&'static str>);

impl futures_core::Stream for ChannelStream {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_recv(context).map(|chunk| chunk.map(|chunk| Ok(chunk.into())))
    }
}

/// Responds to the first request with the body of the test.
async fn download(body: web::Data<Mutex<Option<ChannelStream>>>) -> HttpResponse {
    match body.lock().unwrap().take() {
        Some(body) => HttpResponse::Ok().streaming(body),
        None => HttpResponse::Ok().body("again"),
    }
}

#[actix_web::test]
async fn body_holds_slot_until_sent() {
    for (version, client) in HTTP_CLIENTS {
        let fixture = RuleFixture::new();
        let gate = Gate::from(fixture.limit("downloads", "1 at once"));
        let (script, body) = mpsc::unbounded_channel();
        let body = web::Data::new(Mutex::new(Some(ChannelStream(body))));
        let app = move || {
            let limit = LimitMiddleware::new(gate.clone());
            App::new().app_data(body.clone()).wrap(limit).route("/", web::get().to(download))
        };
        let served = serve!(2, app);
        let status = || async { client().get(served.url("/")).send().await.unwrap().status().as_u16() };

        script.send("first").unwrap();
        let mut response = client().get(served.url("/")).send().await.unwrap();
        assert_eq!((response.status().as_u16(), response.version()), (200, version));
        assert_eq!(response.chunk().await.unwrap().as_deref(), Some(b"first".as_slice()));
        assert_eq!(status().await, 429);

        script.send("last").unwrap();
        drop(script);
        assert_eq!(response.text().await.unwrap(), "last");
        assert_eq!(status().await, 200);
        served.stop().await;
    }
}

#[actix_web::test]
async fn disconnected_client_releases_slot() {
    for (version, client) in HTTP_CLIENTS {
        let fixture = RuleFixture::new();
        let gate = Gate::from(fixture.limit("downloads", "1 at once"));
        let (script, body) = mpsc::unbounded_channel();
        let body = web::Data::new(Mutex::new(Some(ChannelStream(body))));
        let app = move || {
            let limit = LimitMiddleware::new(gate.clone());
            App::new().app_data(body.clone()).wrap(limit).route("/", web::get().to(download))
        };
        let served = serve!(2, app);

        script.send("first").unwrap();
        let gone = client();
        let mut response = gone.get(served.url("/")).send().await.unwrap();
        assert_eq!(response.chunk().await.unwrap().as_deref(), Some(b"first".as_slice()));
        drop((response, gone));

        // The server detects the disconnect when it sends the next chunk.
        let again = async {
            loop {
                _ = script.send("more");
                let response = client().get(served.url("/")).send().await.unwrap();
                if response.status() == 200 {
                    break response.text().await.unwrap();
                }
            }
        };
        let again = tokio::time::timeout(Duration::from_secs(60), again).await;
        assert_eq!(again.as_deref(), Ok("again"), "{version:?}");
        served.stop().await;
    }
}

#[actix_web::test]
async fn request_is_denied_before_body_is_read() {
    let fixture = RuleFixture::new();
    let gate = Gate::from(fixture.limit("uploads", "1/h"));
    let read = |body: Bytes| async move { body.len().to_string() };
    let app = move || App::new().wrap(LimitMiddleware::new(gate.clone())).route("/", web::post().to(read));
    let served = serve!(1, app);

    let mut answers = Vec::new();
    for body in ["four", ""] {
        // The second client never sends the body that it announces.
        let mut socket = TcpStream::connect(served.address).await.unwrap();
        let request = format!("POST / HTTP/1.1\r\nhost: tidegate.test\r\ncontent-length: 4\r\n\r\n{body}");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = [0; 12];
        socket.read_exact(&mut answer).await.unwrap();
        answers.push(String::from_utf8_lossy(&answer).into_owned());
    }
    assert_eq!(answers, ["HTTP/1.1 200", "HTTP/1.1 429"]);
    served.stop().await;
}

#[actix_web::test]
async fn failed_logins_are_charged_and_handler_can_deny() {
    for (version, client) in HTTP_CLIENTS {
        let fixture = RuleFixture::new();
        let failed = ChargePolicy::only_if(|reply: &dyn ResponseHead| reply.status() == 401);
        let gate = Gate::from(fixture.limit("login", "3/h").key(key::peer()).charge(failed));
        let search = fixture.limit("search", "1/h").rule().clone();
        let login = |password: String| async move {
            match password.as_str() {
                "right" => HttpResponse::Ok().finish(),
                _ => HttpResponse::Unauthorized().finish(),
            }
        };
        let app = move || {
            App::new()
                .app_data(web::Data::new(search.clone()))
                .route("/search", web::get().to(limited_handler))
                .service(
                    web::resource("/login")
                        .wrap(LimitMiddleware::new(gate.clone()))
                        .route(web::post().to(login)),
                )
        };
        let served = serve!(2, app);
        let client = client();
        let passwords = ["wrong", "right", "wrong", "right", "right", "wrong", "right"];
        let mut answers = Vec::new();
        for password in passwords {
            let response = client.post(served.url("/login")).body(password).send().await.unwrap();
            answers.push(response.status().as_u16());
        }
        assert_eq!(answers, [401, 200, 401, 200, 200, 401, 429], "{version:?}");

        let answer = client.get(served.url("/search")).send().await.unwrap();
        assert_eq!((answer.status().as_u16(), answer.text().await.unwrap().as_str()), (200, "found"));
        let answer = client.get(served.url("/search")).send().await.unwrap();
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["retry-after"]),
            (429, &"3600".parse().unwrap())
        );
        assert!(answer.text().await.unwrap().contains("quota-exceeded"));
        served.stop().await;
    }
}

/// The error of a rule becomes a response.
async fn limited_handler(rule: web::Data<Rule>) -> Result<&'static str, Limited> {
    rule.admit("everybody", 1).await?;
    Ok("found")
}
