//! The gRPC server besides decisions: health, reflection, TLS and shutdown.

use crate::common::{StubDecider, TestGrpcServer};
use std::sync::Arc;
use tidegate_policy::model::Tls;
use tidegate_proto::rls::{RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use tidegate_service::descriptors::{
    Decide, DecisionError, DomainRequest, DomainVerdict,
    transport::{GrpcSettings, ServingState},
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

async fn start_service() -> (TestGrpcServer, Channel) {
    let service = TestGrpcServer::start(StubDecider::default(), None, GrpcSettings::default()).await;
    let channel = Channel::from_shared(service.uri()).unwrap().connect().await.unwrap();
    (service, channel)
}

fn user_request() -> RateLimitRequest {
    RateLimitRequest {
        domain: "shop".to_owned(),
        descriptors: vec![RateLimitDescriptor::default()],
        hits_addend: 0,
    }
}

fn health_request(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test]
async fn grpc_health_reports_status_and_shutdown() {
    let (service, channel) = start_service().await;
    let mut client = HealthClient::new(channel);
    for (state, expected) in
        [(None, ServingStatus::NotServing), (Some(ServingState::Serving), ServingStatus::Serving)]
    {
        if let Some(state) = state {
            service.health.set(state).await;
        }
        for name in ["", "ratelimit"] {
            assert_eq!(
                client.check(health_request(name)).await.unwrap().into_inner().status(),
                expected,
                "{name}"
            );
        }
    }
    assert_eq!(client.check(health_request("unknown")).await.unwrap_err().code(), Code::NotFound);

    let mut watch = client.watch(health_request("ratelimit")).await.unwrap().into_inner();
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    let stopping = tokio::spawn(service.stop());
    assert_eq!(watch.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    // The shutdown waits for the watch until the client drops it.
    drop((watch, client));
    stopping.await.unwrap();
}

#[tokio::test]
async fn connections_are_closed_after_drain_timeout() {
    let settings =
        GrpcSettings { drain_timeout: std::time::Duration::from_millis(1), ..GrpcSettings::default() };
    let service = TestGrpcServer::start(StubDecider::default(), None, settings).await;
    let channel = Channel::from_shared(service.uri()).unwrap().connect().await.unwrap();
    let mut watch = HealthClient::new(channel).watch(health_request("")).await.unwrap().into_inner();
    watch.message().await.unwrap().unwrap();
    let mut silent = TcpStream::connect(service.address).await.unwrap();
    service.stop().await;
    while let Ok(Some(_)) = watch.message().await {}
    let mut rest = Vec::new();
    let _ = silent.read_to_end(&mut rest).await;
}

/// Signals each request, and decides when a permit is added.
#[derive(Clone)]
struct BlockingDecider {
    started: mpsc::UnboundedSender<()>,
    permits: Arc<Semaphore>,
}

impl Decide for BlockingDecider {
    async fn decide(&self, request: DomainRequest) -> Result<DomainVerdict, DecisionError> {
        self.started.send(()).unwrap();
        self.permits.acquire().await.unwrap().forget();
        StubDecider::default().decide(request).await
    }
}

#[tokio::test]
async fn calls_in_flight_finish_at_shutdown() {
    const CALLS: usize = 50;
    let (started, mut received) = mpsc::unbounded_channel();
    let permits = Arc::new(Semaphore::new(0));
    let service = TestGrpcServer::start(
        BlockingDecider { started, permits: permits.clone() },
        None,
        GrpcSettings::default(),
    )
    .await;
    let uri = service.uri();
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let channel = Channel::from_shared(uri.clone()).unwrap().connect_lazy();
            tokio::spawn(async move {
                RateLimitServiceClient::new(channel).should_rate_limit(user_request()).await
            })
        })
        .collect();
    for _ in 0..CALLS {
        received.recv().await.unwrap();
    }
    let stopping = tokio::spawn(service.stop());
    // The listener closes.
    while TcpStream::connect(uri.trim_start_matches("http://")).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!stopping.is_finished());
    permits.add_permits(CALLS);
    for call in calls {
        call.await.unwrap().unwrap();
    }
    stopping.await.unwrap();
}

#[tokio::test]
async fn reflection_lists_services() {
    let (_service, channel) = start_service().await;
    let request = |message| ServerReflectionRequest { host: String::new(), message_request: Some(message) };
    let requests = [
        request(MessageRequest::ListServices(String::new())),
        request(MessageRequest::FileContainingSymbol(
            "envoy.service.ratelimit.v3.RateLimitService".to_owned(),
        )),
        request(MessageRequest::FileByFilename("google/protobuf/duration.proto".to_owned())),
    ];
    let mut client = ServerReflectionClient::new(channel.clone());
    let requests = tonic::codegen::tokio_stream::iter(requests);
    let mut responses = client.server_reflection_info(requests).await.unwrap().into_inner();
    let mut next = async || responses.message().await.unwrap().unwrap().message_response.unwrap();

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
    let requests = tonic::codegen::tokio_stream::iter([old]);
    let mut responses = client.server_reflection_info(requests).await.unwrap().into_inner();
    assert!(responses.message().await.unwrap().is_some());
}

#[tokio::test]
async fn requests_are_served_over_tls() {
    let directory = tempfile::tempdir().unwrap();
    let certificates = Certificates::create(directory.path()).unwrap();
    let Certificates { certificate, key, .. } = certificates.clone();
    let tls = Tls { certificate, key, client_ca: None };
    let service = TestGrpcServer::start(StubDecider::default(), Some(tls), GrpcSettings::default()).await;

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
    RateLimitServiceClient::new(channel).should_rate_limit(user_request()).await.unwrap();

    // A client without TLS is rejected and does not affect others.
    let plain = Channel::from_shared(service.uri()).unwrap().connect().await;
    if let Ok(plain) = plain {
        RateLimitServiceClient::new(plain).should_rate_limit(user_request()).await.unwrap_err();
    }
    service.stop().await;
}
