//! `tidegate replay` and `tidegate suggest`.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::common::{run_tidegate, utf8_text, write_file};
use std::{fs, path::Path};

const ACCESS_LOG: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/../replay/tests/data/access-apache-10k.log.gz");
const POLICY: &str = "rules: [{ name: everybody, key: ip, quota: 20/min burst 10 }]";

fn name(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

#[test]
fn replay_reports_text_json_and_html() {
    let policy = write_file("replayed.yaml", POLICY);
    let page = Path::new(env!("CARGO_TARGET_TMPDIR")).join("replayed.html");
    let output = run_tidegate(&["replay", "--policy", name(&policy), ACCESS_LOG, "--html", name(&page)]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    let text = utf8_text(&output.stdout);
    assert!(
        text.contains("10000 requests in 10000 lines") && text.contains("rule `everybody`: denied"),
        "{text}"
    );
    let page = fs::read_to_string(page).expect("the page was written");
    assert!(page.starts_with("<!doctype html>") && page.contains("<svg"), "{page}");
    let output = run_tidegate(&[
        "replay",
        "--policy",
        name(&policy),
        "--baseline",
        name(&policy),
        ACCESS_LOG,
        "--json",
    ]);
    let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(value["log"]["requests"], 10_000);
    assert_eq!(value["difference"]["newly_denied"], 0);
    assert_eq!(value["policy"]["total"], value["baseline"]["total"]);
}

#[test]
fn suggested_policy_passes_check() {
    let out = Path::new(env!("CARGO_TARGET_TMPDIR")).join("suggested.yaml");
    let args =
        ["suggest", ACCESS_LOG, "--key", "ip", "--target-denied", "1%", "--force", "--out", name(&out)];
    let output = run_tidegate(&args);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    assert!(
        utf8_text(&output.stdout).contains("in shadow mode: nothing is denied yet"),
        "{}",
        utf8_text(&output.stdout)
    );
    let output = run_tidegate(&["check", name(&out)]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    assert!(fs::read_to_string(&out).expect("the policy was written").contains("mode: shadow"));
}

#[test]
fn suggest_overwrites_only_with_force() {
    let log = write_file("few.log", "192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let out = write_file("mine.yaml", POLICY);
    let output = run_tidegate(&["suggest", name(&log), "--out", name(&out)]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        utf8_text(&output.stderr).contains("mine.yaml already exists; use another name, or add --force"),
        "{}",
        utf8_text(&output.stderr)
    );
    assert_eq!(fs::read_to_string(&out).expect("it is there"), POLICY);
    let output = run_tidegate(&["suggest", name(&log), "--out", name(&out), "--force"]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    assert!(
        utf8_text(&output.stdout).contains("warning: small sample: 1 request of 1 key"),
        "{}",
        utf8_text(&output.stdout)
    );
    assert!(fs::read_to_string(&out).expect("it is there").contains("mode: shadow"));
}

#[test]
fn unusable_input_exits_with_two() {
    let policy = write_file("for-bad-logs.yaml", POLICY);
    let tenants = write_file("tenants.yaml", "rules: [{ name: tenants, key: header x-tenant, quota: 1/s }]");
    let (empty, odd) = (write_file("empty.log", ""), write_file("odd.log", "what is this?\n"));
    let written =
        write_file("input.log", "192.0.2.1 - - [01/Feb/2024:12:00:00 +0000] \"GET / HTTP/1.1\" 200 1\n");
    let cases: [(&[&str], &str); 14] = [
        (&["replay", "--policy", name(&policy), "-", "-"], "standard input can be read only once"),
        (&["suggest", "-", "-"], "standard input can be read only once"),
        (
            &["replay", "--policy", name(&policy), name(&written), "--html", name(&written)],
            "input.log is an input and would be overwritten",
        ),
        (
            &["replay", "--policy", name(&policy), name(&written), "--html", name(&policy)],
            "for-bad-logs.yaml is an input and would be overwritten",
        ),
        (&["replay", "--policy", name(&policy), name(&empty)], "no requests found"),
        (&["replay", "--policy", name(&policy), name(&odd)], "odd.log:1: unknown log format"),
        (&["replay", "--policy", name(&policy), "nowhere.log"], "cannot read nowhere.log"),
        (
            &["replay", "--policy", name(&tenants), ACCESS_LOG],
            "no request in the log has the key of rule `tenants`",
        ),
        (&["replay", "--policy", name(&policy), ACCESS_LOG, "--format", "squid"], "unknown format `squid`"),
        (
            &["replay", "--policy", name(&policy), ACCESS_LOG, "--sort-window", "lots"],
            "invalid size `lots`; write a size from 1MiB to 256MiB",
        ),
        (&["suggest", name(&empty)], "no requests found"),
        (&["suggest", ACCESS_LOG, "--target-denied", "much"], "--target-denied much"),
        (&["suggest", ACCESS_LOG, "--target-keys", "most"], "--target-keys most"),
        (&["suggest", ACCESS_LOG, "--headroom", "some"], "--headroom some"),
    ];
    for (args, part) in cases {
        let output = run_tidegate(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(utf8_text(&output.stderr).contains(part), "{args:?}: {}", utf8_text(&output.stderr));
    }
    assert_eq!(fs::read_to_string(&policy).expect("it is there"), POLICY);
}

/// A pipe can be read only once, so it is buffered.
#[cfg(unix)]
#[test]
fn suggest_reads_a_pipe() {
    let script =
        format!("'{}' suggest <(gzip -cd '{ACCESS_LOG}') --target-keys 99%", env!("CARGO_BIN_EXE_tidegate"));
    let output =
        std::process::Command::new("bash").args(["-c", &script]).output().expect("bash is installed");
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    assert!(utf8_text(&output.stdout).contains("10000 requests"), "{}", utf8_text(&output.stdout));
}
