//! Replays the traces in `traces/` on the core.

use std::{fs, path::Path};
use tidegate_testkit::{CoreModel, trace};

#[test]
fn recorded_traces_match_decisions() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10);
    let mut failures = Vec::new();
    for file in files {
        let trace_text = fs::read_to_string(&file).unwrap();
        if let Err(failure) = trace::run(&trace_text, CoreModel::new) {
            failures.push(format!("{}: {failure}", file.display()));
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}
