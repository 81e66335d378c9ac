//! `tidegate override` with a running gateway.

use crate::{
    common::{GatewayProcess, TestUpstream},
    promotion::{stderr_of, stdout_of},
};
use serde_json::Value;
use tidegate::Clock;
use tidegate_core::{Micros, Utc};

fn policy(server: &TestUpstream) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{}user: header x-user\noverrides: {{ file: overrides.jsonl }}\n\
         rules:\n  - {{ name: api, key: user, quota: 100/min }}\n  - {{ name: pair, key: [user, path], quota: 9/min }}\n",
        server.upstream_config()
    )
}

#[tokio::test]
async fn overrides_are_set_listed_and_removed() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server)).await;
    let admin = gateway.wait_for_line("admin").await;
    let run = async |args: &[&str]| {
        let args: Vec<&str> =
            ["override"].into_iter().chain(args.iter().copied()).chain(["--admin", &admin]).collect();
        stdout_of(&args).await
    };
    assert_eq!(run(&["list"]).await, "No overrides.\n");
    let set = run(&["set", "api", "alice", "500/min", "--for", "3d", "--reason", "migration"]).await;
    assert!(set.starts_with("api: alice has 500/min until 20") && set.ends_with("\n"), "{set}");
    gateway.wait_for_output("override set rule=\"api\" key=\"alice\" quota=\"500/min\"", 1).await;
    let again = run(&["set", "api", "alice", "600/min", "--for", "1h", "--from", "1"]).await;
    assert!(again.ends_with(", before 500/min\n"), "{again}");
    let end = Utc::from(Clock::wall().now().saturating_add(Micros::from_secs(30 * 86_400))).to_string();
    let (day, _) = end.split_once('T').unwrap();
    run(&["set", "pair", "[\"bob\", \"/a\"]", "20/min", "--until", day, "--from", "none"]).await;
    let list = run(&["list"]).await;
    let lines: Vec<&str> = list.lines().collect();
    assert!(lines.len() == 3 && lines[0].starts_with("change  rule  key"), "{list}");
    assert!(lines[1].starts_with("2       api   alice   600/min  20"), "{list}");
    assert!(lines[2].contains("bob|/a") && lines[2].contains(&format!("{day} 00:00")), "{list}");
    let one: Value = serde_json::from_str(&run(&["list", "api", "--json"]).await).unwrap();
    assert_eq!(one["overrides"].as_array().unwrap().len(), 1);
    let removed = run(&["remove", "pair", "[\"bob\",\"/a\"]", "--from", "3"]).await;
    assert_eq!(removed, "pair: override of bob|/a removed, which was 20/min\n");
    gateway.wait_for_output("override removed rule=\"pair\"", 1).await;
    let changes = run(&["changes"]).await;
    assert_eq!(changes.lines().count(), 5, "{changes}");
    assert!(changes.lines().nth(1).unwrap().contains("removed"), "{changes}");
}

#[tokio::test]
async fn invalid_override_command_names_the_fix() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server)).await;
    let admin = gateway.wait_for_line("admin").await;
    for (args, part) in [
        (["set", "api", "alice", "5/min"].as_slice(), "--for <TIME>"),
        (&["set", "api", "alice", "5/min", "--for", "3d", "--until", "2029-01-01"], "cannot be used with"),
        (&["set", "api", "alice", "5/min", "--until", "Friday"], "2026-11-20T17:00:00Z"),
        (&["set", "api", "alice", "5/min", "--for", "1h", "--from", "last"], "or `none`"),
        (&["set", "apy", "alice", "5/min", "--for", "1h"], "did you mean `api`?"),
        (&["set", "api", "alice", "5 at once", "--for", "1h"], "give a rate"),
        (&["remove", "api", "alice"], "`tidegate override list` lists them"),
    ] {
        let args: Vec<&str> =
            ["override"].into_iter().chain(args.iter().copied()).chain(["--admin", &admin]).collect();
        let output = stderr_of(&args).await;
        assert!(output.contains(part), "{args:?}: {output}");
    }
}
