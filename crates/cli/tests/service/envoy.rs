//! The Envoy examples, with the rate limit service and with ext_authz.

use crate::common::{DecisionApiProcess, ServiceProcess, read_example, run_curl};
use tidegate_testkit::servers::{AppServer, NginxServer, RedisServer, wait_until};

/// Starts Envoy with the configuration of the example, on free ports.
fn start_envoy(service: &str, backend: &NginxServer, change: impl Fn(String) -> String) -> Option<AppServer> {
    let grpc = service.rsplit(':').next().unwrap();
    let config = read_example("envoy/envoy.yaml")
        // A busy machine must not cause timeouts in these tests.
        .replace("timeout: 0.5s", "timeout: 20s")
        .replace("port_value: 9901", "port_value: ADMIN")
        .replace("port_value: 8888", "port_value: PORT")
        .replace("port_value: 9000", &format!("port_value: {}", backend.address().port()))
        .replace("port_value: 8081", &format!("port_value: {grpc}"));
    let envoy = AppServer::start_envoy(&change(config)).unwrap();
    if envoy.is_none() {
        tidegate_testkit::servers::skip_without("envoy");
    }
    envoy
}

fn start_backend() -> NginxServer {
    NginxServer::start(
        "server { listen 127.0.0.1:PORT; large_client_header_buffers 4 64k; location / { return 200 ok; } }",
    )
    .unwrap()
}

fn limits_folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    // A window that does not end during the test.
    let limits = read_example("envoy/limits/shop.yaml").replace("unit: minute", "unit: year");
    std::fs::write(folder.path().join("shop.yaml"), limits).unwrap();
    folder
}

fn request_status(envoy: &AppServer, path: &str, header: &str) -> String {
    let url = format!("http://{}{path}", envoy.address());
    run_curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", header, &url])
}

/// Checks the behavior that the example documents, with any store.
fn check_example(service: ServiceProcess) {
    let backend = start_backend();
    let Some(envoy) = start_envoy(&service.grpc, &backend, |config| config) else { return };

    // Three requests per user, none for one of them; requests without a user are not counted.
    for _ in 0..3 {
        assert_eq!(request_status(&envoy, "/", "x-user: alice"), "200");
    }
    let head = run_curl(&[
        "-D",
        "-",
        "-o",
        "/dev/null",
        "-H",
        "x-user: alice",
        &format!("http://{}/", envoy.address()),
    ]);
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    for line in
        ["x-ratelimit-limit: 3, 3;w=31536000", "x-ratelimit-remaining: 0", "x-envoy-ratelimited: true"]
    {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert_limits_of_example(&envoy);

    let metrics = service.get_page("metrics");
    assert!(
        metrics.contains(r#"ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 1"#),
        "{metrics}"
    );

    // Without the service, the filter decides.
    assert!(service.stop().success());
    assert_eq!(request_status(&envoy, "/", "x-user: alice"), "200");
}

#[test]
fn envoy_is_limited_in_memory() {
    let folder = limits_folder();
    check_example(ServiceProcess::start(folder.path(), &[]));
}

#[test]
fn envoy_is_limited_in_redis() {
    let (folder, redis) = (limits_folder(), RedisServer::start().unwrap());
    let address = redis.url().replace("redis://", "");
    check_example(ServiceProcess::start(
        folder.path(),
        &[("REDIS_URL", &address), ("REDIS_SOCKET_TYPE", "tcp")],
    ));
}

#[test]
fn store_outage_is_left_to_envoy() {
    let (folder, redis) = (limits_folder(), RedisServer::start().unwrap());
    let address = redis.url().replace("redis://", "");
    let service = ServiceProcess::start(folder.path(), &[("REDIS_URL", &address)]);
    let backend = start_backend();
    let deny = |config: String| config.replace("failure_mode_deny: false", "failure_mode_deny: true");
    let (Some(open), Some(closed)) =
        (start_envoy(&service.grpc, &backend, |config| config), start_envoy(&service.grpc, &backend, deny))
    else {
        return;
    };
    assert_eq!(request_status(&open, "/", "x-user: alice"), "200");
    assert_eq!(request_status(&closed, "/", "x-user: alice"), "200");
    redis.kill();
    assert_eq!(request_status(&open, "/", "x-user: alice"), "200");
    assert_eq!(request_status(&closed, "/", "x-user: alice"), "500");
    let health = service.json.replace("/json", "/healthcheck");
    let health = run_curl(&["-o", "/dev/null", "-w", "%{http_code}", &health]);
    assert_eq!(health, "200", "a liveness probe does not restart the service for an outage of its store");
    redis.restart().unwrap();
    wait_until("it counts again", || match &*request_status(&closed, "/", "x-user: alice") {
        "200" => Ok(()),
        status => Err(status.to_owned()),
    })
    .unwrap();
}

#[test]
fn oversized_header_is_still_limited() {
    let folder = limits_folder();
    let service = ServiceProcess::start(folder.path(), &[]);
    let backend = start_backend();
    let large = |config: String| {
        config
            .replace("stat_prefix: http\n", "stat_prefix: http\n                max_request_headers_kb: 96\n")
    };
    let Some(envoy) = start_envoy(&service.grpc, &backend, large) else { return };
    let header = format!("x-user: {}", "a".repeat(17_000));
    let statuses: Vec<_> = (0..4).map(|_| request_status(&envoy, "/", &header)).collect();
    assert_eq!(statuses, ["200", "200", "200", "429"]);
}

/// Checks the limits of the example, which its files and its policy both declare.
fn assert_limits_of_example(envoy: &AppServer) {
    assert_eq!(request_status(envoy, "/", "x-user: bob"), "200");
    assert_eq!(request_status(envoy, "/", "x-user: mallory"), "429");
    assert_eq!(request_status(envoy, "/", "x-other: alice"), "200");

    // A route with its own limit and algorithm.
    let searches: Vec<_> = (0..6).map(|_| request_status(envoy, "/search", "x-other: 1")).collect();
    assert_eq!(searches, ["200", "200", "200", "200", "200", "429"]);

    // A route whose cost is in a header.
    let exports: Vec<_> = ["600", "300", "100", "1"]
        .map(|rows| request_status(envoy, "/export", &format!("x-rows: {rows}")))
        .into();
    assert_eq!(exports, ["200", "200", "200", "429"]);
}

/// The limits of the example as a policy, with the same Envoy.
#[test]
fn envoy_is_limited_by_a_policy() {
    // Windows that do not end during the test.
    let policy = read_example("envoy/policy.yaml")
        .replace("127.0.0.1:8081", "127.0.0.1:0")
        .replace("/min", " per 52w")
        .replace("1000/h", "1000 per 52w");
    let service = DecisionApiProcess::start_for(&policy, "envoy");
    let backend = start_backend();
    let Some(envoy) = start_envoy(&service.url, &backend, |config| config) else { return };
    for remaining in ["2", "1", "0"] {
        let url = format!("http://{}/", envoy.address());
        let head = run_curl(&["-D", "-", "-o", "/dev/null", "-H", "x-user: alice", &url]);
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        assert!(head.contains(&format!("ratelimit: \"user\";r={remaining};")), "{head}");
    }
    let denied = run_curl(&["-D", "-", "-H", "x-user: alice", &format!("http://{}/", envoy.address())]);
    assert!(denied.starts_with("HTTP/1.1 429"), "{denied}");
    for line in ["retry-after: ", "content-type: application/problem+json", "x-envoy-ratelimited: true"] {
        assert!(denied.contains(line), "{line} in {denied}");
    }
    assert!(denied.contains(r#""violated-policies":["user"]"#), "the body of the policy: {denied}");
    assert_limits_of_example(&envoy);
}

/// The example of Envoy with ext_authz and the decision API.
#[test]
fn ext_authz_over_http_denies_what_the_policy_denies() {
    let policy = read_example("envoy/ext-authz-policy.yaml")
        .replace("127.0.0.1:8090", "127.0.0.1:0")
        .replace("3/min", "3 per 52w")
        .replace("5/min", "5 per 52w");
    let decisions = DecisionApiProcess::start(&policy);
    let backend = start_backend();
    let port = decisions.url.rsplit(':').next().unwrap().trim_end_matches('/');
    let config = read_example("envoy/ext-authz.yaml")
        .replace("timeout: 0.5s", "timeout: 20s")
        .replace("port_value: 9901", "port_value: ADMIN")
        .replace("port_value: 8888", "port_value: PORT")
        .replace("port_value: 9000", &format!("port_value: {}", backend.address().port()))
        .replace("port_value: 8090", &format!("port_value: {port}"));
    let Some(envoy) = AppServer::start_envoy(&config).unwrap() else {
        tidegate_testkit::servers::skip_without("envoy");
        return;
    };
    // By user on all paths, and by address on one path; the query string has no effect.
    let statuses: Vec<_> =
        (0..4).map(|n| request_status(&envoy, &format!("/?deny=200&n={n}"), "x-user: alice")).collect();
    assert_eq!(statuses, ["200", "200", "200", "429"]);
    assert_eq!(request_status(&envoy, "/", "x-user: bob"), "200");
    let searches: Vec<_> =
        (0..6).map(|n| request_status(&envoy, "/search?q=1", &format!("x-user: user-{n}"))).collect();
    assert_eq!(searches, ["200", "200", "200", "200", "200", "429"]);
    // The client cannot set its address.
    assert_eq!(request_status(&envoy, "/search", "x-real-ip: 192.0.2.1"), "429");
    let url = format!("http://{}/", envoy.address());
    let head = run_curl(&["-D", "-", "-o", "/dev/null", "-H", "x-user: alice", &url]);
    assert!(head.to_lowercase().contains("retry-after: "), "{head}");
}
