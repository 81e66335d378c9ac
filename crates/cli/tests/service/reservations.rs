//! What Envoy's protocol has no words for, over plain HTTP.

use crate::common::{ServiceProcess, run_curl};
use serde_json::Value;
use std::fs;

const LIMITS: &str = "
domain: shop
descriptors:
  - { key: user, rate_limit: { unit: year, requests_per_unit: 5 } }
  - { key: model, rate_limit: { quotas: [100 per 52w, 90 per 40w sliding-window] } }
";

struct ReservationClient(ServiceProcess);

impl ReservationClient {
    /// The status, and the answer.
    fn post(&self, path: &str, body: &str, more: &[&str]) -> (String, Value) {
        let url = format!("{}v1/descriptors/{path}", self.0.json.strip_suffix("json").unwrap());
        let args = [&["-d", body, "-w", "\n%{http_code}", url.as_str()], more].concat();
        let answer = run_curl(&args);
        let (body, status) = answer.rsplit_once('\n').unwrap();
        (status.to_owned(), serde_json::from_str(body).unwrap_or(Value::Null))
    }
}

fn request_body(hits: u32) -> String {
    let entry = |key: &str| format!(r#"{{"entries":[{{"key":"{key}","value":"a"}}]}}"#);
    format!(r#"{{"domain":"shop","descriptors":[{},{}],"hitsAddend":{hits}}}"#, entry("user"), entry("model"))
}

/// What is left of both limits.
fn remaining(client: &ReservationClient) -> [u64; 2] {
    let (status, said) = client.post("peek", &request_body(1), &[]);
    assert_eq!(status, "200", "{said}");
    [0, 1].map(|place| said["statuses"][place]["limitRemaining"].as_u64().unwrap_or(0))
}

#[test]
fn reservations_are_committed_and_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let desk = ReservationClient(ServiceProcess::start(folder.path(), &[("HOST", "127.0.0.1")]));
    assert_eq!(remaining(&desk), [5, 90]);

    let (status, said) = desk.post("reserve?expires=90", &request_body(4), &[]);
    assert_eq!((status.as_str(), said["overallCode"].as_str()), ("200", Some("OK")), "{said}");
    assert_eq!(said["expiresAfter"], "90s");
    assert_eq!(remaining(&desk), [1, 86]);
    let id = said["id"].as_str().unwrap();
    let (status, refused) = desk.post("reserve", &request_body(2), &[]);
    assert_eq!((status.as_str(), refused.get("id")), ("429", None), "{refused}");
    assert_eq!(remaining(&desk), [1, 86]);
    let commit = format!(r#"{{"id":"{id}","hitsAddend":2}}"#);
    assert_eq!(desk.post("commit", &commit, &[]).1["committed"], true);
    assert_eq!(remaining(&desk), [3, 88]);
    assert_eq!(desk.post("commit", &commit, &[]).0, "404", "it was settled");

    let (_, said) = desk.post("reserve", &request_body(3), &[]);
    let cancel = format!(r#"{{"id":"{}"}}"#, said["id"].as_str().unwrap());
    assert_eq!(desk.post("cancel", &cancel, &[]).1["cancelled"], true);
    assert_eq!(remaining(&desk), [3, 88]);

    for (path, body, status, told) in [
        ("reserve?expires=0", request_body(1), "400", "from 1 to 3600"),
        ("reserve?expire=5", request_body(1), "400", "`expires`"),
        ("reserve", "{".to_owned(), "400", ""),
        ("reserve", r#"{"domain":"shop"}"#.to_owned(), "400", "descriptor list must not be empty"),
        ("commit", r#"{"id":"1-2"}"#.to_owned(), "404", "no such reservation"),
        ("commit", r#"{"id":"1-2","cost":1}"#.to_owned(), "400", "hitsAddend"),
        ("cancel", r#"{"id":"1-2","hitsAddend":1}"#.to_owned(), "400", r#"{"id": "…"}"#),
        ("cancel", format!(r#"{{"id":"1-{:032}"}}"#, 7), "410", "has expired"),
        ("take", request_body(1), "404", "ask peek"),
    ] {
        let (code, said) = desk.post(path, &body, &[]);
        assert_eq!(code, status, "{path} {body}: {said}");
        assert!(said["detail"].as_str().unwrap().contains(told), "{told} in {said}");
    }
    assert_eq!(desk.post("peek", &request_body(1), &["-H", "Origin: https://example.org"]).0, "403");
    assert_eq!(desk.post("peek", &request_body(1), &["-X", "GET"]).0, "405");
    assert_eq!(remaining(&desk), [3, 88]);
}

#[test]
fn only_operators_reset_counts() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let token = |token: &str| format!("Authorization: Bearer {token}");
    let (right, wrong) = (token("s3cret"), token("secret"));

    // On this machine whoever asks, unless there is a token.
    let desk = ReservationClient(ServiceProcess::start(folder.path(), &[("HOST", "127.0.0.1")]));
    assert_eq!(desk.0.check(&[("user", "a")]), "200");
    assert_eq!(remaining(&desk), [4, 90]);
    assert_eq!(desk.post("reset", &request_body(1), &[]).1["reset"], 2);
    assert_eq!(remaining(&desk), [5, 90]);

    let desk = ReservationClient(ServiceProcess::start(folder.path(), &[("TIDEGATE_ADMIN_TOKEN", "s3cret")]));
    assert_eq!(desk.0.check(&[("user", "a")]), "200");
    assert_eq!(desk.post("reset", &request_body(1), &[]).0, "401");
    assert_eq!(desk.post("reset", &request_body(1), &["-H", &wrong]).0, "403");
    assert_eq!(remaining(&desk), [4, 90]);
    assert_eq!(desk.post("reset", &request_body(1), &["-H", &right]).0, "200");
    assert_eq!(remaining(&desk), [5, 90]);

    // From elsewhere nobody does without one.
    let desk = ReservationClient(ServiceProcess::start(folder.path(), &[("HOST", "0.0.0.0")]));
    assert_eq!(desk.post("reset", &request_body(1), &["-H", &right]).0, "403");
}
