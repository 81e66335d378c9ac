//! In place of envoyproxy/ratelimit, with its variables and nothing else.

use crate::{
    host::{Host, ask, folder},
    stage::entry,
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
use tidegate_service::descriptors::{Environment, HostStores, ServiceHost};
use tidegate_testkit::servers::RedisServer;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    task,
    time::timeout,
};
use tonic::transport::Channel;

const LONG: Duration = Duration::from_secs(20);

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

async fn status(address: &str, path: &str) -> String {
    get(address, path).await.split(' ').nth(1).unwrap().to_owned()
}

async fn grpc(address: &str) -> Channel {
    Channel::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

/// The port of an address or a URL.
fn port(address: &str) -> u16 {
    let address = address.split("://").last().unwrap().split('/').next().unwrap();
    address.rsplit(':').next().unwrap().parse().unwrap()
}

#[tokio::test]
async fn every_port_is_open_on_all_addresses_of_both_families() {
    let (_folder, root) = folder();
    let root = ("RUNTIME_ROOT", root.as_str());
    let metrics = [("USE_PROMETHEUS", "true"), ("PROMETHEUS_ADDR", ":0")];
    let every = [("HOST", "::"), ("GRPC_HOST", "::"), ("DEBUG_HOST", "::")];
    for variables in [&[][..], &every] {
        let host = Host::start(&[&[root][..], &metrics, variables].concat());
        let of = |name: &str| port(&host.addresses.iter().find(|(known, _)| *known == name).unwrap().1);
        for address in ["127.0.0.1", "[::1]"] {
            for (name, path) in [("JSON", "/healthcheck"), ("pages", "/rlconfig"), ("metrics", "/metrics")] {
                assert_eq!(status(&format!("{address}:{}", of(name)), path).await, "200", "{address} {name}");
            }
            ask(grpc(&format!("{address}:{}", of("gRPC"))).await, 1).await.unwrap();
        }
        host.end().await;
    }
    let host = Host::start(&[root, ("HOST", "127.0.0.1"), ("GRPC_HOST", "127.0.0.1")]);
    assert!(host.json.starts_with("127.0.0.1:") && host.grpc.starts_with("127.0.0.1:"));
    assert!(TcpStream::connect(("::1", port(&host.json))).await.is_err());
    host.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn oversized_value_is_counted_and_refused_beyond_its_limit() {
    let (_folder, root) = folder();
    let redis = RedisServer::start().unwrap();
    let store = RedisStore::builder().deadline(LONG).connect(&redis.url()).await.unwrap();
    let stores = HostStores { store: Some(Arc::new(store)), ..HostStores::default() };
    for stores in [HostStores::default(), stores] {
        let host = Host::start_with(&[("RUNTIME_ROOT", &root)], stores);
        let mut client = RateLimitServiceClient::new(grpc(&host.grpc).await);
        let (long, other) = ("x".repeat(17_000), format!("{}y", "x".repeat(16_999)));
        for (value, expected) in
            [(&long, Code::Ok), (&long, Code::Ok), (&long, Code::OverLimit), (&other, Code::Ok)]
        {
            let request = RateLimitRequest {
                domain: "shop".to_owned(),
                descriptors: vec![entry("user", value)],
                hits_addend: 0,
            };
            let said = client.should_rate_limit(request).await.unwrap().into_inner();
            assert_eq!(said.overall_code(), expected);
        }
        host.end().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pause_of_the_store_is_waited_for() {
    let (_folder, root) = folder();
    let redis = RedisServer::start().unwrap();
    let environment = Environment::read([("RUNTIME_ROOT", root.as_str())]).unwrap();
    let store = RedisStore::builder().deadline(environment.deadline()).connect(&redis.url()).await.unwrap();
    let stores = HostStores { store: Some(Arc::new(store)), ..HostStores::default() };
    let host = Host::start_with(&[("RUNTIME_ROOT", &root)], stores);
    let channel = grpc(&host.grpc).await;
    ask(channel.clone(), 1).await.unwrap();
    redis.command(&["CLIENT", "PAUSE", "300", "ALL"]).unwrap();
    assert_eq!(ask(channel, 2).await.unwrap(), [Code::Ok, Code::OverLimit]);
    host.end().await;
}

#[tokio::test]
async fn bad_configuration_at_start_is_corrected_while_it_runs() {
    let (folder, root) = folder();
    let file = folder.path().join("config/shop.yaml");
    let good = fs::read_to_string(&file).unwrap();
    fs::write(&file, "domian: shop").unwrap();
    let need = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let (host, wary) =
        (Host::start(&[("RUNTIME_ROOT", &root)]), Host::start(&[("RUNTIME_ROOT", &root), need]));
    assert_eq!(status(&host.json, "/healthcheck").await, "200");
    assert_eq!(status(&wary.json, "/healthcheck").await, "500");
    let channel = grpc(&host.grpc).await;
    assert_eq!(ask(channel.clone(), 1).await.unwrap_err().code(), tonic::Code::Unavailable);
    assert!(get(&host.pages, "/stats").await.contains("config_load_error: 1"));

    fs::write(&file, good).unwrap();
    let healed = async {
        while ask(channel.clone(), 1).await.is_err() || status(&wary.json, "/healthcheck").await != "200" {
            task::yield_now().await;
        }
    };
    timeout(LONG, healed).await.unwrap();
    host.end().await;
    wary.end().await;
}

#[tokio::test]
async fn empty_folder_is_no_configuration() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("config")).unwrap();
    let root = folder.path().to_str().unwrap();
    let need = ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "true");
    let host = Host::start(&[("RUNTIME_ROOT", root), need]);
    assert_eq!(status(&host.json, "/healthcheck").await, "500");
    host.end().await;
}

#[tokio::test]
async fn health_waits_for_the_store_once() {
    let (_folder, root) = folder();
    let variables = [("RUNTIME_ROOT", root.as_str()), ("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")];
    let environment = Environment::read(variables).unwrap();
    let is_away = Arc::new(AtomicBool::new(true));
    let trouble = {
        let is_away = is_away.clone();
        move || is_away.load(Relaxed).then(|| "not connected".to_owned())
    };
    let host = ServiceHost::open(&environment, HostStores::default()).unwrap().store_health(trouble);
    let json = host.addresses().into_iter().find(|(name, _)| *name == "JSON").unwrap().1;
    let json = format!("127.0.0.1:{}", port(&json));
    let running = tokio::spawn(host.run(std::future::pending()));
    assert_eq!(status(&json, "/healthcheck").await, "500");
    is_away.store(false, Relaxed);
    assert_eq!(status(&json, "/healthcheck").await, "200");
    is_away.store(true, Relaxed);
    assert_eq!(status(&json, "/healthcheck").await, "200");
    running.abort();
}
