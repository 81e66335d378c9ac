//! Requests and responses through a gateway, between real sockets.

use crate::{
    admin_api::AdminGateway,
    harness::{self, InProcessGateway, RawClient, TestBackend, test_config, text_body},
    normalization::request_http2,
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Channel};
use hyper::body::Incoming;
use std::{
    convert::Infallible,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};
use tidegate_gateway::http1::ParsedResponse;
use tidegate_gateway::{
    Action, ConnectionInfo, FilterContext, FilterDecision, FilterResult, LocalReply, ParsedBody,
    RequestFilter, SharedReply,
};
use tidegate_observe::ResponseOrigin;
use tidegate_policy::head::ParsedRequest;
use tidegate_rule::{RejectionResponse, SharedRejection};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Notify, mpsc, oneshot},
    time::timeout,
};

#[tokio::test]
async fn connections_are_reused_on_both_sides() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    for path in ["/", "/a?b=c", "/%20"] {
        let response = client.get(path).await;
        assert_eq!(response.status(), 200);
        assert!(response.body.starts_with(&format!("GET {path}\n")), "{}", response.body);
    }
    let response = client.request("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody").await;
    assert!(response.body.ends_with("\n\nbody"));
    let response = gateway.connect().await.get("/").await;
    assert_eq!(response.status(), 200);
    assert_eq!(server.connection_count(), 1);
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("GET /1 HTTP/1.1\r\nhost: a\r\n\r\nGET /2 HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(client.read_response().await.body.starts_with("GET /1\n"));
    assert!(client.read_response().await.body.starts_with("GET /2\n"));
}

#[tokio::test]
async fn forwarded_headers_are_replaced_or_appended() {
    let server = TestBackend::start_echo().await;
    let request_with_headers = "GET / HTTP/1.1\r\nhost: app.example\r\nx-forwarded-for: 1.2.3.4\r\nx-forwarded-for: 5.6.7.8\r\n\
        x-forwarded-proto: https\r\nx-forwarded-host: shop.example\r\nx-forwarded-prefix: /shop\r\nforwarded: for=1.2.3.4\r\n\
        x-request-id: abc\r\n\r\n";

    let gateway = InProcessGateway::start(&[&server]).await;
    let response = gateway.connect().await.request(request_with_headers).await;
    assert_eq!(response.echoed_headers("host"), ["app.example"]);
    assert_eq!(response.echoed_headers("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(response.echoed_headers("x-forwarded-proto"), ["http"]);
    assert_eq!(response.echoed_headers("x-forwarded-host"), ["app.example"]);
    assert_eq!(response.echoed_headers("forwarded"), [r#"for=127.0.0.1;host="app.example";proto=http"#]);
    let id = response.echoed_headers("x-request-id");
    assert_eq!(id[0].len(), 32);
    assert_eq!(response.header("x-request-id"), Some(id[0]));

    let header_names = [
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "forwarded",
        "x-request-id",
        "x-forwarded-prefix",
    ];
    for (mode, expected_counts) in [("x-forwarded", [1, 1, 1, 0, 1, 0]), ("none", [0; 6])] {
        let gateway = AdminGateway::start(&server, &format!("forwarded-headers: {mode}"));
        let mut client = gateway.connect().await;
        for request in [request_with_headers, "GET / HTTP/1.1\r\nhost: app.example\r\n\r\n"] {
            let response = client.request(request).await;
            assert_eq!(
                header_names.map(|name| response.echoed_headers(name).len()),
                expected_counts,
                "{mode} {request}"
            );
            assert_eq!(response.header("x-request-id").is_some(), expected_counts[4] == 1, "{mode}");
        }
    }

    let gateway = AdminGateway::start(&server, "trusted-proxies: 127.0.0.0/8");
    let response = gateway.connect().await.request(request_with_headers).await;
    assert_eq!(response.echoed_headers("x-forwarded-for"), ["1.2.3.4, 5.6.7.8, 127.0.0.1"]);
    assert_eq!(response.echoed_headers("x-forwarded-proto"), ["https"]);
    assert_eq!(response.echoed_headers("x-forwarded-host"), ["shop.example"]);
    assert_eq!(response.echoed_headers("x-forwarded-prefix"), ["/shop"]);
    assert_eq!(
        response.echoed_headers("forwarded"),
        [r#"for=1.2.3.4, for=127.0.0.1;host="app.example";proto=http"#]
    );
    assert_eq!(response.echoed_headers("x-request-id"), ["abc"]);
    assert_eq!(response.header("x-request-id"), Some("abc"));
}

#[tokio::test]
async fn hop_by_hop_headers_are_not_forwarded() {
    let server = TestBackend::start(|request: Request<Incoming>| async move {
        let names: Vec<_> = request.headers().keys().map(http::HeaderName::as_str).collect();
        let mut response = Response::new(text_body(names.join(" ")));
        for (name, value) in
            [("connection", "x-inner"), ("x-inner", "1"), ("keep-alive", "timeout=5"), ("x-outer", "1")]
        {
            response.headers_mut().insert(name, value.parse().unwrap());
        }
        response
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let response = gateway
        .connect()
        .await
        .request(
            "GET / HTTP/1.1\r\nhost: a\r\nconnection: x-mine, close, host\r\nx-mine: 1\r\nkeep-alive: 5\r\n\
             proxy-connection: keep-alive\r\nproxy-authorization: secret\r\nte: gzip, trailers\r\nupgrade: h2c\r\nx-other: 1\r\n\r\n",
        )
        .await;
    let mut names: Vec<_> = response.body.split(' ').collect();
    names.sort_unstable();
    let forwarded = ["forwarded", "host", "te", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"];
    assert_eq!(names, [&forwarded[..], &["x-other", "x-request-id"]].concat());
    assert_eq!(response.header("x-inner"), None);
    assert_eq!(response.header("keep-alive"), None);
    assert_eq!(response.header("x-outer"), Some("1"));
    assert_eq!(response.header("connection"), Some("close"));
}

#[tokio::test]
async fn absolute_request_target_overrides_host() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let response =
        gateway.connect().await.request("GET http://right.example/a?b HTTP/1.1\r\nhost: wrong\r\n\r\n").await;
    assert!(response.body.starts_with("GET /a?b\n"));
    assert_eq!(response.echoed_headers("host"), ["right.example"]);
}

#[tokio::test]
async fn bodies_stream_in_both_directions() {
    // The server echoes each chunk before the next is sent, so nothing may be buffered.
    let server = TestBackend::start(|request: Request<Incoming>| async move {
        let (mut response, body) = Channel::<Bytes, Infallible>::new(1);
        tokio::spawn(async move {
            let mut pieces = request.into_body();
            while let Some(Ok(frame)) = pieces.frame().await {
                let Ok(data) = frame.into_data() else { continue };
                let echo = [b"<", &data[..], b">"].concat();
                if response.send_data(echo.into()).await.is_err() {
                    return;
                }
            }
        });
        Response::new(body.map_err(|never| match never {}).boxed())
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n").await;
    assert!(client.read_head().await.contains("transfer-encoding: chunked"));
    for piece in ["one", "two", "three"] {
        client.send(format!("{:x}\r\n{piece}\r\n", piece.len())).await;
        client.read_until(format!("<{piece}>").as_bytes()).await;
    }
    client.send("0\r\n\r\n").await;
    client.read_until(b"0\r\n\r\n").await;
    assert_eq!(client.get("/").await.status(), 200);
}

#[tokio::test]
async fn expect_100_continue_is_answered() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n").await;
    assert_eq!(client.read_head().await, "HTTP/1.1 100 Continue\r\n\r\n");
    client.send("body").await;
    let response = client.read_response().await;
    assert!(response.body.ends_with("\n\nbody"));
    assert_eq!(response.echoed_headers("expect"), [""; 0]);
}

#[tokio::test]
async fn response_without_body_keeps_connection_alive() {
    let server = TestBackend::start(|request: Request<Incoming>| async move {
        let mut response = Response::new(text_body(""));
        match request.uri().path() {
            "/head" => *response.body_mut() = text_body("12345"),
            "/204" => *response.status_mut() = StatusCode::NO_CONTENT,
            "/304" => *response.status_mut() = StatusCode::NOT_MODIFIED,
            _ => {}
        }
        response
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("HEAD /head HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert!(client.read_head().await.contains("content-length: 5"));
    for path in ["/204", "/304", "/"] {
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        client.read_head().await;
    }
    assert_eq!(server.connection_count(), 1);
}

/// Starts a server that sends these bytes for every request, and then calls `then`.
async fn start_fixed_response(response: &'static str, then: fn(TcpStream)) -> TestBackend {
    TestBackend::start_raw(move |stream| async move {
        let mut wire = RawClient::new(stream);
        wire.read_head().await;
        wire.send(response).await;
        then(wire.stream);
    })
    .await
}

#[tokio::test]
async fn early_hints_are_dropped_and_trailers_forwarded() {
    let server = start_fixed_response(
        "HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\nHTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\
         trailer: x-sum\r\n\r\n3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n",
        drop,
    )
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\nte: trailers\r\nconnection: te, close\r\n\r\n").await;
    let response = client.read_to_end().await;
    assert!(response.starts_with("HTTP/1.1 200 OK\r\n"), "{response}");
    assert!(response.ends_with("3\r\nabc\r\n0\r\nx-sum: 6\r\n\r\n"), "{response}");
}

#[tokio::test]
async fn http10_response_ends_with_connection_close() {
    let server = start_fixed_response(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
        drop,
    )
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.0\r\n\r\n").await;
    let response = client.read_to_end().await;
    assert!(response.ends_with("\r\n\r\nabc") && !response.contains("chunked"), "{response}");
}

#[tokio::test]
async fn upgrade_tunnels_bytes_in_both_directions() {
    let server = TestBackend::start_raw(|stream| async move {
        let mut wire = RawClient::new(stream);
        let head = wire.read_head().await;
        assert!(
            head.contains("upgrade: websocket\r\n") && head.contains("connection: upgrade\r\n"),
            "{head}"
        );
        // The first bytes are sent with the head.
        wire.send(
            "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\nhello",
        )
        .await;
        wire.read_until(b"ping").await;
        wire.send("pong").await;
        let mut rest = Vec::new();
        wire.stream.read_to_end(&mut rest).await.unwrap();
        wire.send("bye").await;
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client
        .send("GET /chat HTTP/1.1\r\nhost: a\r\nconnection: keep-alive, Upgrade\r\nupgrade: websocket\r\n\r\nping")
        .await;
    let head = client.read_head().await;
    assert!(head.starts_with("HTTP/1.1 101 ") && head.contains("upgrade: websocket"), "{head}");
    client.read_until(b"hello").await;
    client.read_until(b"pong").await;
    client.stream.shutdown().await.unwrap();
    assert_eq!(client.read_to_end().await, "bye");
}

#[tokio::test]
async fn response_101_has_no_framing_and_no_other_fields_of_its_connection() {
    let server = start_fixed_response(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: keep-alive, Upgrade, x-hop\r\nupgrade: websocket\r\n\
         transfer-encoding: chunked\r\ncontent-length: 5\r\nkeep-alive: timeout=5\r\nx-hop: 1\r\n\
         sec-websocket-accept: abc\r\n\r\nhello",
        drop,
    )
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n").await;
    let head = client.read_head().await;
    let mut lines: Vec<_> =
        head.trim_end().split("\r\n").filter(|line| !line.starts_with("x-request-id")).collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "HTTP/1.1 101 Switching Protocols",
            "connection: upgrade",
            "sec-websocket-accept: abc",
            "upgrade: websocket"
        ]
    );
    assert_eq!(client.read_to_end().await, "hello");
}

/// The gateway would not see requests inside of the other protocol.
#[tokio::test]
async fn upgrade_to_http_or_tls_is_not_forwarded() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    for upgrade in [
        "h2c",
        "H2C",
        "websocket, h2c",
        "HTTP/2.0",
        "websocket\r\nupgrade: h2c",
        "TLS/1.0",
        "tls",
        "websocket, TLS/1.2",
    ] {
        let response = gateway
            .connect()
            .await
            .request(&format!(
                "GET / HTTP/1.1\r\nhost: a\r\nconnection: upgrade, http2-settings\r\n\
                 http2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\nupgrade: {upgrade}\r\n\r\n"
            ))
            .await;
        assert_eq!(response.status(), 200);
        for name in ["upgrade", "connection", "http2-settings"] {
            assert_eq!(response.echoed_headers(name), [""; 0], "{upgrade}");
        }
    }
}

#[tokio::test]
async fn unrequested_101_is_a_bad_gateway() {
    let server = start_fixed_response(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n",
        drop,
    )
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    assert_eq!(gateway.connect().await.get("/").await.status(), 502);
}

#[tokio::test]
async fn unreachable_server_response_hides_its_address() {
    let server = TestBackend::unreachable().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let response = gateway.connect().await.get("/").await;
    assert_eq!(response.status(), 502);
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert!(response.header("x-request-id").is_some());
    assert!(!response.body.contains("127.0.0.1") && !response.body.contains("refused"), "{}", response.body);
}

#[tokio::test]
async fn malformed_server_response_is_a_bad_gateway() {
    for wire_response in [
        "",
        "HTTP/1.1 200",
        "nonsense\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n",
        "\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\n\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
    ] {
        let server = start_fixed_response(wire_response, drop).await;
        let gateway = InProcessGateway::start(&[&server]).await;
        assert_eq!(gateway.connect().await.get("/").await.status(), 502, "{wire_response:?}");
    }
}

#[tokio::test]
async fn truncated_server_body_aborts_response() {
    for (wire_response, end) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc", "abc"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabc\r\n", "3\r\nabc\r\n"),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nabc", "3\r\nabc\r\n"),
    ] {
        let server = start_fixed_response(wire_response, drop).await;
        let gateway = InProcessGateway::start(&[&server]).await;
        let mut client = gateway.connect().await;
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
        let response = client.read_to_end().await;
        assert!(response.starts_with("HTTP/1.1 200 OK") && response.ends_with(end), "{response:?}");
    }
}

#[tokio::test]
async fn closed_idle_connection_is_retried() {
    let (closed, wait) = oneshot::channel();
    let closed = Arc::new(Mutex::new(Some(closed)));
    let server = TestBackend::start_raw(move |stream| {
        let closed = closed.clone();
        async move {
            let mut wire = RawClient::new(stream);
            wire.read_head().await;
            wire.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
            drop(wire);
            if let Some(closed) = closed.lock().unwrap().take() {
                let _ = closed.send(());
            }
        }
    })
    .await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    assert_eq!(client.get("/").await.status(), 200);
    wait.await.unwrap();
    for _ in 0..10 {
        assert_eq!(client.get("/").await.status(), 200);
    }
}

/// The response is invalid on a connection that was used before, and on a new one.
#[tokio::test]
async fn idempotent_request_with_invalid_response_is_retried_with_another_server() {
    for valid_responses in [0, 1] {
        let invalid = Arc::new(AtomicUsize::new(0));
        let count = invalid.clone();
        let broken = TestBackend::start_raw(move |stream| {
            let count = count.clone();
            async move {
                let mut wire = RawClient::new(stream);
                for _ in 0..valid_responses {
                    wire.read_head().await;
                    wire.send("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await;
                }
                wire.read_head().await;
                count.fetch_add(1, Ordering::SeqCst);
                wire.send("nonsense\r\n\r\n").await;
            }
        })
        .await;
        let healthy = TestBackend::start_echo().await;
        let gateway = InProcessGateway::start(&[&broken, &healthy]).await;
        let mut client = gateway.connect().await;
        while invalid.load(Ordering::SeqCst) == 0 {
            assert_eq!(client.get("/").await.status(), 200, "after {valid_responses} valid responses");
        }
        // A request that is not idempotent may have been processed.
        let mut statuses = Vec::new();
        for _ in 0..2 + 2 * valid_responses {
            statuses.push(client.request("POST / HTTP/1.1\r\nhost: a\r\n\r\n").await.status());
        }
        assert!(statuses.contains(&502), "{statuses:?}");
    }
}

#[tokio::test]
async fn filter_responds_drops_forwards_and_replaces_response() {
    struct RoutingFilter(Vec<tidegate_gateway::UpstreamId>);

    impl RequestFilter for RoutingFilter {
        fn filter(
            &self,
            head: &mut ParsedRequest,
            connection: &ConnectionInfo,
            _: Option<&ParsedBody>,
        ) -> FilterResult {
            assert!(connection.peer.ip().is_loopback());
            match head.path() {
                "/drop" => FilterResult::Ready(Action::Drop.into()),
                "/answer" => {
                    let mut response = Response::new(Bytes::from_static(b"no"));
                    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
                    FilterResult::Ready(Action::Respond(response.into()).into())
                }
                path => {
                    let target = self.0[usize::from(path.starts_with("/other"))];
                    let path = path.to_owned();
                    head.fields.push(b"x-filtered", b"yes");
                    FilterResult::Deferred(Box::pin(async move {
                        tokio::task::yield_now().await;
                        let context: Box<dyn FilterContext> = Box::new(RoutedPath(path));
                        FilterDecision { action: Action::Forward(target), context: Some(context), note: None }
                    }))
                }
            }
        }
    }

    struct RoutedPath(String);

    impl FilterContext for RoutedPath {
        fn on_response(&mut self, response: &mut ParsedResponse) -> Option<LocalReply> {
            response.fields.push(b"x-case", self.0.as_bytes());
            (self.0 == "/other/instead").then(|| Response::new(Bytes::from_static(b"instead")).into())
        }
    }

    let (app, other) = (
        TestBackend::start_echo().await,
        TestBackend::start(|_| async { Response::new(text_body("other")) }).await,
    );
    let mut config = test_config(&[&app]);
    config.upstreams.insert("other".to_owned(), harness::test_upstream(&[&other]));
    let filter = RoutingFilter(["app", "other"].iter().flat_map(|name| config.upstream_id(name)).collect());
    let gateway = InProcessGateway::start_with_filter(config, filter).await;

    let mut client = gateway.connect().await;
    let response = client.get("/answer").await;
    assert_eq!((response.status(), response.body.as_str()), (429, "no"));
    let response = client.get("/a").await;
    assert_eq!(response.echoed_headers("x-filtered"), ["yes"]);
    assert_eq!(response.header("x-case"), Some("/a"));
    assert_eq!(client.get("/other").await.body, "other");
    assert_eq!(client.get("/other/instead").await.body, "instead");
    client.send("GET /drop HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.read_to_end().await, "");
}

/// A usual request gets bytes that were written in advance. Others get the same response, built for them.
#[tokio::test]
async fn shared_reply_is_the_same_for_every_form_of_request() {
    let server = TestBackend::start_echo().await;
    let rejection = RejectionResponse::new(429).header("retry-after", "7").text("wait");
    let reply = SharedReply::from(SharedRejection::from(rejection));
    let filter = move |_: &ParsedRequest| Action::RespondShared(reply.clone());
    let gateway = InProcessGateway::start_with_filter(test_config(&[&server]), filter).await;

    let mut names = Vec::new();
    let mut ids = Vec::new();
    let mut check = |head: &str, connection: Option<&str>| {
        let mut lines = head.trim_end().split("\r\n");
        let status = lines.next().unwrap().split_once(' ').unwrap().1;
        assert_eq!(status, "429 Too Many Requests", "{head}");
        let mut fields: Vec<_> = lines.map(|line| line.split_once(": ").unwrap()).collect();
        fields.sort_unstable();
        let value = |name: &str| fields.iter().find(|field| field.0 == name).map(|field| field.1);
        assert_eq!((value("content-length"), value("retry-after")), (Some("4"), Some("7")), "{head}");
        assert_eq!(value("connection"), connection, "{head}");
        ids.push(value("x-request-id").unwrap().to_owned());
        let of_head = fields.iter().map(|field| field.0.to_owned());
        names.push(of_head.filter(|name| name != "connection").collect::<Vec<_>>());
    };
    let mut client = gateway.connect().await;
    for request in [
        "GET / HTTP/1.1\r\nhost: a\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n",
        "POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\nbody",
        "GET / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\n\r\n",
    ] {
        client.send(request).await;
        check(&client.read_head().await, None);
        assert_eq!(client.read_exact(4).await, b"wait");
    }
    client.send("HEAD / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    check(&client.read_head().await, None);
    client.send("GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await;
    check(&client.read_head().await, Some("close"));
    assert_eq!(client.read_to_end().await, "wait");
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.0\r\nconnection: keep-alive\r\n\r\n").await;
    check(&client.read_head().await, Some("keep-alive"));
    assert_eq!(client.read_exact(4).await, b"wait");
    // Two requests at once get two responses.
    let mut client = gateway.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(2)).await;
    for _ in 0..2 {
        check(&client.read_head().await, None);
        assert_eq!(client.read_exact(4).await, b"wait");
    }
    names.dedup();
    assert_eq!(names, [["content-length", "content-type", "date", "retry-after", "x-request-id"]]);
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 9);
    let (status, body) = request_http2(gateway.address, "/", &[]).await;
    assert_eq!((status, body.as_str()), (429, "wait"));
}

#[tokio::test]
async fn each_exchange_is_recorded_once() {
    type ExchangeRecord = (Option<String>, Option<(StatusCode, ResponseOrigin)>);
    struct RecordingFilter(tidegate_gateway::UpstreamId, mpsc::UnboundedSender<ExchangeRecord>);

    impl RequestFilter for RecordingFilter {
        fn filter(
            &self,
            head: &mut ParsedRequest,
            _: &ConnectionInfo,
            _: Option<&ParsedBody>,
        ) -> FilterResult {
            let path = head.path().to_owned();
            let action = match path.as_str() {
                "/drop" => Action::Drop,
                "/respond" => Action::Respond(Response::new(Bytes::from_static(b"here")).into()),
                _ => Action::Forward(self.0),
            };
            let context: Box<dyn FilterContext> = Box::new(RecordingContext(path, self.1.clone()));
            FilterResult::Ready(FilterDecision { action, context: Some(context), note: None })
        }

        fn record(&self, response: Option<(StatusCode, ResponseOrigin)>) {
            self.1.send((None, response)).unwrap();
        }
    }

    struct RecordingContext(String, mpsc::UnboundedSender<ExchangeRecord>);

    impl FilterContext for RecordingContext {
        fn record(self: Box<Self>, response: Option<(StatusCode, ResponseOrigin)>) {
            self.1.send((Some(self.0), response)).unwrap();
        }
    }

    let arrived = Arc::new(Notify::new());
    let signal = arrived.clone();
    let server = TestBackend::start(move |request: Request<Incoming>| {
        let signal = signal.clone();
        async move {
            if request.uri().path() == "/never" {
                signal.notify_one();
                std::future::pending::<()>().await;
            }
            Response::new(text_body("there"))
        }
    })
    .await;
    let (config, (sender, mut recorded)) = (test_config(&[&server]), mpsc::unbounded_channel());
    let app = config.upstream_id("app").unwrap();
    let mut gateway = InProcessGateway::start_with_filter(config, RecordingFilter(app, sender)).await;
    let mut client = gateway.connect().await;
    assert_eq!(client.get("/respond").await.status(), 200);
    assert_eq!(client.get("/forward").await.status(), 200);
    client.send("GET /drop HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.read_to_end().await, "");
    let nonsense = gateway.connect().await.request("GET / HTTP/1.1\r\n\r\n").await;
    assert_eq!(nonsense.status(), 400);
    let mut leaving = gateway.connect().await;
    leaving.send("GET /never HTTP/1.1\r\nhost: a\r\n\r\n").await;
    arrived.notified().await;
    drop(leaving);

    let (ok, bad) = (StatusCode::OK, StatusCode::BAD_REQUEST);
    for (path, response) in [
        (Some("/respond"), Some((ok, ResponseOrigin::Gateway))),
        (Some("/forward"), Some((ok, ResponseOrigin::Server))),
        (Some("/drop"), None),
        (None, Some((bad, ResponseOrigin::Gateway))),
        (Some("/never"), None),
    ] {
        // The filter records every exchange, and the context those that reached the filter.
        for path in [None].into_iter().chain(path.map(Some)) {
            let next = timeout(harness::TEST_TIMEOUT, recorded.recv()).await.unwrap();
            assert_eq!(next, Some((path.map(str::to_owned), response)));
        }
    }
    gateway.stop();
    gateway.wait_stopped().await;
    assert_eq!(recorded.recv().await, None);
}
