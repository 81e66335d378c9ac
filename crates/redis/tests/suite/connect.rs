//! Every kind of address, and the connection errors: one line with the fix, and never a password.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "tests fail by panicking and print their progress"
)]

use crate::common::{
    FIVE_PER_YEAR, LONG_DEADLINE, build_limiter, connect_store, integer_reply, poll_until, summarize,
};
use std::{fs, process::Command};
use tidegate_limiter::Limiter;
use tidegate_redis::RedisStore;
use tidegate_testkit::servers::{NetworkFault, Proxy, RedisCluster, RedisSentinel, RedisServer};

const SECRET: &str = "s3cr3t";

/// The error text of a failed connection.
async fn connect_error(url: &str) -> String {
    let error = RedisStore::connect(url).await.unwrap_err();
    let text = error.to_string();
    println!("{text}");
    assert!(!text.contains('\n') && text.contains("; "), "{text:?}");
    assert!(!text.contains(SECRET), "{text}");
    assert!(!format!("{error:?}").contains(SECRET));
    text
}

#[track_caller]
fn assert_contains(text: &str, words: &[&str]) {
    words.iter().for_each(|word| assert!(text.contains(word), "no `{word}` in: {text}"));
}

async fn assert_counts(store: &RedisStore) -> Limiter {
    let limiter = build_limiter(store, "rule", FIVE_PER_YEAR);
    assert_eq!(summarize(&limiter.decide("key", 1).await), "allow 4 of 5");
    assert_eq!(summarize(&limiter.key("key").peek(1).await), "allow 4 of 5");
    limiter
}

#[tokio::test]
async fn invalid_urls_are_rejected() {
    let invalid = [
        "",
        "localhost",
        "localhost:6379",
        "http://localhost",
        "redis://",
        "redis://localhost:port",
        "redis://localhost:99999",
        "redis://localhost/db",
        "redis://a,b",
        "redis+cluster://",
        "redis+cluster://a,,b",
        "redis+cluster://a/1",
        "redis+sentinel://a",
        "redis+sentinel://a/",
        "redis+sentinel://a/master/db",
        "redis+sentinel:///master",
        "redis+unix://",
        "рéдис://🗝",
    ];
    for url in invalid {
        let text = connect_error(url).await;
        assert_contains(&text, &["invalid Redis address", "redis://host:6379"]);
        assert!(RedisStore::open(url).is_err(), "{url}");
    }
    let secret = [
        "http://user:s3cr3t@localhost",
        "redis://user:s3cr3t@localhost:port",
        "redis://user:s3cr3t@",
        "redis://:s3cr3t",
        "user:s3cr3t@localhost",
        "redis://user:s3cr3t@a,b",
        "redis+cluster://user:s3cr3t@a/1",
        "redis+sentinel://user:s3cr3t@a",
        "redis+sentinel://user:s3cr3t@a/master/db",
        "redis+unix:///a/socket?pass=s3cr3t&db=x",
        "http://localhost?password=s3cr3t",
    ];
    for url in secret {
        connect_error(url).await;
    }
}

#[tokio::test]
async fn unreachable_server_is_reported() {
    let server = RedisServer::start().unwrap();
    server.stop().unwrap();
    let url = format!("redis://user:{SECRET}@{}", server.address());
    assert_contains(
        &connect_error(&url).await,
        &[&server.address().to_string(), "check that a server is running"],
    );
    let url = format!("redis+cluster://user:{SECRET}@{}", server.address());
    assert_contains(
        &connect_error(&url).await,
        &[&server.address().to_string(), "check that a server is running"],
    );
    let url = format!("redis+sentinel://user:{SECRET}@{}/mymaster", server.address());
    assert_contains(&connect_error(&url).await, &["mymaster"]);
    let missing = server.directory().join("no.sock");
    let missing = missing.to_str().unwrap();
    assert_contains(&connect_error(&format!("redis+unix://{missing}?pass={SECRET}")).await, &[missing]);
}

#[tokio::test]
async fn silent_server_is_reported() {
    let server = RedisServer::start().unwrap();
    let proxy = Proxy::for_server(&server).unwrap();
    proxy.inject(NetworkFault::Stall);
    assert_contains(&connect_error(proxy.url()).await, &[&proxy.address().to_string()]);
}

#[tokio::test]
async fn wrong_password_is_reported() {
    let server = RedisServer::builder().password(SECRET).start().unwrap();
    assert_counts(&connect_store(&server.url()).await).await;
    let address = server.address();
    for url in [
        format!("redis://{address}"),
        format!("redis://:wrong-{SECRET}@{address}"),
        format!("redis://unknown:{SECRET}@{address}"),
    ] {
        assert_contains(&connect_error(&url).await, &["check user and password"]);
    }
    let debug = format!("{:?}", connect_store(&server.url()).await);
    assert!(!debug.contains(SECRET), "{debug}");

    let server = RedisServer::builder().user("app", "s3cr3t/@:?#", "~* +@all").start().unwrap();
    assert_counts(&connect_store(&server.url()).await).await;
}

#[tokio::test]
async fn missing_permissions_are_reported() {
    let with = |rights: &str| RedisServer::builder().user("app", SECRET, rights).start().unwrap();
    // The permissions that the error lists are sufficient.
    let enough = with("~tidegate:* +@read +@write +@scripting +time");
    let limiter = assert_counts(&connect_store(&enough.url()).await).await;
    limiter.key("key").reserve(1, LONG_DEADLINE).await.cancel().await;
    limiter.key("key").reset().await.unwrap();
    assert_eq!((limiter.degraded_count(), limiter.key("key").peek(1).await.remaining()), (0, 5));

    for rights in [
        "~*",
        "~* +@all -@scripting",
        "~* +@all -evalsha",
        "~* +@all -script",
        "~* +@all -time",
        "~* +@all -@write",
        "~other:* +@all",
        "~tidegate:* +@read +@write +@scripting",
    ] {
        let text = connect_error(&with(rights).url()).await;
        assert_contains(&text, &["grant the user +@read +@write +@scripting +time"]);
    }
}

#[tokio::test]
async fn server_without_scripts_is_rejected() {
    for command in ["EVALSHA", "SCRIPT"] {
        let server = RedisServer::builder().config("rename-command", &format!("{command} \"\"")).start();
        let text = connect_error(&server.unwrap().url()).await;
        assert_contains(&text, &["allow EVALSHA and SCRIPT LOAD"]);
    }
}

#[tokio::test]
async fn replica_is_rejected() {
    let primary = RedisServer::start().unwrap();
    let replica = RedisServer::builder().config("replicaof", &format!("127.0.0.1 {}", primary.port()));
    let text = connect_error(&replica.start().unwrap().url()).await;
    assert_contains(&text, &["read-only replica", "connect to its primary"]);
}

#[tokio::test]
async fn cluster_and_server_urls_are_distinguished() {
    let server = RedisServer::start().unwrap();
    let text = connect_error(&format!("redis+cluster://{}", server.address())).await;
    assert_contains(&text, &["is a single server", "use redis:// instead"]);

    let cluster = RedisCluster::start().unwrap();
    let text = connect_error(&cluster.url()).await;
    assert_contains(&text, &["is a node of a cluster", "use redis+cluster://"]);
    let url = cluster.url().replace("redis://", "redis+cluster://");
    assert_counts(&connect_store(&url).await).await;
}

#[tokio::test]
async fn sentinel_url_resolves_primary() {
    let sentinel = RedisSentinel::start_with(&RedisServer::builder().password(SECRET)).unwrap();
    let hosts: Vec<_> = sentinel.sentinels().iter().map(|sentinel| sentinel.address().to_string()).collect();
    let (hosts, name) = (hosts.join(","), sentinel.master_name());
    let store = connect_store(&format!("redis+sentinel://:{SECRET}@{hosts}/{name}/2")).await;
    assert_counts(&store).await;
    let mut primary = sentinel.primary().unwrap().connect().unwrap();
    primary.command(&["SELECT", "2"]).unwrap();
    assert_eq!(primary.command(&["EXISTS", "tidegate:{rule:key}:1"]).unwrap().integer(), Some(1));

    let text = connect_error(&format!("redis+sentinel://:{SECRET}@{hosts}/unknown")).await;
    assert_contains(&text, &["unknown", "the sentinels have no primary with this name"]);
    let text = connect_error(&format!("redis+sentinel://:wrong-{SECRET}@{hosts}/{name}")).await;
    assert_contains(&text, &["check user and password"]);
}

#[tokio::test]
async fn unix_socket_and_database_are_used() {
    let server = RedisServer::builder().unix_socket().start().unwrap();
    let socket = server.socket().unwrap().to_str().unwrap();
    assert_counts(&connect_store(&format!("redis+unix://{socket}?db=3")).await).await;
    let over_tcp = connect_store(&format!("{}/3", server.url())).await;
    let limiter = build_limiter(&over_tcp, "rule", FIVE_PER_YEAR);
    assert_eq!(summarize(&limiter.decide("key", 1).await), "allow 3 of 5");
    assert_eq!(integer_reply(&server, &["EXISTS", "tidegate:{rule:key}:1"]), 0);
    let mut connection = server.connect().unwrap();
    connection.command(&["SELECT", "3"]).unwrap();
    assert_eq!(connection.command(&["EXISTS", "tidegate:{rule:key}:1"]).unwrap().integer(), Some(1));

    // A reconnection selects the same database.
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    poll_until("the store is available again", async || !limiter.key("key").peek(1).await.is_degraded())
        .await;
    assert_eq!(limiter.key("key").peek(1).await.remaining(), 3);
    assert_contains(&connect_error(&format!("{}/999", server.url())).await, &["check the database number"]);
}

#[tokio::test]
async fn tls_trusts_only_given_ca() {
    let (server, other) =
        (RedisServer::builder().tls().start().unwrap(), RedisServer::builder().tls().start().unwrap());
    let authority = |server: &RedisServer| fs::read(&server.certificates().unwrap().authority).unwrap();
    let url = server.tls_url().unwrap();
    let builder = || RedisStore::builder().deadline(LONG_DEADLINE);
    let store = builder().tls_authority(&authority(&server)).connect(&url).await.unwrap();
    assert_counts(&store).await;
    let file = server.certificates().unwrap().authority.display().to_string();
    builder().connect(&format!("{url}?ca={file}")).await.unwrap();
    let text = builder().connect(&format!("{url}?ca=/no/such/file")).await.unwrap_err().to_string();
    assert_contains(&text, &["/no/such/file", "check its path"]);
    let text = builder().connect(&format!("{}?ca={file}", server.url())).await.unwrap_err().to_string();
    assert_contains(&text, &["requires TLS", "rediss://"]);
    server.command(&["CLIENT", "KILL", "TYPE", "normal"]).unwrap();
    let again = build_limiter(&store, "rule", FIVE_PER_YEAR);
    poll_until("the store is available again", async || !again.key("key").peek(1).await.is_degraded()).await;

    for builder in [builder(), builder().tls_authority(&authority(&other))] {
        let text = builder.connect(&url).await.unwrap_err().to_string();
        println!("{text}");
        assert_contains(&text, &["certificate", "tls_authority"]);
    }
    let text = builder().tls_authority(b"not a certificate").connect(&url).await.unwrap_err().to_string();
    println!("{text}");
    assert_contains(&text, &["-----BEGIN CERTIFICATE-----"]);
    // The server does not use TLS on this port.
    let plain = server.url().replace("redis://", "rediss://");
    let text = connect_error(&plain).await;
    assert_contains(&text, &[&server.address().to_string()]);
    // Without TLS the CA is ignored.
    builder().tls_authority(&authority(&server)).connect(&server.url()).await.unwrap();
}

/// Makes a server present a self-signed certificate for this name, and returns the certificate.
fn use_self_signed_certificate(server: &RedisServer, name: &str) -> Vec<u8> {
    let path = |end: &str| server.directory().join(format!("{name}.{end}")).display().to_string();
    let (certificate, key) = (path("crt"), path("key"));
    let output = Command::new("openssl")
        .args(["req", "-x509", "-days", "2", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-noenc", "-subj", "/CN=redis", "-addext", &format!("subjectAltName=DNS:{name}")])
        .args(["-keyout", &key, "-out", &certificate])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let set = ["CONFIG", "SET", "tls-cert-file", &certificate, "tls-key-file", &key];
    server.command(&set).unwrap();
    fs::read(certificate).unwrap()
}

#[tokio::test]
async fn self_signed_certificate_is_accepted_as_ca() {
    let server = RedisServer::builder().tls().config("tls-auth-clients", "no").start().unwrap();
    let signed = fs::read(&server.certificates().unwrap().authority).unwrap();
    let url = server.tls_url().unwrap().replace("127.0.0.1", "localhost");
    let builder = || RedisStore::builder().deadline(LONG_DEADLINE);

    let own = use_self_signed_certificate(&server, "localhost");
    assert_counts(&builder().tls_authority(&own).connect(&url).await.unwrap()).await;
    for builder in [builder().tls_authority(&signed), builder().tls_skip_hostname_verification()] {
        let text = builder.connect(&url).await.unwrap_err().to_string();
        assert_contains(&text, &["certificate"]);
    }
    // For another name: accepted only without the host name check, and still only from a trusted CA.
    let own = use_self_signed_certificate(&server, "elsewhere.example.org");
    let text = builder().tls_authority(&own).connect(&url).await.unwrap_err().to_string();
    assert_contains(&text, &["certificate"]);
    let skips = || builder().tls_skip_hostname_verification();
    skips().tls_authority(&own).connect(&url).await.unwrap();
    let text = skips().tls_authority(&signed).connect(&url).await.unwrap_err().to_string();
    assert_contains(&text, &["certificate"]);
}

#[tokio::test]
async fn sentinel_password_is_used() {
    let sentinel = RedisSentinel::start_with(&RedisServer::builder().password(SECRET)).unwrap();
    let hosts: Vec<_> = sentinel.sentinels().iter().map(|sentinel| sentinel.address().to_string()).collect();
    let (hosts, name) = (hosts.join(","), sentinel.master_name());
    for server in sentinel.sentinels() {
        server.command(&["ACL", "SETUSER", "default", "resetpass", ">other-s3cr3t/@"]).unwrap();
    }
    let login = format!("redis+sentinel://:{SECRET}@{hosts}/{name}");
    let url = format!("{login}?sentinel-password=other-s3cr3t%2F%40");
    assert_counts(&connect_store(&url).await).await;
    connect_error(&login).await;
    connect_error(&format!("{login}?sentinel-password=wrong-{SECRET}")).await;
    let text = connect_error(&format!("{login}?sentinel-pass={SECRET}")).await;
    assert_contains(&text, &["sentinel-password="]);
}
