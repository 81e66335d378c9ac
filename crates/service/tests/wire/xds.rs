//! Limits from a real server of discovery.

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
use tidegate_service::descriptors::xds::{Backoff, MAX_MESSAGE, XdsClient, XdsSettings, XdsTls};
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

const KIND: &str = "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig";

/// A stream as its server sees it.
pub(crate) struct Line {
    pub(crate) token: String,
    heard: Streaming<DiscoveryRequest>,
    say: mpsc::UnboundedSender<Result<DiscoveryResponse, Status>>,
}

impl Line {
    pub(crate) async fn hear(&mut self) -> DiscoveryRequest {
        self.heard.message().await.unwrap().unwrap()
    }

    pub(crate) fn say(&self, version: &str, nonce: &str, resources: Vec<prost_types::Any>) {
        let response = DiscoveryResponse {
            version_info: version.to_owned(),
            resources,
            type_url: KIND.to_owned(),
            nonce: nonce.to_owned(),
        };
        self.say.send(Ok(response)).unwrap();
    }
}

fn limits(domain: &str) -> prost_types::Any {
    let config =
        RateLimitConfig { name: domain.to_owned(), domain: domain.to_owned(), descriptors: Vec::new() };
    prost_types::Any::from_msg(&config).unwrap()
}

pub(crate) struct Discovery {
    lines: mpsc::UnboundedSender<Line>,
}

impl Discovery {
    /// A server, and the streams that clients open.
    pub(crate) fn new() -> (Self, mpsc::UnboundedReceiver<Line>) {
        let (lines, incoming) = mpsc::unbounded_channel();
        (Self { lines }, incoming)
    }
}

pub(crate) struct Said(mpsc::UnboundedReceiver<Result<DiscoveryResponse, Status>>);

impl Stream for Said {
    type Item = Result<DiscoveryResponse, Status>;

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        self.0.poll_recv(context)
    }
}

#[tonic::async_trait]
impl AggregatedDiscoveryService for Discovery {
    type StreamAggregatedResourcesStream = Said;

    async fn stream_aggregated_resources(
        &self,
        request: Request<Streaming<DiscoveryRequest>>,
    ) -> Result<Response<Said>, Status> {
        let token = request.metadata().get("x-token").map_or("", |token| token.to_str().unwrap()).to_owned();
        let (say, said) = mpsc::unbounded_channel();
        self.lines.send(Line { token, heard: request.into_inner(), say }).unwrap();
        Ok(Response::new(Said(said)))
    }
}

/// A server at an address, where others may have been before.
async fn server(address: SocketAddr) -> (SocketAddr, mpsc::UnboundedReceiver<Line>, JoinHandle<()>) {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (lines, incoming) = mpsc::unbounded_channel();
    let service = AggregatedDiscoveryServiceServer::new(Discovery { lines });
    let serving =
        Server::builder().add_service(service).serve_with_incoming(TcpListenerStream::new(listener));
    (address, incoming, tokio::spawn(async move { serving.await.unwrap() }))
}

/// What lets in those who show a certificate of this authority.
pub(crate) fn server_tls(certificates: &Certificates) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates.authority).unwrap()).unwrap();
    let clients =
        WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
    let (chain, key) = identity(certificates);
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// A client of HTTP/2 that trusts this authority, and shows its certificate if it is to.
pub(crate) fn connector(certificates: &Certificates, with_certificate: bool) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates.authority).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let (chain, key) = identity(certificates);
    let mut config = match with_certificate {
        true => builder.with_client_auth_cert(chain, key).unwrap(),
        false => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Arc::new(config).into()
}

fn identity(certificates: &Certificates) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
    let chain = CertificateDer::pem_file_iter(&certificates.certificate).unwrap().map(Result::unwrap);
    (chain.collect(), PrivateKeyDer::from_pem_file(&certificates.key).unwrap())
}

/// A server of discovery, behind TLS if there is any.
pub(crate) async fn tls_server(discovery: Discovery, tls: Option<TlsAcceptor>) -> SocketAddr {
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

fn settings(server: &str) -> XdsSettings {
    XdsSettings {
        server: server.to_owned(),
        node: "limits-1".to_owned(),
        tls: None,
        headers: vec![("x-token".parse().unwrap(), "secret".parse().unwrap())],
        backoff: Backoff { first: Duration::from_millis(1), most: Duration::from_millis(1) },
        max_message: MAX_MESSAGE,
    }
}

/// A client, and the domains that it hands over; those of `bad` are refused.
fn client(
    settings: XdsSettings,
) -> (mpsc::UnboundedReceiver<Vec<String>>, oneshot::Sender<()>, JoinHandle<()>) {
    let (took, taken) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let take = move |all: Vec<RateLimitConfig>| {
        let domains: Vec<_> = all.into_iter().map(|config| config.domain).collect();
        match domains.iter().any(|domain| domain == "bad") {
            true => Err("bad: duplicate domain 'bad' in config file".to_owned()),
            false => took.send(domains).map_err(|error| error.to_string()),
        }
    };
    let client = XdsClient::new(settings).unwrap();
    let running = tokio::spawn(client.run(take, async {
        let _ = stopped.await;
    }));
    (taken, stop, running)
}

#[tokio::test]
async fn limits_are_taken_refused_and_asked_for_again_when_the_server_dies() {
    let (address, mut lines, serving) = server("127.0.0.1:0".parse().unwrap()).await;
    let (mut taken, stop, running) = client(settings(&address.to_string()));
    let mut line = lines.recv().await.unwrap();
    assert_eq!(line.token, "secret");
    let first = line.hear().await;
    assert_eq!(first.node.clone().unwrap().id, "limits-1");
    assert_eq!((first.type_url.as_str(), first.version_info.as_str()), (KIND, ""));
    assert_eq!((first.response_nonce.as_str(), first.error_detail.clone()), ("", None));

    // A set is taken as a whole.
    line.say("1", "a", vec![limits("shop"), limits("blog")]);
    assert_eq!(taken.recv().await.unwrap(), ["shop", "blog"]);
    let ack = line.hear().await;
    assert_eq!((ack.version_info.as_str(), ack.response_nonce.as_str(), ack.error_detail), ("1", "a", None));

    // What is refused changes nothing: the version that is told is the one in force.
    let broken = prost_types::Any { type_url: KIND.to_owned(), value: vec![0xff] };
    let other = prost_types::Any { type_url: "type.googleapis.com/a.B".to_owned(), value: Vec::new() };
    let table = [
        (vec![limits("shop"), limits("bad")], "bad: duplicate domain 'bad' in config file"),
        (vec![limits("shop"), broken], "resources[1] is no type.googleapis.com/ratelimit"),
        (vec![other], "resources[0] is no type.googleapis.com/ratelimit"),
    ];
    for (resources, why) in table {
        line.say("2", "b", resources);
        let nack = line.hear().await;
        assert_eq!((nack.version_info.as_str(), nack.response_nonce.as_str()), ("1", "b"));
        let told = nack.error_detail.unwrap();
        assert!(told.code == 3 && told.message.contains(why), "{}", told.message);
    }

    // What nobody asked for is not answered: the next thing that is heard is about the next set.
    let stray =
        DiscoveryResponse { type_url: "type.googleapis.com/a.B".to_owned(), ..DiscoveryResponse::default() };
    line.say.send(Ok(stray)).unwrap();
    line.say("3", "c", Vec::new());
    assert_eq!(taken.recv().await.unwrap(), [""; 0]);
    assert_eq!(line.hear().await.response_nonce, "c");

    // The server dies, and another one takes its place.
    serving.abort();
    let _ = serving.await;
    drop((line, lines));
    let (_, mut lines, _serving) = server(address).await;
    let mut line = lines.recv().await.unwrap();
    let again = line.hear().await;
    assert_eq!((again.version_info.as_str(), again.response_nonce.as_str()), ("3", ""));
    line.say("4", "d", vec![limits("shop")]);
    assert_eq!(taken.recv().await.unwrap(), ["shop"]);
    assert_eq!(line.hear().await.version_info, "4");

    stop.send(()).unwrap();
    running.await.unwrap();
}

#[test]
fn settings_that_make_no_sense_are_told() {
    let roots = tidegate_http_server::Roots::File("nowhere.pem".into());
    let tls = Some(XdsTls { roots, ..XdsTls::default() });
    let table = [
        ("gateway", None, "`gateway`: it names no port; write host and port"),
        ("ftp://gateway:1", None, "its scheme is neither http nor https"),
        ("a b:1", None, "it is no address of a server"),
        ("gateway:18001", tls, "nowhere.pem"),
    ];
    for (server, tls, told) in table {
        let error = XdsClient::new(XdsSettings { tls, ..settings(server) }).unwrap_err().to_string();
        assert!(error.contains(told), "{server}: {error}");
    }
    let shown = format!("{:?}", XdsClient::new(settings("gateway:18001")).unwrap());
    assert!(!shown.contains("secret"), "{shown}");
}
