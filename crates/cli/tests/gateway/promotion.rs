//! Mode changes with the command line: through a running gateway, or in the policy file.

use crate::common::{GatewayProcess, TEST_TIMEOUT, TestUpstream, get};
use http::StatusCode;
use serde_json::Value;
use std::{
    fs,
    process::{Command, Output},
};
use tokio::time::timeout;

async fn run_tidegate(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(args).env_remove("TIDEGATE_ADMIN").env_remove("TIDEGATE_ADMIN_TOKEN");
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

/// Runs a command that succeeds. Returns its standard output.
pub(crate) async fn stdout_of(args: &[&str]) -> String {
    let output = run_tidegate(args).await;
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Runs a command that fails. Returns its standard error.
pub(crate) async fn stderr_of(args: &[&str]) -> String {
    let output = run_tidegate(args).await;
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
    text
}

fn policy(server: &TestUpstream) -> String {
    format!(
        "# Ours: ask before you change it.\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{}\
         observe: {{ denials: 10 }}\nrules:\n  - name: watched   # for now\n    key: ip\n    mode: shadow\n    quota: 1/h\n",
        server.upstream_config()
    )
}

#[tokio::test]
async fn rule_is_promoted_and_rolled_back() {
    let server = TestUpstream::start_ok().await;
    let before = policy(&server);
    let gateway = GatewayProcess::start(&before).await;
    let admin = gateway.wait_for_line("admin").await;
    let at = ["--admin", admin.as_str()];
    let ask = || async { get(gateway.address, "/").await.0 };
    let text = || fs::read_to_string(gateway.policy_path()).unwrap();
    for _ in 0..3 {
        assert_eq!(ask().await, StatusCode::OK);
    }
    let output = stdout_of(&["shadow", "--admin", &admin]).await;
    assert!(output.contains("would have denied 2 more of 3 requests: 66.7 %"), "{output}");
    assert!(output.contains("100.0 %  127.0.0.1\n"), "{output}");

    let output = stdout_of(&["mode", "watched", "enforce", at[0], at[1]]).await;
    assert_eq!(output, "watched: shadow → enforce\nThe gateway has applied the change.\n");
    assert_eq!(ask().await, StatusCode::TOO_MANY_REQUESTS, "what was counted in shadow mode counts");
    assert_eq!(text(), before.replace("mode: shadow", "mode: enforce"));
    let output = stdout_of(&["mode", "watched", "enforce", at[0], at[1]]).await;
    assert_eq!(output, "watched: already in this mode; nothing changed\n");

    let output = stderr_of(&["rollback", at[0], at[1]]).await;
    assert!(
        output.contains("rule `watched` would be enforced for fewer keys (enforce → shadow); add --yes"),
        "{output}"
    );
    let output = stdout_of(&["rollback", "--yes", at[0], at[1]]).await;
    assert_eq!(
        output,
        "watched: enforce → shadow, change 1 rolled back\nThe gateway has applied the change.\n"
    );
    assert_eq!(ask().await, StatusCode::OK);
    assert_eq!(text(), before);

    let json = stdout_of(&["mode", "watched", "enforce", "--percent", "12.5", "--json", at[0], at[1]]).await;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["change"]["id"], &json["change"]["to"]), (&3.into(), &"enforce 12.5%".into()));
    let output = stdout_of(&["changes", at[0], at[1]]).await;
    for part in [
        "watched: shadow → enforce 12.5 %  (policy.yaml, by api)",
        "watched: enforce → shadow, reverts change 1  (policy.yaml, by api)",
        "A rollback reverts change 3.",
    ] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
    for (args, part) in [
        (vec!["mode", "wathced", "off"], "returned 404: unknown rule `wathced`; did you mean `watched`?"),
        (vec!["rollback", "--yes", "--id", "1"], "returned 409: the last change is number 3"),
        (vec!["shadow", "watch"], "unknown rule `watch`"),
    ] {
        let output = stderr_of(&[&args[..], &at[..]].concat()).await;
        assert!(output.contains(part), "{part} is not in {output}");
    }
    let output = stderr_of(&["mode", "watched", "off", "--admin", "http://me:hunter2@127.0.0.1:1"]).await;
    assert!(output.contains("must not contain credentials") && !output.contains("hunter2"), "{output}");
    let output = stderr_of(&["mode", "watched", "off", at[0], at[1]]).await;
    assert!(output.contains("would be enforced for fewer keys (enforce 12.5% → off); add --yes"), "{output}");
    // A rollback does not overwrite an edited file.
    let edited = format!("{}# Mine.\n", text());
    gateway.replace_policy(&edited);
    let output = stderr_of(&["rollback", "--yes", at[0], at[1]]).await;
    assert!(output.contains("returned 409") && output.contains("was changed in the meantime"), "{output}");
    assert_eq!(text(), edited);
}

#[tokio::test]
async fn number_is_previewed_set_and_rolled_back() {
    let server = TestUpstream::start_ok().await;
    let before =
        policy(&server).replace("denials: 10", "denials: 10, history: 10").replace("shadow", "enforce");
    let gateway = GatewayProcess::start(&before).await;
    let admin = gateway.wait_for_line("admin").await;
    let at = ["--admin", admin.as_str()];
    let text = || fs::read_to_string(gateway.policy_path()).unwrap();
    for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS, StatusCode::TOO_MANY_REQUESTS] {
        assert_eq!(get(gateway.address, "/").await.0, expected);
    }
    assert_eq!(stdout_of(&["set", "watched", at[0], at[1]]).await, "quota=1/h\n");
    let output = stdout_of(&["set", "watched", "quota=2/h", "--preview", at[0], at[1]]).await;
    for part in [
        "watched: quota 1/h → 2/h\n3 recorded requests, ",
        " denied          2          1\n",
        "Nothing is changed.",
    ] {
        assert!(output.contains(part), "{part} is not in {output}");
    }
    assert_eq!(text(), before);
    let output = stdout_of(&["set", "watched", "quota=5/h", "--from", "1/h", at[0], at[1]]).await;
    assert_eq!(output, "watched: quota 1/h → 5/h\nThe gateway has applied the change.\n");
    assert_eq!(text(), before.replace("quota: 1/h", "quota: 5/h"));
    assert_eq!(get(gateway.address, "/").await.0, StatusCode::OK);
    let output = stdout_of(&["set", "watched", "quota=5/h", at[0], at[1]]).await;
    assert_eq!(output, "watched: `quota` has this value already; nothing changed\n");
    for (args, part) in [
        (
            ["quota=9/h", "--from=1/h"],
            "returned 409: `quota` of rule `watched` is `5/h`, not `1/h` (change 1 of ",
        ),
        (["quota=9/hh", "--from=5/h"], "returned 422: "),
        (["mode=off", "--json"], "use `tidegate mode watched off`"),
        (["quota", "--json"], "use KEY=VALUE, as in `quota=200/min`"),
    ] {
        let output = stderr_of(&[&["set", "watched"], &args[..], &at[..]].concat()).await;
        assert!(output.contains(part), "{part} is not in {output}");
    }
    let output = stdout_of(&["rollback", at[0], at[1]]).await;
    assert_eq!(
        output,
        "watched: quota 5/h → 1/h, change 1 rolled back\nThe gateway has applied the change.\n"
    );
    assert_eq!(text(), before);

    // The same in the file.
    let file = gateway.policy_path();
    let file = file.to_str().unwrap();
    let from_default = ["--from", "default", "--policy", file];
    let output = stdout_of(&[&["set", "watched", "wait=1s"], &from_default[..]].concat()).await;
    assert!(output.starts_with("watched: wait default → 1s\n"), "{output}");
    let output = stderr_of(&[&["set", "watched", "wait=2s"], &from_default[..]].concat()).await;
    assert!(output.contains("`wait` of rule `watched` is `1s`, not the default (change "), "{output}");
    let output = stdout_of(&["set", "watched", "wait=1s", "--json", "--policy", file]).await;
    let unchanged = serde_json::json!({ "changed": false, "rule": "watched", "key": "wait", "to": "1s" });
    assert_eq!(serde_json::from_str::<Value>(&output).unwrap(), unchanged);
    assert_eq!(stdout_of(&["set", "watched", "--policy", file]).await, "quota=1/h\nwait=1s\n");
    let output = stdout_of(&["changes", "--policy", file]).await;
    assert!(output.contains("watched: wait default → 1s  (policy.yaml, by command line)"), "{output}");
    let output = stderr_of(&["set", "watched", "quota=2/h", "--preview", "--policy", file]).await;
    assert!(output.contains("cannot be used with"), "{output}");
}

#[tokio::test]
async fn mode_change_in_file_is_reloaded_by_gateway() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server)).await;
    let file = gateway.policy_path();
    let (file, folder) = (file.to_str().unwrap(), gateway.directory.path());
    assert_eq!(get(gateway.address, "/").await.0, StatusCode::OK);
    let output = stdout_of(&["mode", "watched", "enforce", "--policy", file]).await;
    assert!(output.ends_with("A gateway that serves this file reloads it automatically.\n"), "{output}");
    gateway.wait_for_output("policy reloaded", 1).await;
    let denied = async {
        while get(gateway.address, "/").await.0 != StatusCode::TOO_MANY_REQUESTS {
            tokio::task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, denied).await.expect("the new mode is active");
    let output = stdout_of(&["changes", "--policy", file]).await;
    assert!(output.contains("(policy.yaml, by command line)"), "{output}");
    stdout_of(&["rollback", "--yes", "--policy", file, "--json"]).await;
    assert_eq!(fs::read_to_string(file).unwrap(), policy(&server));

    // Without a terminal there is no prompt, so weakening a rule requires --yes.
    stdout_of(&["mode", "watched", "enforce", "--percent", "50", "--policy", file]).await;
    let enforced = fs::read_to_string(file).unwrap();
    for weaker in [&["shadow"][..], &["off"], &["enforce", "--percent", "10"]] {
        let output = stderr_of(&[&["mode", "watched"], weaker, &["--policy", file]].concat()).await;
        assert!(
            output.contains("would be enforced for fewer keys (enforce 50% → ") && output.contains("--yes"),
            "{output}"
        );
    }
    assert_eq!(fs::read_to_string(file).unwrap(), enforced);
    stdout_of(&["mode", "watched", "shadow", "--yes", "--policy", file]).await;
    assert_eq!(fs::read_to_string(file).unwrap(), policy(&server));

    let output = stderr_of(&["mode", "watched", "shadow", "--percent", "5", "--policy", file]).await;
    assert!(output.contains("percentage of keys in mode `shadow`"), "{output}");
    let output = stderr_of(&["mode", "watched", "on", "--policy", file]).await;
    assert!(output.contains("[possible values: enforce, shadow, off]"), "{output}");
    let link = folder.join("link.yaml");
    std::os::unix::fs::symlink("policy.yaml", &link).unwrap();
    let output = stderr_of(&["mode", "watched", "off", "--policy", link.to_str().unwrap()]).await;
    assert!(output.contains("link.yaml is a symbolic link") && output.contains("ConfigMap"), "{output}");
}
