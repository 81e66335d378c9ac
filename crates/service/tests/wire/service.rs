//! What is around decisions: health, reflection, TLS, and an end.

use crate::stage::{Service, Stub};
use std::sync::Arc;
use tidegate_policy::model::Tls;
use tidegate_proto::rls::{RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use tidegate_service::descriptors::{
    Decide, DescriptorFault, DomainAsk, DomainVerdict,
    wire::{GrpcSettings, Serving},
};
use tidegate_testkit::servers::Certificates;
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    sync::{Semaphore, mpsc},
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject},
    },
};
use tonic::{Code, transport::Channel};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};
use tonic_reflection::pb::{
    v1::{
        ServerReflectionRequest, server_reflection_client::ServerReflectionClient,
        server_reflection_request::MessageRequest, server_reflection_response::MessageResponse,
    },
    v1alpha,
};

async fn service() -> (Service, Channel) {
    let service = Service::start(Stub::default(), None, GrpcSettings::default()).await;
    let channel = Channel::from_shared(service.uri()).unwrap().connect().await.unwrap();
    (service, channel)
}

fn ask() -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![RateLimitDescriptor::default()],
        hits_addend: 0,
    }
}

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test]
async fn health_says_what_it_is_told_to_and_that_the_end_has_come() {
    let (service, channel) = service().await;
    let mut client = HealthClient::new(channel);
    for (said, told) in [(None, ServingStatus::NotServing), (Some(Serving::Yes), ServingStatus::Serving)] {
        if let Some(said) = said {
            service.health.set(said).await;
        }
        for name in ["", "ratelimit"] {
            assert_eq!(client.check(of(name)).await.unwrap().into_inner().status(), told, "{name}");
        }
    }
    assert_eq!(client.check(of("nobody")).await.unwrap_err().code(), Code::NotFound);

    let mut watch = client.watch(of("ratelimit")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let stopping = tokio::spawn(service.stop());
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    // Whoever only watches may go; it is not waited for longer than that.
    drop((watch, client));
    stopping.await.unwrap();
}

#[tokio::test]
async fn a_client_that_does_not_go_is_cut_off() {
    let terms =
        GrpcSettings { drain_timeout: std::time::Duration::from_millis(1), ..GrpcSettings::default() };
    let service = Service::start(Stub::default(), None, terms).await;
    let channel = Channel::from_shared(service.uri()).unwrap().connect().await.unwrap();
    let mut watch = HealthClient::new(channel).watch(of("")).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    let mut silent = TcpStream::connect(service.address).await.unwrap();
    service.stop().await;
    while let Ok(Some(_)) = watch.message().await {}
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await;
}

/// Says that it was asked, and answers when it is told to.
#[derive(Clone)]
struct Slow {
    asked: mpsc::UnboundedSender<()>,
    go: Arc<Semaphore>,
}

impl Decide for Slow {
    async fn decide(&self, ask: DomainAsk) -> Result<DomainVerdict, DescriptorFault> {
        self.asked.send(()).unwrap();
        self.go.acquire().await.unwrap().forget();
        Stub::default().decide(ask).await
    }
}

#[tokio::test]
async fn calls_in_flight_are_answered_when_the_end_comes() {
    const CALLS: usize = 50;
    let (asked, mut heard) = mpsc::unbounded_channel();
    let go = Arc::new(Semaphore::new(0));
    let service = Service::start(Slow { asked, go: go.clone() }, None, GrpcSettings::default()).await;
    let uri = service.uri();
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let channel = Channel::from_shared(uri.clone()).unwrap().connect_lazy();
            tokio::spawn(async move { RateLimitServiceClient::new(channel).should_rate_limit(ask()).await })
        })
        .collect();
    for _ in 0..CALLS {
        heard.recv().await.unwrap();
    }
    let stopping = tokio::spawn(service.stop());
    // Nobody else is let in from now on.
    while TcpStream::connect(uri.trim_start_matches("http://")).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!stopping.is_finished());
    go.add_permits(CALLS);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    stopping.await.unwrap();
}

#[tokio::test]
async fn the_service_describes_itself() {
    let (_service, channel) = service().await;
    let ask = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let asks = [
        ask(MessageRequest::ListServices(String::new())),
        ask(MessageRequest::FileContainingSymbol("envoy.service.ratelimit.v3.RateLimitService".to_owned())),
        ask(MessageRequest::FileByFilename("google/protobuf/duration.proto".to_owned())),
    ];
    let mut client = ServerReflectionClient::new(channel.clone());
    let asks = tonic::codegen::tokio_stream::iter(asks);
    let mut said = client.server_reflection_info(asks).await.unwrap().into_inner();
    let mut next = async || said.message().await.unwrap().unwrap().message_response.unwrap();

    let MessageResponse::ListServicesResponse(list) = next().await else { panic!("no list") };
    let mut names: Vec<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    names.sort_unstable();
    let expected = [
        "envoy.service.ratelimit.v3.RateLimitService",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
    ];
    assert_eq!(names, expected);
    for name in ["RateLimitService", "Duration"] {
        let MessageResponse::FileDescriptorResponse(file) = next().await else { panic!("no file of {name}") };
        let file = &file.file_descriptor_proto[0];
        assert!(file.windows(name.len()).any(|part| part == name.as_bytes()), "{name}");
    }

    let old = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let asks = tonic::codegen::tokio_stream::iter([old]);
    assert!(
        client.server_reflection_info(asks).await.unwrap().into_inner().message().await.unwrap().is_some()
    );
}

#[tokio::test]
async fn requests_are_answered_inside_of_tls() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    let Certificates { certificate, key, .. } = certificates.clone();
    let tls = Tls { certificate, key, client_ca: None };
    let service = Service::start(Stub::default(), Some(tls), GrpcSettings::default()).await;

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&certificates.authority).unwrap()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let connector = TlsConnector::from(Arc::new(config));
    let address = service.address;
    let channel = Channel::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_| {
            let connector = connector.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let name = ServerName::try_from("localhost").unwrap();
                Ok::<_, std::io::Error>(hyper_util::rt::TokioIo::new(connector.connect(name, stream).await?))
            }
        }))
        .await
        .unwrap();
    RateLimitServiceClient::new(channel).should_rate_limit(ask()).await.unwrap();

    // Whoever does not speak TLS is let go, and harms nobody.
    let plain = Channel::from_shared(service.uri()).unwrap().connect().await;
    if let Ok(plain) = plain {
        RateLimitServiceClient::new(plain).should_rate_limit(ask()).await.unwrap_err();
    }
    service.stop().await;
}
