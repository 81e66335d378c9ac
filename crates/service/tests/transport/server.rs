//! The service as a process runs it: configured by variables, with mutual TLS, on a Unix socket, and with xDS.

use crate::{
    common::descriptor_of,
    xds::{DiscoveryServer, DiscoveryStream, start_tls_server, tls_acceptor, tls_connector},
};
use hyper_util::rt::TokioIo;
use std::{path::Path, time::Duration};
use tidegate_proto::{
    config::{RateLimitConfig, RateLimitDescriptor, RateLimitPolicy, RateLimitUnit},
    rls::{Code, RateLimitRequest, RateLimitServiceClient},
};
use tidegate_service::descriptors::{Environment, RateLimitServer, ServerError, ServerStores};
use tidegate_testkit::servers::Certificates;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixStream},
    sync::oneshot,
    task::JoinHandle,
    time::timeout,
};
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::Channel;

/// A timeout that only a failing test reaches.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

pub(crate) struct TestServer {
    pub(crate) grpc: String,
    pub(crate) json: String,
    pub(crate) debug: String,
    pub(crate) addresses: Vec<(&'static str, String)>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<Result<(), ServerError>>,
}

impl TestServer {
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        Self::start_with(variables, ServerStores::default())
    }

    pub(crate) fn start_with(variables: &[(&str, &str)], stores: ServerStores) -> Self {
        let ports = [("PORT", "0"), ("GRPC_PORT", "0"), ("DEBUG_PORT", "0")];
        let environment = Environment::parse(ports.iter().chain(variables).copied()).unwrap();
        let server = RateLimitServer::open(&environment, stores).unwrap();
        let addresses = server.addresses();
        let address_of = |name: &str| addresses.iter().find(|(known, _)| *known == name).unwrap().1.clone();
        let at = |name: &str| address_of(name).split('/').nth(2).unwrap().to_owned();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let (grpc, json, debug) = (address_of("gRPC"), at("JSON"), at("pages"));
        Self { grpc, json, debug, addresses, stop, task }
    }

    pub(crate) async fn stop(self) {
        drop(self.stop);
        timeout(TEST_TIMEOUT, self.task).await.unwrap().unwrap().unwrap();
    }
}

/// A folder with one limit: two requests per user.
pub(crate) fn config_folder() -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().unwrap();
    let limits =
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: { unit: year, requests_per_unit: 2 }\n";
    std::fs::create_dir(folder.path().join("config")).unwrap();
    std::fs::write(folder.path().join("config/shop.yaml"), limits).unwrap();
    let root = folder.path().display().to_string();
    (folder, root)
}

/// A channel that opens its connections with `connect`.
async fn connect_channel<F, A, I>(connect: F) -> Result<Channel, tonic::transport::Error>
where
    F: Fn() -> A + Send + Clone + 'static,
    A: Future<Output = std::io::Result<I>> + Send + 'static,
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let connector = tower::service_fn(move |_| {
        let connected = connect();
        async move { Ok::<_, std::io::Error>(TokioIo::new(connected.await?)) }
    });
    Channel::from_static("http://localhost").connect_with_connector(connector).await
}

/// Returns the codes of consecutive requests of one user.
pub(crate) async fn check_user(channel: Channel, times: usize) -> Result<Vec<Code>, tonic::Status> {
    let mut client = RateLimitServiceClient::new(channel);
    let mut codes = Vec::new();
    for _ in 0..times {
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor_of("user", "alice")],
            hits_addend: 0,
        };
        codes.push(client.should_rate_limit(request).await?.into_inner().overall_code());
    }
    Ok(codes)
}

const LIMIT_OF_TWO: [Code; 3] = [Code::Ok, Code::Ok, Code::OverLimit];

#[tokio::test]
async fn mutual_tls_requires_client_certificate() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    let (_folder, root) = config_folder();
    let text = |path: &Path| path.display().to_string();
    let (certificate, key) = (text(&certificates.certificate), text(&certificates.key));
    let authority = text(&certificates.authority);
    let tls = [
        ("RUNTIME_ROOT", root.as_str()),
        ("GRPC_SERVER_USE_TLS", "true"),
        ("GRPC_SERVER_TLS_CERT", &certificate),
        ("GRPC_SERVER_TLS_KEY", &key),
    ];
    let mutual: Vec<_> = tls.into_iter().chain([("GRPC_CLIENT_TLS_CACERT", authority.as_str())]).collect();
    for (variables, without) in [(&tls[..], true), (&mutual[..], false)] {
        let host = TestServer::start(variables);
        for (with_certificate, is_allowed) in [(true, true), (false, without)] {
            let (connector, address) = (tls_connector(&certificates, with_certificate), host.grpc.clone());
            let connect = move || {
                let (connector, address) = (connector.clone(), address.clone());
                async move {
                    let stream = TcpStream::connect(address).await?;
                    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await
                }
            };
            // The rejection surfaces with the first request, or earlier.
            let is_served = match connect_channel(connect).await {
                Ok(channel) => timeout(TEST_TIMEOUT, check_user(channel, 1)).await.unwrap().is_ok(),
                Err(_) => false,
            };
            assert_eq!(is_served, is_allowed, "{variables:?} {with_certificate}");
        }
        let plain = Channel::from_shared(format!("http://{}", host.grpc)).unwrap().connect_lazy();
        timeout(TEST_TIMEOUT, check_user(plain, 1)).await.unwrap().unwrap_err();
        host.stop().await;
    }
}

#[tokio::test]
async fn grpc_is_served_on_unix_socket() {
    let (folder, root) = config_folder();
    let path = folder.path().join("limits.sock");
    // A stale socket file.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let host = TestServer::start(&[("RUNTIME_ROOT", &root), ("GRPC_UDS", path.to_str().unwrap())]);
    assert_eq!(host.grpc, path.display().to_string());
    let connect = move || UnixStream::connect(path.clone());
    assert_eq!(check_user(connect_channel(connect).await.unwrap(), 3).await.unwrap(), LIMIT_OF_TWO);
    host.stop().await;
}

pub(crate) fn xds_config(requests_per_unit: u32) -> RateLimitConfig {
    let policy =
        RateLimitPolicy { unit: RateLimitUnit::Year.into(), requests_per_unit, ..RateLimitPolicy::default() };
    let user = RateLimitDescriptor { key: "user".to_owned(), rate_limit: Some(policy), ..Default::default() };
    RateLimitConfig { name: "shop".to_owned(), domain: "shop".to_owned(), descriptors: vec![user] }
}

async fn publish(
    stream: &mut DiscoveryStream,
    version: &str,
    all: &[RateLimitConfig],
) -> (String, Option<String>) {
    stream.send_response(
        version,
        version,
        all.iter().map(|one| prost_types::Any::from_msg(one).unwrap()).collect(),
    );
    let request = stream.next_request().await;
    assert_eq!(request.response_nonce, version);
    (request.version_info, request.error_detail.map(|status| status.message))
}

#[tokio::test]
async fn xds_limits_apply_and_invalid_ones_are_rejected() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    let text = |path: &Path| path.display().to_string();
    let (authority, certificate, key) =
        (text(&certificates.authority), text(&certificates.certificate), text(&certificates.key));
    let secret = [
        ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true"),
        ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", authority.as_str()),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", &certificate),
        ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", &key),
        ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "localhost"),
    ];
    // In plain text, and with a certificate on both sides.
    for (tls, variables) in [(None, &[][..]), (Some(tls_acceptor(&certificates)), &secret[..])] {
        let (discovery, mut streams) = DiscoveryServer::new();
        let address = start_tls_server(discovery, tls).await.to_string();
        let common = [
            ("CONFIG_TYPE", "GRPC_XDS_SOTW"),
            ("CONFIG_GRPC_XDS_SERVER_URL", &address),
            ("CONFIG_GRPC_XDS_NODE_ID", "limits-1"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "x-token:secret"),
        ];
        let host =
            TestServer::start(&common.into_iter().chain(variables.iter().copied()).collect::<Vec<_>>());
        let mut stream = timeout(TEST_TIMEOUT, streams.recv()).await.unwrap().unwrap();
        assert_eq!(stream.token, "secret");
        assert_eq!(stream.next_request().await.node.unwrap().id, "limits-1");
        // The listeners accept no connections before the first configuration.
        for address in [&host.grpc, &host.json, &host.debug] {
            let error = TcpStream::connect(address).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused, "{address}");
        }
        assert_eq!(publish(&mut stream, "1", &[xds_config(2)]).await, ("1".to_owned(), None));
        let address = host.grpc.clone();
        let connect = move || {
            let address = address.clone();
            async move {
                loop {
                    match TcpStream::connect(&address).await {
                        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => {
                            tokio::task::yield_now().await;
                        }
                        connected => return connected,
                    }
                }
            }
        };
        let grpc = timeout(TEST_TIMEOUT, connect_channel(connect)).await.unwrap().unwrap();
        assert_eq!(check_user(grpc.clone(), 3).await.unwrap(), LIMIT_OF_TWO);

        let (version, error) = publish(&mut stream, "2", &[xds_config(9), xds_config(9)]).await;
        assert_eq!(version, "1");
        assert!(error.as_ref().unwrap().contains("duplicate domain 'shop'"), "{error:?}");
        assert_eq!(
            check_user(grpc.clone(), 1).await.unwrap(),
            [Code::OverLimit],
            "the previous configuration stays active"
        );

        assert_eq!(publish(&mut stream, "3", &[xds_config(5)]).await, ("3".to_owned(), None));
        assert_eq!(
            check_user(grpc, 2).await.unwrap(),
            [Code::Ok, Code::OverLimit],
            "four were counted before"
        );
        host.stop().await;
    }
}

#[tokio::test]
async fn incomplete_preface_does_not_delay_shutdown() {
    let (_folder, root) = config_folder();
    let host = TestServer::start(&[("RUNTIME_ROOT", &root)]);
    // An invalid HTTP version gets an error response or a closed connection.
    let mut wrong = TcpStream::connect(&host.grpc).await.unwrap();
    wrong
        .write_all(b"PRI * HTTP/9.9\r\n\r\nSM\r\n\r\nmore than that, and nothing that is any good")
        .await
        .unwrap();
    let mut rest = Vec::new();
    let _ = timeout(TEST_TIMEOUT, wrong.read_to_end(&mut rest)).await.unwrap();
    let incomplete = TcpStream::connect(&host.json).await.unwrap();
    host.stop().await;
    drop(incomplete);
}

/// Returns the response to a request, as text.
async fn post_raw(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str, headers: &str) -> String {
    let body = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"user","value":"bob"}]}]}"#;
    let length = body.len();
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}content-length: {length}\r\n\r\n{body}"
    );
    let mut response = Vec::new();
    if stream.write_all(request.as_bytes()).await.is_ok() {
        // The server closes the connection of a rejected client.
        let _ = timeout(TEST_TIMEOUT, stream.read_to_end(&mut response)).await.unwrap();
    }
    String::from_utf8_lossy(&response).into_owned()
}

async fn post_status(address: &str, path: &str, headers: &str) -> String {
    let stream = TcpStream::connect(address).await.unwrap();
    post_raw(stream, path, headers).await.split(' ').nth(1).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn tokens_are_required_when_configured() {
    let (_folder, root) = config_folder();
    let host = TestServer::start(&[
        ("RUNTIME_ROOT", &root),
        ("TIDEGATE_TOKENS", "old-secret new-secret"),
        ("TIDEGATE_ADMIN_TOKEN", "boss-secret"),
    ]);
    let channel = Channel::from_shared(format!("http://{}", host.grpc)).unwrap().connect().await.unwrap();
    assert_eq!(check_user(channel.clone(), 1).await.unwrap_err().code(), tonic::Code::Unauthenticated);
    for (token, code) in [("Bearer new-secret", None), ("Bearer other", Some(tonic::Code::Unauthenticated))] {
        let with = |mut request: tonic::Request<()>| {
            request.metadata_mut().insert("authorization", token.parse().unwrap());
            Ok(request)
        };
        let mut client = RateLimitServiceClient::with_interceptor(channel.clone(), with);
        let request = RateLimitRequest {
            domain: "shop".to_owned(),
            descriptors: vec![descriptor_of("user", "alice")],
            hits_addend: 0,
        };
        let response = client.should_rate_limit(request).await;
        assert_eq!(response.err().map(|status| status.code()), code, "{token}");
    }
    // Health checks need no token.
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    health.check(tonic_health::pb::HealthCheckRequest { service: "ratelimit".to_owned() }).await.unwrap();
    assert_eq!(post_status(&host.json, "/healthcheck", "").await, "200", "by any method");

    let (old, boss) = ("authorization: Bearer old-secret\r\n", "authorization: Bearer boss-secret\r\n");
    for (address, path, headers, expected) in [
        (&host.json, "/json", "", "401"),
        (&host.json, "/json", "authorization: Bearer other\r\n", "401"),
        (&host.json, "/json", old, "200"),
        (&host.json, "/v1/descriptors/peek", "", "401"),
        (&host.json, "/v1/descriptors/peek", old, "200"),
        (&host.json, "/v1/descriptors/reset", old, "403"),
        (&host.json, "/v1/descriptors/reset", boss, "200"),
        (&host.debug, "/stats", "", "401"),
        (&host.debug, "/stats", old, "200"),
        (&host.debug, "/rlconfig", boss, "200"),
    ] {
        assert_eq!(post_status(address, path, headers).await, expected, "{path} {headers}");
    }
    host.stop().await;
}

#[tokio::test]
async fn http_listeners_support_mutual_tls() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    let (_folder, root) = config_folder();
    let text = |path: &Path| path.display().to_string();
    let (certificate, key) = (text(&certificates.certificate), text(&certificates.key));
    let authority = text(&certificates.authority);
    let host = TestServer::start(&[
        ("RUNTIME_ROOT", &root),
        ("TIDEGATE_HTTP_TLS_CERT", &certificate),
        ("TIDEGATE_HTTP_TLS_KEY", &key),
        ("TIDEGATE_HTTP_TLS_CLIENT_CACERT", &authority),
    ]);
    for (address, path) in [(&host.json, "/json"), (&host.debug, "/stats")] {
        for (with_certificate, is_allowed) in [(true, true), (false, false)] {
            let stream = TcpStream::connect(address).await.unwrap();
            let name = ServerName::try_from("localhost").unwrap();
            let handshake = tls_connector(&certificates, with_certificate).connect(name, stream).await;
            let response = match handshake {
                Ok(stream) => post_raw(stream, path, "").await,
                Err(_) => String::new(),
            };
            assert_eq!(response.starts_with("HTTP/1.1 200"), is_allowed, "{path} {response}");
        }
        let plain = TcpStream::connect(address).await.unwrap();
        assert!(!post_raw(plain, path, "").await.contains("HTTP/1.1"), "{path}");
    }
    host.stop().await;
}

#[test]
fn incomplete_access_settings_are_rejected() {
    for (variables, part) in [
        (&[("TIDEGATE_TOKENS", " ")][..], "TIDEGATE_TOKENS"),
        (&[("TIDEGATE_HTTP_TLS_CLIENT_CACERT", "ca.pem")], "TIDEGATE_HTTP_TLS_CERT"),
        (&[("TIDEGATE_HTTP_TLS_CERT", "cert.pem")], "TIDEGATE_HTTP_TLS_KEY"),
    ] {
        let error = Environment::parse(variables.iter().copied()).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
}
