//! `tidegate feature` with a running gateway.

use crate::{
    common::{GatewayProcess, TestUpstream, get},
    promotion::{stderr_of, stdout_of},
};
use http::StatusCode;
use serde_json::{Value, json};

fn policy(server: &TestUpstream) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{}features: {{ search: manual, beta: manual }}\n\
         rules:\n  - {{ name: search, match: {{ path: /search }}, feature: search }}\n\
         \x20 - {{ name: beta, match: {{ path: /beta }}, feature: beta }}\n",
        server.upstream_config()
    )
}

#[tokio::test]
async fn features_are_listed_and_set() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server)).await;
    let admin = gateway.wait_for_line("admin").await;
    let beta = || async { get(gateway.address, "/beta").await.0 };
    let output = stdout_of(&["feature", "--admin", &admin]).await;
    assert_eq!(output, "search  on   automatic\nbeta    on   automatic\n");

    let output = stdout_of(&["feature", "beta", "off", "--reason", "slow database", "--admin", &admin]).await;
    assert_eq!(output, "beta  off  set by an operator\n");
    assert_eq!(beta().await, StatusCode::SERVICE_UNAVAILABLE);
    gateway.wait_for_output("feature turned off feature=\"beta\" reason=\"slow database\"", 1).await;
    let list: Value =
        serde_json::from_str(&stdout_of(&["feature", "--json", "--admin", &admin]).await).unwrap();
    let off = json!({ "name": "beta", "on": false, "override": "off", "cause": "operator" });
    assert_eq!(list["features"][1], off);
    let top = stdout_of(&["top", "--once", "--admin", &admin]).await;
    assert!(top.contains("features off: beta"), "{top}");

    let set = stdout_of(&["feature", "beta", "auto", "--json", "--admin", &admin]).await;
    assert_eq!(serde_json::from_str::<Value>(&set).unwrap()["override"], "automatic");
    assert_eq!(beta().await, StatusCode::OK);
    assert_eq!(
        stdout_of(&["feature", "beta", "on", "--admin", &admin]).await,
        "beta  on   set by an operator\n"
    );
}

#[tokio::test]
async fn invalid_feature_command_names_the_fix() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server)).await;
    let admin = gateway.wait_for_line("admin").await;
    for (args, part) in [
        (
            ["feature", "serach", "off"].as_slice(),
            "returned 404: unknown feature `serach`; did you mean `search`?",
        ),
        (&["feature", "search"], "<STATE>"),
        (&["feature", "search", "broken"], "[possible values: on, off, auto]"),
        (&["feature", "--reason", "why"], "<STATE>"),
    ] {
        let args: Vec<&str> = args.iter().copied().chain(["--admin", &admin]).collect();
        let output = stderr_of(&args).await;
        assert!(output.contains(part), "{args:?}: {output}");
    }
    let output = stderr_of(&["feature", "--admin", "http://127.0.0.1:1"]).await;
    assert!(output.contains("no gateway at http://127.0.0.1:1"), "{output}");
}
