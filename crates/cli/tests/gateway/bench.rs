//! `tidegate bench`, in front of a gateway that runs. Quotas are for a day, so that it does not matter how fast anybody is.

use crate::stage::{Gateway, Server};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Command, Output},
};

async fn bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("bench").args(args);
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

/// A rule that counts users, and one that charges nothing in the end; while answers are on the way it holds one for each connection.
fn policy(server: &Server, quota: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\n{}rules:\n\
         - {{ name: users, key: header x-user, quota: {quota} sliding-log }}\n\
         - {{ name: failures, key: ip, quota: 100/d, charge: {{ if-status: [401] }} }}\n",
        server.upstream()
    )
}

const LOAD: [&str; 8] = ["--rate", "200/s", "--duration", "200ms", "--keys", "4", "--connections", "4"];

#[tokio::test]
async fn what_is_admitted_is_what_the_policy_says() {
    let server = Server::ok().await;
    let gateway = Gateway::serve(&policy(&server, "5/d")).await;
    let (url, file) = (gateway.url("/a?b"), gateway.policy());
    let compared = ["--policy", file.to_str().unwrap(), "--expect", "0%", "--json"];
    let output = bench(&[&[url.as_str()], &LOAD[..], &compared].concat()).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(told["statuses"], json!({ "200": 20, "429": 20 }), "{told:#}");
    assert_eq!((&told["due"], &told["sent"], &told["unsent"]), (&json!(40), &json!(40), &json!(0)));
    assert_eq!((&told["admitted"], &told["denied"]), (&json!(20), &json!(20)));
    assert_eq!((&told["failures"], &told["latency"]["count"]), (&json!({}), &json!(40)));
    let rules = json!([
        { "name": "users", "denied": 20, "expected": 20 },
        { "name": "failures", "denied": 0, "expected": 0 },
    ]);
    let expected = &told["expected"];
    assert_eq!((&expected["admitted"], &expected["difference"]), (&json!(20), &json!(0)));
    assert_eq!((&expected["rules"], &expected["keys"]), (&rules, &json!([])));
}

#[tokio::test]
async fn a_gateway_that_does_something_else_is_found_out() {
    let server = Server::ok().await;
    let gateway = Gateway::serve(&policy(&server, "3/d")).await;
    let (url, file) = (gateway.url("/"), gateway.directory.path().join("meant.yaml"));
    fs::write(&file, policy(&server, "5/d")).unwrap();
    let compared = ["--policy", file.to_str().unwrap(), "--expect"];
    let output = bench(&[&[url.as_str()], &LOAD[..], &compared].concat()).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    for part in [
        "answers   200 × 12, 429 × 28\n",
        "expected  20 admitted, 20 denied: 8 requests differ\n",
        "rule users: 28 denied, 20 expected\n",
        "key-0: 3 admitted, 5 expected\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        said.contains("8 of 40 requests were admitted or denied against the policy, more than 1%"),
        "{said}"
    );
}

#[tokio::test]
async fn what_cannot_be_sent_is_said() {
    let here = "http://127.0.0.1:9/";
    for (args, part) in [
        (vec![here], "nobody answers at http://127.0.0.1:9/"),
        (vec!["http://192.0.2.1/"], "is not this machine; say --remote"),
        (vec!["https://127.0.0.1/"], "is encrypted"),
        (vec![here, "--rate", "much"], "--rate"),
        (vec![here, "--phase", "10s"], "write 10s@100/s"),
        (vec![here, "--expect"], "--policy"),
        (vec![here, "--header", "x-plan"], "x-plan: gold"),
        (vec![here, "--body", "@nowhere.json"], "--body: cannot read nowhere.json"),
        (vec![here, "--policy", "nowhere.yaml"], "nowhere.yaml"),
    ] {
        let output = bench(&args).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
