//! `tidegate replay` and `tidegate suggest`, as people and pipelines call them.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::program::{file, text, tidegate};
use std::{fs, path::Path};

const REAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../replay/tests/data/access-apache-10k.log.gz");
const POLICY: &str = "rules: [{ name: everybody, key: ip, quota: 20/min burst 10 }]";

fn name(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

#[test]
fn a_replay_is_told_as_text_as_json_and_as_a_page() {
    let policy = file("replayed.yaml", POLICY);
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replayed.html");
    let output = tidegate(&["replay", "--policy", name(&policy), REAL, "--html", name(&page)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let said = text(&output.stdout);
    assert!(
        said.contains("10000 requests in 10000 lines") && said.contains("rule `everybody`: denied"),
        "{said}"
    );
    let page = fs::read_to_string(page).expect("the page was written");
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"), "{page}");
    let output = tidegate(&["replay", "--policy", name(&policy), "--against", name(&policy), REAL, "--json"]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["log"]["requests"], 10_000);
    assert_eq!(value["difference"]["newly_denied"], 0);
    assert_eq!(value["policy"]["total"], value["against"]["total"]);
}

#[test]
fn a_suggestion_is_written_as_a_policy_that_check_accepts() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suggested.yaml");
    let args = ["suggest", REAL, "--key", "ip", "--target-denied", "1%", "--force", "--out", name(&out)];
    let output = tidegate(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("in shadow mode: nothing is denied yet"),
        "{}",
        text(&output.stdout)
    );
    let output = tidegate(&["check", name(&out)]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read_to_string(&out).expect("the policy was written").contains("mode: shadow"));
}

#[test]
fn suggest_overwrites_a_file_only_with_force() {
    let log = file("few.log", "192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let out = file("mine.yaml", POLICY);
    let output = tidegate(&["suggest", name(&log), "--out", name(&out)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("mine.yaml already exists; give --force"),
        "{}",
        text(&output.stderr)
    );
    assert_eq!(fs::read_to_string(&out).expect("it is there"), POLICY);
    let output = tidegate(&["suggest", name(&log), "--out", name(&out), "--force"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(
        text(&output.stdout).contains("warning: small sample: 1 request of 1 key"),
        "{}",
        text(&output.stdout)
    );
    assert!(fs::read_to_string(&out).expect("it is there").contains("mode: shadow"));
}

#[test]
fn what_cannot_be_used_is_said_and_ends_with_two() {
    let policy = file("for-bad-logs.yaml", POLICY);
    let tenants = file("tenants.yaml", "rules: [{ name: tenants, key: header x-tenant, quota: 1/s }]");
    let (empty, odd) = (file("empty.log", ""), file("odd.log", "what is this?\n"));
    let written = file("kept.log", "192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let cases: [(&[&str], &str); 13] = [
        (&["replay", "--policy", name(&policy), "-", "-"], "standard input is named twice"),
        (&["suggest", "-", "-"], "standard input is named twice"),
        (
            &["replay", "--policy", name(&policy), name(&written), "--html", name(&written)],
            "kept.log would be written over",
        ),
        (
            &["replay", "--policy", name(&policy), name(&written), "--html", name(&policy)],
            "for-bad-logs.yaml would be written over",
        ),
        (&["replay", "--policy", name(&policy), name(&empty)], "there is no request in it"),
        (
            &["replay", "--policy", name(&policy), name(&odd)],
            "odd.log:1: this is in no format that was tried",
        ),
        (&["replay", "--policy", name(&policy), "nowhere.log"], "cannot read nowhere.log"),
        (
            &["replay", "--policy", name(&tenants), REAL],
            "no request of the log has what rule `tenants` counts by",
        ),
        (&["replay", "--policy", name(&policy), REAL, "--format", "squid"], "unknown format `squid`"),
        (&["suggest", name(&empty)], "there is no request in it"),
        (&["suggest", REAL, "--target-denied", "much"], "--target-denied much"),
        (&["suggest", REAL, "--target-keys", "most"], "--target-keys most"),
        (&["suggest", REAL, "--headroom", "some"], "--headroom some"),
    ];
    for (args, said) in cases {
        let output = tidegate(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(said), "{args:?}: {}", text(&output.stderr));
    }
    assert_eq!(fs::read_to_string(&policy).expect("it is there"), POLICY);
}

/// What can be read only once is kept: logs are read several times.
#[cfg(unix)]
#[test]
fn a_pipe_gives_a_suggestion_too() {
    let ask = format!("'{}' suggest <(gzip -cd '{REAL}') --target-keys 99%", env!("CARGO_BIN_EXE_tidegate"));
    let output = std::process::Command::new("bash").args(["-c", &ask]).output().expect("bash is there");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("10000 requests"), "{}", text(&output.stdout));
}
