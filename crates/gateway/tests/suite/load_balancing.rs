//! Load balancing and retries.

use crate::{
    admin_api::{AdminGateway, LISTENERS},
    harness::{TestBackend, test_config, test_upstream, text_body},
};
use http::{Request, Response};
use hyper::body::Incoming;
use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tidegate_gateway::{Action, Config, run};
use tidegate_http_server::BoundListener;
use tidegate_policy::head::ParsedRequest;
use tidegate_rule::Rules;

pub(crate) async fn start_named(name: &'static str) -> TestBackend {
    TestBackend::start(move |_: Request<Incoming>| async move { Response::new(text_body(name)) }).await
}

/// Counts responses by server.
async fn count_responses_by_server(gateway: &AdminGateway, requests: usize) -> BTreeMap<String, usize> {
    let mut turns = BTreeMap::new();
    let mut client = gateway.connect().await;
    for _ in 0..requests {
        *turns.entry(client.get("/").await.body).or_default() += 1;
    }
    turns
}

#[tokio::test]
async fn round_robin_follows_weights() {
    let (one, two) = (start_named("one").await, start_named("two").await);
    let servers = format!("[{{ url: 'http://{}', weight: 3 }}, 'http://{}']", one.address, two.address);
    let policy = format!("{LISTENERS}upstreams: {{ app: {{ servers: {servers} }} }}\nroutes: app");
    let gateway = AdminGateway::start_policy(&policy, Rules::new());
    assert_eq!(
        count_responses_by_server(&gateway, 8).await,
        BTreeMap::from([("one".to_owned(), 6), ("two".to_owned(), 2)])
    );
}

#[tokio::test]
async fn client_balance_is_sticky_and_least_requests_picks_idle_server() {
    let (one, two) = (start_named("one").await, start_named("two").await);
    let gateway = AdminGateway::start_upstream(&[&one, &two], "balance: client");
    assert_eq!(count_responses_by_server(&gateway, 8).await.len(), 1);

    let gateway = AdminGateway::start_upstream(&[&one, &two], "balance: least-requests");
    assert_eq!(count_responses_by_server(&gateway, 200).await.len(), 2);
}

#[tokio::test]
async fn client_balance_spreads_clients_behind_one_proxy() {
    let (one, two) = (start_named("one").await, start_named("two").await);
    let servers = format!("['http://{}', 'http://{}']", one.address, two.address);
    let policy = format!(
        "{LISTENERS}upstreams: {{ app: {{ servers: {servers}, balance: client }} }}\nroutes: app\n\
         trusted-proxies: 127.0.0.0/8"
    );
    let gateway = AdminGateway::start_policy(&policy, Rules::new());
    let mut proxy = gateway.connect().await;
    let mut servers = BTreeMap::new();
    for round in 0..2 {
        for client in 0..40 {
            let request = format!("GET / HTTP/1.1\r\nhost: a\r\nx-forwarded-for: 203.0.113.{client}\r\n\r\n");
            let server = proxy.request(&request).await.body;
            let first = servers.entry(client).or_insert_with(|| server.clone());
            assert_eq!(*first, server, "client {client} in round {round}");
        }
    }
    let on_one = servers.values().filter(|server| *server == "one").count();
    assert!((1..40).contains(&on_one), "{on_one} of 40 clients are on one server");
}

#[tokio::test]
async fn failed_server_is_skipped_without_losing_requests() {
    let (gone, well) = (TestBackend::unreachable().await, start_named("well").await);
    let gateway = AdminGateway::start_upstream(&[&gone, &well], "");
    assert_eq!(count_responses_by_server(&gateway, 20).await, BTreeMap::from([("well".to_owned(), 20)]));
}

/// Starts a server that closes each connection after the head of a request, and counts them.
async fn start_disconnecting(count: &Arc<AtomicUsize>) -> TestBackend {
    let count = count.clone();
    TestBackend::start_raw(move |stream| {
        let count = count.clone();
        async move {
            crate::harness::RawClient::new(stream).read_head().await;
            count.fetch_add(1, Ordering::SeqCst);
        }
    })
    .await
}

#[tokio::test]
async fn only_idempotent_requests_are_retried_up_to_limit() {
    let count = Arc::new(AtomicUsize::new(0));
    let (one, two, three) = (
        start_disconnecting(&count).await,
        start_disconnecting(&count).await,
        start_disconnecting(&count).await,
    );
    for (request, most, sent) in [
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", 1, 2),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", 0, 1),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r\n", 9, 3),
        ("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n", 2, 1),
        ("PUT / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\nab", 2, 1),
    ] {
        let keys = format!("retries: {{ max: {most} }}");
        let gateway = AdminGateway::start_upstream(&[&one, &two, &three], &keys);
        count.store(0, Ordering::SeqCst);
        assert_eq!(gateway.connect().await.request(request).await.status(), 502);
        assert_eq!(count.load(Ordering::SeqCst), sent, "{request} with {most} retries");
    }
}

#[tokio::test]
async fn retries_stop_when_budget_is_used_up() {
    let count = Arc::new(AtomicUsize::new(0));
    let (one, two) = (start_disconnecting(&count).await, start_disconnecting(&count).await);
    let gateway = AdminGateway::start_upstream(&[&one, &two], "retries: { max: 1, budget: 0% }");
    let mut client = gateway.connect().await;
    for _ in 0..30 {
        assert_eq!(client.get("/").await.status(), 502);
    }
    assert_eq!(count.load(Ordering::SeqCst), 40, "the initial budget is ten retries");
}

#[tokio::test]
async fn invalid_server_address_prevents_start() {
    let server = start_named("app").await;
    for (url, part) in [
        (
            "http://no-such-name.invalid:80",
            "upstream `app`, server `http://no-such-name.invalid:80`: cannot resolve the host name",
        ),
        ("http://127.0.0.1:1/path", "path is not supported"),
        ("gopher://127.0.0.1", "scheme must be http or https"),
    ] {
        let mut wrong: Config = test_config(&[&server]);
        wrong.upstreams.insert("app".to_owned(), test_upstream(&[&server]));
        wrong.upstreams.get_mut("app").unwrap().servers[0].url = url.to_owned();
        let app = wrong.upstream_id("app").unwrap();
        let filter = Arc::new(move |_: &ParsedRequest| Action::Forward(app));
        let error = run(wrong, Vec::<BoundListener>::new(), filter, async {}).await.unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
}
