//! Numbers of fields are Envoy's: both of our sides would agree on wrong ones, so they are compared with bytes written by hand.

use prost::{Message, Name};
use prost_types::{Duration, Struct};
use tidegate_proto::{
    config, discovery,
    rls::{
        Code, DescriptorStatus, Entry, HeaderValue, Quota, RateLimit, RateLimitDescriptor, RateLimitOverride,
        RateLimitRequest, RateLimitResponse, RateLimitUnit, Unit,
    },
};

/// A field of one byte, written as protobuf does: its number and kind, then what it holds.
fn number(field: u8, value: u8) -> Vec<u8> {
    vec![field << 3, value]
}

/// A field with something of a length in it: text, bytes or a message.
fn text(field: u8, content: impl AsRef<[u8]>) -> Vec<u8> {
    let content = content.as_ref();
    [&[field << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
}

#[test]
fn what_is_asked() {
    let asked = RateLimitRequest {
        domain: "d".to_owned(),
        descriptors: vec![RateLimitDescriptor {
            entries: vec![Entry { key: "k".to_owned(), value: "v".to_owned() }],
            limit: Some(RateLimitOverride { requests_per_unit: 5, unit: RateLimitUnit::Year.into() }),
            hits_addend: Some(9),
        }],
        hits_addend: 3,
    };
    let entry = [text(1, "k"), text(2, "v")].concat();
    let limit = [number(1, 5), number(2, 6)].concat();
    let descriptor = [text(1, entry), text(2, limit), text(3, number(1, 9))].concat();
    let bytes = [text(1, "d"), text(2, descriptor), number(3, 3)].concat();
    assert_eq!(RateLimitRequest::decode(bytes.as_slice()).unwrap(), asked);
    assert_eq!(asked.encode_to_vec(), bytes);
}

#[test]
fn what_is_said() {
    let quota = Quota { requests: 4, id: "q".to_owned(), ..Quota::default() };
    let header = |name: &str| HeaderValue { key: name.to_owned(), value: "1".to_owned(), raw_value: vec![7] };
    let said = RateLimitResponse {
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
    let quota = [number(1, 4), text(3, "q")].concat();
    let header = |name: &str| [text(1, name), text(2, "1"), text(3, [7])].concat();
    let limit = [number(1, 5), number(2, 7), text(3, "n")].concat();
    let status =
        [number(1, 1), text(2, limit), number(3, 2), text(4, number(1, 8)), text(5, &quota)].concat();
    let bytes = [
        number(1, 2),
        text(2, status),
        text(3, header("a")),
        text(4, header("b")),
        text(5, "no"),
        text(6, []),
        text(7, quota),
    ]
    .concat();
    assert_eq!(RateLimitResponse::decode(bytes.as_slice()).unwrap(), said);
}

#[test]
fn what_configures() {
    let nested = config::RateLimitDescriptor { key: "k".to_owned(), ..Default::default() };
    let said = config::RateLimitConfig {
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
    let limit = [number(1, 7), number(2, 5), number(3, 1), text(4, "l"), text(5, text(1, "r"))].concat();
    let flags = [number(5, 1), number(6, 1), number(7, 1)].concat();
    let descriptor = [text(1, "k"), text(2, "v"), text(3, limit), text(4, text(1, "k")), flags].concat();
    let bytes = [text(1, "n"), text(2, "d"), text(3, descriptor)].concat();
    assert_eq!(config::RateLimitConfig::decode(bytes.as_slice()).unwrap(), said);
    assert_eq!(
        config::RateLimitConfig::type_url(),
        "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig"
    );
}

#[test]
fn how_a_configuration_is_asked_for() {
    let asked = discovery::DiscoveryRequest {
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
    let node = [text(1, "i"), text(2, "c"), text(6, "u")].concat();
    let refused = [number(1, 3), text(2, "m")].concat();
    let bytes =
        [text(1, "1"), text(2, node), text(3, "r"), text(4, "t"), text(5, "x"), text(6, refused)].concat();
    assert_eq!(asked.encode_to_vec(), bytes);

    let any = [text(1, "t"), text(2, [1])].concat();
    let bytes = [text(1, "1"), text(2, any), text(4, "t"), text(5, "x")].concat();
    let said = discovery::DiscoveryResponse::decode(bytes.as_slice()).unwrap();
    assert_eq!((said.version_info.as_str(), said.type_url.as_str(), said.nonce.as_str()), ("1", "t", "x"));
    assert_eq!((said.resources[0].type_url.as_str(), said.resources[0].value.as_slice()), ("t", &[1][..]));
}
