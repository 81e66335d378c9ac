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
    server.command(&["SET", "theirs", "kept"]).unwrap();
    let output = run_verify(&["--redis", &server.url(), "--steps", "20000"]);
    assert!(output.status.success(), "{}", utf8_text(&output.stderr));
    let said = utf8_text(&output.stdout);
    assert!(said.starts_with("no difference in 2"), "{said}");
    for word in ["token-bucket", "warm-up", "concurrency", "refunds", "resets", "turns of quotas"] {
        assert!(said.contains(word), "no word of {word}: {said}");
    }
    let output = run_verify(&["--redis", &server.url(), "--steps", "2000", "--json"]);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert!(told["steps"].as_u64() >= Some(2_000) && told["decisions"].as_u64() > Some(0), "{told:#}");
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
    wait_until("keys are there", || match keys()? {
        0 => Err("none".to_owned()),
        _ => Ok(()),
    })
    .unwrap();
    let sent = Command::new("kill").args(["-s", "INT", &child.id().to_string()]).status();
    assert!(sent.expect("kill runs").success());
    let status = child.wait().expect("it ends");
    let mut said = String::new();
    child.stderr.take().expect("is piped").read_to_string(&mut said).expect("text");
    assert_eq!(status.code(), Some(2), "{said}");
    assert!(said.contains("stopped after"), "{said}");
    assert_eq!(keys().unwrap(), 0);
}

#[test]
fn verify_rejects_invalid_address() {
    for (url, word) in
        [("localhost", "redis://"), ("redis://127.0.0.1:1", "server running"), ("http://x", "redis://")]
    {
        let output = run_verify(&["--redis", url]);
        assert_eq!(output.status.code(), Some(2), "{url}");
        let said = utf8_text(&output.stderr);
        assert!(said.starts_with("error: ") && said.contains(word), "{url}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
}
