//! The request and the response as JSON. Random ones are compared with prost-reflect, which follows the descriptors.

use proptest::{collection::vec, option, prelude::*, sample::select};
use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, ReflectMessage};
use prost_types::{Duration, ListValue, Struct, Timestamp, Value, value::Kind};
use std::sync::LazyLock;
use tidegate_proto::{
    json,
    rls::{
        Code, DescriptorStatus, Entry, FILE_DESCRIPTOR_SET, HeaderValue, Quota, RateLimit,
        RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse, RateLimitUnit, Unit,
        quota::ExpirationSpecifier,
    },
};

/// An empty message with its description.
fn described<M: Name>() -> DynamicMessage {
    static ALL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET).unwrap());
    DynamicMessage::new(ALL.get_message_by_name(&M::full_name()).unwrap())
}

/// Parses a request with prost-reflect.
fn parse_by_reflection(text: &str) -> Option<RateLimitRequest> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let message =
        DynamicMessage::deserialize(described::<RateLimitRequest>().descriptor(), &mut reader).ok()?;
    reader.end().ok()?;
    Some(message.transcode_to().unwrap())
}

/// Writes a message with prost-reflect.
fn write_by_reflection<M: Message + Name>(message: &M) -> serde_json::Value {
    let mut dynamic = described::<M>();
    dynamic.transcode_from(message).unwrap();
    serde_json::to_value(&dynamic).unwrap()
}

fn sample_request() -> RateLimitRequest {
    let entry = |key: &str, value: &str| Entry { key: key.to_owned(), value: value.to_owned() };
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![
            RateLimitDescriptor {
                entries: vec![entry("user", "alice"), entry("path", "")],
                limit: Some(RateLimitOverride { requests_per_unit: 5, unit: RateLimitUnit::Week.into() }),
                hits_addend: Some(0),
            },
            RateLimitDescriptor { entries: vec![entry("user", "bob")], limit: None, hits_addend: None },
        ],
        hits_addend: 2,
    }
}

#[test]
fn both_field_spellings_parse() {
    let texts = [
        r#"{"domain":"shop","descriptors":[
            {"entries":[{"key":"user","value":"alice"},{"key":"path"}],
             "limit":{"requestsPerUnit":5,"unit":"WEEK"},"hitsAddend":"0"},
            {"entries":[{"key":"user","value":"bob"}],"limit":null}],"hitsAddend":2}"#,
        r#"{"domain":"shop","descriptors":[
            {"entries":[{"key":"user","value":"alice"},{"key":"path","value":""}],
             "limit":{"requests_per_unit":"5","unit":7},"hits_addend":0},
            {"entries":[{"key":"user","value":"bob"}]}],"hits_addend":2.0}"#,
    ];
    for text in texts {
        assert_eq!(json::parse_request(text.as_bytes()).unwrap(), sample_request(), "{text}");
    }
}

#[test]
fn invalid_json_is_rejected() {
    let table = [
        ("", "EOF while parsing"),
        ("[]", "expected an object"),
        (r#"["shop", []]"#, "expected an object"),
        (r#"{"descriptors":[[]]}"#, "expected an object"),
        (r#"{"domain":"shop","domain":"other"}"#, "duplicate field"),
        (r#"{"hitsAddend":1,"hits_addend":2}"#, "duplicate field"),
        (r#"{"domain":"shop"} x"#, "trailing characters"),
        (r#"{"domian":"shop"}"#, "domian"),
        (r#"{"domain":7}"#, "expected"),
        (r#"{"hitsAddend":-1}"#, "out of range"),
        (r#"{"hitsAddend":4294967296}"#, "out of range"),
        (r#"{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#, "FORTNIGHT"),
        (r#"{"descriptors":[{"entries":[{"key":"a","name":"b"}]}]}"#, "name"),
    ];
    for (text, expected) in table {
        let error = json::parse_request(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(expected), "{text}: {error}");
    }
}

#[test]
fn response_json_matches_the_reference_service() {
    let response = RateLimitResponse {
        overall_code: Code::OverLimit.into(),
        statuses: vec![
            DescriptorStatus {
                code: Code::OverLimit.into(),
                current_limit: Some(RateLimit {
                    name: "per user".to_owned(),
                    requests_per_unit: 5,
                    unit: Unit::Minute.into(),
                }),
                limit_remaining: 0,
                duration_until_reset: Some(Duration { seconds: 34, nanos: 0 }),
                quota: None,
            },
            DescriptorStatus {
                code: Code::Ok.into(),
                limit_remaining: u32::MAX,
                ..DescriptorStatus::default()
            },
        ],
        response_headers_to_add: vec![HeaderValue {
            key: "RateLimit-Limit".to_owned(),
            value: "5".to_owned(),
            raw_value: Vec::new(),
        }],
        raw_body: b"{}".to_vec(),
        dynamic_metadata: Some(Struct {
            fields: [("domain".to_owned(), Value { kind: Some(Kind::StringValue("shop".to_owned())) })]
                .into(),
        }),
        ..RateLimitResponse::default()
    };
    let written: serde_json::Value =
        serde_json::from_slice(&json::write_response(&response).unwrap()).unwrap();
    let expected = serde_json::json!({
        "overallCode": "OVER_LIMIT",
        "statuses": [
            {
                "code": "OVER_LIMIT",
                "currentLimit": { "name": "per user", "requestsPerUnit": 5, "unit": "MINUTE" },
                "durationUntilReset": "34s",
            },
            { "code": "OK", "limitRemaining": u32::MAX },
        ],
        "responseHeadersToAdd": [{ "key": "RateLimit-Limit", "value": "5" }],
        "rawBody": "e30=",
        "dynamicMetadata": { "domain": "shop" },
    });
    assert_eq!(written, expected);
}

/// Values for any field, most of them invalid for most fields.
const VALUES: [&str; 22] = [
    "null",
    "true",
    "0",
    "3",
    "-1",
    "7",
    "2.0",
    "2.5",
    "1e3",
    "4294967295",
    "4294967296",
    "18446744073709551615",
    r#""3""#,
    r#""-3""#,
    r#""x""#,
    r#""""#,
    r#""WEEK""#,
    r#""week""#,
    "[]",
    "{}",
    "[null]",
    "[{}]",
];

#[test]
fn field_values_match_reflection() {
    let check = |text: String| {
        assert_eq!(json::parse_request(text.as_bytes()).ok(), parse_by_reflection(&text), "{text}");
    };
    for value in VALUES {
        for name in ["hitsAddend", "hits_addend", "domain", "descriptors", "entries", "limit", "unknown"] {
            check(format!(r#"{{"{name}":{value}}}"#));
            check(format!(r#"{{"descriptors":[{{"{name}":{value}}}]}}"#));
        }
        for other in VALUES {
            check(format!(r#"{{"descriptors":[{{"entries":[{{"key":{value},"value":{other}}}]}}]}}"#));
            check(format!(r#"{{"descriptors":[{{"limit":{{"requestsPerUnit":{value},"unit":{other}}}}}]}}"#));
        }
    }
}

prop_compose! {
    fn entry()(key in ".{0,4}", value in ".{0,4}") -> Entry {
        Entry { key, value }
    }
}

prop_compose! {
    fn descriptor()(
        entries in vec(entry(), 0..3),
        limit in option::of((any::<u32>(), -1..10)),
        hits_addend in option::of(any::<u64>()),
    ) -> RateLimitDescriptor {
        let limit = limit.map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
        RateLimitDescriptor { entries, limit, hits_addend }
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(None),
        Just(Some(Kind::NullValue(0))),
        any::<bool>().prop_map(|value| Some(Kind::BoolValue(value))),
        any::<i32>().prop_map(|number| Some(Kind::NumberValue(f64::from(number) / 4.0))),
        ".{0,4}".prop_map(|text| Some(Kind::StringValue(text))),
    ];
    leaf.prop_map(|kind| Value { kind }).prop_recursive(3, 12, 3, |inner| {
        let list = vec(inner.clone(), 0..3).prop_map(|values| Kind::ListValue(ListValue { values }));
        let fields = vec((".{0,3}", inner), 0..3)
            .prop_map(|fields| Kind::StructValue(Struct { fields: fields.into_iter().collect() }));
        prop_oneof![list, fields].prop_map(|kind| Value { kind: Some(kind) })
    })
}

fn quota() -> impl Strategy<Value = Quota> {
    (any::<u32>(), option::of((0..4_000_000_000_i64, 0..1_000_000_000)), ".{0,3}").prop_map(
        |(requests, until, id)| {
            let until =
                until.map(|(seconds, nanos)| ExpirationSpecifier::ValidUntil(Timestamp { seconds, nanos }));
            Quota { requests, expiration_specifier: until, id }
        },
    )
}

prop_compose! {
    fn status()(
        code in -1..4,
        limit in option::of((".{0,3}", any::<u32>(), -1..9)),
        limit_remaining in any::<u32>(),
        reset in option::of((0..1_000_000_i64, select(&[0, 5_000_000, 7_000, 9][..]))),
        quota in option::of(quota()),
    ) -> DescriptorStatus {
        let limit = limit.map(|(name, requests_per_unit, unit)| RateLimit { name, requests_per_unit, unit });
        let duration_until_reset = reset.map(|(seconds, nanos)| Duration { seconds, nanos });
        DescriptorStatus { code, current_limit: limit, limit_remaining, duration_until_reset, quota }
    }
}

fn header() -> impl Strategy<Value = HeaderValue> {
    (".{0,3}", ".{0,3}", vec(any::<u8>(), 0..5)).prop_map(|(key, value, raw_value)| HeaderValue {
        key,
        value,
        raw_value,
    })
}

proptest! {
    #[test]
    fn requests_match_reflection(
        domain in ".{0,8}",
        descriptors in vec(descriptor(), 0..3),
        hits_addend in any::<u32>(),
    ) {
        let request = RateLimitRequest { domain, descriptors, hits_addend };
        let text = write_by_reflection(&request).to_string();
        prop_assert_eq!(json::parse_request(text.as_bytes()).unwrap(), request);
    }

    #[test]
    fn responses_match_reflection(
        overall_code in -1..4,
        statuses in vec(status(), 0..3),
        response_headers_to_add in vec(header(), 0..3),
        request_headers_to_add in vec(header(), 0..2),
        raw_body in vec(any::<u8>(), 0..8),
        metadata in option::of(vec((".{0,3}", value()), 0..3)),
        quota in option::of(quota()),
    ) {
        let response = RateLimitResponse {
            overall_code,
            statuses,
            response_headers_to_add,
            request_headers_to_add,
            raw_body,
            dynamic_metadata: metadata.map(|fields| Struct { fields: fields.into_iter().collect() }),
            quota,
        };
        let written: serde_json::Value = serde_json::from_slice(&json::write_response(&response).unwrap()).unwrap();
        prop_assert_eq!(written, write_by_reflection(&response));
    }
}

#[test]
fn infinite_number_is_an_error() {
    let infinite = Value { kind: Some(Kind::NumberValue(f64::INFINITY)) };
    let fields = [("number".to_owned(), infinite)].into();
    let response =
        RateLimitResponse { dynamic_metadata: Some(Struct { fields }), ..RateLimitResponse::default() };
    assert!(json::write_response(&response).is_err());
}
