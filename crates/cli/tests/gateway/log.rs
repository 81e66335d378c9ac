//! The access log of the binary, and its replay.

use crate::common::{GatewayProcess, TEST_TIMEOUT, TestUpstream, run_curl};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead as _, BufReader, Read},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
};

const RULES: &str = "rules:
  - { name: everybody, key: ip, quota: 5/h }
  - { name: login, match: { path: /login }, key: ip, quota: 2/h }
  - { name: watched, key: ip, quota: 1/h, mode: shadow }
";

/// The number of denials of each client.
type DenialCounts = BTreeMap<String, u64>;

#[tokio::test]
async fn replayed_access_log_matches_gateway_decisions() {
    let server = TestUpstream::start_ok().await;
    for format in ["json", "combined"] {
        let folder = tempfile::tempdir().unwrap();
        let (log, file) = (folder.path().join("access.log"), folder.path().join("policy.yaml"));
        let policy = format!(
            "listen: 127.0.0.1:0\ntrusted-proxies: 127.0.0.0/8\nlog: {{ format: {format}, file: {} }}\n{}{RULES}",
            log.display(),
            server.upstream_config()
        );
        fs::write(&file, &policy).unwrap();
        let gateway = GatewayProcess::start(&policy).await;
        let mut denied = DenialCounts::new();
        let mut ask = async |client: &str, path: &str| {
            // The address before the client is untrusted and must be ignored.
            let forwarded = format!("x-forwarded-for: 192.0.2.99, {client}");
            let (code, status) =
                run_curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", &forwarded, &gateway.url(path)])
                    .await;
            assert_eq!(code, 0, "{status}");
            if status == "429" {
                *denied.entry(client.to_owned()).or_default() += 1;
            }
        };
        for round in 0..7 {
            for (client, most) in [("203.0.113.1", 7), ("203.0.113.2", 3), ("203.0.113.3", 6)] {
                if round < most {
                    ask(client, "/").await;
                }
            }
            ask("2001:db8::1", "/login").await;
        }
        gateway.send_signal("TERM");
        assert!(gateway.wait().await.success());

        let text = fs::read_to_string(&log).unwrap();
        assert_eq!(text.lines().count(), 23);
        let mut replay = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        replay.args(["replay", "--json", "--policy"]).arg(&file).arg(&log);
        let output = tokio::task::spawn_blocking(move || replay.output()).await.unwrap().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let replayed: Value = serde_json::from_slice(&output.stdout).unwrap();
        let replayed = &replayed["policy"];

        let all: u64 = denied.values().sum();
        assert_eq!((&replayed["total"]["requests"], &replayed["total"]["denied"]), (&23.into(), &all.into()));
        let mut keys = DenialCounts::new();
        for rule in replayed["rules"].as_array().unwrap().iter().filter(|rule| rule["denied"] != 0) {
            for key in rule["keys"].as_array().unwrap() {
                let client = key["key"].as_str().unwrap().to_owned();
                *keys.entry(client).or_default() += key["denied"].as_u64().unwrap();
            }
        }
        let client =
            |name: &String| if name.starts_with("2001:") { "2001:db8::".to_owned() } else { name.clone() };
        let denied: DenialCounts = denied.iter().map(|(name, count)| (client(name), *count)).collect();
        assert_eq!(keys, denied);
        if format == "json" {
            check_decisions(&text, replayed);
        }
    }
}

/// Checks that the decisions in the log match those of the replay.
fn check_decisions(text: &str, replayed: &Value) {
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["peer"] == "127.0.0.1"), "{text}");
    let logged = |rule: &Value, decision: &str| {
        let is_one = |line: &&Value| line["rule"] == rule["name"] && line["decision"] == decision;
        lines.iter().filter(is_one).count() as u64
    };
    for rule in replayed["rules"].as_array().unwrap() {
        assert_eq!(rule["denied"], logged(rule, "limited"), "{rule}");
        assert_eq!(rule["shadow"], logged(rule, "shadow-denied"), "{rule}");
    }
    let shadow = lines.iter().filter(|line| line["decision"] == "shadow-denied").count();
    assert_eq!(replayed["total"]["shadow"], shadow);
}

#[tokio::test]
async fn json_log_writes_only_json_to_stdout() {
    let server = TestUpstream::start_ok().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.yaml");
    fs::write(&file, format!("listen: 127.0.0.1:0\nlog: json\n{}", server.upstream_config())).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("serve")
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (sender, lines) = mpsc::channel();
    let follow = |name: &'static str, output: Box<dyn Read + Send>| {
        let sender = sender.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send((name, line));
            }
        });
    };
    follow("out", Box::new(child.stdout.take().unwrap()));
    follow("err", Box::new(child.stderr.take().unwrap()));
    drop(sender);
    let mut all = Vec::new();
    let url = loop {
        let (name, line) = lines.recv_timeout(TEST_TIMEOUT).expect("no address in the output");
        all.push((name, line.clone()));
        if let Some(url) = line.strip_prefix("gateway").map(str::trim) {
            break url.to_owned();
        }
    };
    for _ in 0..3 {
        assert_eq!(run_curl(&[&url]).await.0, 0);
    }
    let ended = Command::new("kill").arg(child.id().to_string()).status().unwrap();
    assert!(ended.success() && child.wait().unwrap().success());
    all.extend(lines.iter());
    let out: Vec<&String> = all.iter().filter(|(name, _)| *name == "out").map(|(_, line)| line).collect();
    assert_eq!(out.len(), 3, "{all:?}");
    for line in out {
        assert!(serde_json::from_str::<Value>(line).is_ok(), "{line}");
    }
}
