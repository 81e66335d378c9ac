//! Schemathesis, which asks everything that the OpenAPI document allows and forbids, and compares the answers with it.

use crate::common::DecisionApiProcess;
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command};

/// What holds slots and tokens, so that any of them can be asked for anything.
const POLICY: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: ample, key: header x-user, quota: [1000000/h, 100000 at once] }
  - { name: scarce, key: header x-user, quota: [1/h, 1 at once] }
  - { name: watched, key: header x-user, quota: [1/h, 1 at once], mode: shadow }
";

/// `/v1/auth` needs one of two sets of headers, which no document can say, and answers to any method.
const EXCEPTIONS: &str = "
[[operations]]
include-path = \"/v1/auth\"
checks.positive_data_acceptance.enabled = false
checks.unsupported_method.enabled = false
";

fn openapi_document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Has it ask what makes sense, what does not, or both; what it says if it finds anything.
fn run_schemathesis(document: &Value, mode: &str) -> Option<Result<(), String>> {
    let service = DecisionApiProcess::start(POLICY);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("openapi.json"), document.to_string()).unwrap();
    fs::write(folder.path().join("schemathesis.toml"), EXCEPTIONS).unwrap();
    let mut command = Command::new("schemathesis");
    command.args(["--config-file", "schemathesis.toml", "run", "openapi.json", "--url", &service.url]);
    command.args(["--phases", "coverage,fuzzing", "--seed", "7", "--no-color"]);
    command.args(["--generation-database", "none", "--suppress-health-check", "all"]);
    command.args(["--max-examples", "3", "--mode", mode]).current_dir(folder.path());
    let output = match command.output() {
        Ok(output) => output,
        Err(_) => {
            tidegate_testkit::servers::skip_without("schemathesis");
            return None;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = document["paths"].as_object().unwrap().len();
    let is_whole = said.contains(&format!("Tested: {paths}\n"));
    assert!(is_whole, "{said}{}", String::from_utf8_lossy(&output.stderr));
    Some(if output.status.success() { Ok(()) } else { Err(said) })
}

#[test]
fn every_response_matches_openapi() {
    if let Some(Err(said)) = run_schemathesis(&openapi_document(), "all") {
        panic!("{said}");
    }
}

/// The same where all that is asked makes sense, so that every question is decided.
#[test]
fn every_decision_matches_openapi() {
    let mut document = openapi_document();
    let schemas = &mut document["components"]["schemas"];
    schemas["Rule"] = json!({ "enum": ["ample", "scarce", "watched"] });
    schemas["Key"] =
        json!({ "oneOf": [{ "type": "string", "minLength": 1, "maxLength": 64 }, { "type": "number" }] });
    for asked in ["Ask", "Take", "Hold", "Reset"] {
        schemas[asked]["required"] = json!(["rule", "key"]);
        if asked != "Reset" {
            schemas[asked]["properties"]["tier"] = json!({ "type": "null" });
        }
    }
    document["components"]["parameters"]["deny"]["schema"] = json!({ "enum": [200, 403, 429] });
    if let Some(Err(said)) = run_schemathesis(&document, "positive") {
        panic!("{said}");
    }
}
