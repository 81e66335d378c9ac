//! Several worker threads of one listener, and listeners of both address families.

use crate::harness::{InProcessGateway, RawClient, TEST_TIMEOUT, TestBackend, test_config};
use std::{
    collections::BTreeSet,
    num::NonZeroUsize,
    sync::{Arc, Mutex},
    thread,
};
use tidegate_gateway::Action;
use tidegate_http_server::BoundListener;
use tidegate_policy::head::ParsedRequest;
use tidegate_policy::model::ListenerSpec;
use tokio::time::timeout;

#[tokio::test]
async fn workers_share_counters() {
    let server = TestBackend::start_echo().await;
    let mut config = test_config(&[&server]);
    config.workers = NonZeroUsize::new(4).unwrap();
    config.connections.per_client = 20;
    let app = config.upstream_id("app").unwrap();
    let used_threads = Arc::new(Mutex::new(BTreeSet::new()));
    let workers = used_threads.clone();
    let mut gateway = InProcessGateway::start_with_filter(config, move |_: &ParsedRequest| {
        workers.lock().unwrap().insert(thread::current().name().unwrap_or_default().to_owned());
        Action::Forward(app)
    })
    .await;

    // Any worker may accept a connection; eventually each of them does.
    let all = async {
        while used_threads.lock().unwrap().len() < 4 {
            let clients: Vec<_> = (0..10)
                .map(|_| {
                    let address = gateway.address;
                    tokio::spawn(async move {
                        let response = RawClient::connect(address).await.get("/").await;
                        // A permit is released when the gateway notices the close of the previous connection.
                        assert!([200, 503].contains(&response.status()), "{response:?}");
                    })
                })
                .collect();
            for client in clients {
                client.await.unwrap();
            }
        }
    };
    timeout(TEST_TIMEOUT, all).await.unwrap();

    // The limit of twenty connections applies to all workers together.
    let (mut clients, mut full) = (Vec::new(), 0);
    while full < 20 {
        let mut client = gateway.connect().await;
        match client.get("/").await.status() {
            200 => clients.push(client),
            _ => full += 1,
        }
        assert!(clients.len() <= 20);
    }
    gateway.stop();
    gateway.wait_stopped().await;
    for mut client in clients {
        assert_eq!(client.read_to_end().await, "");
    }
}

#[tokio::test]
async fn ipv6_listener_reports_its_address() {
    let server =
        TestBackend::start_on(tokio::net::TcpListener::bind("[::1]:0").await.unwrap(), |stream| async move {
            let mut wire = RawClient::new(stream);
            let head = wire.read_head().await;
            let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len());
            wire.send(response).await;
        });
    let config = test_config(&[&server]);
    let app = config.upstream_id("app").unwrap();
    let bound =
        BoundListener::bind(&ListenerSpec { name: None, address: "[::1]:0".parse().unwrap(), tls: None })
            .unwrap();
    let gateway = InProcessGateway::start_on(config, bound, move |_: &ParsedRequest| Action::Forward(app));
    let head = gateway.connect().await.get("/").await.body;
    assert!(head.contains("x-forwarded-for: ::1\r\n"), "{head}");
    assert!(head.contains("forwarded: for=\"[::1]\";host=\"example.org\";proto=http\r\n"), "{head}");
}

#[tokio::test]
async fn ipv6_and_ipv4_wildcards_share_a_port() {
    let every = |address: &str| {
        BoundListener::bind(&ListenerSpec { name: None, address: address.parse().unwrap(), tls: None })
    };
    let six = every("[::]:0").unwrap();
    let four = every(&format!("0.0.0.0:{}", six.address().port())).unwrap();
    assert_eq!(four.address().port(), six.address().port());
}
