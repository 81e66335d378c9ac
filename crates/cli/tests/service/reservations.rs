//! The operations that Envoy's protocol does not have, over plain HTTP.

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
    /// Sends a request. Returns the status and the response.
    fn post(&self, path: &str, body: &str, more: &[&str]) -> (String, Value) {
        let url = format!("{}v1/descriptors/{path}", self.0.json.strip_suffix("json").unwrap());
        let args = [&["-d", body, "-w", "\n%{http_code}", url.as_str()], more].concat();
        let output = run_curl(&args);
        let (body, status) = output.rsplit_once('\n').unwrap();
        (status.to_owned(), serde_json::from_str(body).unwrap_or(Value::Null))
    }
}

fn request_body(hits: u32) -> String {
    let entry = |key: &str| format!(r#"{{"entries":[{{"key":"{key}","value":"a"}}]}}"#);
    format!(r#"{{"domain":"shop","descriptors":[{},{}],"hitsAddend":{hits}}}"#, entry("user"), entry("model"))
}

/// The remaining requests of both limits.
fn remaining(client: &ReservationClient) -> [u64; 2] {
    let (status, response) = client.post("peek", &request_body(1), &[]);
    assert_eq!(status, "200", "{response}");
    [0, 1].map(|index| response["statuses"][index]["limitRemaining"].as_u64().unwrap_or(0))
}

#[test]
fn reservations_are_committed_and_cancelled() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let client = ReservationClient(ServiceProcess::start(folder.path(), &[("HOST", "127.0.0.1")]));
    assert_eq!(remaining(&client), [5, 90]);

    let (status, response) = client.post("reserve?expires=90", &request_body(4), &[]);
    assert_eq!((status.as_str(), response["overallCode"].as_str()), ("200", Some("OK")), "{response}");
    assert_eq!(response["expiresAfter"], "90s");
    assert_eq!(remaining(&client), [1, 86]);
    let id = response["id"].as_str().unwrap();
    let (status, denied) = client.post("reserve", &request_body(2), &[]);
    assert_eq!((status.as_str(), denied.get("id")), ("429", None), "{denied}");
    assert_eq!(remaining(&client), [1, 86]);
    let commit = format!(r#"{{"id":"{id}","hitsAddend":2}}"#);
    assert_eq!(client.post("commit", &commit, &[]).1["committed"], true);
    assert_eq!(remaining(&client), [3, 88]);
    assert_eq!(client.post("commit", &commit, &[]).0, "404", "it was settled");

    let (_, response) = client.post("reserve", &request_body(3), &[]);
    let cancel = format!(r#"{{"id":"{}"}}"#, response["id"].as_str().unwrap());
    assert_eq!(client.post("cancel", &cancel, &[]).1["cancelled"], true);
    assert_eq!(remaining(&client), [3, 88]);

    for (path, body, status, part) in [
        ("reserve?expires=0", request_body(1), "400", "from 1 to 3600"),
        ("reserve?expire=5", request_body(1), "400", "`expires`"),
        ("reserve", "{".to_owned(), "400", ""),
        ("reserve", r#"{"domain":"shop"}"#.to_owned(), "400", "descriptor list must not be empty"),
        ("commit", r#"{"id":"1-2"}"#.to_owned(), "404", "unknown reservation"),
        ("commit", r#"{"id":"1-2","cost":1}"#.to_owned(), "400", "hitsAddend"),
        ("cancel", r#"{"id":"1-2","hitsAddend":1}"#.to_owned(), "400", r#"{"id": "…"}"#),
        ("cancel", format!(r#"{{"id":"1-{:032}"}}"#, 7), "410", "has expired"),
        ("take", request_body(1), "404", "use peek"),
    ] {
        let (code, response) = client.post(path, &body, &[]);
        assert_eq!(code, status, "{path} {body}: {response}");
        assert!(response["detail"].as_str().unwrap().contains(part), "{part} in {response}");
    }
    assert_eq!(client.post("peek", &request_body(1), &["-H", "Origin: https://example.org"]).0, "403");
    assert_eq!(client.post("peek", &request_body(1), &["-X", "GET"]).0, "405");
    assert_eq!(remaining(&client), [3, 88]);
}

#[test]
fn only_operators_reset_counts() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), LIMITS).unwrap();
    let token = |token: &str| format!("Authorization: Bearer {token}");
    let (right, wrong) = (token("s3cret"), token("secret"));

    // Without a token, any client on loopback may reset.
    let client = ReservationClient(ServiceProcess::start(folder.path(), &[("HOST", "127.0.0.1")]));
    assert_eq!(client.0.check(&[("user", "a")]), "200");
    assert_eq!(remaining(&client), [4, 90]);
    assert_eq!(client.post("reset", &request_body(1), &[]).1["reset"], 2);
    assert_eq!(remaining(&client), [5, 90]);

    let client =
        ReservationClient(ServiceProcess::start(folder.path(), &[("TIDEGATE_ADMIN_TOKEN", "s3cret")]));
    assert_eq!(client.0.check(&[("user", "a")]), "200");
    assert_eq!(client.post("reset", &request_body(1), &[]).0, "401");
    assert_eq!(client.post("reset", &request_body(1), &["-H", &wrong]).0, "403");
    assert_eq!(remaining(&client), [4, 90]);
    assert_eq!(client.post("reset", &request_body(1), &["-H", &right]).0, "200");
    assert_eq!(remaining(&client), [5, 90]);

    // Without a token, a service on all addresses allows no reset.
    let client = ReservationClient(ServiceProcess::start(folder.path(), &[("HOST", "0.0.0.0")]));
    assert_eq!(client.post("reset", &request_body(1), &["-H", &right]).0, "403");
}
