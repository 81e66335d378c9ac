//! `tidegate why` with a running gateway.

use crate::common::{GatewayProcess, TestUpstream, run_curl};
use std::process::{Command, Output};

async fn run_why(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("why").args(args).env_remove("TIDEGATE_ADMIN").env_remove("TIDEGATE_ADMIN_TOKEN");
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

#[tokio::test]
async fn why_explains_denial_id_of_response() {
    let server = TestUpstream::start_ok().await;
    let policy = format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\nupstreams: {{ app: 'http://{}' }}\nroutes: app\n\
         observe: {{ denials: 10 }}\nrules: [{{ name: all, key: ip, quota: 1/h }}]\n",
        server.address
    );
    let gateway = GatewayProcess::start(&policy).await;
    let admin = gateway.wait_for_line("admin").await;
    let none = run_why(&["--admin", &admin]).await;
    assert_eq!(none.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&none.stderr).contains("the gateway has no denials"));
    let (url, head) = (gateway.url("/"), ["--include", "--output", "-"]);
    let send = || async { run_curl(&[&[url.as_str()], &head[..]].concat()).await.1 };
    send().await;
    let denied = send().await;
    let id = denied.lines().find_map(|line| line.strip_prefix("tidegate-denial: ")).unwrap().trim();

    let output = run_why(&[id, "--admin", &admin]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for part in [
        "Denied by rule `all`",
        "key      127.0.0.1\n",
        "quota    1/h (token-bucket)\n",
        "before   0 of 1 remaining",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let json = run_why(&[&format!("urn:tidegate:denial:{id}"), "--admin", &admin, "--json"]).await;
    let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!((&json["id"], &json["rule"]), (&id.into(), &"all".into()));

    let last = run_why(&["--admin", &admin, "--json"]).await;
    let last: serde_json::Value = serde_json::from_slice(&last.stdout).unwrap();
    assert_eq!(last["id"], id);

    for (args, part) in [
        (["0000000000000000", "--admin", admin.as_str()], "returned 404: unknown denial"),
        (["../status", "--admin", admin.as_str()], "invalid denial id"),
        ([id, "--admin", "http://127.0.0.1:9"], "no gateway at http://127.0.0.1:9"),
    ] {
        let failed = run_why(&args).await;
        let text = String::from_utf8_lossy(&failed.stderr).into_owned();
        assert_eq!(failed.status.code(), Some(2), "{text}");
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[tokio::test]
async fn auth_denial_has_id() {
    let policy = "decisions: 127.0.0.1:0\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nobserve: { denials: 10 }\n\
                  rules: [{ name: all, key: ip, quota: 1/h }]\n";
    let gateway = GatewayProcess::start(policy).await;
    let (admin, decide) = (gateway.wait_for_line("admin").await, gateway.wait_for_line("decide").await);
    let url = format!("{decide}/v1/auth");
    let args = [
        "-i",
        "-H",
        "X-Original-URI: /login",
        "-H",
        "X-Original-Method: POST",
        "-H",
        "X-Real-IP: 192.0.2.7",
        &url,
    ];
    let admitted = run_curl(&args).await.1;
    assert!(!admitted.contains("tidegate-denial"), "{admitted}");
    let denied = run_curl(&args).await.1;
    let id = denied.lines().find_map(|line| line.strip_prefix("tidegate-denial: ")).unwrap().trim();
    assert!(denied.contains(&format!("\"instance\":\"urn:tidegate:denial:{id}\"")), "{denied}");
    let output = run_why(&[id, "--admin", &admin]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    for part in ["Denied by rule `all`", "request  POST ", "/login from 192.0.2.7", "key      192.0.2.7\n"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[tokio::test]
async fn check_denial_has_id() {
    let policy = "decisions: 127.0.0.1:0\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\nobserve: { denials: 10, keys: plain }\n\
                  rules: [{ name: mails, key: header x-user, quota: 2/h }]\n";
    let gateway = GatewayProcess::start(policy).await;
    let (admin, decide) = (gateway.wait_for_line("admin").await, gateway.wait_for_line("decide").await);
    let url = format!("{decide}/v1/check");
    let (_, denied) = run_curl(&["-i", "-d", r#"{"rule":"mails","key":"ann","cost":3}"#, &url]).await;
    let id = denied.lines().find_map(|line| line.strip_prefix("tidegate-denial: ")).unwrap().trim();
    assert!(denied.contains(&format!(r#""instance":"urn:tidegate:denial:{id}""#)), "{denied}");
    let output = run_why(&[id, "--admin", &admin]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "Denied by rule `mails`",
        "key      ann\n",
        "cost     3\n",
        "before   2 of 2 remaining",
        "response 429\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("request"), "the decision API has no request: {text}");
    let several = r#"[{"rule":"mails","key":"bob","cost":9},{"rule":"mails","key":"bob"}]"#;
    let (_, several) = run_curl(&["-d", several, &url]).await;
    assert_eq!(several.matches("urn:tidegate:denial:").count(), 1, "{several}");
}
