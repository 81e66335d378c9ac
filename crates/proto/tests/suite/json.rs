//! Messages as JSON.

use prost_types::{Duration, Struct, Value, value::Kind};
use tidegate_proto::{
    json,
    rls::{
        Code, DescriptorStatus, Entry, HeaderValue, RateLimit, RateLimitDescriptor, RateLimitOverride,
        RateLimitRequest, RateLimitResponse, RateLimitUnit, Unit,
    },
};

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
        assert_eq!(
            json::from_slice::<RateLimitRequest>(text.as_bytes()).unwrap(),
            sample_request(),
            "{text}"
        );
    }
    let written = json::to_vec(&sample_request()).unwrap();
    assert_eq!(json::from_slice::<RateLimitRequest>(&written).unwrap(), sample_request());
}

#[test]
fn invalid_json_is_rejected() {
    let table = [
        ("", "EOF while parsing"),
        ("[]", "expected"),
        (r#"{"domain":"shop"} x"#, "trailing characters"),
        (r#"{"domian":"shop"}"#, "domian"),
        (r#"{"domain":7}"#, "expected"),
        (r#"{"hitsAddend":-1}"#, "out of range"),
        (r#"{"hitsAddend":4294967296}"#, "out of range"),
        (r#"{"descriptors":[{"limit":{"unit":"FORTNIGHT"}}]}"#, "FORTNIGHT"),
        (r#"{"descriptors":[{"entries":[{"key":"a","name":"b"}]}]}"#, "name"),
    ];
    for (text, expected) in table {
        let error = json::from_slice::<RateLimitRequest>(text.as_bytes()).unwrap_err().to_string();
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
    let written: serde_json::Value = serde_json::from_slice(&json::to_vec(&response).unwrap()).unwrap();
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
