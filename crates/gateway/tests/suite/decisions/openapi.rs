//! What documents say is what the server does.

use super::{
    DECISION_POLICY, DecisionServer,
    schema::{find_violation, resolve_reference, response_schema},
    stores::{is_store_connected, redis_rules, wait_for_response},
};
use crate::harness::RawClient;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, path::Path, process::Command};
use tidegate_testkit::servers::RedisServer;

/// What is known of the code, and nobody can ask: its text.
fn read_source(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../service/src/decisions").join(file))
        .unwrap()
}

fn openapi_document() -> Value {
    serde_json::from_str(include_str!("../../../../../docs/openapi.json")).unwrap()
}

#[tokio::test]
async fn routes_and_fields_match_openapi_document() {
    let stage = DecisionServer::start(DECISION_POLICY);
    let mut client = RawClient::connect(stage.decisions).await;
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
        // An unknown member, and an unknown parameter, is answered with all that are known.
        let named = |told: &Value| -> BTreeSet<String> {
            told["detail"].as_str().unwrap().split('`').skip(3).step_by(2).map(str::to_owned).collect()
        };
        let (status, told) = stage.post(call, &json!({"qqqqqqqqqq": 1})).await;
        assert_eq!((status, named(&told)), (400, known), "{path}");
        let (status, told) = stage.post(&format!("{call}?qqqqqqqqqq=1"), &json!({})).await;
        let parameters = post["parameters"].as_array().into_iter().flatten();
        let parameters =
            parameters.map(|one| resolve_reference(&document, one)["name"].as_str().unwrap().to_owned());
        assert_eq!((status, named(&told)), (400, parameters.collect()), "{path}");
        let wrong = client.get(path).await;
        assert_eq!((wrong.status(), wrong.header("allow")), (405, Some("POST")), "{path}");
    }
    stage.stop().await;
}

/// Statuses of the document, without those that clients ask for by number.
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
            let name: String =
                rest.chars().take_while(|sign| sign.is_ascii_uppercase() || *sign == '_').collect();
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
                // Of a method that a path does not have, which stands nowhere in a document; and `from_u16`, for what clients
                // ask for.
                "METHOD_NOT_ALLOWED" | "" => continue,
                other => panic!("docs/openapi.json has to tell of {other}, and this test, too"),
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

/// All that decisions say, in answers of every kind, is what the document says of them.
#[tokio::test]
async fn decision_fields_match_openapi_document() {
    let redis = RedisServer::start().unwrap();
    let stage = DecisionServer::start_with(
        &format!("stores: {{ far: '{}' }}{ALL_OUTCOMES_POLICY}", redis.url()),
        redis_rules(),
    );
    let ask = |rule: &str, cost: u64| json!({"rule": rule, "key": "ann", "cost": cost});
    wait_for_response(&stage, "peek", &ask("elsewhere", 1), is_store_connected).await;
    let together = |rules: [&str; 2]| json!({"asks": rules.map(|rule| ask(rule, 1)), "all-or-nothing": true});
    let patient = |rule: &str| json!({"rule": rule, "key": "ann", "within": 3600});
    // What it is about, and the members that are there for that.
    let asks: [(&str, Value, &[&str]); 12] = [
        ("check", ask("hour", 1), &["limit", "remaining", "reset-after", "quota"]),
        ("check", ask("hour", 1), &["retry-after", "type", "title", "status", "detail", "violated-policies"]),
        ("check?deny=200", ask("hour", 1), &["instance"]),
        ("check", ask("queue", 1), &[]),
        ("check", ask("queue", 1), &["retry-after"]),
        ("check", patient("queue"), &["wait"]),
        ("peek", ask("watched", 2), &["would-allow"]),
        ("reserve", ask("both", 1), &["id", "expires-after"]),
        ("acquire", ask("both", 1), &["id", "expires-after"]),
        ("check", together(["both", "elsewhere"]), &[]),
        ("check", together(["elsewhere", "hour"]), &["asked"]),
        ("check", json!([ask("hour", 1), patient("both")]), &["retry-after"]),
    ];
    let document = openapi_document();
    let mut seen = BTreeSet::new();
    for (call, ask, members) in asks {
        let answer = stage.send(call, "", &ask.to_string()).await;
        let told: Value = serde_json::from_str(&answer.body).unwrap();
        let call = call.split('?').next().unwrap();
        let kind = (answer.status(), answer.header("content-type").unwrap());
        assert_eq!(
            find_violation(&document, response_schema(&document, call, kind), &told),
            None,
            "{call} {ask}"
        );
        let answers = told.get("answers").unwrap_or(&told);
        let first = answers.get(0).unwrap_or(answers).as_object().unwrap();
        for member in members {
            assert!(first.contains_key(*member), "{call} {ask}: no {member} in {told}");
        }
        let answers = answers.as_array().map_or(std::slice::from_ref(answers), Vec::as_slice);
        seen.extend(answers.iter().flat_map(|answer| answer.as_object().unwrap().keys().cloned()));
    }
    let known = document["components"]["schemas"]["Decision"]["properties"].as_object().unwrap();
    assert_eq!(seen, known.keys().cloned().collect());
    stage.stop().await;
}

/// Who would wait is given a turn, behind those who were given one before; a place is given back with what was reserved for it.
#[tokio::test]
async fn queued_decision_returns_its_wait() {
    let stage = DecisionServer::start(ALL_OUTCOMES_POLICY.replace(", store: far", "").as_str());
    let wait = async |call: &str, within: f64| {
        let (status, told) =
            stage.post(call, &json!({"rule": "queue", "key": "ann", "within": within})).await;
        let waited = told["wait"].as_f64().map(|seconds| (seconds / 3_600.0).ceil());
        (status, waited, told)
    };
    assert_eq!(wait("check", 3_600.0).await.1, None, "the first goes at once");
    let (status, waited, told) = wait("check", 3_600.0).await;
    assert_eq!((status, waited, &told["allowed"]), (200, Some(1.0), &json!(true)), "{told}");
    let (status, waited, told) = wait("check", 3_600.0).await;
    assert_eq!((status, waited), (429, None), "it would be more than an hour: {told}");
    assert!(told["retry-after"].as_f64().unwrap() > 0.0, "{told}");
    assert_eq!(wait("check", 0.0).await.0, 429, "now or not at all");
    assert_eq!(stage.post("reset", &json!({"rule": "queue", "key": "ann"})).await.0, 200);

    assert_eq!(wait("reserve", 3_600.0).await.1, None);
    let (_, waited, held) = wait("reserve", 3_600.0).await;
    assert_eq!((waited, wait("reserve", 3_600.0).await.0), (Some(1.0), 429));
    assert_eq!(stage.post("cancel", &json!({"id": held["id"]})).await.0, 200);
    assert_eq!(wait("check", 3_600.0).await.1, Some(1.0), "its turn is there for the next");
    for (body, part) in [
        (
            json!({"rule": "queue", "key": "ann", "within": -1}),
            "`within` is no such time; write seconds, from 0 to 3600",
        ),
        (json!([{"rule": "queue", "key": "ann", "within": 3601}]), "[0]: `within` is no such time"),
        (json!({"rule": "queue", "key": "ann", "within": "1s"}), "`within` is no such time"),
    ] {
        let (status, told) = stage.post("check", &body).await;
        assert_eq!(status, 400, "{told}");
        assert!(told["detail"].as_str().unwrap().starts_with(part), "{told}");
    }
    let (status, told) = stage.post("peek", &json!({"rule": "queue", "key": "ann", "within": 1})).await;
    assert_eq!(status, 400, "nothing is waited for by who only looks: {told}");
    stage.stop().await;
}

#[tokio::test]
async fn guide_examples_return_documented_responses() {
    let guide = include_str!("../../../../../docs/decisions-over-http.md");
    let block = |kind: &str| guide.split(kind).nth(1).unwrap().split("```").next().unwrap().to_owned();
    let stage = DecisionServer::start(&block("```yaml").replace("8090", "0"));
    let script = block("```sh");
    let mut lines = script.lines().filter(|line| !line.is_empty());
    let mut asked = 0;
    while let (Some(command), Some(meant)) = (lines.next(), lines.next()) {
        let command = command.replace("127.0.0.1:8090", &stage.decisions.to_string());
        let command = command.replace("curl -s", "curl -s -w '\n%{http_code}'");
        let run = move || Command::new("sh").arg("-c").arg(command).output().unwrap();
        let output = tokio::task::spawn_blocking(run).await.unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        let (body, status) = output.rsplit_once('\n').unwrap();
        let (meant, part) = meant.trim_start_matches("# ").split_once(' ').unwrap();
        assert_eq!(status, meant, "{body}");
        assert!(body.contains(part), "{part}: {body}");
        asked += 1;
    }
    assert_eq!(asked, 8);
    stage.stop().await;
}
