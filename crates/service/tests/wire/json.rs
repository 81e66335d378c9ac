//! The same questions in JSON.

use crate::stage::{Stub, limits, refused};
use http::{Method, Request, StatusCode};
use http_body_util::{Full, channel::Channel};
use tidegate_service::descriptors::{Decide, DescriptorFault, wire::JsonWire};

const ASK: &str =
    r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"a"}],"hits_addend":"2"}]}"#;

/// Status, type, body, and the reason of a refusal.
async fn ask(decide: &(impl Decide + Clone), method: Method, body: &str) -> (u16, String, String, String) {
    let request = Request::builder()
        .method(method)
        .uri("/json")
        .body(Full::<bytes::Bytes>::from(body.to_owned()))
        .unwrap();
    let said = JsonWire::new(decide.clone()).answer(request).await;
    let header = |name: &str| said.headers().get(name).map_or("", |value| value.to_str().unwrap()).to_owned();
    let body = String::from_utf8(said.body().to_vec()).unwrap();
    (said.status().as_u16(), header("content-type"), body, header("tidegate-reason"))
}

#[tokio::test]
async fn verdicts_are_statuses() {
    let stub = Stub::default();
    for method in [Method::POST, Method::GET, Method::PUT] {
        let (status, kind, body, _) = ask(&stub, method, ASK).await;
        assert_eq!((status, kind.as_str()), (200, "application/json"));
        let body: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(body, serde_json::json!({ "overallCode": "OK", "statuses": [{ "code": "OK" }] }));
        assert_eq!(stub.asked()[0].descriptors[0].hits, Some(2));
    }

    stub.says(Ok(refused()));
    let (status, kind, body, _) = ask(&stub, Method::POST, ASK).await;
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
async fn refusals_are_those_of_the_reference_service_and_say_why_in_a_header() {
    let limits = limits();
    let unit = r#"{"domain":"shop","descriptors":[{"limit":{"requestsPerUnit":1}}]}"#;
    let many = format!(r#"{{"domain":"shop","descriptors":[{}{{}}]}}"#, "{},".repeat(9_999));
    let table = [
        ("{", "EOF"),
        (many.as_str(), "10000 descriptors are too many; send at most 1000 at once"),
        (r#"{"domäin":"shop"}"#, "dom?in"),
        ("{}", "rate limit domain must not be empty"),
        (r#"{"domain":"shop"}"#, "rate limit descriptor list must not be empty"),
        (unit, "descriptors[0].limit: the unit UNKNOWN is none"),
    ];
    for (body, why) in table {
        let (status, kind, said, reason) = ask(&limits, Method::POST, body).await;
        assert_eq!((status, said.as_str()), (400, "Bad Request\n"), "{body}");
        assert_eq!(kind, "text/plain; charset=utf-8");
        assert!(reason.contains(why), "{body}: {reason}");
    }
    let stranger = ASK.replace("shop", "nobody");
    assert_eq!(ask(&limits, Method::POST, &stranger).await.0, 200, "nobody has loaded its domain");

    let stub = Stub::default();
    let faults = [
        (DescriptorFault::NoConfiguration, "no rate limit configuration loaded"),
        (DescriptorFault::Unavailable("the store is away".to_owned()), "the store is away"),
    ];
    for (fault, why) in faults {
        stub.says(Err(fault));
        let (status, _, said, reason) = ask(&stub, Method::POST, ASK).await;
        assert_eq!((status, said.as_str(), reason.as_str()), (503, "Service Unavailable\n", why));
    }

    let (status, ..) = ask(&stub, Method::POST, &" ".repeat((4 << 20) + 1)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
}

/// Who says that there is a body, and sends none, is not waited for.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_is_told() {
    let (_sender, body) = Channel::<bytes::Bytes>::new(1);
    let said = JsonWire::new(Stub::default()).answer(Request::new(body)).await;
    assert_eq!(said.status(), StatusCode::REQUEST_TIMEOUT);
    assert_eq!(said.headers()["tidegate-reason"], "the body took too long to come; send it at once");
}
