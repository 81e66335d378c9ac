//! The stories in `traces/`, told to the core.

use std::{fs, path::Path};
use tidegate_testkit::{Plain, trace};

#[test]
fn every_story_is_true() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces");
    let mut files: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 10);
    let mut lies = Vec::new();
    for file in files {
        let story = fs::read_to_string(&file).unwrap();
        if let Err(lie) = trace::run(&story, Plain::new) {
            lies.push(format!("{}: {lie}", file.display()));
        }
    }
    assert!(lies.is_empty(), "\n{}", lies.join("\n"));
}
