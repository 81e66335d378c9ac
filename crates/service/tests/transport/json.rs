//! Requests and responses in JSON over HTTP.

use crate::common::{StubDecider, denied_verdict, limited_service};
use http::{Method, Request, StatusCode};
use http_body_util::{Full, channel::Channel};
use tidegate_service::descriptors::{Decide, DecisionError, transport::JsonHandler};

const REQUEST_BODY: &str =
    r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}],"hits_addend":"2"}]}"#;

/// Returns the status, the content type, the body, and the reason of an error.
async fn post_json(
    decide: &(impl Decide + Clone),
    method: Method,
    body: &str,
) -> (u16, String, String, String) {
    let request = Request::builder()
        .method(method)
        .uri("/json")
        .body(Full::<bytes::Bytes>::from(body.to_owned()))
        .unwrap();
    let response = JsonHandler::new(decide.clone()).handle(request).await;
    let header =
        |name: &str| response.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let body = String::from_utf8(response.body().to_vec()).unwrap();
    (response.status().as_u16(), header("content-type"), body, header("tidegate-reason"))
}

#[tokio::test]
async fn verdicts_map_to_http_status() {
    let stub = StubDecider::default();
    for method in [Method::POST, Method::GET, Method::PUT] {
        let (status, kind, body, _) = post_json(&stub, method, REQUEST_BODY).await;
        assert_eq!((status, kind.as_str()), (200, "application/json"));
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body, serde_json::json!({ "overallCode": "OK", "statuses": [{ "code": "OK" }] }));
        assert_eq!(stub.take_requests()[0].descriptors[0].hits, Some(2));
    }

    stub.push_result(Ok(denied_verdict()));
    let (status, kind, body, _) = post_json(&stub, Method::POST, REQUEST_BODY).await;
    assert_eq!((status, kind.as_str()), (429, "application/json"));
    let body: serde_json::Value = serde_json::from_str(&body).unwrap();
    let expected = serde_json::json!({
        "overallCode": "OVER_LIMIT",
        "statuses": [
            {
                "code": "OVER_LIMIT",
                "currentLimit": { "name": "per user", "requestsPerUnit": 5, "unit": "WEEK" },
                "durationUntilReset": "1.500s",
            },
            { "code": "OK", "limitRemaining": u32::MAX },
        ],
        "responseHeadersToAdd": [{ "key": "RateLimit-Limit", "value": "5" }],
        "rawBody": "dG9vIG1hbnk=",
        "dynamicMetadata": { "domain": "shop", "list": [1.5, true, null, { "a": "b" }] },
    });
    assert_eq!(body, expected);
}

#[tokio::test]
async fn errors_match_the_reference_and_name_the_reason() {
    let limits = limited_service();
    let unit = r#"{"domain":"shop","descriptors":[{"limit":{"requestsPerUnit":1}}]}"#;
    let many = format!(r#"{{"domain":"shop","descriptors":[{}{{}}]}}"#, "{},".repeat(9_999));
    let table = [
        ("{", "EOF"),
        (many.as_str(), "too many descriptors: 10000; send at most 1000"),
        (r#"{"domäin":"shop"}"#, "dom?in"),
        ("{}", "rate limit domain must not be empty"),
        (r#"{"domain":"shop"}"#, "rate limit descriptor list must not be empty"),
        (unit, "descriptors[0].limit: invalid unit UNKNOWN"),
    ];
    for (body, part) in table {
        let (status, kind, response, reason) = post_json(&limits, Method::POST, body).await;
        assert_eq!((status, response.as_str()), (400, "Bad Request\n"), "{body}");
        assert_eq!(kind, "text/plain; charset=utf-8");
        assert!(reason.contains(part), "{body}: {reason}");
    }
    let unknown_domain = REQUEST_BODY.replace("shop", "unknown");
    assert_eq!(
        post_json(&limits, Method::POST, &unknown_domain).await.0,
        200,
        "an unknown domain is allowed"
    );

    let stub = StubDecider::default();
    let errors = [
        (DecisionError::NoConfiguration, "no rate limit configuration loaded"),
        (DecisionError::Unavailable("store unavailable".to_owned()), "store unavailable"),
    ];
    for (error, expected) in errors {
        stub.push_result(Err(error));
        let (status, _, response, reason) = post_json(&stub, Method::POST, REQUEST_BODY).await;
        assert_eq!((status, response.as_str(), reason.as_str()), (503, "Service Unavailable\n", expected));
    }

    let (status, ..) = post_json(&stub, Method::POST, &" ".repeat((4 << 20) + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

/// A client that announces a body and sends none gets a timeout.
#[tokio::test(start_paused = true)]
async fn missing_body_times_out() {
    let (_sender, body) = Channel::<bytes::Bytes>::new(1);
    let response = JsonHandler::new(StubDecider::default()).handle(Request::new(body)).await;
    assert_eq!(response.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(response.headers()["tidegate-reason"], "request body timed out; send it within 10 s");
}
