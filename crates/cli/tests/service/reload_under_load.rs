//! Configuration reloads under load: no call fails.

use crate::common::ServiceProcess;
use std::{
    fs,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};
use tidegate_proto::rls::{Entry, RateLimitDescriptor, RateLimitRequest, RateLimitServiceClient};
use tidegate_testkit::servers::wait_until;
use tonic::transport::Channel;

const CLIENTS: usize = 8;
const RELOADS: usize = 10;

fn limits_config(requests: usize) -> String {
    format!(
        "domain: shop\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: year, requests_per_unit: {requests} }}\n"
    )
}

#[test]
fn config_reload_fails_no_call() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("shop.yaml"), limits_config(1)).unwrap();
    let service = ServiceProcess::start(folder.path(), &[]);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (is_over, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let (is_over, answered, uri) =
                (is_over.clone(), answered.clone(), format!("http://{}", service.grpc));
            runtime.spawn(async move {
                let mut client =
                    RateLimitServiceClient::new(Channel::from_shared(uri).unwrap().connect().await.unwrap());
                let entries = vec![Entry { key: "user".to_owned(), value: number.to_string() }];
                let descriptor = RateLimitDescriptor { entries, ..RateLimitDescriptor::default() };
                while !is_over.load(Relaxed) {
                    let request = RateLimitRequest {
                        domain: "shop".to_owned(),
                        descriptors: vec![descriptor.clone()],
                        hits_addend: 0,
                    };
                    let response = client.should_rate_limit(request).await.unwrap().into_inner();
                    assert!(response.statuses[0].current_limit.is_some(), "a limit always applies");
                    answered.fetch_add(1, Relaxed);
                }
            })
        })
        .collect();
    for reload in 2..RELOADS + 2 {
        let before = answered.load(Relaxed);
        fs::write(folder.path().join("new"), limits_config(reload)).unwrap();
        fs::rename(folder.path().join("new"), folder.path().join("shop.yaml")).unwrap();
        wait_until("the new limit is active, and calls were answered meanwhile", || {
            let page = service.get_page("rlconfig");
            let is_active = page.contains(&format!("requests_per_unit={reload},"));
            (is_active && answered.load(Relaxed) > before).then_some(()).ok_or(page)
        })
        .unwrap();
    }
    is_over.store(true, Relaxed);
    for caller in callers {
        runtime.block_on(caller).unwrap();
    }
    assert!(service.stop().success());
}
