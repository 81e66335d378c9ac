//! Schemathesis, which asks everything that the OpenAPI document allows and forbids, and compares the answers with it.

use crate::stage::Decisions;
use serde_json::Value;
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

fn document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Has it ask so many questions of each kind; what it says if it finds anything.
fn tried(document: &Value, examples: u32) -> Option<Result<(), String>> {
    let service = Decisions::start(POLICY);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("openapi.json"), document.to_string()).unwrap();
    fs::write(folder.path().join("schemathesis.toml"), EXCEPTIONS).unwrap();
    let mut command = Command::new("schemathesis");
    command.args(["--config-file", "schemathesis.toml", "run", "openapi.json", "--url", &service.url]);
    command.args(["--phases", "coverage,fuzzing", "--seed", "7", "--no-color"]);
    command.args(["--generation-database", "none", "--suppress-health-check", "all"]);
    command.args(["--max-examples", &examples.to_string()]).current_dir(folder.path());
    let output = match command.output() {
        Ok(output) => output,
        Err(_) => {
            println!("skipped: schemathesis is not installed; see scripts/install");
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
fn every_answer_is_one_that_the_document_tells_of() {
    if let Some(Err(said)) = tried(&document(), 3) {
        panic!("{said}");
    }
}
