//! Startup errors of the rate limit service: one line, and no partial start.

use crate::common::run_until_exit;
use std::{fs, net::TcpListener};

#[test]
fn invalid_environment_fails_startup_with_reason() {
    let folder = tempfile::tempdir().unwrap();
    let nowhere = folder.path().join("nowhere");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let fine = tempfile::tempdir().unwrap();
    fs::write(fine.path().join("shop.yaml"), "domain: shop\n").unwrap();

    let cases = [
        (nowhere.as_path(), ("LOG_LEVEL", "info"), "nowhere: No such file or directory"),
        (fine.path(), ("GRPC_PORT", port.as_str()), "is in use: stop the other process"),
        (fine.path(), ("GRPC_PORT", "many"), "GRPC_PORT"),
        (fine.path(), ("SHADOW_MODE", "perhaps"), "SHADOW_MODE"),
        (fine.path(), ("REDIS_URL", "no address"), "no address"),
        (fine.path(), ("REDIS_TLS_CACERT", "ca.pem"), "REDIS_TLS_CACERT"),
    ];
    for (folder, variable, part) in cases {
        let (code, stderr) = run_until_exit(folder, &[variable]);
        assert_eq!(code, Some(2), "{variable:?} {stderr}");
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
}

#[test]
fn invalid_tidegate_variables_fail_startup() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), "domain: shop\n").unwrap();
    let pem = folder.path().join("ca.pem");
    fs::write(&pem, "no certificate").unwrap();
    let pem = pem.to_str().unwrap();
    let cases: [(&[(&str, &str)], &str); 10] = [
        (&[("TIDEGATE_COUNTING", "both")], "one of envoy, atomic, shared"),
        (&[("TIDEGATE_COUNTING", "shared")], "set REDIS_URL to that of envoyproxy/ratelimit"),
        (&[("TIDEGATE_OUTAGE", "local 0")], "such as local 3"),
        (&[("TIDEGATE_LEASE", "2h")], "a duration from 2ms to 1m"),
        (&[("TIDEGATE_HEADERS", "all")], "one of envoy, ratelimit, x-ratelimit, ietf"),
        (&[("REDIS_PERSECOND", "true"), ("REDIS_PERSECOND_URL", "a:1")], "REDIS_URL"),
        (&[("REDIS_TLS_CLIENT_CERT", pem)], "REDIS_TLS_CLIENT_KEY"),
        (&[("REDIS_URL", "127.0.0.1:1"), ("REDIS_TLS_CACERT", pem)], "set REDIS_TLS=true"),
        (
            &[("REDIS_URL", "127.0.0.1:1"), ("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", pem)],
            "-----BEGIN CERTIFICATE-----",
        ),
        (&[("REDIS_TLS", "true"), ("REDIS_TLS_CACERT", "nowhere.pem")], "cannot read nowhere.pem"),
    ];
    for (variables, part) in cases {
        let (code, stderr) = run_until_exit(folder.path(), variables);
        assert_eq!(code, Some(2), "{variables:?} {stderr}");
        assert!(stderr.contains(part), "{part} in {stderr}");
    }
}

#[test]
fn log_level_and_format_follow_the_environment() {
    let folder = tempfile::tempdir().unwrap();
    // It reports variables without effect before it finds that it cannot start.
    let stderr_with = |more: &[(&str, &str)]| {
        let variables = [&[("REDIS_POOL_SIZE", "5")], more].concat();
        run_until_exit(&folder.path().join("nowhere"), &variables).1
    };
    let text = stderr_with(&[]);
    let line = text.lines().find(|line| line.contains("WARN")).unwrap_or_else(|| panic!("{text}"));
    assert!(line.contains("variable has no effect") && line.contains("REDIS_POOL_SIZE"), "{text}");
    let quiet = stderr_with(&[("LOG_LEVEL", "error")]);
    assert!(!quiet.contains("REDIS_POOL_SIZE"), "{quiet}");
    let json = stderr_with(&[("LOG_FORMAT", "json"), ("LOG_LEVEL", "WARN")]);
    let line: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["variable"], "REDIS_POOL_SIZE");
    assert_eq!(line["message"], "variable has no effect");
    assert_eq!(line["reason"], "one connection carries all commands");
}
