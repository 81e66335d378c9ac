//! `tidegate suggest --from` with a running gateway.

use crate::common::{GatewayProcess, HttpClient, TestUpstream};
use std::process::{Command, Output};

async fn run_suggest(args: &[&str], admin: Option<&str>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("suggest").args(args).env_remove("TIDEGATE_ADMIN").env_remove("TIDEGATE_ADMIN_TOKEN");
    if let Some(admin) = admin {
        command.env("TIDEGATE_ADMIN", admin);
    }
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

async fn start_gateway(server: &TestUpstream, observe: &str) -> (GatewayProcess, String) {
    let policy = format!("listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{observe}{}", server.upstream_config());
    let gateway = GatewayProcess::start(&policy).await;
    let admin = gateway.wait_for_line("admin").await;
    (gateway, admin)
}

#[tokio::test]
async fn suggest_reads_gateway_history() {
    let server = TestUpstream::start_ok().await;
    for keys in ["plain", "hashed"] {
        let observe = format!("observe: {{ history: 1000, keys: {keys} }}\n");
        let (gateway, admin) = start_gateway(&server, &observe).await;
        let mut client = HttpClient::connect(gateway.address).await;
        for _ in 0..120 {
            client.get("/shop/list").await.unwrap();
        }
        let out = gateway.directory.path().join("suggested.yaml");
        let args = ["--from", &admin, "--out", out.to_str().unwrap(), "--json"];
        let output = run_suggest(&args, None).await;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!((&json["requests"], &json["invalid_lines"]), (&120.into(), &0.into()), "{json:#}");
        assert_eq!(json["files"][0], format!("the history of {admin}"));
        assert_eq!(
            (&json["groups"][0]["path"], &json["groups"][0]["keys"]),
            (&"/shop/list/**".into(), &1.into())
        );
        assert!(std::fs::read_to_string(&out).unwrap().contains("mode: shadow"));

        let output = run_suggest(&["--from", "--key", "path"], Some(&admin)).await;
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("120 requests") && text.contains("key: path"), "{text}");
    }
}

#[tokio::test]
async fn suggest_reports_missing_history() {
    let server = TestUpstream::start_ok().await;
    let (_quiet, silent) = start_gateway(&server, "").await;
    let (busy, partial) = start_gateway(&server, "observe: { history: 10, share: 99.9999% }\n").await;
    HttpClient::connect(busy.address).await.get("/").await.unwrap();
    for (args, part) in [
        (vec!["--from", silent.as_str()], "add `observe: { history: 100000 }` to its policy"),
        (vec!["--from", partial.as_str(), "--key", "all"], "count by ip, or remove `share`"),
        (
            vec!["--from", partial.as_str(), "--key", "[ip, header x-plan]"],
            "does not contain [ip, header x-plan]",
        ),
        (vec!["--from", "http://127.0.0.1:9"], "set the URL with --from"),
        (vec!["--from", silent.as_str(), "access.log"], "cannot be used with"),
    ] {
        let failed = run_suggest(&args, None).await;
        let text = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert_eq!(failed.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
