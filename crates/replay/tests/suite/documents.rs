//! What docs/replay.md shows is what comes out. `TIDEGATE_BLESS=1 cargo test -p tidegate-replay` writes it anew.

use crate::play::{REAL, known, policy};
use std::{env, fs, path::Path};
use tidegate_replay::{
    log::{Input, Log},
    play,
    report::{Report, text},
    suggest::{self, Target, Wish, suggest},
};

const DOCUMENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/replay.md");

fn open() -> Log {
    Log::open(vec![Input::bytes("access.log", REAL)], known(), None).unwrap()
}

#[test]
fn the_document_shows_what_comes_out() {
    let document = fs::read_to_string(DOCUMENT).unwrap();
    let (_, rest) = document.split_once("```yaml\n").unwrap();
    let (rules, _) = rest.split_once("```").unwrap();
    let play = play(open(), (&policy(rules), Path::new("")), None, |_| {}).unwrap();
    let replayed = text(&Report { play: &play, policy: "policy.yaml", against: None });
    let wish = Wish::read("ip", Target::Keys("99%".parse().unwrap()), "50%".parse().unwrap()).unwrap();
    let suggestion = suggest(wish, || Ok(open()), |_| {}).unwrap();
    let suggested = format!("{}\n{}", suggest::text(&suggestion), suggestion.policy);
    let mut expected = document.clone();
    for (name, said) in [("replay", replayed), ("suggest", suggested)] {
        let (begin, end) = (format!("<!-- {name}: begin -->"), format!("<!-- {name}: end -->"));
        let (front, rest) = expected.split_once(&begin).unwrap();
        let (_, back) = rest.split_once(&end).unwrap();
        expected = format!("{front}{begin}\n\n```text\n{}\n```\n\n{end}{back}", said.trim_end());
    }
    if env::var_os("TIDEGATE_BLESS").is_some() {
        fs::write(DOCUMENT, &expected).unwrap();
    }
    assert_eq!(fs::read_to_string(DOCUMENT).unwrap(), expected, "run with TIDEGATE_BLESS=1 to write it anew");
}
