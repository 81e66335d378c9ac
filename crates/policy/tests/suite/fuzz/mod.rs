//! Whatever is written into a policy or sent in a request: nothing panics, runs on, or contradicts itself.
//!
//! Each case is one of the seeds, changed in a few places as a person or an editor would spoil it, and as an attacker would.
//! What the fuzzer has found is in `findings`, by the name of its target, and is tried first.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod targets;

use std::{fs, path::Path};
use targets::{CUT, TARGETS};
use tidegate_testkit::spoil;

/// How many spoiled inputs each target is given.
const CASES: u32 = 400;

/// The inputs of a folder that are for this target.
fn inputs(folder: &str, target: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fuzz").join(folder);
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let is_meant = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.strip_prefix(target).is_some_and(|rest| rest.starts_with('-'))
    };
    paths.iter().filter(|path| is_meant(path)).map(|path| fs::read(path).unwrap()).collect()
}

fn try_all(target: &str) {
    let (_, call) = TARGETS.iter().find(|(name, _)| *name == target).unwrap();
    let seeds = inputs("seeds", target);
    assert!(!seeds.is_empty(), "no seeds for {target}");
    inputs("findings", target).iter().chain(&seeds).for_each(|input| call(input));
    if let Err(error) = spoil::each(&seeds, CASES, call) {
        panic!("{target}: {error}");
    }
}

#[test]
fn no_file_is_read_wrongly() {
    try_all("policy");
}

#[test]
fn no_request_is_matched_wrongly() {
    try_all("matchers");
}

#[test]
fn no_expression_does_harm() {
    try_all("expression");
}

#[test]
fn no_key_does_harm() {
    try_all("keys");
}

#[test]
fn no_wish_goes_without_an_answer() {
    try_all("accept");
}

#[test]
fn no_header_makes_a_client_somebody_else() {
    try_all("forwarded");
}

#[test]
fn no_word_is_read_as_another() {
    try_all("words");
}

#[test]
fn no_descriptor_is_read_or_found_wrongly() {
    try_all("descriptors");
}

/// Every target is among the tests above, and has what it starts from.
#[test]
fn each_input_is_for_a_target() {
    let all = ["policy", "matchers", "expression", "keys", "accept", "forwarded", "words", "descriptors"];
    assert_eq!(TARGETS.map(|(name, _)| name), all);
    assert!(!CUT.is_empty());
}
