//! Names in client certificates as keys, tiers and conditions.

use crate::{
    admin_api::AdminGateway,
    harness::{RawClient, TestBackend},
    tls::write_certificates,
};
use bytes::Bytes;
use http::{Request, StatusCode};
use http_body_util::Empty;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{net::SocketAddr, path::Path, sync::Arc};
use tidegate_rule::Rules;
use tidegate_testkit::servers::Certificates;
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};

/// A client with a certificate. Its later connections resume the TLS session of the first one.
struct CertifiedClient {
    http1: Arc<ClientConfig>,
    http2: Arc<ClientConfig>,
}

impl CertifiedClient {
    fn new(authority: &Certificates, name: &str, subject: &str, sans: &str) -> Self {
        let (certificate, key) = authority.create_client(name, subject, sans).unwrap();
        let config = |protocol| Arc::new(client_config(&authority.authority, &certificate, &key, protocol));
        Self { http1: config(b"http/1.1"), http2: config(b"h2") }
    }

    /// The statuses of responses over HTTP/1.1 and HTTP/2, each on a connection of its own.
    async fn statuses(&self, address: SocketAddr, path: &str) -> [u16; 2] {
        let request =
            |uri: &str| Request::get(uri).header("host", "localhost").body(Empty::<Bytes>::new()).unwrap();
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(connect(address, &self.http1).await)).await.unwrap();
        tokio::spawn(connection);
        let first = sender.send_request(request(path)).await.unwrap().status();
        let io = TokioIo::new(connect(address, &self.http2).await);
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), io).await.unwrap();
        tokio::spawn(connection);
        let second =
            sender.send_request(request(&format!("https://localhost{path}"))).await.unwrap().status();
        [first, second].map(|status: StatusCode| status.as_u16())
    }
}

async fn connect(
    address: SocketAddr,
    config: &Arc<ClientConfig>,
) -> tokio_rustls::client::TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    let connector = TlsConnector::from(config.clone());
    connector.connect(ServerName::try_from("localhost").unwrap(), stream).await.unwrap()
}

fn client_config(authority: &Path, certificate: &Path, key: &Path, protocol: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(authority).unwrap()).unwrap();
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().map(Result::unwrap).collect();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    config.alpn_protocols = vec![protocol.to_vec()];
    config
}

/// Starts a gateway with a listener that verifies clients, and a plain one.
fn start(server: &TestBackend, certificates: &Certificates, rules: &str) -> AdminGateway {
    let policy = format!(
        "listen: [{{ address: 127.0.0.1:0, tls: {{ certificate: '{}', key: '{}', client-ca: '{}' }} }}, 127.0.0.1:0]\n\
         admin: 127.0.0.1:0\nupstreams: {{ app: http://{} }}\nroutes: app\nuser: client-cert subject\nrules:\n{rules}",
        certificates.certificate.display(),
        certificates.key.display(),
        certificates.authority.display(),
        server.address
    );
    AdminGateway::start_policy(&policy, Rules::new())
}

#[tokio::test]
async fn names_of_a_client_certificate_are_keys() {
    let (_folder, certificates) = write_certificates();
    let server = TestBackend::start_echo().await;
    let rules = "
- { name: subject, match: { path: /subject }, key: client-cert subject, quota: 3 per 1000h, missing: reject }
- { name: san, match: { path: /san }, key: client-cert san, quota: 3 per 1000h, missing: reject }
- { name: user, match: { path: /user }, key: user, quota: 3 per 1000h, missing: reject }
- { name: plan, match: { path: /plan }, key: client-cert subject,
    tiers: { key: client-cert san, quotas: { gold.example.org: 3 per 1000h }, default: 1 per 1000h } }
- { name: default, match: { path: /default }, key: client-cert san, quota: 1 per 1000h }
";
    let gateway = start(&server, &certificates, rules);
    let [tls, plain] = [gateway.addresses[0], gateway.addresses[1]];
    let client =
        |name: &str, subject: &str, sans: &str| CertifiedClient::new(&certificates, name, subject, sans);
    let ada = client("ada", "/O=Example/CN=ada", "DNS:ada.example.org,URI:spiffe://example.org/ada");
    // The same subject alternative name, and another subject.
    let copy = client("copy", "/O=Example/CN=copy", "URI:spiffe://example.org/ada");
    let gold = client("gold", "/O=Example/CN=gold", "DNS:gold.example.org");
    let bare = client("bare", "/CN=bare", "");
    for (client, path, expected) in [
        (&ada, "/subject", [200, 200]),
        (&ada, "/subject", [200, 429]),
        (&copy, "/subject", [200, 200]),
        (&ada, "/san", [200, 200]),
        (&copy, "/san", [200, 429]),
        (&gold, "/san", [200, 200]),
        (&bare, "/subject", [200, 200]),
        (&bare, "/san", [400, 400]),
        (&ada, "/user", [200, 200]),
        (&ada, "/user", [200, 429]),
        (&gold, "/user", [200, 200]),
        (&gold, "/plan", [200, 200]),
        (&gold, "/plan", [200, 429]),
        (&ada, "/plan", [200, 429]),
        // Without a name, requests count by their address.
        (&bare, "/default", [200, 429]),
        (&gold, "/default", [200, 429]),
    ] {
        assert_eq!(client.statuses(tls, path).await, expected, "{path}");
    }
    let denied = RawClient::connect(plain).await.request("GET /subject HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!((denied.status(), denied.header("www-authenticate")), (403, None));
    assert!(denied.body.contains("no client certificate"), "{}", denied.body);
    let counted = RawClient::connect(plain).await.request("GET /default HTTP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(counted.status(), 429);
    let metrics = gateway.metrics().await;
    let series = r#"tidegate_decisions_total{rule="subject",outcome="unauthenticated"} 1"#;
    assert!(metrics.contains(series), "{metrics}");
    gateway.stop().await;
}

#[tokio::test]
async fn rule_applies_only_to_client_certificates_that_match() {
    let (_folder, certificates) = write_certificates();
    let server = TestBackend::start_echo().await;
    let rules = "
- { name: subject, match: { path: /subject, client-cert: { subject: 'CN=*,O=Example' } }, deny: all }
- { name: san, match: { path: /san, client-cert: { san: 'spiffe://example.org/*' } }, deny: all }
- { name: dns, match: { path: /dns, client-cert: { san: '*.example.org' } }, deny: all }
- { name: none, match: { path: /none, not: { client-cert: { subject: '*' } } }, deny: all }
";
    let gateway = start(&server, &certificates, rules);
    let client =
        |name: &str, subject: &str, sans: &str| CertifiedClient::new(&certificates, name, subject, sans);
    let ada = client("ada", "/O=Example/CN=ada", "DNS:ada.example.org,URI:spiffe://example.org/ada");
    let bob = client("bob", "/O=Example, Inc./CN=bob", "");
    for (client, path, expected) in [
        (&ada, "/subject", 403),
        (&bob, "/subject", 200),
        (&ada, "/san", 403),
        (&bob, "/san", 200),
        (&ada, "/dns", 403),
        (&bob, "/dns", 200),
        (&ada, "/none", 200),
    ] {
        assert_eq!(client.statuses(gateway.addresses[0], path).await, [expected; 2], "{path}");
    }
    for (path, expected) in [("/subject", 200), ("/none", 403)] {
        let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n");
        let response = RawClient::connect(gateway.addresses[1]).await.request(&request).await;
        assert_eq!(response.status(), expected, "{path}");
    }
    gateway.stop().await;
}
