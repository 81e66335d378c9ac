//! Schemathesis, which asks everything that the OpenAPI document allows and forbids, and compares the answers with it.

use crate::stage::Decisions;
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

/// `/v1/auth` needs one of two sets of headers, which no document can say.
const EXCEPTIONS: &str = "
[[operations]]
include-path = \"/v1/auth\"
checks.positive_data_acceptance.enabled = false
";

fn document() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/openapi.json");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The document for this policy: with names of rules and keys that are there, and without statuses of 500 and more for denials,
/// which would look as if something were wrong.
fn narrowed() -> Value {
    let mut document = document();
    let parts = &mut document["components"];
    parts["schemas"]["Rule"] = json!({"enum": ["ample", "scarce", "watched"]});
    let (text, number) = (
        json!({"type": "string", "minLength": 1, "maxLength": 20}),
        json!({"type": "integer", "minimum": 0}),
    );
    parts["schemas"]["Key"] = json!({"oneOf": [text, number]});
    for name in ["Ask", "Hold", "Reset"] {
        parts["schemas"][name]["required"] = json!(["rule", "key"]);
    }
    for name in ["Ask", "Hold"] {
        parts["schemas"][name]["properties"]["tier"] = json!({"type": "null"});
    }
    parts["parameters"]["deny"]["schema"] = json!({"enum": [200, 403, 429]});
    document
}

/// Has it ask so many questions of each kind; what it says if it finds anything.
fn tried(document: &Value, examples: u32) -> Option<Result<(), String>> {
    let service = Decisions::start(POLICY);
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("openapi.json"), document.to_string()).unwrap();
    fs::write(folder.path().join("schemathesis.toml"), EXCEPTIONS).unwrap();
    let mut command = Command::new("schemathesis");
    command.args(["--config-file", "schemathesis.toml", "run", "openapi.json", "--url", &service.url]);
    command.args(["--checks", "all", "--phases", "coverage,fuzzing", "--seed", "7", "--no-color"]);
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
    for (document, examples) in [(document(), 3), (narrowed(), 5)] {
        if let Some(Err(said)) = tried(&document, examples) {
            panic!("{said}");
        }
    }
}

/// It finds what is wrong: a check that cannot fail is none.
#[test]
fn an_answer_that_the_document_does_not_tell_of_is_found() {
    let mut wrong = narrowed();
    wrong["paths"].as_object_mut().unwrap().retain(|path, _| path == "/v1/peek");
    let required = &mut wrong["components"]["schemas"]["Decision"]["required"];
    required.as_array_mut().unwrap().push("colour".into());
    if let Some(tried) = tried(&wrong, 1) {
        let said = tried.unwrap_err();
        assert!(said.contains("colour"), "{said}");
    }
}
