//! Concurrent gRPC clients: exactly the limit is admitted.

use crate::common::{TestGrpcServer, descriptor_of};
use std::{sync::Arc, time::Duration};
use tidegate_limiter::Store;
use tidegate_policy::descriptors::{DescriptorFile, DescriptorSet, DomainMerge};
use tidegate_proto::rls::{Code, RateLimitRequest, RateLimitServiceClient};
use tidegate_redis::RedisStore;
use tidegate_service::descriptors::{DescriptorService, ServiceSettings, transport::GrpcSettings};
use tidegate_testkit::servers::RedisServer;
use tonic::transport::Channel;

const CLIENTS: usize = 200;

/// A limit of every algorithm, and the number that it grants at once; it grants nothing else during a test.
const LIMITS: [(&str, usize); 9] = [
    ("unit: year, requests_per_unit: 50", 50),
    ("quota: 50 per 52w", 50),
    ("quota: 50 per 52w leaky-bucket queue 49 nodelay", 50),
    ("quota: 50 per 364d fixed-window from-first-hit", 50),
    ("quota: 50 per 52w sliding-window", 50),
    ("quota: 50 per 52w sliding-strict 4", 50),
    ("quota: 50 per 52w sliding-log", 50),
    ("quota: 50 per 52w smooth", 1),
    ("quota: 50 per 52w warm-up 4s cold 3", 1),
];

async fn check_limits(store: Option<Arc<dyn Store>>) {
    let limits = LIMITS.iter().enumerate();
    let limits =
        limits.map(|(index, (limit, _))| format!("  - key: r{index}\n    rate_limit: {{ {limit} }}\n"));
    let text = format!("domain: shop\ndescriptors:\n{}", limits.collect::<String>());
    let file = DescriptorFile { name: "shop.yaml".to_owned(), text };
    // A deadline that a passing test does not reach.
    let settings = ServiceSettings { store, deadline: Duration::from_secs(5), ..ServiceSettings::default() };
    let decide = DescriptorService::new(settings).unwrap();
    decide.load(Arc::new(DescriptorSet::read(&[file], DomainMerge::Reject).unwrap()));
    let service = TestGrpcServer::start(Arc::new(decide), None, GrpcSettings::default()).await;
    for (index, (limit, expected)) in LIMITS.into_iter().enumerate() {
        let tasks: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let channel = Channel::from_shared(service.uri()).unwrap().connect_lazy();
                let request = RateLimitRequest {
                    domain: "shop".to_owned(),
                    descriptors: vec![descriptor_of(&format!("r{index}"), "alice")],
                    hits_addend: 0,
                };
                let mut client = RateLimitServiceClient::new(channel);
                tokio::spawn(async move {
                    client.should_rate_limit(request).await.unwrap().into_inner().overall_code()
                })
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += usize::from(task.await.unwrap() == Code::Ok);
        }
        assert_eq!(admitted, expected, "{limit}");
    }
    service.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_grpc_clients_get_exactly_the_limit_in_memory() {
    check_limits(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_grpc_clients_get_exactly_the_limit_in_redis() {
    let server = RedisServer::start().unwrap();
    let store = RedisStore::builder().deadline(Duration::from_secs(5)).connect(&server.url()).await.unwrap();
    check_limits(Some(Arc::new(store))).await;
}
