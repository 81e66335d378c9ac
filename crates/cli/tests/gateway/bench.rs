//! `tidegate bench` with a running gateway. Quotas are per day, so the results do not depend on the speed of the machine.

use crate::common::{GatewayProcess, TestUpstream};
use serde_json::{Value, json};
use std::{
    fs,
    process::{Command, Output},
};
use tidegate_testkit::servers::Certificates;

async fn run_bench(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("bench").args(args);
    tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap()
}

/// A rule that counts users, and one that refunds every request after its response.
fn policy(server: &TestUpstream, quota: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\n{}rules:\n\
         - {{ name: users, key: header x-user, quota: {quota} sliding-log }}\n\
         - {{ name: failures, key: ip, quota: 100/d, charge: {{ if-status: [401] }} }}\n",
        server.upstream_config()
    )
}

const LOAD: [&str; 8] = ["--rate", "200/s", "--duration", "200ms", "--keys", "4", "--connections", "4"];

#[tokio::test]
async fn bench_matches_the_policy() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server, "5/d")).await;
    let (url, file) = (gateway.url("/a?b"), gateway.policy_path());
    let compared = ["--policy", file.to_str().unwrap(), "--expect", "0%", "--json"];
    let output = run_bench(&[&[url.as_str()], &LOAD[..], &compared].concat()).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(report["statuses"], json!({ "200": 20, "429": 20 }), "{report:#}");
    assert_eq!(
        (&report["scheduled"], &report["sent"], &report["unsent"]),
        (&json!(40), &json!(40), &json!(0))
    );
    assert_eq!((&report["admitted"], &report["denied"]), (&json!(20), &json!(20)));
    assert_eq!((&report["failures"], &report["latency"]["count"]), (&json!({}), &json!(40)));
    let rules = json!([
        { "name": "users", "denied": 20, "expected": 20 },
        { "name": "failures", "denied": 0, "expected": 0 },
    ]);
    let expected = &report["expected"];
    assert_eq!((&expected["admitted"], &expected["difference"]), (&json!(20), &json!(0)));
    assert_eq!((&expected["rules"], &expected["keys"]), (&rules, &json!([])));
}

/// The server accepts connections and closes them without a response.
#[tokio::test]
async fn bench_fails_when_nothing_answers() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", silent.local_addr().unwrap());
    tokio::spawn(async move {
        while let Ok((stream, _)) = silent.accept().await {
            drop(stream);
        }
    });
    let output = run_bench(&[&url, "--rate", "20/s", "--duration", "100ms", "--json"]).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no request was answered"));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&report["sent"], &report["admitted"]), (&json!(2), &json!(0)));
    assert!(
        report["seconds"].as_f64().unwrap() >= 0.1,
        "the run lasts until the end of the schedule: {report}"
    );
}

/// Decisions do not depend on TLS or the HTTP version, and bench uses the requested version.
#[tokio::test]
async fn bench_supports_tls_and_http2() {
    let (server, directory) = (TestUpstream::start_ok().await, tempfile::tempdir().unwrap());
    let authority = Certificates::create(directory.path()).unwrap().authority;
    let secure = "{ address: '127.0.0.1:0', tls: { certificate: server.crt, key: server.key } }";
    let rules =
        policy(&server, "5/d").replace("listen: 127.0.0.1:0", &format!("log: json\nlisten: {secure}"));
    let gateway = GatewayProcess::start_in(directory, &rules).await;
    let (port, file) = (gateway.address.port(), gateway.policy_path());
    let compared = ["--policy", file.to_str().unwrap(), "--json"];
    let authority = ["--cacert", authority.to_str().unwrap()];
    let https = format!("https://127.0.0.1:{port}/a?b");
    let cases: [(&[&str], &str, Value); 2] = [
        (&[], "HTTP/1.1", json!({ "200": 20, "429": 20 })),
        (&["--http2"], "HTTP/2.0", json!({ "429": 40 })),
    ];
    for (how, version, statuses) in cases {
        let output = run_bench(&[&[https.as_str()], &LOAD[..], &compared, &authority, how].concat()).await;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&report["statuses"], &report["failures"]), (&statuses, &json!({})), "{version}");
        assert_eq!(report["expected"]["admitted"], 20, "{version}: {report:#}");
        gateway.wait_for_output(&format!("\"version\":\"{version}\""), 40).await;
    }
    let error_of = async |args: &[&str]| {
        let output = run_bench(args).await;
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    // An unknown CA, and a host name that does not match the certificate.
    assert!(error_of(&[&https]).await.contains("invalid peer certificate: UnknownIssuer"));
    let other = format!("https://[::ffff:127.0.0.1]:{port}/");
    let error = error_of(&[&[other.as_str()], &authority[..]].concat()).await;
    assert!(error.contains("cannot connect to https://[::ffff:127.0.0.1]"), "{error}");
    let error = error_of(&[&["http://127.0.0.1:9/"], &authority[..]].concat()).await;
    assert!(error.contains("--cacert requires https"), "{error}");
    let error = error_of(&[&https, "--cacert", "nowhere.pem"]).await;
    assert!(error.contains("nowhere.pem: "), "{error}");

    // Without TLS, HTTP/2 is used with prior knowledge.
    let gateway = GatewayProcess::start(&format!("log: json\n{}", policy(&server, "5/d"))).await;
    let output = run_bench(&[&[gateway.url("/").as_str(), "--http2", "--json"], &LOAD[..]].concat()).await;
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["statuses"], json!({ "200": 20, "429": 20 }), "{report:#}");
    gateway.wait_for_output("\"version\":\"HTTP/2.0\"", 40).await;
}

#[tokio::test]
async fn bench_detects_a_different_policy() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server, "3/d")).await;
    let (url, file) = (gateway.url("/"), gateway.directory.path().join("meant.yaml"));
    fs::write(&file, policy(&server, "5/d")).unwrap();
    let compared = ["--policy", file.to_str().unwrap(), "--expect"];
    let output = run_bench(&[&[url.as_str()], &LOAD[..], &compared].concat()).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    for part in [
        "responses 200 × 12, 429 × 28\n",
        "expected  20 admitted, 20 denied: 8 requests differ\n",
        "rule users: 28 denied, 20 expected\n",
        "key-0: 3 admitted, 5 expected\n",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        stderr.contains("decisions on 8 of 40 requests differ from the policy, more than 1%"),
        "{stderr}"
    );
}

const SEARCH: [&str; 7] = ["--find", "--rate", "10/s", "--duration", "300ms", "--max-rate", "40"];

/// The target is so high that every rate keeps it on any machine.
#[tokio::test]
async fn find_writes_the_quota_in_shadow_mode() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server, "1000/d")).await;
    let url = gateway.url("/orders?id=1");
    let directory = tempfile::tempdir().unwrap();
    let (policy_file, picture) = (directory.path().join("capacity.yaml"), directory.path().join("knee.svg"));
    let files = ["--out", policy_file.to_str().unwrap(), "--svg", picture.to_str().unwrap()];
    let target = ["--max-latency", "1min", "--max-errors", "50%", "--headroom", "25%", "--json"];
    let args = [&[url.as_str()], &SEARCH[..], &files, &target].concat();
    let output = run_bench(&args).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rates: Vec<_> =
        report["steps"].as_array().unwrap().iter().map(|step| step["requested_rate"].clone()).collect();
    assert_eq!(rates, [10, 20, 40, 40], "{report:#}");
    assert_eq!((&report["knee"], &report["is_max_rate"]), (&json!(40), &json!(true)));
    assert_eq!(report["quota"], "30/s burst 30");

    let written = fs::read_to_string(&policy_file).unwrap();
    for part in ["path: /orders\n", "quota: 30/s\n", "mode: shadow\n"] {
        assert!(written.contains(part), "{part} is not in {written}");
    }
    let mut check = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let checked = check.arg("check").arg(&policy_file).output().unwrap();
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert!(fs::read_to_string(&picture).unwrap().contains("knee above 40/s"));

    let again = run_bench(&args).await;
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("add --force to overwrite it"));
}

#[tokio::test]
async fn find_explains_a_target_that_no_rate_keeps() {
    let server = TestUpstream::start_ok().await;
    let text = format!(
        "listen: 127.0.0.1:0\n{}rules:\n- {{ name: all, quota: 1/d, on-limit: {{ status: 503 }} }}\n",
        server.upstream_config()
    );
    let gateway = GatewayProcess::start(&text).await;
    let output = run_bench(&[&[gateway.url("/").as_str()], &SEARCH[..]].concat()).await;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("errors above the target") && text.contains("knee      not found\n"), "{text}");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("the target is missed even at 1/s"), "{error}");
}

/// The first rate is below the quota and the second one is above it: the quota must not be taken for the knee.
#[tokio::test]
async fn find_ends_when_a_rate_limit_denies_requests() {
    let server = TestUpstream::start_ok().await;
    for (quota, rates) in [("1/d", &[10][..]), ("4/d", &[10, 20])] {
        let text = format!(
            "listen: 127.0.0.1:0\n{}rules:\n- {{ name: all, quota: {quota} }}\n",
            server.upstream_config()
        );
        let gateway = GatewayProcess::start(&text).await;
        let (url, file) = (gateway.url("/"), gateway.directory.path().join("capacity.yaml"));
        let args = ["--max-latency", "1min", "--json", "--out", file.to_str().unwrap()];
        let output = run_bench(&[&[url.as_str()], &SEARCH[..], &args].concat()).await;
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let steps = report["steps"].as_array().unwrap();
        let loads: Vec<_> = steps.iter().map(|step| step["requested_rate"].as_u64().unwrap()).collect();
        assert_eq!(loads, rates, "{report:#}");
        assert_eq!((&report["knee"], &report["quota"]), (&Value::Null, &Value::Null));
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        let expected = format!("a rate limit denied requests at {}/s", rates[rates.len() - 1]);
        assert!(error.contains(&expected) && !error.contains("--max-latency"), "{error}");
        assert!(!file.exists());
    }
}

#[tokio::test]
async fn bench_rejects_invalid_arguments() {
    let here = "http://127.0.0.1:9/";
    for (args, part) in [
        (vec![here], "cannot connect to http://127.0.0.1:9/"),
        (vec!["http://192.0.2.1/"], "is not this machine; add --remote"),
        (vec!["https://127.0.0.1:9/"], "cannot connect to https://127.0.0.1:9/"),
        (vec![here, "--rate", "much"], "--rate"),
        (vec![here, "--phase", "10s"], "write 10s@100/s"),
        (vec![here, "--expect"], "--policy"),
        (vec![here, "--header", "x-plan"], "x-plan: gold"),
        (vec![here, "--body", "@nowhere.json"], "--body: cannot read nowhere.json"),
        (vec![here, "--policy", "nowhere.yaml"], "nowhere.yaml"),
        (vec![here, "--max-latency", "1s"], "--find"),
        (vec![here, "--find", "--phase", "1s@5/s"], "cannot be used with"),
        (vec![here, "--find", "--out", "policy.txt"], "is not YAML, TOML or JSON"),
    ] {
        let output = run_bench(&args).await;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{args:?}: {text}");
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
