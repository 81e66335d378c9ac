//! The service as a drop-in replacement of envoyproxy/ratelimit, with its variables.

use crate::{
    common::descriptor_of,
    server::{TestServer, check_user, config_folder},
};
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};
use tidegate_proto::rls::{Code, RateLimitRequest, RateLimitServiceClient};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{Environment, RateLimitServer, ServerStores};
use tidegate_testkit::servers::RedisServer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task,
    time::timeout,
};
use tonic::transport::Channel;

const TEST_TIMEOUT: Duration = Duration::from_secs(20);

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response
}

async fn status(address: &str, path: &str) -> String {
    get(address, path).await.split(' ').nth(1).unwrap().to_owned()
}

async fn connect_grpc(address: &str) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// The port of an address or a URL.
fn parse_port(address: &str) -> u16 {
    let address = address.split("://").last().unwrap().split('/').next().unwrap();
    address.rsplit(':').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn listeners_bind_both_address_families_by_default() {
    let (_folder, root) = config_folder();
    let root = ("RUNTIME_ROOT", root.as_str());
    let metrics = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", ":0")];
    let every = [("HOST", "::"), ("GRPC_HOST", "::"), ("DEBUG_HOST", "::")];
    for variables in [&[][..], &every] {
        let host = TestServer::start(&[&[root][..], &metrics, variables].concat());
        let of = |name: &str| parse_port(&host.addresses.iter().find(|(known, _)| *known == name).unwrap().1);
        for address in ["127.0.0.1", "[::1]"] {
            for (name, path) in [("JSON", "/healthcheck"), ("pages", "/rlconfig"), ("metrics", "/metrics")] {
                assert_eq!(status(&format!("{address}:{}", of(name)), path).await, "200", "{address} {name}");
            }
            check_user(connect_grpc(&format!("{address}:{}", of("gRPC"))).await, 1).await.unwrap();
        }
        host.stop().await;
    }
    let host = TestServer::start(&[root, ("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1")]);
    assert!(host.json.starts_with("127.0.0.1:") && host.grpc.starts_with("127.0.0.1:"));
    assert!(TcpStream::connect(("::1", parse_port(&host.json))).await.is_err());
    host.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_value_is_limited() {
    let (_folder, root) = config_folder();
    let redis = RedisServer::start().unwrap();
    let store = RedisStore::builder().deadline(TEST_TIMEOUT).connect(&redis.url()).await.unwrap();
    let stores = ServerStores { store: Some(Arc::new(store)), ..ServerStores::default() };
    for stores in [ServerStores::default(), stores] {
        let host = TestServer::start_with(&[("RUNTIME_ROOT", &root)], stores);
        let mut client = RateLimitServiceClient::new(connect_grpc(&host.grpc).await);
        let (long, other) = ("x".repeat(17_000), format!("{}y", "x".repeat(16_999)));
        for (value, expected) in
            [(&long, Code::Ok), (&long, Code::Ok), (&long, Code::OverLimit), (&other, Code::Ok)]
        {
            let request = RateLimitRequest {
                domain: "shop".to_owned(),
                descriptors: vec![descriptor_of("user", value)],
                hits_addend: 0,
            };
            let response = client.should_rate_limit(request).await.unwrap().into_inner();
            assert_eq!(response.overall_code(), expected);
        }
        host.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decision_waits_for_a_paused_store() {
    let (_folder, root) = config_folder();
    let redis = RedisServer::start().unwrap();
    let environment = Environment::parse([("RUNTIME_ROOT", root.as_str())]).unwrap();
    let store = RedisStore::builder().deadline(environment.deadline()).connect(&redis.url()).await.unwrap();
    let stores = ServerStores { store: Some(Arc::new(store)), ..ServerStores::default() };
    let host = TestServer::start_with(&[("RUNTIME_ROOT", &root)], stores);
    let channel = connect_grpc(&host.grpc).await;
    check_user(channel.clone(), 1).await.unwrap();
    redis.command(&["CLIENT", "PAUSE", "300", "ALL"]).unwrap();
    assert_eq!(check_user(channel, 2).await.unwrap(), [Code::Ok, Code::OverLimit]);
    host.stop().await;
}

#[tokio::test]
async fn invalid_startup_config_is_replaced_when_corrected() {
    let (folder, root) = config_folder();
    let file = folder.path().join("config/shop.yaml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, "domian: shop").unwrap();
    let need = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let (host, wary) =
        (TestServer::start(&[("RUNTIME_ROOT", &root)]), TestServer::start(&[("RUNTIME_ROOT", &root), need]));
    assert_eq!(status(&host.json, "/healthcheck").await, "200");
    assert_eq!(status(&wary.json, "/healthcheck").await, "500");
    let channel = connect_grpc(&host.grpc).await;
    assert_eq!(check_user(channel.clone(), 1).await.unwrap_err().code(), tonic::Code::Unavailable);
    assert!(get(&host.debug, "/stats").await.contains("config_load_error: 1"));

    fs::write(&file, good).unwrap();
    let healed = async {
        while check_user(channel.clone(), 1).await.is_err()
            || status(&wary.json, "/healthcheck").await != "200"
        {
            task::yield_now().await;
        }
    };
    timeout(TEST_TIMEOUT, healed).await.unwrap();
    host.stop().await;
    wary.stop().await;
}

#[tokio::test]
async fn empty_config_folder_is_unhealthy() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("config")).unwrap();
    let root = folder.path().to_str().unwrap();
    let need = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let host = TestServer::start(&[("RUNTIME_ROOT", root), need]);
    assert_eq!(status(&host.json, "/healthcheck").await, "500");
    host.stop().await;
}

#[tokio::test]
async fn health_requires_the_store_only_at_startup() {
    let (_folder, root) = config_folder();
    let variables = [("RUNTIME_ROOT", root.as_str()), ("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")];
    let environment = Environment::parse(variables).unwrap();
    let is_unavailable = Arc::new(AtomicBool::new(true));
    let last_error = {
        let is_unavailable = is_unavailable.clone();
        move || is_unavailable.load(Relaxed).then(|| "not connected".to_owned())
    };
    let host = RateLimitServer::open(&environment, ServerStores::default()).unwrap().store_health(last_error);
    let json = host.addresses().into_iter().find(|(name, _)| *name == "JSON").unwrap().1;
    let json = format!("127.0.0.1:{}", parse_port(&json));
    let running = tokio::spawn(host.run(std::future::pending()));
    assert_eq!(status(&json, "/healthcheck").await, "500");
    is_unavailable.store(false, Relaxed);
    assert_eq!(status(&json, "/healthcheck").await, "200");
    is_unavailable.store(true, Relaxed);
    assert_eq!(status(&json, "/healthcheck").await, "200");
    running.abort();
}
