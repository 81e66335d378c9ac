//! What documents say is what the server does.

use super::{PURE, Stage};
use crate::stage::Wire;
use serde_json::{Value, json};
use std::{collections::BTreeSet, fs, path::Path, process::Command};

/// What is known of the code, and nobody can ask: its text.
fn code(file: &str) -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/decisions").join(file)).unwrap()
}

fn document() -> Value {
    serde_json::from_str(include_str!("../../../../../docs/openapi.json")).unwrap()
}

/// What a reference stands for.
fn meant<'a>(document: &'a Value, value: &'a Value) -> &'a Value {
    match value.get("$ref").and_then(Value::as_str) {
        Some(place) => document.pointer(place.strip_prefix('#').unwrap()).unwrap(),
        None => value,
    }
}

#[tokio::test]
async fn every_route_and_member_of_the_code_is_in_the_document_and_the_reverse() {
    let stage = Stage::start(PURE);
    let mut client = Wire::to(stage.decisions).await;
    let served = client.get("/v1/openapi.json").await;
    let document: Value = serde_json::from_str(&served.body).unwrap();
    let routes = code("routes.rs");
    let routes: BTreeSet<_> =
        routes.split('"').filter(|text| text.starts_with("/v1/") && !text.contains(' ')).collect();
    let paths = document["paths"].as_object().unwrap();
    assert_eq!(routes, paths.keys().map(String::as_str).collect());
    for (path, methods) in paths {
        let Some(post) = methods.get("post") else { continue };
        let call = path.strip_prefix("/v1/").unwrap();
        let schema = &post["requestBody"]["content"]["application/json"]["schema"]["oneOf"][0];
        let known: BTreeSet<_> =
            meant(&document, schema)["properties"].as_object().unwrap().keys().cloned().collect();
        // An unknown member, and an unknown parameter, is answered with all that are known.
        let named = |told: &Value| -> BTreeSet<String> {
            told["detail"].as_str().unwrap().split('`').skip(3).step_by(2).map(str::to_owned).collect()
        };
        let (status, told) = stage.post(call, &json!({"qqqqqqqqqq": 1})).await;
        assert_eq!((status, named(&told)), (400, known), "{path}");
        let (status, told) = stage.post(&format!("{call}?qqqqqqqqqq=1"), &json!({})).await;
        let parameters = post["parameters"].as_array().into_iter().flatten();
        let parameters = parameters.map(|one| meant(&document, one)["name"].as_str().unwrap().to_owned());
        assert_eq!((status, named(&told)), (400, parameters.collect()), "{path}");
        let wrong = client.get(path).await;
        assert_eq!((wrong.status(), wrong.header("allow")), (405, Some("POST")), "{path}");
    }
    stage.end().await;
}

/// Statuses of the document, without those that clients ask for by number.
fn statuses(document: &Value) -> BTreeSet<u16> {
    let operations =
        document["paths"].as_object().unwrap().values().flat_map(|path| path.as_object().unwrap().values());
    let responses = operations.flat_map(|operation| operation["responses"].as_object().unwrap().keys());
    responses.filter_map(|status| status.parse().ok()).collect()
}

#[test]
fn every_status_of_the_code_is_in_the_document_and_the_reverse() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/decisions");
    let mut named = BTreeSet::new();
    for file in fs::read_dir(folder).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
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
    assert_eq!(named, statuses(&document()));
}

const EVERY: &str = "
decisions: 127.0.0.1:0
observe: { denials: 10 }
rules:
  - { name: hour, key: header x-user, quota: 1/h }
  - { name: queue, key: header x-user, quota: 1/h leaky-bucket queue 9 }
  - { name: both, key: header x-user, quota: [9/h, 9 at once] }
  - { name: watched, key: header x-user, quota: 1/h, mode: shadow }
";

/// All that decisions say, in answers of every kind, is what the document says of them.
#[tokio::test]
async fn every_member_of_a_decision_is_in_the_document_and_the_reverse() {
    let stage = Stage::start(EVERY);
    let ask = |rule: &str, cost: u64| json!({"rule": rule, "key": "ann", "cost": cost});
    let both = json!({"asks": [ask("hour", 1), ask("both", 1)], "all-or-nothing": true});
    let asks = [
        ("check", ask("hour", 1)),
        ("check", ask("hour", 1)),
        ("check", ask("queue", 1)),
        ("check", ask("queue", 1)),
        ("peek", ask("watched", 2)),
        ("reserve", ask("both", 1)),
        ("acquire", ask("both", 1)),
        ("check", both),
    ];
    let mut seen = BTreeSet::new();
    for (call, ask) in asks {
        let (_, told) = stage.post(call, &ask).await;
        let answers = match told.get("answers") {
            Some(answers) => answers.as_array().unwrap().clone(),
            None => vec![told],
        };
        seen.extend(answers.iter().flat_map(|answer| answer.as_object().unwrap().keys().cloned()));
    }
    let document = document();
    let known = document["components"]["schemas"]["Decision"]["properties"].as_object().unwrap();
    // Only limiters that are asked one after another, or that have callers wait, say these.
    seen.extend(["asked", "wait"].map(str::to_owned));
    assert_eq!(seen, known.keys().cloned().collect());
    stage.end().await;
}

#[tokio::test]
async fn the_guide_is_true() {
    let guide = include_str!("../../../../../docs/decisions-over-http.md");
    let block = |kind: &str| guide.split(kind).nth(1).unwrap().split("```").next().unwrap().to_owned();
    let stage = Stage::start(&block("```yaml").replace("8090", "0"));
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
    stage.end().await;
}
