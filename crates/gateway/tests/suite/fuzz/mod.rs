//! Fuzz tests of the decision API and of the HTTP/1.1 parser: no input causes a panic, a hang or an undocumented response.

mod http1_targets;
pub(crate) mod messages;
mod targets;

use std::{fs, path::Path};
use targets::TARGETS;
use tidegate_testkit::mutation;

/// The number of mutated inputs per target.
const MUTATION_COUNT: u32 = 400;

fn run_target(target: &str) {
    let mut targets = TARGETS.iter().chain(&http1_targets::TARGETS);
    let (_, call) = targets.find(|(name, _)| *name == target).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/suite/fuzz/seeds");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    paths.retain(|path| name(path).starts_with(&format!("{target}-")));
    let seeds: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    assert!(!seeds.is_empty(), "no seeds for {target}");
    seeds.iter().for_each(|seed| call(seed));
    if let Err(error) = mutation::run_mutated(&seeds, MUTATION_COUNT, call) {
        panic!("{target}: {error}");
    }
}

#[test]
fn mutated_decision_requests_get_documented_responses() {
    run_target("decisions");
}

#[test]
fn mutated_envoy_requests_get_documented_responses() {
    run_target("json");
}

#[test]
fn mutated_requests_are_rejected_or_forwarded_unambiguously() {
    run_target("requests");
}

#[test]
fn mutated_responses_are_rejected_or_forwarded_unambiguously() {
    run_target("responses");
}
