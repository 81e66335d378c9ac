//! The server matches the OpenAPI document and the guide.

use super::{
    DECISION_POLICY, DecisionServer,
    schema::{find_violation, resolve_reference, response_schema},
    stores::{is_store_connected, redis_rules, wait_for_response},
};
use crate::harness::RawClient;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, path::Path, process::Command};
use tidegate_testkit::servers::RedisServer;

/// Reads a source file, for facts that no request reveals.
fn read_source(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../service/src/decisions").join(file))
        .unwrap()
}

fn openapi_document() -> Value {
    serde_json::from_str(include_str!("../../../../../docs/openapi.json")).unwrap()
}

#[tokio::test]
async fn routes_and_fields_match_openapi_document() {
    let api = DecisionServer::start(DECISION_POLICY);
    let mut client = RawClient::connect(api.decisions).await;
    let served = client.get("/v1/openapi.json").await;
    let document: Value = serde_json::from_str(&served.body).unwrap();
    let routes = read_source("routes.rs");
    let routes: BTreeSet<_> =
        routes.split('"').filter(|text| text.starts_with("/v1/") && !text.contains(' ')).collect();
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(routes, paths.keys().map(String::as_str).collect());
    for (path, methods) in paths {
        let Some(post) = methods.get("post") else { continue };
        let call = path.strip_prefix("/v1/").unwrap();
        let schema = &post["requestBody"]["content"]["application/json"]["schema"]["oneOf"][0];
        let known: BTreeSet<_> =
            resolve_reference(&document, schema)["properties"].as_object().unwrap().keys().cloned().collect();
        // The error of an unknown member or parameter lists all known ones.
        let named = |reply: &Value| -> BTreeSet<String> {
            reply["detail"].as_str().unwrap().split('`').skip(3).step_by(2).map(str::to_owned).collect()
        };
        let (status, reply) = api.post(call, &json!({"qqqqqqqqqq": 1})).await;
        assert_eq!((status, named(&reply)), (400, known), "{path}");
        let (status, reply) = api.post(&format!("{call}?qqqqqqqqqq=1"), &json!({})).await;
        let parameters = post["parameters"].as_array().into_iter().flatten();
        let parameters =
            parameters.map(|one| resolve_reference(&document, one)["name"].as_str().unwrap().to_owned());
        assert_eq!((status, named(&reply)), (400, parameters.collect()), "{path}");
        let wrong = client.get(path).await;
        assert_eq!((wrong.status(), wrong.header("allow")), (405, Some("POST")), "{path}");
    }
    api.stop().await;
}

/// The statuses in the document, without those that clients choose by number.
fn statuses(document: &Value) -> BTreeSet<u16> {
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let responses = operations.flat_map(|operation| operation["responses"].as_object().unwrap().keys());
    responses.filter_map(|status| status.parse().ok()).collect()
}

#[test]
fn statuses_match_openapi_document() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let files = fs::read_dir(crates.join("service/src/decisions")).unwrap().map(|file| file.unwrap().path());
    let shared =
        ["http-server/src/authorization.rs", "http-server/src/read_body.rs", "service/src/reservations.rs"];
    let shared = shared.map(|file| crates.join(file));
    let mut named = BTreeSet::new();
    for file in files.chain(shared) {
        let text = fs::read_to_string(file).unwrap();
        for rest in text.split("StatusCode::").skip(1) {
            let name: String = rest.chars().take_while(|c| c.is_ascii_uppercase() || *c == '_').collect();
            named.insert(match name.as_str() {
                "OK" => 200,
                "BAD_REQUEST" => 400,
                "UNAUTHORIZED" => 401,
                "FORBIDDEN" => 403,
                "NOT_FOUND" => 404,
                "REQUEST_TIMEOUT" => 408,
                "GONE" => 410,
                "PAYLOAD_TOO_LARGE" => 413,
                "TOO_MANY_REQUESTS" => 429,
                "SERVICE_UNAVAILABLE" => 503,
                // A document does not list 405 for undefined methods. `from_u16` is for statuses that clients choose.
                "METHOD_NOT_ALLOWED" | "" => continue,
                other => panic!("add {other} to docs/openapi.json and to this test"),
            });
        }
    }
    assert_eq!(named, statuses(&openapi_document()));
}

const ALL_OUTCOMES_POLICY: &str = "
decisions: 127.0.0.1:0
observe: { denials: 10 }
rules:
  - { name: hour, key: header x-user, quota: 1/h }
  - { name: queue, key: header x-user, quota: 1/h leaky-bucket queue 9 }
  - { name: both, key: header x-user, quota: [9/h, 9 at once] }
  - { name: watched, key: header x-user, quota: 1/h, mode: shadow }
  - { name: elsewhere, key: header x-user, quota: 9/h, store: far }
";

/// The members of every kind of response match the document.
#[tokio::test]
async fn decision_fields_match_openapi_document() {
    let redis = RedisServer::start().unwrap();
    let api = DecisionServer::start_with(
        &format!("stores: {{ far: '{}' }}{ALL_OUTCOMES_POLICY}", redis.url()),
        redis_rules(),
    );
    let query = |rule: &str, cost: u64| json!({"rule": rule, "key": "ann", "cost": cost});
    wait_for_response(&api, "peek", &query("elsewhere", 1), is_store_connected).await;
    let together =
        |rules: [&str; 2]| json!({"queries": rules.map(|rule| query(rule, 1)), "all-or-nothing": true});
    let waiting_query = |rule: &str| json!({"rule": rule, "key": "ann", "max-wait": 3600});
    // A call, its body, and the members that its response must have.
    let cases: [(&str, Value, &[&str]); 12] = [
        ("check", query("hour", 1), &["limit", "remaining", "reset-after", "quota"]),
        (
            "check",
            query("hour", 1),
            &["retry-after", "type", "title", "status", "detail", "violated-policies"],
        ),
        ("check?deny=200", query("hour", 1), &["instance"]),
        ("check", query("queue", 1), &[]),
        ("check", query("queue", 1), &["retry-after"]),
        ("check", waiting_query("queue"), &["wait"]),
        ("peek", query("watched", 2), &["would-allow"]),
        ("reserve", query("both", 1), &["id", "expires-after"]),
        ("acquire", query("both", 1), &["id", "expires-after"]),
        ("check", together(["both", "elsewhere"]), &[]),
        ("check", together(["elsewhere", "hour"]), &["evaluated"]),
        ("check", json!([query("hour", 1), waiting_query("both")]), &["retry-after"]),
    ];
    let document = openapi_document();
    let mut found_members = BTreeSet::new();
    for (call, query, members) in cases {
        let response = api.send(call, "", &query.to_string()).await;
        let reply: Value = serde_json::from_str(&response.body).unwrap();
        let call = call.split('?').next().unwrap();
        let kind = (response.status(), response.header("content-type").unwrap());
        assert_eq!(
            find_violation(&document, response_schema(&document, call, kind), &reply),
            None,
            "{call} {query}"
        );
        let results = reply.get("results").unwrap_or(&reply);
        let first = results.get(0).unwrap_or(results).as_object().unwrap();
        for member in members {
            assert!(first.contains_key(*member), "{call} {query}: no {member} in {reply}");
        }
        let results = results.as_array().map_or(std::slice::from_ref(results), Vec::as_slice);
        found_members
            .extend(results.iter().flat_map(|response| response.as_object().unwrap().keys().cloned()));
    }
    let known = document["components"]["schemas"]["Decision"]["properties"].as_object().unwrap();
    assert_eq!(found_members, known.keys().cloned().collect());
    api.stop().await;
}

/// A request that has to wait gets a place in the queue; a canceled reservation returns its place.
#[tokio::test]
async fn queued_decision_returns_its_wait() {
    let api = DecisionServer::start(ALL_OUTCOMES_POLICY.replace(", store: far", "").as_str());
    let wait = async |call: &str, max_wait: f64| {
        let (status, reply) =
            api.post(call, &json!({"rule": "queue", "key": "ann", "max-wait": max_wait})).await;
        let waited = reply["wait"].as_f64().map(|seconds| (seconds / 3_600.0).ceil());
        (status, waited, reply)
    };
    assert_eq!(wait("check", 3_600.0).await.1, None, "the first is admitted at once");
    let (status, waited, reply) = wait("check", 3_600.0).await;
    assert_eq!((status, waited, &reply["allowed"]), (200, Some(1.0), &json!(true)), "{reply}");
    let (status, waited, reply) = wait("check", 3_600.0).await;
    assert_eq!((status, waited), (429, None), "the wait would exceed an hour: {reply}");
    assert!(reply["retry-after"].as_f64().unwrap() > 0.0, "{reply}");
    assert_eq!(wait("check", 0.0).await.0, 429, "no wait is allowed");
    assert_eq!(api.post("reset", &json!({"rule": "queue", "key": "ann"})).await.0, 200);

    assert_eq!(wait("reserve", 3_600.0).await.1, None);
    let (_, waited, reservation) = wait("reserve", 3_600.0).await;
    assert_eq!((waited, wait("reserve", 3_600.0).await.0), (Some(1.0), 429));
    assert_eq!(api.post("cancel", &json!({"id": reservation["id"]})).await.0, 200);
    assert_eq!(wait("check", 3_600.0).await.1, Some(1.0), "the place in the queue is free again");
    for (body, part) in [
        (
            json!({"rule": "queue", "key": "ann", "max-wait": -1}),
            "`max-wait` is out of range; write seconds, from 0 to 3600",
        ),
        (json!([{"rule": "queue", "key": "ann", "max-wait": 3601}]), "[0]: `max-wait` is out of range"),
        (json!({"rule": "queue", "key": "ann", "max-wait": "1s"}), "`max-wait` is out of range"),
    ] {
        let (status, reply) = api.post("check", &body).await;
        assert_eq!(status, 400, "{reply}");
        assert!(reply["detail"].as_str().unwrap().starts_with(part), "{reply}");
    }
    let (status, reply) = api.post("peek", &json!({"rule": "queue", "key": "ann", "max-wait": 1})).await;
    assert_eq!(status, 400, "a peek cannot wait: {reply}");
    api.stop().await;
}

#[tokio::test]
async fn guide_examples_return_documented_responses() {
    let guide = include_str!("../../../../../docs/decisions-over-http.md");
    let block = |kind: &str| guide.split(kind).nth(1).unwrap().split("```").next().unwrap().to_owned();
    let api = DecisionServer::start(&block("```yaml").replace("8090", "0"));
    let script = block("```sh");
    let mut lines = script.lines().filter(|line| !line.is_empty());
    let mut commands = 0;
    while let (Some(command), Some(meant)) = (lines.next(), lines.next()) {
        let command = command.replace("127.0.0.1:8090", &api.decisions.to_string());
        let command = command.replace("curl -s", "curl -s -w '\n%{http_code}'");
        let run = move || Command::new("sh").arg("-c").arg(command).output().unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let (body, status) = output.rsplit_once('\n').unwrap();
        let (meant, part) = meant.trim_start_matches("# ").split_once(' ').unwrap();
        assert_eq!(status, meant, "{body}");
        assert!(body.contains(part), "{part}: {body}");
        commands += 1;
    }
    assert_eq!(commands, 8);
    api.stop().await;
}
