//! F8: a rule with a full key table: new keys follow the declared overflow policy, and the gateway logs it.

use crate::common::{GatewayProcess, HttpClient, TestUpstream};
use http::StatusCode;
use serde_json::Value;

const FULL_TABLE_LOG: &str = "no room for new keys in memory";

fn policy(server: &TestUpstream, room: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{}rules:\n  - {{ name: users, key: query u, quota: 5/h{room} }}\n",
        server.upstream_config()
    )
}

/// The status of the rule's key table.
async fn table_status(gateway: &GatewayProcess) -> Value {
    let admin = gateway.wait_for_line("admin").await;
    let address = admin.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let mut client = HttpClient::connect(address).await;
    let (status, body) = client.get_host("localhost", "/api/v1/status").await.unwrap();
    assert_eq!(status, StatusCode::OK, "{body}");
    let status: Value = serde_json::from_str(&body).unwrap();
    status["rules"][0]["table"].clone()
}

/// The number of users whose request is admitted.
async fn count_granted(client: &mut HttpClient, users: std::ops::Range<u32>) -> usize {
    let mut granted = 0;
    for user in users {
        let (status, _) = client.get(&format!("/?u={user}")).await.unwrap();
        granted += usize::from(status == StatusCode::OK);
    }
    granted
}

#[tokio::test]
async fn full_table_follows_the_declared_policy() {
    for (room, new_ones) in [
        (", capacity: 8", 100),
        (", capacity: 8, overflow: replace", 100),
        (", capacity: 8, overflow: share", 40),
        (", capacity: 8, overflow: deny", 0),
        (", capacity: 1KB, overflow: deny", 0),
        // The default capacity is large enough.
        (", overflow: deny", 100),
    ] {
        let server = TestUpstream::start_ok().await;
        let gateway = GatewayProcess::start(&policy(&server, room)).await;
        let mut client = HttpClient::connect(gateway.address).await;
        for _ in 0..6 {
            client.get("/?u=abuser").await.unwrap();
        }
        count_granted(&mut client, 0..300).await;
        let new = count_granted(&mut client, 1_000..1_100).await;
        assert!(new <= new_ones && (new_ones < 100 || new == 100), "{room}: {new} of 100 new ones");
        let (limited, _) = client.get("/?u=abuser").await.unwrap();
        assert_eq!(limited, StatusCode::TOO_MANY_REQUESTS, "{room}");
        let table = table_status(&gateway).await;
        let number = |name: &str| table[name].as_u64().unwrap();
        assert!(number("used") <= number("capacity"), "{room}: {table}");
        if room.contains("capacity") {
            gateway.wait_for_output(FULL_TABLE_LOG, 1).await;
            assert_eq!(gateway.count_output(FULL_TABLE_LOG), 1, "{room}: once a minute");
            assert_eq!(number("replaced") + number("overflowed") + number("used"), 401, "{room}: {table}");
        } else {
            assert_eq!(
                (number("replaced"), number("overflowed"), gateway.count_output(FULL_TABLE_LOG)),
                (0, 0, 0)
            );
        }
    }
}

/// A changed capacity keeps the counters.
#[tokio::test]
async fn reload_changes_capacity() {
    let server = TestUpstream::start_ok().await;
    let gateway = GatewayProcess::start(&policy(&server, ", capacity: 8, overflow: deny")).await;
    let mut client = HttpClient::connect(gateway.address).await;
    for _ in 0..6 {
        client.get("/?u=abuser").await.unwrap();
    }
    assert!(count_granted(&mut client, 0..100).await < 100);
    gateway.replace_policy(&policy(&server, ", capacity: 10000, overflow: deny"));
    gateway.wait_for_output("policy reloaded", 1).await;
    let mut client = HttpClient::connect(gateway.address).await;
    assert_eq!(count_granted(&mut client, 100..200).await, 100);
    let (limited, _) = client.get("/?u=abuser").await.unwrap();
    assert_eq!(limited, StatusCode::TOO_MANY_REQUESTS);
}
