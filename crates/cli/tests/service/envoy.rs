//! The example of an Envoy whose limits are decided here.

use crate::common::{DecisionApiProcess, ServiceProcess, read_example, run_curl};
use tidegate_testkit::servers::{AppServer, NginxServer, RedisServer, wait_until};

/// Envoy as in the examples, on ports of the test.
fn start_envoy(
    service: &ServiceProcess,
    backend: &NginxServer,
    change: impl Fn(String) -> String,
) -> Option<AppServer> {
    let grpc = service.grpc.rsplit(':').next().unwrap();
    let config = read_example("envoy/envoy.yaml")
        // What is late on a busy machine is not what these stories are about.
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
    // A window in which the test cannot come to an end.
    let limits = read_example("envoy/limits/shop.yaml").replace("unit: minute", "unit: year");
    std::fs::write(folder.path().join("shop.yaml"), limits).unwrap();
    folder
}

fn request_status(envoy: &AppServer, path: &str, header: &str) -> String {
    let url = format!("http://{}{path}", envoy.address());
    run_curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", header, &url])
}

/// Everything that the example says, whatever it is counted in.
fn check_example(service: ServiceProcess) {
    let backend = start_backend();
    let Some(envoy) = start_envoy(&service, &backend, |config| config) else { return };

    // Three for each user, and none at all for one of them; who says no name is not counted.
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
    assert_eq!(request_status(&envoy, "/", "x-user: bob"), "200");
    assert_eq!(request_status(&envoy, "/", "x-user: mallory"), "429");
    assert_eq!(request_status(&envoy, "/", "x-other: alice"), "200");

    // A route with a limit of its own, of a kind that others do not have.
    let searches: Vec<_> = (0..6).map(|_| request_status(&envoy, "/search", "x-other: 1")).collect();
    assert_eq!(searches, ["200", "200", "200", "200", "200", "429"]);

    // One that costs what it says.
    let exports: Vec<_> = ["600", "300", "100", "1"]
        .map(|rows| request_status(&envoy, "/export", &format!("x-rows: {rows}")))
        .into();
    assert_eq!(exports, ["200", "200", "200", "429"]);

    let metrics = service.get_page("metrics");
    assert!(
        metrics.contains(r#"ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 1"#),
        "{metrics}"
    );

    // Gone: the filter says what happens then.
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
        (start_envoy(&service, &backend, |config| config), start_envoy(&service, &backend, deny))
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
    assert_eq!(health, "200", "a liveness probe does not restart the fleet for its store");
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
    let Some(envoy) = start_envoy(&service, &backend, large) else { return };
    let header = format!("x-user: {}", "a".repeat(17_000));
    let said: Vec<_> = (0..4).map(|_| request_status(&envoy, "/", &header)).collect();
    assert_eq!(said, ["200", "200", "200", "429"]);
}

/// The example of an Envoy that asks the decision API about each request.
#[test]
fn ext_authz_over_http_refuses_what_the_policy_refuses() {
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
    // By the user's name on all paths, and by the address on one of them, whatever the query says.
    let said: Vec<_> =
        (0..4).map(|n| request_status(&envoy, &format!("/?deny=200&n={n}"), "x-user: alice")).collect();
    assert_eq!(said, ["200", "200", "200", "429"]);
    assert_eq!(request_status(&envoy, "/", "x-user: bob"), "200");
    let searches: Vec<_> =
        (0..6).map(|n| request_status(&envoy, "/search?q=1", &format!("x-user: user-{n}"))).collect();
    assert_eq!(searches, ["200", "200", "200", "200", "200", "429"]);
    // The client's own word on its address is not taken.
    assert_eq!(request_status(&envoy, "/search", "x-real-ip: 192.0.2.1"), "429");
    let url = format!("http://{}/", envoy.address());
    let head = run_curl(&["-D", "-", "-o", "/dev/null", "-H", "x-user: alice", &url]);
    assert!(head.to_lowercase().contains("retry-after: "), "{head}");
}
