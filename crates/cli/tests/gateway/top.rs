//! `tidegate top` with a running and with a restarted gateway, on a pipe and on a terminal.

use crate::common::{GatewayProcess, HttpClient, TEST_TIMEOUT, TestUpstream};
use serde_json::Value;
use std::{
    io::{BufRead as _, BufReader, Read as _, Write as _},
    process::{Child, Command, Output, Stdio},
};
use tokio::time::timeout;

fn top_command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("top").args(args).env_remove("TIDEGATE_ADMIN").env("COLUMNS", "120").stdin(Stdio::null());
    command
}

async fn run_command(mut command: Command) -> Output {
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

fn policy(server: &TestUpstream, admin: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: {admin}\nobserve: {{ denials: 10 }}\n{}rules: [{{ name: few, key: ip, quota: 2/h }}]\n",
        server.upstream_config()
    )
}

/// A gateway that has admitted two requests and denied one, and the URL of its admin listener.
async fn start_gateway(server: &TestUpstream) -> (GatewayProcess, String) {
    let gateway = GatewayProcess::start(&policy(server, "127.0.0.1:0")).await;
    let mut client = HttpClient::connect(gateway.address).await;
    for _ in 0..3 {
        client.get("/").await.unwrap();
    }
    let admin = gateway.wait_for_line("admin").await;
    (gateway, admin)
}

#[tokio::test]
async fn top_prints_one_table_without_terminal() {
    let server = TestUpstream::start_ok().await;
    let (_gateway, admin) = start_gateway(&server).await;
    let output = run_command(top_command(&["--admin", &admin])).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let row =
        text.lines().find(|line| line.starts_with("few ")).unwrap_or_else(|| panic!("no rule in {text}"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["few", "enforce", "0", "0", "0", "0", "2", "0", "1", "0"], "{text}");
    for part in [
        format!(" at {admin}, up "),
        format!("upstream app {}: healthy", server.address),
        "few  127.0.0.1".to_owned(),
    ] {
        assert!(text.contains(&part), "{part} is not in {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");

    let output = run_command(top_command(&["--json", "--count", "2", "--admin", &admin])).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let snapshots: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(snapshots.len(), 2);
    assert_eq!(snapshots[0]["rules"][0]["counts"]["denied"], 1);
    assert!(snapshots[0]["uptime"].as_f64() < snapshots[1]["uptime"].as_f64());

    let failed = run_command(top_command(&["--once", "--admin", "http://127.0.0.1:9"])).await;
    assert_eq!(failed.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&failed.stderr).contains("no gateway at http://127.0.0.1:9"));
}

type OutputLines = std::io::Lines<BufReader<std::process::ChildStdout>>;

/// Reads snapshots until the rule has this number of denials.
async fn wait_until_denied(mut lines: OutputLines, denied: u64) -> OutputLines {
    let read = tokio::task::spawn_blocking(move || {
        let found = lines.by_ref().map_while(Result::ok).any(|line| {
            let snapshot: Value = serde_json::from_str(&line).unwrap();
            snapshot["rules"][0]["counts"]["denied"] == denied
        });
        assert!(found, "the output has ended");
        lines
    });
    timeout(TEST_TIMEOUT, read).await.expect("no such snapshot").unwrap()
}

#[tokio::test]
async fn top_reconnects_to_restarted_gateway() {
    let server = TestUpstream::start_ok().await;
    let (first, admin) = start_gateway(&server).await;
    let mut child = top_command(&["--json", "--admin", &admin]).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let lines = wait_until_denied(lines, 1).await;
    first.send_signal("TERM");
    assert!(first.wait().await.success());
    let address = admin.trim_start_matches("http://");
    let _second = GatewayProcess::start(&policy(&server, address)).await;
    wait_until_denied(lines, 0).await;
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Starts `tidegate top` on a pseudo terminal of util-linux.
fn start_on_terminal(admin: &str) -> Child {
    // `exec` replaces the shell, which would receive Ctrl-C too.
    let command = format!("exec {} top --admin {admin}", env!("CARGO_BIN_EXE_tidegate"));
    let mut script = Command::new("script");
    script.args(["--quiet", "--return", "--command", &command, "/dev/null"]);
    script.stdin(Stdio::piped()).stdout(Stdio::piped());
    script.spawn().expect("script is installed: apt-get install bsdutils")
}

/// Types the keys of each step when its text is drawn. Returns the output and whether the command succeeded.
fn type_keys(mut child: Child, steps: &[(&str, &[u8])]) -> (String, bool) {
    let (mut keyboard, mut screen) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut written, mut from) = (String::new(), 0);
    let mut steps = steps.iter();
    let mut next = steps.next();
    let mut bytes = [0; 4_096];
    while let Ok(count @ 1..) = screen.read(&mut bytes) {
        written.push_str(&String::from_utf8_lossy(&bytes[..count]));
        while let Some((drawn, keys)) = next
            && let Some(at) = written[from..].find(drawn)
        {
            from += at + drawn.len();
            keyboard.write_all(keys).unwrap();
            next = steps.next();
        }
    }
    (written, child.wait().unwrap().success())
}

#[tokio::test]
async fn top_restores_the_terminal() {
    let server = TestUpstream::start_ok().await;
    let (_gateway, admin) = start_gateway(&server).await;
    let scripts: [&[(&str, &[u8])]; 3] = [
        &[("policy order", b"s"), ("by denials", b"p"), ("(paused)", b"q")],
        // Ctrl-C and Ctrl-D.
        &[("q: quit", b"\x03")],
        &[("q: quit", b"\x04")],
    ];
    for script in scripts {
        let child = start_on_terminal(&admin);
        let run = tokio::task::spawn_blocking(move || type_keys(child, script));
        let (written, is_success) = timeout(TEST_TIMEOUT, run).await.expect("exit timeout").unwrap();
        assert!(is_success, "{written}");
        assert!(written.contains("\x1b[?1049h") && written.contains("few"), "{written:?}");
        assert!(written.trim_end().ends_with("\x1b[?7h\x1b[?25h\x1b[?1049l"), "{written:?}");
    }
}
