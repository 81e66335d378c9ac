//! docs/replay.md shows the real output. `TIDEGATE_BLESS=1 cargo test -p tidegate-replay` rewrites it.

use crate::support::{REAL_LOG, builtin_formats, parse_policy};
use std::{env, fs, path::Path};
use tidegate_replay::{
    log::{LogInput, RequestLog},
    replay_log,
    report::{ReplayReport, to_text},
    suggest::{self, SuggestRequest, SuggestTarget, suggest},
};

const DOCUMENT_PATH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/replay.md");

fn open_log() -> RequestLog {
    RequestLog::open(vec![LogInput::from_bytes("access.log", REAL_LOG)], builtin_formats(), None).unwrap()
}

#[test]
fn replay_document_matches_output() {
    let document = fs::read_to_string(DOCUMENT_PATH).unwrap();
    let (_, rest) = document.split_once("```yaml\n").unwrap();
    let (rules, _) = rest.split_once("```").unwrap();
    let result = replay_log(open_log(), (&parse_policy(rules), Path::new("")), None, |_| {}).unwrap();
    let replayed = to_text(&ReplayReport { result: &result, policy: "policy.yaml", baseline: None });
    let parameters =
        SuggestRequest::parse("ip", SuggestTarget::Keys("99%".parse().unwrap()), "50%".parse().unwrap())
            .unwrap();
    let suggestion = suggest(parameters, || Ok(open_log()), |_| {}).unwrap();
    let suggested = format!("{}\n{}", suggest::to_text(&suggestion), suggestion.policy);
    let mut expected = document.clone();
    for (name, output) in [("replay", replayed), ("suggest", suggested)] {
        let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
        let (front, rest) = expected.split_once(&begin).unwrap();
        let (_, back) = rest.split_once(&end).unwrap();
        expected = format!("{front}{begin}\n\n```text\n{}\n```\n\n{end}{back}", output.trim_end());
    }
    if env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(DOCUMENT_PATH, &expected).unwrap();
    }
    assert_eq!(
        fs::read_to_string(DOCUMENT_PATH).unwrap(),
        expected,
        "run with TIDEGATE_BLESS=1 to rewrite it"
    );
}
