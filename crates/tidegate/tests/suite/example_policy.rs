//! The policy example over HTTP, with a change of its file.

#[path = "../../examples/policy.rs"]
#[allow(dead_code, reason = "its main is not used")]
mod service;

use reqwest::Client;
use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
};
use tokio::net::TcpListener;

#[tokio::test]
async fn policy_example_follows_file() {
    // Hourly quotas, so that nothing refills during the test.
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/policy.yaml");
    let text = fs::read_to_string(file).unwrap().replace("/min", "/h");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.yaml");
    fs::write(&path, &text).unwrap();

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = service::app(&path).unwrap().into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });

    let client = Client::builder().no_proxy().build().unwrap();
    let get = async || client.get(format!("http://{address}/")).send().await.unwrap();
    let login = async || client.post(format!("http://{address}/login")).send().await.unwrap();
    for _ in 0..3 {
        assert_eq!(login().await.status(), 401);
    }
    let rejected = login().await;
    assert_eq!(rejected.status(), 403);
    assert_eq!(rejected.text().await.unwrap(), "Too many attempts.");
    for left in ["1", "0"] {
        let allowed = get().await;
        assert_eq!(allowed.status(), 200);
        let ratelimit = allowed.headers()["ratelimit"].to_str().unwrap();
        assert!(ratelimit.starts_with(&format!("\"everybody\";r={left};")), "{ratelimit}");
    }
    assert_eq!(get().await.status(), 429);

    // A new file applies without a restart, and the counters stay.
    fs::write(&path, text.replace("quota: 5/h", "quota: 50/h")).unwrap();
    let (mut admitted, mut answer) = (0, get().await);
    loop {
        // A request that the old quota denied may have the new policy header.
        let is_admitted = answer.status() == 200;
        admitted += u32::from(is_admitted);
        if is_admitted && answer.headers()["ratelimit-policy"].to_str().unwrap().contains("q=50;") {
            break;
        }
        answer = get().await;
    }
    let ratelimit = answer.headers()["ratelimit"].to_str().unwrap();
    assert!(ratelimit.starts_with(&format!("\"everybody\";r={};", 45 - admitted)), "{ratelimit}");
}
