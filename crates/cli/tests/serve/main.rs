//! `tidegate serve` without a policy: the demo shows what it prints.

#![allow(clippy::expect_used, clippy::panic, reason = "this is how a test fails")]

use serde_json::Value;
use std::{
    fs,
    io::{BufRead, BufReader, Read},
    process::{Child, ChildStdout, Command, Stdio},
    sync::Mutex,
};

/// Demos use the same ports, so only one runs at a time.
static DEMO: Mutex<()> = Mutex::new(());

/// A program that ends with the test.
struct TidegateProcess(Child);

impl Drop for TidegateProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl TidegateProcess {
    fn start(args: &[&str]) -> (Self, BufReader<ChildStdout>) {
        let program = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env_remove("TIDEGATE_ADMIN")
            .spawn();
        let mut process = program.expect("the program runs");
        let stdout = process.stdout.take().expect("stdout is piped");
        (Self(process), BufReader::new(stdout))
    }

    /// Requests a shutdown, which must succeed.
    fn stop(mut self) {
        run_shell(&format!("kill -TERM {}", self.0.id()));
        let status = self.0.wait().expect("the process exits");
        let mut stderr = String::new();
        let mut errors = self.0.stderr.take().expect("stderr is piped");
        errors.read_to_string(&mut stderr).expect("stderr is text");
        assert!(status.success(), "{status}: {stderr}");
    }
}

fn run_shell(command: &str) -> String {
    let output = Command::new("sh").args(["-c", command]).output().expect("there is a shell");
    assert!(output.status.success(), "`{command}` fails: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn demo_works_as_printed() {
    let _demo = DEMO.lock();
    let (demo, stdout) = TidegateProcess::start(&["serve"]);
    let mut lines = stdout.lines().map(|line| line.expect("output is text"));
    let dashboard = lines.next().expect("a first line");
    let dashboard = dashboard.strip_prefix("dashboard ").expect("the dashboard is first").trim();
    let page = run_shell(&format!("curl -s {dashboard}"));
    assert!(page.contains("<title>Tidegate"), "{page}");

    let before_policy = lines.by_ref().take_while(|line| !line.starts_with("This is the policy"));
    let command =
        |line: String| Some(line.strip_prefix("  ")?.to_owned()).filter(|line| !line.starts_with(' '));
    let commands: Vec<_> = before_policy.filter_map(command).collect();
    let [hello, login, why, top] = &commands[..] else { panic!("four commands, not {commands:?}") };

    let hello = run_shell(hello);
    assert!(hello.starts_with("HTTP/1.1 200 OK\r\n"), "{hello}");
    assert!(hello.contains("ratelimit: \"everybody\";r=19"), "{hello}");
    assert!(hello.contains("GET /hello\n"), "{hello}");
    assert_eq!(run_shell(login), "200\n200\n200\n429\n429\n");
    let why = run_shell(why);
    assert!(why.starts_with("Denied by rule `login`"), "{why}");
    let top = run_shell(top);
    assert!(top.contains("everybody") && top.contains("reports"), "{top}");

    demo.stop();
    let policy: Vec<_> = lines.skip_while(String::is_empty).collect();
    let folder = tempfile::tempdir().expect("a temporary directory");
    let file = folder.path().join("policy.yaml");
    fs::write(&file, policy.join("\n")).expect("the policy is written");
    let file = file.to_str().expect("the path is text");
    let (saved, stdout) = TidegateProcess::start(&["serve", file]);
    let addresses: Vec<_> = stdout.lines().take(2).map(|line| line.expect("output is text")).collect();
    let url = addresses.iter().find_map(|line| line.strip_prefix("gateway ")).expect("an address").trim();
    assert!(run_shell(&format!("curl -s {url}/saved")).contains("GET /saved\n"));
    saved.stop();
}

#[test]
fn demo_traffic_reaches_all_rules() {
    let _demo = DEMO.lock();
    let (demo, mut stdout) = TidegateProcess::start(&["serve", "--demo-traffic", "--json"]);
    let mut line = String::new();
    stdout.read_line(&mut line).expect("a line of addresses");
    let addresses: Value = serde_json::from_str(&line).expect("JSON");
    let admin = addresses["admin"][0].as_str().expect("an admin listener");

    // A line each second.
    let (top, stdout) = TidegateProcess::start(&["top", "--json", "--count", "120", "--admin", admin]);
    let mut status = Value::Null;
    let is_complete = stdout.lines().any(|line| {
        status = serde_json::from_str(&line.expect("output is text")).expect("JSON");
        let count = |rule: &str, outcome: &str| {
            let rules = status["rules"].as_array().expect("rules");
            let found = rules.iter().find(|found| found["name"] == rule).expect("the rule");
            found["counts"][outcome].as_u64().expect("a number")
        };
        count("everybody", "admitted") > 0
            && count("everybody", "denied") > 0
            && count("login", "denied") > 0
            && count("reports", "delayed") > 0
            && count("search", "shadow-denied") > 0
    });
    assert!(is_complete, "{status:#}");
    drop(top);
    demo.stop();
}
