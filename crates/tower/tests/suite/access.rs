//! Access lists, bans by responses of the inner service, and forged addresses.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

use crate::support::{TestService, header, request, send_request};
use http::Request;
use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tidegate_access::{AccessControl, Bans, ListAction};
use tidegate_limiter::{Clock, ManualClock};
use tidegate_rule::{
    RejectionResponse,
    request::{TrustedProxies, key},
};
use tidegate_tower::{AccessLayer, RequestAccess};
use tower::{Layer as _, Service};

fn control(list: &str) -> (Arc<AccessControl>, ManualClock) {
    let (clock, manual_clock) = Clock::manual();
    let bans = Bans::builder().clock(clock).rule("3/min for 1h".parse().unwrap()).build().unwrap();
    (Arc::new(AccessControl::new(list.parse().unwrap(), bans)), manual_clock)
}

fn request_from(peer: &str) -> Request<()> {
    let mut request = request();
    request.extensions_mut().insert(SocketAddr::new(peer.parse().unwrap(), 4_321));
    request
}

async fn status<S, R>(service: &S, request: Request<()>) -> u16
where
    S: Service<Request<()>, Response = http::Response<R>, Error = crate::support::TestServiceError> + Clone,
{
    send_request(service, request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn access_list_selects_clients() {
    let (control, _manual_clock) = control("deny 192.0.2.0/24\nallow 192.0.2.7\ndeny 2001:db8::/32");
    let inner = TestService::new();
    let service = AccessLayer::new(control).layer(inner.clone());
    let table = [
        ("192.0.2.1", 403),
        ("192.0.2.7", 200),
        ("198.51.100.1", 200),
        ("::ffff:192.0.2.1", 403),
        ("2001:db8::1", 403),
        ("2001:db9::1", 200),
    ];
    for (peer, expected) in table {
        assert_eq!(status(&service, request_from(peer)).await, expected, "{peer}");
    }
    assert_eq!(inner.calls(), 3);
}

/// A forwarded header of an untrusted client is ignored.
#[tokio::test]
async fn forged_forwarded_address_is_ignored() {
    let (control, _manual_clock) = control("deny 192.0.2.0/24");
    let proxies = TrustedProxies::new(["10.0.0.0/8"]).unwrap();
    let service =
        AccessLayer::new(RequestAccess::new(control).trusted_proxies(proxies)).layer(TestService::new());
    let table = [
        ("10.0.0.1", Some("192.0.2.1"), 403),
        ("10.0.0.1", Some("198.51.100.1"), 200),
        ("10.0.0.1", Some("198.51.100.1, 192.0.2.1"), 403),
        ("10.0.0.1", Some("nonsense"), 200),
        ("10.0.0.1", None, 200),
        ("192.0.2.1", Some("198.51.100.1"), 403),
        ("198.51.100.1", Some("192.0.2.1"), 200),
    ];
    for (peer, forwarded, expected) in table {
        let mut request = request_from(peer);
        if let Some(forwarded) = forwarded {
            request.headers_mut().insert("x-forwarded-for", forwarded.parse().unwrap());
        }
        assert_eq!(status(&service, request).await, expected, "{peer} {forwarded:?}");
    }
}

#[tokio::test]
async fn repeatedly_limited_client_is_banned() {
    let (control, manual_clock) = control("allow 192.0.2.7");
    let inner = TestService::new();
    let service = AccessLayer::new(RequestAccess::new(control.clone()).ban_on(|reply| reply.status() == 429))
        .layer(inner.clone());
    inner.set_status(429);
    for peer in ["198.51.100.1", "192.0.2.7"] {
        for _ in 0..3 {
            assert_eq!(status(&service, request_from(peer)).await, 429);
        }
    }
    inner.set_status(200);
    let banned = send_request(&service, request_from("198.51.100.1")).await.unwrap();
    assert_eq!((banned.status().as_u16(), header(&banned, "retry-after")), (403, Some("3600")));
    assert_eq!(status(&service, request_from("198.51.100.2")).await, 200, "another client");
    assert_eq!(
        status(&service, request_from("192.0.2.7")).await,
        200,
        "a client on the allow list is never banned"
    );
    manual_clock.advance(Duration::from_secs(3_600));
    assert_eq!(status(&service, request_from("198.51.100.1")).await, 200);
}

#[tokio::test]
async fn ipv6_network_is_one_client() {
    let (control, _manual_clock) = control("");
    let inner = TestService::new();
    inner.set_status(429);
    let service = AccessLayer::new(RequestAccess::new(control.clone()).ban_on(|reply| reply.status() == 429))
        .layer(inner.clone());
    for host in 1..=3 {
        assert_eq!(status(&service, request_from(&format!("2001:db8:0:7::{host}"))).await, 429);
    }
    assert_eq!(status(&service, request_from("2001:db8:0:7:ffff::9")).await, 403);
    assert_eq!(status(&service, request_from("2001:db8:0:8::1")).await, 429);
    let one: IpAddr = "2001:db8:0:9::1".parse().unwrap();
    control.bans().ban(&one, Duration::from_secs(1));
    assert_eq!(
        status(&service, request_from("2001:db8:0:9::1")).await,
        403,
        "a manual ban of one address applies"
    );
}

#[tokio::test]
async fn unknown_client_is_rejected_by_default() {
    let (control, _manual_clock) = control("");
    let access = RequestAccess::new(control);
    assert_eq!(status(&AccessLayer::new(access.clone()).layer(TestService::new()), request()).await, 403);
    let open = AccessLayer::new(access.on_unknown(ListAction::Allow));
    assert_eq!(status(&open.layer(TestService::new()), request()).await, 200);
}

#[tokio::test]
async fn keys_support_lists_and_bans() {
    let (control, _manual_clock) = control("deny key mallory");
    let inner = TestService::new();
    let access = RequestAccess::new(control)
        .key(key::header("x-user").unwrap())
        .on_unknown(ListAction::Allow)
        .ban_on(|reply| reply.status() == 401);
    let service = AccessLayer::new(access).layer(inner.clone());
    let by = |user: &'static [u8]| {
        let user = http::HeaderValue::from_bytes(user).unwrap();
        Request::builder().uri("/").header("x-user", user).body(()).unwrap()
    };
    assert_eq!(status(&service, by(b"mallory")).await, 403);
    assert_eq!(status(&service, by(b"\xff\xfe")).await, 200, "a key may have any bytes");
    inner.set_status(401);
    for _ in 0..3 {
        assert_eq!(status(&service, by(b"alice")).await, 401);
        assert_eq!(status(&service, request()).await, 401, "a request without a key is never banned");
    }
    assert_eq!(status(&service, by(b"alice")).await, 403);
    assert_eq!(status(&service, request()).await, 401);
}

#[tokio::test]
async fn rejection_is_configurable_and_supports_grpc() {
    let (control, _manual_clock) = control("deny 192.0.2.0/24");
    let access = RequestAccess::new(control);
    let mut call = request_from("192.0.2.1");
    call.headers_mut().insert("content-type", "application/grpc+proto".parse().unwrap());
    let rejected =
        send_request(&AccessLayer::new(access.clone()).layer(TestService::new()), call).await.unwrap();
    assert_eq!((rejected.status().as_u16(), header(&rejected, "grpc-status")), (200, Some("7")));
    let hidden =
        AccessLayer::new(access.with_response(|_| RejectionResponse::new(404))).layer(TestService::new());
    assert_eq!(status(&hidden, request_from("192.0.2.1")).await, 404);
}
