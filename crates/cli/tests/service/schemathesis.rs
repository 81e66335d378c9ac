//! Schemathesis: sends valid and invalid requests of the OpenAPI document and compares the responses with it.

use crate::common::DecisionApiProcess;
use serde_json::{Value, json};
use std::{fs, path::Path, process::Command};

/// Rules with tokens and slots, so that every operation works with each of them.
const POLICY: &str = "
decisions: 127.0.0.1:0
rules:
  - { name: ample, key: header x-user, quota: [1000000/h, 100000 at once] }
  - { name: scarce, key: header x-user, quota: [1/h, 1 at once] }
  - { name: watched, key: header x-user, quota: [1/h, 1 at once], mode: shadow }
";

/// `/v1/auth` needs one of two sets of headers, which OpenAPI cannot express, and allows any method.
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

/// Runs Schemathesis with valid requests, invalid ones, or both. Returns its report if it finds errors; `None` if it is not
/// installed.
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
    let report = String::from_utf8_lossy(&output.stdout).into_owned();
    let paths = document["paths"].as_object().unwrap().len();
    let is_complete = report.contains(&format!("Tested: {paths}\n"));
    assert!(is_complete, "{report}{}", String::from_utf8_lossy(&output.stderr));
    Some(if output.status.success() { Ok(()) } else { Err(report) })
}

#[test]
fn every_response_matches_openapi() {
    if let Some(Err(report)) = run_schemathesis(&openapi_document(), "all") {
        panic!("{report}");
    }
}

/// The same with valid requests only, so that every query is decided.
#[test]
fn every_decision_matches_openapi() {
    let mut document = openapi_document();
    let schemas = &mut document["components"]["schemas"];
    schemas["Rule"] = json!({ "enum": ["ample", "scarce", "watched"] });
    schemas["Key"] =
        json!({ "oneOf": [{ "type": "string", "minLength": 1, "maxLength": 64 }, { "type": "number" }] });
    for schema in ["Query", "CheckQuery", "ReserveQuery", "Reset"] {
        schemas[schema]["required"] = json!(["rule", "key"]);
        if schema != "Reset" {
            schemas[schema]["properties"]["tier"] = json!({ "type": "null" });
        }
    }
    document["components"]["parameters"]["deny"]["schema"] = json!({ "enum": [200, 403, 429] });
    if let Some(Err(report)) = run_schemathesis(&document, "positive") {
        panic!("{report}");
    }
}
