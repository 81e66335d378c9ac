//! `tidegate verify` against real servers.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::common::utf8_text;
use std::{
    io::Read as _,
    process::{Command, Output, Stdio},
};
use tidegate_testkit::servers::{RedisServer, wait_until};

fn run_verify(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_tidegate");
    Command::new(program).arg("verify").args(args).output().expect("the program runs")
}

#[test]
fn verify_finds_no_difference_and_removes_its_keys() {
    let server = RedisServer::start().unwrap();
    server.command(&["SET", "theirs", "value"]).unwrap();
    let output = run_verify(&["--redis", &server.url(), "--steps", "20000"]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    let text = utf8_text(&output.stdout);
    assert!(text.starts_with("no difference in 2"), "{text}");
    for part in ["token-bucket", "warm-up", "concurrency", "refunds", "resets", "switches between quotas"] {
        assert!(text.contains(part), "{part} is missing: {text}");
    }
    let output = run_verify(&["--redis", &server.url(), "--steps", "2000", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(report["steps"].as_u64() >= Some(2_000) && report["decisions"].as_u64() > Some(0), "{report:#}");
    let left = server.command(&["KEYS", "*"]).unwrap();
    assert_eq!(left.items().len(), 1, "left behind: {left}");
}

#[test]
fn interrupted_verify_removes_its_keys() {
    let server = RedisServer::start().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["verify", "--steps", "1000000000", "--redis", &server.url()])
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let keys = || server.command(&["KEYS", "*"]).map(|keys| keys.items().len());
    wait_until("keys exist", || match keys()? {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let status = child.wait().expect("the process exits");
    let mut stderr = String::new();
    child.stderr.take().expect("stderr is piped").read_to_string(&mut stderr).expect("text");
    assert_eq!(status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("stopped after"), "{stderr}");
    assert_eq!(keys().unwrap(), 0);
}

#[test]
fn verify_rejects_invalid_address() {
    for (url, word) in
        [("localhost", "redis://"), ("redis://127.0.0.1:1", "server is running"), ("http://x", "redis://")]
    {
        let output = run_verify(&["--redis", url]);
        assert_eq!(output.status.code(), Some(2), "{url}");
        let stderr = utf8_text(&output.stderr);
        assert!(stderr.starts_with("error: ") && stderr.contains(word), "{url}: {stderr}");
        assert_eq!(stderr.trim_end().lines().count(), 1, "{stderr}");
    }
}
