//! The example of an Envoy whose limits are decided here.

use crate::stage::{Service, curl, example};
use tidegate_testkit::servers::{EnvoyServer, NginxServer, RedisServer, until};

/// Envoy as in the examples, on ports of the test.
fn envoy(service: &Service, backend: &NginxServer, change: impl Fn(String) -> String) -> Option<EnvoyServer> {
    let grpc = service.grpc.rsplit(':').next().unwrap();
    let config = example("envoy/envoy.yaml")
        // What is late on a busy machine is not what these stories are about.
        .replace("timeout: 0.5s", "timeout: 20s")
        .replace("port_value: 9901", "port_value: ADMIN")
        .replace("port_value: 8888", "port_value: PORT")
        .replace("port_value: 9000", &format!("port_value: {}", backend.address().port()))
        .replace("port_value: 8081", &format!("port_value: {grpc}"));
    let envoy = EnvoyServer::start(&change(config)).unwrap();
    if envoy.is_none() {
        println!("skipped: envoy is not installed; see scripts/install");
    }
    envoy
}

fn backend() -> NginxServer {
    NginxServer::start("server { listen 127.0.0.1:PORT; location / { return 200 ok; } }").unwrap()
}

fn limits() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    // A window in which the test cannot come to an end.
    let limits = example("envoy/limits/shop.yaml").replace("unit: minute", "unit: year");
    std::fs::write(folder.path().join("shop.yaml"), limits).unwrap();
    folder
}

fn status(envoy: &EnvoyServer, path: &str, header: &str) -> String {
    let url = format!("http://{}{path}", envoy.address());
    curl(&["-o", "/dev/null", "-w", "%{http_code}", "-H", header, &url])
}

/// Everything that the example says, whatever it is counted in.
fn story(service: Service) {
    let backend = backend();
    let Some(envoy) = envoy(&service, &backend, |config| config) else { return };

    // Three for each user, and none at all for one of them; who says no name is not counted.
    for _ in 0..3 {
        assert_eq!(status(&envoy, "/", "x-user: alice"), "200");
    }
    let head =
        curl(&["-D", "-", "-o", "/dev/null", "-H", "x-user: alice", &format!("http://{}/", envoy.address())]);
    assert!(head.starts_with("HTTP/1.1 429"), "{head}");
    for line in
        ["x-ratelimit-limit: 3, 3;w=31536000", "x-ratelimit-remaining: 0", "x-envoy-ratelimited: true"]
    {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert_eq!(status(&envoy, "/", "x-user: bob"), "200");
    assert_eq!(status(&envoy, "/", "x-user: mallory"), "429");
    assert_eq!(status(&envoy, "/", "x-other: alice"), "200");

    // A route with a limit of its own, of a kind that others do not have.
    let searches: Vec<_> = (0..6).map(|_| status(&envoy, "/search", "x-other: 1")).collect();
    assert_eq!(searches, ["200", "200", "200", "200", "200", "429"]);

    // One that costs what it says.
    let exports: Vec<_> =
        ["600", "300", "100", "1"].map(|rows| status(&envoy, "/export", &format!("x-rows: {rows}"))).into();
    assert_eq!(exports, ["200", "200", "200", "429"]);

    let metrics = service.page("metrics");
    assert!(
        metrics.contains(r#"ratelimit_service_rate_limit_over_limit{domain="shop",key1="user"} 1"#),
        "{metrics}"
    );

    // Gone: the filter says what happens then.
    assert!(service.end().success());
    assert_eq!(status(&envoy, "/", "x-user: alice"), "200");
}

#[test]
fn a_real_envoy_is_told_by_memory() {
    let folder = limits();
    story(Service::start(folder.path(), &[]));
}

#[test]
fn a_real_envoy_is_told_by_redis() {
    let (folder, redis) = (limits(), RedisServer::start().unwrap());
    let address = redis.url().replace("redis://", "");
    story(Service::start(folder.path(), &[("REDIS_URL", &address), ("REDIS_SOCKET_TYPE", "tcp")]));
}

#[test]
fn without_its_store_envoy_decides() {
    let (folder, redis) = (limits(), RedisServer::start().unwrap());
    let address = redis.url().replace("redis://", "");
    let service = Service::start(folder.path(), &[("REDIS_URL", &address)]);
    let backend = backend();
    let deny = |config: String| config.replace("failure_mode_deny: false", "failure_mode_deny: true");
    let (Some(open), Some(closed)) =
        (envoy(&service, &backend, |config| config), envoy(&service, &backend, deny))
    else {
        return;
    };
    assert_eq!(status(&open, "/", "x-user: alice"), "200");
    assert_eq!(status(&closed, "/", "x-user: alice"), "200");
    redis.kill();
    assert_eq!(status(&open, "/", "x-user: alice"), "200");
    assert_eq!(status(&closed, "/", "x-user: alice"), "500");
    let health = service.json.replace("/json", "/healthcheck");
    let health = || curl(&["-o", "/dev/null", "-w", "%{http_code}", &health]);
    until("it says that it is of no use", || match &*health() {
        "500" => Ok(()),
        status => Err(status.to_owned()),
    })
    .unwrap();
    redis.restart().unwrap();
    until("it is of use again", || match &*health() {
        "200" => Ok(()),
        status => Err(status.to_owned()),
    })
    .unwrap();
    assert_eq!(status(&closed, "/", "x-user: alice"), "200");
}
