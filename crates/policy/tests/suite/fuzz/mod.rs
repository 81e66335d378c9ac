//! Fuzz targets with a bounded number of cases: no input panics, hangs, or leads to inconsistent results.
//!
//! Each case is a seed with a few mutations. Inputs that the fuzzer has found are in `findings`, by the name of their target,
//! and run first.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod targets;

use std::{fs, path::Path};
use targets::{SEPARATOR, TARGETS};
use tidegate_testkit::mutation;

/// The number of mutated inputs per target.
const CASES: u32 = 400;

/// The inputs of a directory for this target.
fn inputs(folder: &str, target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fuzz").join(folder);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let is_input = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_prefix(target).is_some_and(|rest| rest.starts_with('-'))
    };
    paths.iter().filter(|path| is_input(path)).map(|path| fs::read(path).unwrap()).collect()
}

fn run_target(target: &str) {
    let (_, call) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let seeds = inputs("seeds", target);
    assert!(!seeds.is_empty(), "no seeds for {target}");
    inputs("findings", target).iter().chain(&seeds).for_each(|input| call(input));
    if let Err(error) = mutation::run_mutated(&seeds, CASES, call) {
        panic!("{target}: {error}");
    }
}

#[test]
fn fuzz_policy() {
    run_target("policy");
}

#[test]
fn fuzz_matchers() {
    run_target("matchers");
}

#[test]
fn fuzz_expression() {
    run_target("expression");
}

#[test]
fn fuzz_keys() {
    run_target("keys");
}

#[test]
fn fuzz_accept() {
    run_target("accept");
}

#[test]
fn fuzz_forwarded() {
    run_target("forwarded");
}

#[test]
fn fuzz_words() {
    run_target("words");
}

#[test]
fn fuzz_descriptors() {
    run_target("descriptors");
}

/// Every target has a test above.
#[test]
fn every_target_has_a_test() {
    let all = ["policy", "matchers", "expression", "keys", "accept", "forwarded", "words", "descriptors"];
    assert_eq!(TARGETS.map(|(name, _)| name), all);
    assert!(!SEPARATOR.is_empty());
}
