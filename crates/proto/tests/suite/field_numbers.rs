//! The field numbers are those of Envoy. A round trip cannot detect wrong ones, so they are compared with manually
//! written bytes.

use prost::{Message, Name};
use prost_types::{Duration, Struct};
use tidegate_proto::{
    config, discovery,
    rls::{
        Code, DescriptorStatus, Entry, HeaderValue, Quota, RateLimit, RateLimitDescriptor, RateLimitOverride,
        RateLimitRequest, RateLimitResponse, RateLimitUnit, Unit,
    },
};

/// A one-byte varint field: its tag and its value.
fn varint_field(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// A length-delimited field: text, bytes or a message.
fn bytes_field(field: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [&[field << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

#[test]
fn rate_limit_request_field_numbers() {
    let request = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry { key: "k".to_owned(), value: "v".to_owned() }],
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: RateLimitUnit::Year.into() }),
            hits_addend: Some(9),
        }],
        hits_addend: 3,
    };
    let entry = [bytes_field(1, "k"), bytes_field(2, "v")].concat();
    let limit = [varint_field(1, 5), varint_field(2, 6)].concat();
    let descriptor =
        [bytes_field(1, entry), bytes_field(2, limit), bytes_field(3, varint_field(1, 9))].concat();
    let bytes = [bytes_field(1, "d"), bytes_field(2, descriptor), varint_field(3, 3)].concat();
    assert_eq!(RateLimitRequest::decode(bytes.as_slice()).unwrap(), request);
    assert_eq!(request.encode_to_vec(), bytes);
}

#[test]
fn rate_limit_response_field_numbers() {
    let quota = Quota { requests: 4, id: "q".to_owned(), ..Quota::default() };
    let header = |name: &str| HeaderValue { key: name.to_owned(), value: "1".to_owned(), raw_value: vec![7] };
    let response = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit {
                name: "n".to_owned(),
                requests_per_unit: 5,
                unit: Unit::Week.into(),
            }),
            limit_remaining: 2,
            duration_until_reset: Some(Duration { seconds: 8, nanos: 0 }),
            quota: Some(quota.clone()),
        }],
        response_headers_to_add: vec![header("a")],
        request_headers_to_add: vec![header("b")],
        raw_body: b"no".to_vec(),
        dynamic_metadata: Some(Struct::default()),
        quota: Some(quota),
    };
    let quota = [varint_field(1, 4), bytes_field(3, "q")].concat();
    let header = |name: &str| [bytes_field(1, name), bytes_field(2, "1"), bytes_field(3, [7])].concat();
    let limit = [varint_field(1, 5), varint_field(2, 7), bytes_field(3, "n")].concat();
    let status = [
        varint_field(1, 1),
        bytes_field(2, limit),
        varint_field(3, 2),
        bytes_field(4, varint_field(1, 8)),
        bytes_field(5, &quota),
    ]
    .concat();
    let bytes = [
        varint_field(1, 2),
        bytes_field(2, status),
        bytes_field(3, header("a")),
        bytes_field(4, header("b")),
        bytes_field(5, "no"),
        bytes_field(6, []),
        bytes_field(7, quota),
    ]
    .concat();
    assert_eq!(RateLimitResponse::decode(bytes.as_slice()).unwrap(), response);
}

#[test]
fn rate_limit_config_field_numbers() {
    let nested = config::RateLimitDescriptor { key: "k".to_owned(), ..Default::default() };
    let config_message = config::RateLimitConfig {
        name: "n".to_owned(),
        domain: "d".to_owned(),
        descriptors: vec![config::RateLimitDescriptor {
            key: "k".to_owned(),
            value: "v".to_owned(),
            rate_limit: Some(config::RateLimitPolicy {
                unit: config::RateLimitUnit::Week.into(),
                requests_per_unit: 5,
                unlimited: true,
                name: "l".to_owned(),
                replaces: vec![config::RateLimitReplace { name: "r".to_owned() }],
            }),
            descriptors: vec![nested],
            shadow_mode: true,
            detailed_metric: true,
            quota_mode: true,
        }],
    };
    let limit = [
        varint_field(1, 7),
        varint_field(2, 5),
        varint_field(3, 1),
        bytes_field(4, "l"),
        bytes_field(5, bytes_field(1, "r")),
    ]
    .concat();
    let flags = [varint_field(5, 1), varint_field(6, 1), varint_field(7, 1)].concat();
    let descriptor = [
        bytes_field(1, "k"),
        bytes_field(2, "v"),
        bytes_field(3, limit),
        bytes_field(4, bytes_field(1, "k")),
        flags,
    ]
    .concat();
    let bytes = [bytes_field(1, "n"), bytes_field(2, "d"), bytes_field(3, descriptor)].concat();
    assert_eq!(config::RateLimitConfig::decode(bytes.as_slice()).unwrap(), config_message);
    assert_eq!(
        config::RateLimitConfig::type_url(),
        "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
    );
}

#[test]
fn discovery_field_numbers() {
    let request = discovery::DiscoveryRequest {
        version_info: "1".to_owned(),
        node: Some(discovery::Node {
            id: "i".to_owned(),
            cluster: "c".to_owned(),
            metadata: None,
            user_agent_name: "u".to_owned(),
        }),
        resource_names: vec!["r".to_owned()],
        type_url: "t".to_owned(),
        response_nonce: "x".to_owned(),
        error_detail: Some(discovery::Status { code: 3, message: "m".to_owned(), details: Vec::new() }),
    };
    let node = [bytes_field(1, "i"), bytes_field(2, "c"), bytes_field(6, "u")].concat();
    let error = [varint_field(1, 3), bytes_field(2, "m")].concat();
    let bytes = [
        bytes_field(1, "1"),
        bytes_field(2, node),
        bytes_field(3, "r"),
        bytes_field(4, "t"),
        bytes_field(5, "x"),
        bytes_field(6, error),
    ]
    .concat();
    assert_eq!(request.encode_to_vec(), bytes);

    let any = [bytes_field(1, "t"), bytes_field(2, [1])].concat();
    let bytes = [bytes_field(1, "1"), bytes_field(2, any), bytes_field(4, "t"), bytes_field(5, "x")].concat();
    let response = discovery::DiscoveryResponse::decode(bytes.as_slice()).unwrap();
    assert_eq!(
        (response.version_info.as_str(), response.type_url.as_str(), response.nonce.as_str()),
        ("1", "t", "x")
    );
    assert_eq!(
        (response.resources[0].type_url.as_str(), response.resources[0].value.as_slice()),
        ("t", &[1][..])
    );
}
