//! The xDS client with a real discovery server.

use hyper::server::conn::http2;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    service::TowerToHyperService,
};
use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};
use tidegate_proto::{
    config::RateLimitConfig,
    discovery::{
        AggregatedDiscoveryService, AggregatedDiscoveryServiceServer, DiscoveryRequest, DiscoveryResponse,
    },
};
use tidegate_service::descriptors::xds::{
    DEFAULT_MAX_MESSAGE_SIZE, XdsBackoff, XdsClient, XdsSettings, XdsTls,
};
use tidegate_testkit::servers::Certificates;
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use tokio_rustls::{
    TlsAcceptor, TlsConnector,
    rustls::{
        ClientConfig, RootCertStore, ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};
use tonic::{
    Request, Response, Status, Streaming,
    codegen::tokio_stream::{Stream, wrappers::TcpListenerStream},
    transport::Server,
};

const TYPE_URL: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// The server side of a stream.
pub(crate) struct DiscoveryStream {
    pub(crate) token: String,
    requests: Streaming<DiscoveryRequest>,
    responses: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
}

impl DiscoveryStream {
    pub(crate) async fn next_request(&mut self) -> DiscoveryRequest {
        self.requests.message().await.unwrap().unwrap()
    }

    pub(crate) fn send_response(&self, version: &str, nonce: &str, resources: Vec<prost_types::Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: TYPE_URL.to_owned(),
            nonce: nonce.to_owned(),
        };
        self.responses.send(Ok(response)).unwrap();
    }
}

fn domain_resource(domain: &str) -> prost_types::Any {
    let config =
        RateLimitConfig { name: domain.to_owned(), domain: domain.to_owned(), descriptors: Vec::new() };
    prost_types::Any::from_msg(&config).unwrap()
}

pub(crate) struct DiscoveryServer {
    streams: mpsc::UnboundedSender<DiscoveryStream>,
}

impl DiscoveryServer {
    /// Creates a server, and the receiver of the streams that clients open.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<DiscoveryStream>) {
        let (streams, incoming) = mpsc::unbounded_channel();
        (Self { streams }, incoming)
    }
}

pub(crate) struct DiscoveryResponses(mpsc::UnboundedReceiver<Result<DiscoveryResponse, Status>>);

impl Stream for DiscoveryResponses {
    type Item = Result<DiscoveryResponse, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for DiscoveryServer {
    type StreamAggregatedResourcesStream = DiscoveryResponses;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<DiscoveryResponses>, Status> {
        let token = request.metadata().get("x-token").map_or("", |token| token.to_str().unwrap()).to_owned();
        let (responses, receiver) = mpsc::unbounded_channel();
        self.streams.send(DiscoveryStream { token, requests: request.into_inner(), responses }).unwrap();
        Ok(Response::new(DiscoveryResponses(receiver)))
    }
}

/// Starts a server at an address, which may have been used before.
async fn start_server(
    address: SocketAddr,
) -> (SocketAddr, mpsc::UnboundedReceiver<DiscoveryStream>, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (streams, incoming) = mpsc::unbounded_channel();
    let service = AggregatedDiscoveryServiceServer::new(DiscoveryServer { streams });
    let serving =
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
    (address, incoming, tokio::spawn(async move { serving.await.unwrap() }))
}

/// Accepts clients with a certificate of this CA.
pub(crate) fn tls_acceptor(certificates: &Certificates) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates.authority).unwrap()).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let (chain, key) = load_identity(certificates);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// An HTTP/2 client that trusts this CA, with or without a client certificate.
pub(crate) fn tls_connector(certificates: &Certificates, with_certificate: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates.authority).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let (chain, key) = load_identity(certificates);
    let mut config = match with_certificate {
        true => builder.with_client_auth_cert(chain, key).unwrap(),
        false => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config).into()
}

fn load_identity(certificates: &Certificates) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_file_iter(&certificates.certificate).unwrap().map(Result::unwrap);
    (chain.collect(), PrivateKeyDer::from_pem_file(&certificates.key).unwrap())
}

/// Starts a discovery server, with optional TLS.
pub(crate) async fn start_tls_server(discovery: DiscoveryServer, tls: Option<TlsAcceptor>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = TowerToHyperService::new(AggregatedDiscoveryServiceServer::new(discovery));
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let (tls, service) = (tls.clone(), service.clone());
            tokio::spawn(async move {
                let builder = http2::Builder::new(TokioExecutor::new());
                let _ = match tls {
                    None => builder.serve_connection(TokioIo::new(stream), service).await,
                    Some(tls) => {
                        let stream = TokioIo::new(tls.accept(stream).await.unwrap());
                        builder.serve_connection(stream, service).await
                    }
                };
            });
        }
    });
    address
}

fn test_settings(server: &str) -> XdsSettings {
    XdsSettings {
        server: server.to_owned(),
        node_id: "limits-1".to_owned(),
        tls: None,
        headers: vec![("x-token".parse().unwrap(), "secret".parse().unwrap())],
        backoff: XdsBackoff { initial: Duration::from_millis(1), max: Duration::from_millis(1) },
        max_message_size: DEFAULT_MAX_MESSAGE_SIZE,
    }
}

/// Starts a client. Returns the domains that it applies; the domain `bad` is rejected.
fn start_client(
    settings: XdsSettings,
) -> (mpsc::UnboundedReceiver<Vec<String>>, oneshot::Sender<()>, JoinHandle<()>) {
    let (sender, applied) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let apply = move |all: Vec<RateLimitConfig>| {
        let domains: Vec<_> = all.into_iter().map(|config| config.domain).collect();
        match domains.iter().any(|domain| domain == "bad") {
            true => Err("bad: duplicate domain 'bad' in config file".to_owned()),
            false => sender.send(domains).map_err(|error| error.to_string()),
        }
    };
    let client = XdsClient::new(settings).unwrap();
    let running = tokio::spawn(client.run(apply, async {
        let _ = stopped.await;
    }));
    (applied, stop, running)
}

#[tokio::test]
async fn xds_client_acks_nacks_and_reconnects() {
    let (address, mut streams, serving) = start_server("127.0.0.1:0".parse().unwrap()).await;
    let (mut applied, stop, running) = start_client(test_settings(&address.to_string()));
    let mut stream = streams.recv().await.unwrap();
    assert_eq!(stream.token, "secret");
    let first = stream.next_request().await;
    assert_eq!(first.node.clone().unwrap().id, "limits-1");
    assert_eq!((first.type_url.as_str(), first.version_info.as_str()), (TYPE_URL, ""));
    assert_eq!((first.response_nonce.as_str(), first.error_detail.clone()), ("", None));

    // A response replaces the whole configuration.
    stream.send_response("1", "a", vec![domain_resource("shop"), domain_resource("blog")]);
    assert_eq!(applied.recv().await.unwrap(), ["shop", "blog"]);
    let ack = stream.next_request().await;
    assert_eq!((ack.version_info.as_str(), ack.response_nonce.as_str(), ack.error_detail), ("1", "a", None));

    // A NACK contains the version of the active configuration.
    let broken = prost_types::Any { type_url: TYPE_URL.to_owned(), value: vec![0xff] };
    let other = prost_types::Any { type_url: "type.googleapis.com/a.B".to_owned(), value: Vec::new() };
    let table = [
        (vec![domain_resource("shop"), domain_resource("bad")], "bad: duplicate domain 'bad' in config file"),
        (vec![domain_resource("shop"), broken], "resources[1] is not a type.googleapis.com/ratelimit"),
        (vec![other], "resources[0] is not a type.googleapis.com/ratelimit"),
    ];
    for (resources, part) in table {
        stream.send_response("2", "b", resources);
        let nack = stream.next_request().await;
        assert_eq!((nack.version_info.as_str(), nack.response_nonce.as_str()), ("1", "b"));
        let error = nack.error_detail.unwrap();
        assert!(error.code == 3 && error.message.contains(part), "{}", error.message);
    }

    // A response with another type gets neither ACK nor NACK.
    let unrelated =
        DiscoveryResponse { type_url: "type.googleapis.com/a.B".to_owned(), ..DiscoveryResponse::default() };
    stream.responses.send(Ok(unrelated)).unwrap();
    stream.send_response("3", "c", Vec::new());
    assert_eq!(applied.recv().await.unwrap(), [""; 0]);
    assert_eq!(stream.next_request().await.response_nonce, "c");

    // The client reconnects to a restarted server.
    serving.abort();
    let _ = serving.await;
    drop((stream, streams));
    let (_, mut streams, _serving) = start_server(address).await;
    let mut stream = streams.recv().await.unwrap();
    let again = stream.next_request().await;
    assert_eq!((again.version_info.as_str(), again.response_nonce.as_str()), ("3", ""));
    stream.send_response("4", "d", vec![domain_resource("shop")]);
    assert_eq!(applied.recv().await.unwrap(), ["shop"]);
    assert_eq!(stream.next_request().await.version_info, "4");

    stop.send(()).unwrap();
    running.await.unwrap();
}

#[test]
fn invalid_settings_are_rejected() {
    let roots = tidegate_http_server::Roots::File("nowhere.pem".into());
    let tls = Some(XdsTls { roots, ..XdsTls::default() });
    let table = [
        ("gateway", None, "`gateway`: missing port; write host and port"),
        ("ftp://gateway:1", None, "unsupported scheme"),
        ("a b:1", None, "invalid address"),
        ("gateway:18001", tls, "nowhere.pem"),
    ];
    for (server, tls, part) in table {
        let error = XdsClient::new(XdsSettings { tls, ..test_settings(server) }).unwrap_err().to_string();
        assert!(error.contains(part), "{server}: {error}");
    }
    let shown = format!("{:?}", XdsClient::new(test_settings("gateway:18001")).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}
