//! The health of the service, and client certificates.

use std::{fs, future::pending, path::Path, sync::Arc, time::Duration};
use tidegate_proto::rls::{Code, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{Environment, RateLimitServer, ServerError, ServerStores};
use tidegate_testkit::servers::{Certificates, RedisServer};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use tonic::transport::Channel;
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

const LIMITS: &str =
    "domain: shop\ndescriptors: [{ key: user, rate_limit: { unit: year, requests_per_unit: 2 } }]";
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

fn test_environment(folder: &Path, more: &[(&str, &str)]) -> Environment {
    fs::create_dir_all(folder.join("config")).unwrap();
    fs::write(folder.join("config/shop.yaml"), LIMITS).unwrap();
    let folder = folder.to_str().unwrap();
    let variables = [("RUNTIME_ROOT", folder), ("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")];
    Environment::parse(variables.into_iter().chain(more.iter().copied())).unwrap()
}

fn listener_address(host: &RateLimitServer, name: &str) -> String {
    let address = host.addresses().into_iter().find(|(known, _)| *known == name).unwrap().1;
    address.trim_start_matches("http://").trim_end_matches("/json").to_owned()
}

fn user_request() -> RateLimitRequest {
    let entries = vec![Entry { key: "user".to_owned(), value: "alice".to_owned() }];
    let descriptors = vec![RateLimitDescriptor { entries, ..RateLimitDescriptor::default() }];
    RateLimitRequest { domain: "shop".to_owned(), descriptors, hits_addend: 0 }
}

async fn healthcheck_status(address: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET /healthcheck HTTP/1.0\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response.split(' ').nth(1).unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_follows_the_store_only_when_configured() {
    let active = ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "true");
    for (variables, is_closed, is_followed) in [
        (&[][..], true, false),
        (&[active], true, true),
        (&[active, ("TIDEGATE_OUTAGE", "open")], false, false),
    ] {
        let (folder, redis) = (tempfile::tempdir().unwrap(), RedisServer::start().unwrap());
        let environment = test_environment(folder.path(), variables);
        let store = RedisStore::builder().deadline(STORE_TIMEOUT).connect(&redis.url()).await.unwrap();
        let stores = ServerStores { store: Some(Arc::new(store.clone())), ..ServerStores::default() };
        let host =
            RateLimitServer::open(&environment, stores).unwrap().store_health(move || store.last_error());
        let (grpc, http) = (listener_address(&host, "gRPC"), listener_address(&host, "JSON"));
        let running = tokio::spawn(host.run(pending()));

        let channel = Channel::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        let request = HealthCheckRequest { service: "ratelimit".to_owned() };
        let mut watch = HealthClient::new(channel.clone()).watch(request).await.unwrap().into_inner();
        let mut wait_for_status =
            async |wanted| while watch.message().await.unwrap().unwrap().status() != wanted {};
        wait_for_status(ServingStatus::Serving).await;

        redis.kill();
        let mut client = RateLimitServiceClient::new(channel);
        let response = client.should_rate_limit(user_request()).await;
        match is_closed {
            true => assert_eq!(response.unwrap_err().code(), tonic::Code::Unavailable),
            false => assert_eq!(response.unwrap().into_inner().overall_code(), Code::Ok),
        }
        if is_followed {
            wait_for_status(ServingStatus::NotServing).await;
            assert_eq!(healthcheck_status(&http).await, "500");
            redis.restart().unwrap();
            wait_for_status(ServingStatus::Serving).await;
            assert_eq!(healthcheck_status(&http).await, "200");
        } else {
            assert_eq!(healthcheck_status(&http).await, "200");
        }
        running.abort();
    }
}

/// Sends a request with this client certificate.
async fn check_with_certificate(grpc: &str, files: &Certificates) -> Result<(), String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&files.authority).unwrap()).unwrap();
    let chain = CertificateDer::pem_file_iter(&files.certificate).unwrap().map(Result::unwrap).collect();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&files.key).unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (connector, grpc) = (TlsConnector::from(Arc::new(config)), grpc.to_owned());
    let connect = tower::service_fn(move |_| {
        let (connector, grpc) = (connector.clone(), grpc.clone());
        async move {
            let stream = TcpStream::connect(grpc).await?;
            let name = ServerName::try_from("localhost").unwrap();
            Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    let channel = Channel::from_static("http://localhost").connect_with_connector(connect).await;
    let channel = channel.map_err(|error| error.to_string())?;
    let response = RateLimitServiceClient::new(channel).should_rate_limit(user_request()).await;
    response.map(drop).map_err(|error| error.to_string())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_needs_the_configured_name() {
    let directory = tempfile::tempdir().unwrap();
    let files = Certificates::create(directory.path()).unwrap();
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let (certificate, key, authority) = (text(&files.certificate), text(&files.key), text(&files.authority));
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", certificate.as_str()),
        ("GRPC_SERVER_TLS_KEY", key.as_str()),
    ];
    let with = |more: &[(&'static str, &str)]| {
        let variables: Vec<_> = tls.iter().chain(more).copied().collect();
        RateLimitServer::open(&test_environment(directory.path(), &variables), ServerStores::default())
    };
    for (name, is_allowed) in [("localhost", true), ("127.0.0.1", true), ("envoy.example.org", false)] {
        let host = with(&[("GRPC_CLIENT_TLS_CACERT", &authority), ("GRPC_CLIENT_TLS_SAN", name)]).unwrap();
        let grpc = listener_address(&host, "gRPC");
        let running = tokio::spawn(host.run(pending()));
        let result = check_with_certificate(&grpc, &files).await;
        assert_eq!(result.is_ok(), is_allowed, "{name}: {result:?}");
        running.abort();
    }
    for (more, part) in [
        (vec![("GRPC_CLIENT_TLS_SAN", "localhost")], "GRPC_CLIENT_TLS_CACERT"),
        (
            vec![("GRPC_CLIENT_TLS_CACERT", authority.as_str()), ("GRPC_CLIENT_TLS_SAN", "no name")],
            "GRPC_CLIENT_TLS_SAN",
        ),
    ] {
        let error: ServerError = with(&more).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_listener_serves_replaced_certificate() {
    let (directory, other_directory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let files = Certificates::create(directory.path()).unwrap();
    let other = Certificates::create(other_directory.path()).unwrap();
    let (certificate, key) = (directory.path().join("current.crt"), directory.path().join("current.key"));
    fs::copy(&files.certificate, &certificate).unwrap();
    fs::copy(&files.key, &key).unwrap();
    let tls = [
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", certificate.to_str().unwrap()),
        ("GRPC_SERVER_TLS_KEY", key.to_str().unwrap()),
    ];
    let host =
        RateLimitServer::open(&test_environment(directory.path(), &tls), ServerStores::default()).unwrap();
    let grpc = listener_address(&host, "gRPC");
    let running = tokio::spawn(host.run(pending()));
    check_with_certificate(&grpc, &files).await.unwrap();

    fs::copy(&other.key, &key).unwrap();
    fs::copy(&other.certificate, &certificate).unwrap();
    let refreshed = async { while check_with_certificate(&grpc, &other).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(60), refreshed).await.unwrap();
    assert!(check_with_certificate(&grpc, &files).await.is_err());
    running.abort();
}
