//! Requests and responses over gRPC.

use crate::common::{StubDecider, TestGrpcServer, denied_verdict, limited_service};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost_types::{Duration, ListValue, Struct, Value, value::Kind};
use tidegate_policy::descriptors::{CalendarUnit, DescriptorEntry};
use tidegate_proto::rls::{self, RateLimitDescriptor, RateLimitOverride, RateLimitRequest};
use tidegate_service::descriptors::{
    DecisionError, DomainRequest, LimitOverride, RequestDescriptor, transport::GrpcSettings,
};
use tokio::net::TcpStream;
use tonic::{Code, transport::Channel};

type RlsClient = rls::RateLimitServiceClient<Channel>;

async fn start_service() -> (StubDecider, TestGrpcServer, RlsClient) {
    let stub = StubDecider::default();
    let service = TestGrpcServer::start(stub.clone(), None, GrpcSettings::default()).await;
    let client = connect_client(&service).await;
    (stub, service, client)
}

async fn connect_client(service: &TestGrpcServer) -> RlsClient {
    RlsClient::new(Channel::from_shared(service.uri()).unwrap().connect().await.unwrap())
}

fn descriptor(key: &str, value: &str) -> RateLimitDescriptor {
    let entry = rls::Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() }
}

fn rate_limit_request(descriptors: Vec<RateLimitDescriptor>) -> RateLimitRequest {
    RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 0 }
}

#[tokio::test]
async fn request_and_response_fields_are_converted() {
    let (stub, _service, mut client) = start_service().await;
    stub.push_result(Ok(denied_verdict()));
    let request = RateLimitRequest {
        hits_addend: 3,
        ..rate_limit_request(vec![
            RateLimitDescriptor {
                limit: Some(RateLimitOverride {
                    requests_per_unit: 9,
                    unit: rls::RateLimitUnit::Month.into(),
                }),
                hits_addend: Some(0),
                ..descriptor("user", "")
            },
            descriptor("path", "/"),
        ])
    };
    let response = client.should_rate_limit(request).await.unwrap().into_inner();

    let entry = |key: &str, value: &str| DescriptorEntry { key: key.to_owned(), value: value.to_owned() };
    let first = RequestDescriptor {
        entries: vec![entry("user", "")],
        limit: Some(LimitOverride { requests: 9, unit: CalendarUnit::Month }),
        hits: Some(0),
    };
    let second = RequestDescriptor { entries: vec![entry("path", "/")], limit: None, hits: None };
    assert_eq!(
        stub.take_requests(),
        [DomainRequest {
            domain: "shop".to_owned(),
            descriptors: vec![first, second],
            hits: 3,
            deadline: None
        }]
    );

    let value = |kind| Value { kind: Some(kind) };
    let text = |text: &str| value(Kind::StringValue(text.to_owned()));
    let inner = Struct { fields: [("a".to_owned(), text("b"))].into() };
    let list = ListValue {
        values: vec![
            value(Kind::NumberValue(1.5)),
            value(Kind::BoolValue(true)),
            value(Kind::NullValue(0)),
            value(Kind::StructValue(inner)),
        ],
    };
    let fields = [("domain".to_owned(), text("shop")), ("list".to_owned(), value(Kind::ListValue(list)))];
    let expected = rls::RateLimitResponse {
        overall_code: rls::Code::OverLimit.into(),
        statuses: vec![
            rls::DescriptorStatus {
                code: rls::Code::OverLimit.into(),
                current_limit: Some(rls::RateLimit {
                    name: "per user".to_owned(),
                    requests_per_unit: 5,
                    unit: rls::Unit::Week.into(),
                }),
                limit_remaining: 0,
                duration_until_reset: Some(Duration { seconds: 1, nanos: 500_000_000 }),
                quota: None,
            },
            rls::DescriptorStatus {
                code: rls::Code::Ok.into(),
                limit_remaining: u32::MAX,
                ..rls::DescriptorStatus::default()
            },
        ],
        response_headers_to_add: vec![rls::HeaderValue {
            key: "RateLimit-Limit".to_owned(),
            value: "5".to_owned(),
            raw_value: Vec::new(),
        }],
        raw_body: b"too many".to_vec(),
        dynamic_metadata: Some(Struct { fields: fields.into() }),
        ..rls::RateLimitResponse::default()
    };
    assert_eq!(response, expected);
}

#[tokio::test]
async fn invalid_or_oversized_requests_are_rejected_with_position() {
    let service = TestGrpcServer::start(limited_service(), None, GrpcSettings::default()).await;
    let mut client = connect_client(&service).await;
    let limited = |unit| RateLimitDescriptor {
        limit: Some(RateLimitOverride { requests_per_unit: 1, unit }),
        ..descriptor("user", "a")
    };
    let fine = || descriptor("user", "a");
    let deep = RateLimitDescriptor { entries: vec![fine().entries[0].clone(); 65], ..fine() };
    let table = [
        (
            RateLimitRequest { domain: String::new(), ..rate_limit_request(vec![fine()]) },
            "rate limit domain must not be empty",
        ),
        (rate_limit_request(Vec::new()), "rate limit descriptor list must not be empty"),
        (
            rate_limit_request(vec![fine(), limited(0)]),
            "descriptors[1].limit: invalid unit UNKNOWN; use SECOND",
        ),
        (rate_limit_request(vec![limited(42)]), "descriptors[0].limit: invalid unit 42; use SECOND"),
        (rate_limit_request(vec![fine(); 1_001]), "too many descriptors: 1001; send at most 1000"),
        (rate_limit_request(vec![fine(); 10_000]), "too many descriptors: 10000"),
        (rate_limit_request(vec![deep]), "descriptors[0]: too many entries: 65; send at most 64"),
    ];
    for (request, expected) in table {
        let status = client.should_rate_limit(request).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{expected}");
        assert!(status.message().contains(expected), "{}", status.message());
    }
    // Exactly the maximum is allowed.
    let largest = RateLimitDescriptor { entries: vec![fine().entries[0].clone(); 64], ..fine() };
    let mut all = vec![fine(); 998];
    // Clients choose the values, so a long value is not an error.
    all.extend([largest, descriptor("user", &"x".repeat(3 << 20))]);
    let response = client.should_rate_limit(rate_limit_request(all)).await.unwrap().into_inner();
    assert_eq!(response.statuses.len(), 1_000);
    // A request for an unknown domain is allowed, as in envoyproxy/ratelimit.
    let unknown_domain =
        RateLimitRequest { domain: "unknown".to_owned(), ..rate_limit_request(vec![fine()]) };
    let response = client.should_rate_limit(unknown_domain).await.unwrap().into_inner();
    assert_eq!((response.overall_code(), &response.statuses[0].current_limit), (rls::Code::Ok, &None));

    let huge = rate_limit_request(vec![descriptor("user", &"x".repeat(5 << 20))]);
    assert_eq!(client.should_rate_limit(huge).await.unwrap_err().code(), Code::OutOfRange);
}

#[tokio::test]
async fn errors_map_to_grpc_status() {
    let (stub, _service, mut client) = start_service().await;
    let table = [
        (DecisionError::Invalid("no".to_owned()), Code::InvalidArgument, "no"),
        (DecisionError::NoConfiguration, Code::Unavailable, "no rate limit configuration loaded"),
        (DecisionError::Unavailable("store unavailable".to_owned()), Code::Unavailable, "store unavailable"),
    ];
    for (error, code, expected) in table {
        stub.push_result(Err(error));
        let status =
            client.should_rate_limit(rate_limit_request(vec![descriptor("a", "b")])).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (code, expected));
    }
    // A message that is too long for a header is truncated.
    stub.push_result(Err(DecisionError::Unavailable("ä".repeat(100_000))));
    let status = client.should_rate_limit(rate_limit_request(vec![descriptor("a", "b")])).await.unwrap_err();
    assert_eq!((status.code(), status.message().len()), (Code::Unavailable, 1_024));
}

/// Returns the `grpc-status` for bytes that a gRPC client would never send.
async fn raw_grpc_status(service: &TestGrpcServer, path: &str, body: &'static [u8]) -> String {
    let stream = TcpStream::connect(service.address).await.unwrap();
    let (mut sender, connection) =
        http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("{}{path}", service.uri()))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(Full::new(Bytes::from_static(body)))
        .unwrap();
    let (head, body) = sender.send_request(request).await.unwrap().into_parts();
    let end = body.collect().await.unwrap();
    let status = head.headers.get("grpc-status").or(end.trailers().and_then(|end| end.get("grpc-status")));
    status.expect("a status").to_str().unwrap().to_owned()
}

#[tokio::test]
async fn malformed_messages_are_rejected() {
    let (stub, service, mut client) = start_service().await;
    let limits = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
    let table: [(&str, &'static [u8], Code); 8] = [
        (limits, b"\0\0\0\0\x02\x0a\xff", Code::Internal),
        (limits, b"\0\0\0\0\x03\xff\xff\xff", Code::Internal),
        (limits, b"\0\0\0\0\x05\x0a\x03\xff\xfe\xfd", Code::Internal),
        (limits, b"\0\xff\xff\xff\xff", Code::OutOfRange),
        (limits, b"\x07\0\0\0\0", Code::Internal),
        (limits, b"", Code::Internal),
        ("/envoy.service.ratelimit.v3.RateLimitService/Nothing", b"", Code::Unimplemented),
        ("/unknown", b"", Code::Unimplemented),
    ];
    for (path, body, code) in table {
        assert_eq!(
            raw_grpc_status(&service, path, body).await,
            i32::from(code).to_string(),
            "{path} {body:?}"
        );
    }
    assert_eq!(stub.take_requests(), []);
    client.should_rate_limit(rate_limit_request(vec![descriptor("a", "b")])).await.unwrap();
}
