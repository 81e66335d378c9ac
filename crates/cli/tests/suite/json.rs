//! `--json`: every command with output supports it.

#![allow(clippy::expect_used, reason = "this is how a test fails")]

use crate::common::{command_names, run_tidegate, utf8_text, write_file};
use serde_json::{Value, json};
use std::path::Path;

fn name(path: &Path) -> &str {
    path.to_str().expect("a name in UTF-8")
}

/// Runs a command. Returns its JSON output and its exit code.
fn run_json(args: &[&str]) -> (Value, Option<i32>) {
    let output = run_tidegate(args);
    let value = serde_json::from_slice(&output.stdout);
    (
        value.unwrap_or_else(|error| panic!("{args:?}: {error}: {}", utf8_text(&output.stderr))),
        output.status.code(),
    )
}

/// Commands whose output has a fixed format.
const COMMANDS_WITHOUT_JSON: [&str; 3] = ["completions", "help", "man"];

#[test]
fn every_command_supports_json() {
    let commands = command_names();
    let commands = commands.iter().map(String::as_str);
    for command in commands.filter(|command| !COMMANDS_WITHOUT_JSON.contains(command)) {
        let args = match command {
            "import" => vec![command, "nginx", "--help"],
            "apikey" => vec![command, "list", "--help"],
            _ => vec![command, "--help"],
        };
        let help = utf8_text(&run_tidegate(&args).stdout);
        assert!(help.contains("--json"), "{command} has no --json: {help}");
    }
}

#[test]
fn check_json_has_positions_and_exit_codes() {
    let routed = "upstreams: { app: 'http://127.0.0.1:9000' }\nroutes: app\nrules: [{ name: all, key: ip, quota: 5/min }]";
    let fine = write_file("json-fine.yaml", routed);
    let (value, code) = run_json(&["check", "--json", "--strict", name(&fine)]);
    assert_eq!((code, &value["valid"], &value["rules"]), (Some(0), &json!(true), &json!(1)), "{value:#}");
    let odd = write_file("json-odd.yaml", "rules: [{ name: wide, key: ip, quota: 10/min, cost: 20 }]");
    let (value, code) = run_json(&["check", "--json", "--strict", name(&odd)]);
    assert_eq!((code, &value["warnings"][0]["rule"]), (Some(3), &json!("wide")), "{value:#}");
    let wrong = write_file("json-wrong.yaml", "rules:\n  - name: login\n    key: ipp\n    quota: 5/mim\n");
    let (value, code) = run_json(&["check", "--json", name(&wrong)]);
    let places: Vec<_> =
        (0..2).map(|at| (&value["problems"][at]["line"], &value["problems"][at]["column"])).collect();
    assert_eq!(code, Some(2));
    assert_eq!(places, [(&json!(3), &json!(10)), (&json!(4), &json!(14))], "{value:#}");
}

#[test]
fn explain_json_has_rules_and_keys() {
    let policy = "rules:\n  - { name: all, key: ip, quota: 5/min }\n  - { name: login, match: { path: /login }, quota: 1/s }\n";
    let policy = write_file("json-explained.yaml", policy);
    let (value, code) = run_json(&["explain", name(&policy), "GET /", "--ip", "203.0.113.7", "--json"]);
    assert_eq!(code, Some(0));
    let [all, login] = [&value["rules"][0], &value["rules"][1]];
    assert_eq!((&all["applies"], &all["details"]["key"]), (&json!(true), &json!("203.0.113.7")), "{value:#}");
    assert_eq!(
        (&all["details"]["quotas"][0]["quota"], &login["applies"]),
        (&json!("5/min"), &json!(false)),
        "{value:#}"
    );
}

#[test]
fn import_json_has_policy_and_losses() {
    let conf = "http {\n  limit_req_zone $binary_remote_addr zone=a:1m rate=5r/s;\n  perl_set $x 'y';\n  \
                server { listen 80; location / { limit_req zone=a; proxy_pass http://127.0.0.1:9000; } }\n}\n";
    let conf = write_file("json-nginx.conf", conf);
    let (value, code) = run_json(&["import", "nginx", name(&conf), "--accept-loss", "perl_set", "--json"]);
    assert_eq!(code, Some(0), "{value:#}");
    assert!(value["policy"].as_str().is_some_and(|policy| policy.contains("5/s")), "{value:#}");
    let places: Vec<_> =
        value["losses"].as_array().into_iter().flatten().map(|loss| &loss["location"]).collect();
    assert!(
        places.iter().any(|place| place.as_str().is_some_and(|place| place.ends_with("nginx.conf:3"))),
        "{value:#}"
    );
}
