//! TLS and HTTP/2, of clients and upstream servers.

use crate::{
    admin_api::AdminGateway,
    harness::{InProcessGateway, LogCapture, TEST_TIMEOUT, TestBackend, test_config, text_body},
};
use bytes::Bytes;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::{body::Incoming, client::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{
    fs,
    io::{Read, Write},
    net::SocketAddr,
    path::Path,
    sync::Arc,
};
use tidegate_gateway::Action;
use tidegate_http_server::{BoundListener, Roots};
use tidegate_policy::head::ParsedRequest;
use tidegate_policy::model::{ListenerSpec, Protocol, Tls};
use tidegate_rule::Rules;
use tidegate_testkit::servers::Certificates;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    client::TlsStream,
    rustls::{
        ClientConfig, ClientConnection, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

fn connector(authority: &Path, protocol: &[u8]) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    Arc::new(config).into()
}

pub(crate) async fn connect(
    address: SocketAddr,
    authority: &Path,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    connect_tls(TcpStream::connect(address).await?, authority, protocol).await
}

pub(crate) async fn connect_tls(
    stream: TcpStream,
    authority: &Path,
    protocol: &[u8],
) -> std::io::Result<TlsStream<TcpStream>> {
    connector(authority, protocol).connect(ServerName::try_from("localhost").unwrap(), stream).await
}

pub(crate) fn write_certificates() -> (tempfile::TempDir, Certificates) {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    (directory, certificates)
}

pub(crate) fn tls_settings(certificates: &Certificates) -> Tls {
    Tls { certificate: certificates.certificate.clone(), key: certificates.key.clone(), client_ca: None }
}

/// Starts a gateway with TLS from a policy.
fn start_tls(server: &TestBackend, certificates: &Certificates, client_ca: Option<&Path>) -> AdminGateway {
    start_tls_with(server, certificates, client_ca, "")
}

/// Starts a gateway with TLS from a policy with further keys.
pub(crate) fn start_tls_with(
    server: &TestBackend,
    certificates: &Certificates,
    client_ca: Option<&Path>,
    rest: &str,
) -> AdminGateway {
    let client_ca = client_ca.map_or_else(String::new, |file| format!(", client-ca: '{}'", file.display()));
    let policy = format!(
        "listen: {{ address: 127.0.0.1:0, tls: {{ certificate: '{}', key: '{}'{client_ca} }} }}\n\
         admin: 127.0.0.1:0\nupstreams: {{ app: http://{} }}\nroutes: app\n{rest}\n",
        certificates.certificate.display(),
        certificates.key.display(),
        server.address
    );
    AdminGateway::start_policy(&policy, Rules::new())
}

/// Sends requests over HTTP/2; returns the body of the last response.
async fn request_http2<I>(io: I, uri: &str) -> String
where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    let mut responses = Vec::new();
    for number in 0..20 {
        let request = Request::post(uri)
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(Full::new(Bytes::from(format!("body {number}"))))
            .unwrap();
        responses.push(sender.send_request(request));
    }
    let mut last = String::new();
    for (number, response) in responses.into_iter().enumerate() {
        let response = tokio::time::timeout(TEST_TIMEOUT, response).await.unwrap().unwrap();
        assert_eq!(response.status(), 200);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        last = String::from_utf8(body.to_vec()).unwrap();
        assert!(last.ends_with(&format!("body {number}")), "{last}");
    }
    last
}

#[tokio::test]
async fn http2_prior_knowledge_is_served() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let body =
        request_http2(TcpStream::connect(gateway.address).await.unwrap(), "http://app.example/a?b").await;
    assert!(body.starts_with("POST /a?b\n"), "{body}");
    assert!(body.contains("host: app.example\n") && body.contains("cookie: a=1; b=2\n"), "{body}");
}

#[tokio::test]
async fn partial_http2_preface_is_served_as_http1() {
    let server = TestBackend::start_echo().await;
    let gateway = InProcessGateway::start(&[&server]).await;
    let mut client = gateway.connect().await;
    client.stream.set_nodelay(true).unwrap();
    // The first bytes could be the HTTP/2 preface.
    for piece in ["P", "R", "I /a HTTP/1.1\r\nhost: a\r\n\r\n"] {
        client.send(piece).await;
        tokio::task::yield_now().await;
    }
    assert!(client.read_response().await.body.starts_with("PRI /a\n"));
}

#[tokio::test]
async fn alpn_selects_http_version() {
    let (_directory, certificates) = write_certificates();
    let server = TestBackend::start_echo().await;
    let gateway = start_tls(&server, &certificates, None);

    let io = connect(gateway.address, &certificates.authority, b"h2").await.unwrap();
    let body = request_http2(io, "https://localhost/a").await;
    assert!(body.contains("x-forwarded-proto: https\n"), "{body}");

    let io = connect(gateway.address, &certificates.authority, b"http/1.1").await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::get("/a").header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
    let response = sender.send_request(request).await.unwrap();
    assert_eq!((response.status().as_u16(), response.version()), (200, Version::HTTP_11));

    // HTTP/3 is neither accepted nor advertised.
    assert!(connect(gateway.address, &certificates.authority, b"h3").await.is_err());
    assert_eq!(response.headers().get("alt-svc"), None);
}

#[tokio::test]
async fn request_sent_with_tls_finished_is_served() {
    let (_directory, certificates) = write_certificates();
    let server = TestBackend::start_echo().await;
    let gateway = start_tls(&server, &certificates, None);

    let settings = connector(&certificates.authority, b"http/1.1").config().clone();
    let mut tls = ClientConnection::new(settings, ServerName::try_from("localhost").unwrap()).unwrap();
    let mut stream = TcpStream::connect(gateway.address).await.unwrap();
    let mut response = Vec::new();
    while !response.starts_with(b"HTTP/1.1 200 OK\r\n") {
        if !tls.is_handshaking() && response.is_empty() {
            tls.writer().write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").unwrap();
            response.push(b' ');
        }
        // All pending bytes are sent in one write.
        let mut sent = Vec::new();
        while tls.wants_write() {
            tls.write_tls(&mut sent).unwrap();
        }
        stream.write_all(&sent).await.unwrap();
        let mut received = vec![0; 1 << 14];
        let length = tokio::time::timeout(TEST_TIMEOUT, stream.read(&mut received)).await.unwrap().unwrap();
        assert!(length > 0);
        tls.read_tls(&mut &received[..length]).unwrap();
        if tls.process_new_packets().unwrap().plaintext_bytes_to_read() > 0 {
            response.clear();
            let _ = tls.reader().read_to_end(&mut response);
        }
    }
}

#[tokio::test]
async fn new_certificate_is_loaded_and_invalid_one_ignored() {
    let (directory, old) = write_certificates();
    let mut log = LogCapture::start();
    let server = TestBackend::start_echo().await;
    let config = test_config(&[&server]);
    let app = config.upstream_id("app").unwrap();
    let filter = move |_: &ParsedRequest| Action::Forward(app);
    let gateway = InProcessGateway::start_with_tls(config, Some(tls_settings(&old)), filter).await;
    let old_authority = directory.path().join("old.crt");
    fs::copy(&old.authority, &old_authority).unwrap();
    connect(gateway.address, &old_authority, b"h2").await.unwrap();

    fs::write(&old.key, "nonsense").unwrap();
    let (_other, new) = write_certificates();
    // The event shows that the gateway has checked the files.
    log.wait_for("certificate rejected").await;
    connect(gateway.address, &old_authority, b"h2").await.unwrap();
    fs::copy(&new.key, &old.key).unwrap();
    fs::copy(&new.certificate, &old.certificate).unwrap();
    // The gateway polls the files, so try until it has reloaded them.
    let taken = async { while connect(gateway.address, &new.authority, b"h2").await.is_err() {} };
    tokio::time::timeout(TEST_TIMEOUT, taken).await.unwrap();
    assert!(connect(gateway.address, &old_authority, b"h2").await.is_err());
}

/// Whether the gateway accepts this client certificate. TLS sessions are resumed if possible.
async fn is_accepted(address: SocketAddr, config: &Arc<ClientConfig>) -> bool {
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(config.clone());
    let Ok(mut io) = connector.connect(ServerName::try_from("localhost").unwrap(), stream).await else {
        return false;
    };
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let mut response = Vec::new();
    io.write_all(request).await.is_ok()
        && io.read_to_end(&mut response).await.is_ok()
        && response.starts_with(b"HTTP/1.1 200")
}

#[tokio::test]
async fn removed_client_authority_rejects_clients() {
    let (directory, server_files) = write_certificates();
    let (_other, clients) = write_certificates();
    let authorities = directory.path().join("clients.pem");
    fs::copy(&clients.authority, &authorities).unwrap();
    let server = TestBackend::start_echo().await;
    let gateway = start_tls(&server, &server_files, Some(&authorities));

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&server_files.authority).unwrap()).unwrap();
    let chain = CertificateDer::pem_file_iter(&clients.certificate).unwrap().map(Result::unwrap).collect();
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(&clients.key).unwrap())
        .unwrap();
    let client = Arc::new(client);
    assert!(is_accepted(gateway.address, &client).await);

    // With another CA, neither a new session nor a resumed one is accepted.
    fs::copy(&server_files.authority, &authorities).unwrap();
    let removed = async { while is_accepted(gateway.address, &client).await {} };
    tokio::time::timeout(TEST_TIMEOUT, removed).await.unwrap();
    assert!(!is_accepted(gateway.address, &client).await);
}

#[tokio::test]
async fn invalid_certificate_error_names_file() {
    let (directory, good) = write_certificates();
    let (_other, other) = write_certificates();
    let empty = directory.path().join("empty.pem");
    fs::write(&empty, "").unwrap();
    let missing = directory.path().join("missing.pem");
    for (certificate, key, named, part) in [
        (&missing, &good.key, &missing, "no such file"),
        (&empty, &good.key, &empty, "no certificate found"),
        (&good.certificate, &missing, &missing, "no such file"),
        (&good.certificate, &empty, &empty, "no private key found"),
        (&good.certificate, &other.key, &other.key, "key does not match"),
    ] {
        let tls = Tls { certificate: certificate.clone(), key: key.clone(), client_ca: None };
        let error = BoundListener::bind(&ListenerSpec {
            name: None,
            address: ([127, 0, 0, 1], 0).into(),
            tls: Some(tls),
        })
        .unwrap_err();
        let error = error.to_string();
        assert!(error.starts_with(&named.display().to_string()) && error.contains(part), "{error}");
    }
}

#[tokio::test]
async fn address_in_use_is_reported() {
    let server = TestBackend::start_echo().await;
    let error =
        BoundListener::bind(&ListenerSpec { name: None, address: server.address, tls: None }).unwrap_err();
    assert!(error.to_string().contains("is in use"), "{error}");
}

async fn start_http2_server(acceptor: Option<TlsAcceptor>) -> TestBackend {
    TestBackend::start_raw(move |stream| {
        let acceptor = acceptor.clone();
        async move {
            let service = service_fn(|request: Request<Incoming>| async move {
                let head = format!("{:?} {} ", request.version(), request.uri());
                let body = request
                    .into_body()
                    .collect()
                    .await
                    .map(http_body_util::Collected::to_bytes)
                    .unwrap_or_default();
                Ok::<_, std::convert::Infallible>(Response::new(text_body([head.as_bytes(), &body].concat())))
            });
            let builder = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            match acceptor {
                Some(acceptor) => {
                    let Ok(stream) = acceptor.accept(stream).await else { return };
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                }
                None => {
                    let _ = builder.serve_connection(TokioIo::new(stream), service).await;
                }
            }
        }
    })
    .await
}

#[tokio::test]
async fn upstream_http2_works_with_and_without_tls() {
    let plain = start_http2_server(None).await;
    let gateway = AdminGateway::start_upstream(&[&plain], "protocol: http2");
    let mut client = gateway.connect().await;
    for _ in 0..3 {
        let response =
            client.request("POST /a HTTP/1.1\r\nhost: app.example\r\ncontent-length: 4\r\n\r\nbody").await;
        assert_eq!(response.body, "HTTP/2.0 http://app.example/a body");
    }
    assert_eq!(plain.connection_count(), 1);

    let (_directory, certificates) = write_certificates();
    let chain =
        CertificateDer::pem_file_iter(&certificates.certificate).unwrap().map(Result::unwrap).collect();
    let mut server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(&certificates.key).unwrap())
        .unwrap();
    server.alpn_protocols = vec![b"h2".to_vec()];
    let secret = start_http2_server(Some(TlsAcceptor::from(Arc::new(server)))).await;
    let mut to_secret = test_config(&[&secret]);
    let app = to_secret.upstreams.get_mut("app").unwrap();
    app.protocol = Protocol::Http2;
    app.servers[0].url = format!("https://{}", secret.address);
    to_secret.roots = Roots::File(certificates.authority.clone());
    let gateway = InProcessGateway::start_with(to_secret.clone()).await;
    assert_eq!(gateway.connect().await.get("/a").await.body, "HTTP/2.0 https://example.org/a ");

    // A server certificate of an unknown CA is rejected.
    let (_other, others) = self::write_certificates();
    to_secret.roots = Roots::File(others.authority.clone());
    let gateway = InProcessGateway::start_with(to_secret).await;
    assert_eq!(gateway.connect().await.get("/a").await.status(), 502);
}
