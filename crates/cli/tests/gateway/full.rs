//! F8: a rule whose memory is full: what is declared happens to new keys, and operators hear of it.

use crate::stage::{Client, Gateway, Server};
use http::StatusCode;
use serde_json::Value;

const FULL: &str = "no room for new keys in memory";

fn policy(server: &Server, room: &str) -> String {
    format!(
        "listen: 127.0.0.1:0\nadmin: 127.0.0.1:0\n{}rules:\n  - {{ name: users, key: query u, quota: 5/h{room} }}\n",
        server.upstream()
    )
}

/// The table of the rule, as operators see it.
async fn table(gateway: &Gateway) -> Value {
    let admin = gateway.told_behind("admin").await;
    let address = admin.trim_start_matches("http://").trim_end_matches('/').parse().unwrap();
    let mut client = Client::to(address).await;
    let (status, body) = client.get_of("localhost", "/api/v1/status").await.unwrap();
    assert_eq!(status, StatusCode::OK, "{body}");
    let status: Value = serde_json::from_str(&body).unwrap();
    status["rules"][0]["table"].clone()
}

/// How many of these users get through.
async fn granted(client: &mut Client, users: std::ops::Range<u32>) -> usize {
    let mut granted = 0;
    for user in users {
        let (status, _) = client.get(&format!("/?u={user}")).await.unwrap();
        granted += usize::from(status == StatusCode::OK);
    }
    granted
}

#[tokio::test]
async fn each_rule_is_as_large_as_declared_and_does_what_it_says() {
    for (room, new_ones) in [
        (", capacity: 8", 100),
        (", capacity: 8, overflow: replace", 100),
        (", capacity: 8, overflow: share", 40),
        (", capacity: 8, overflow: deny", 0),
        (", capacity: 1KB, overflow: deny", 0),
        // Room enough.
        (", overflow: deny", 100),
    ] {
        let server = Server::ok().await;
        let gateway = Gateway::serve(&policy(&server, room)).await;
        let mut client = Client::to(gateway.address).await;
        for _ in 0..6 {
            client.get("/?u=abuser").await.unwrap();
        }
        granted(&mut client, 0..300).await;
        let new = granted(&mut client, 1_000..1_100).await;
        assert!(new <= new_ones && (new_ones < 100 || new == 100), "{room}: {new} of 100 new ones");
        let (limited, _) = client.get("/?u=abuser").await.unwrap();
        assert_eq!(limited, StatusCode::TOO_MANY_REQUESTS, "{room}");
        let table = table(&gateway).await;
        let number = |name: &str| table[name].as_u64().unwrap();
        assert!(number("used") <= number("capacity"), "{room}: {table}");
        if room.contains("capacity") {
            gateway.until_told(FULL, 1).await;
            assert_eq!(gateway.count_told(FULL), 1, "{room}: once a minute");
            assert_eq!(number("replaced") + number("overflowed") + number("used"), 401, "{room}: {table}");
        } else {
            assert_eq!((number("replaced"), number("overflowed"), gateway.count_told(FULL)), (0, 0, 0));
        }
    }
}

/// Another capacity keeps what was counted.
#[tokio::test]
async fn capacity_is_changed_by_a_reload() {
    let server = Server::ok().await;
    let gateway = Gateway::serve(&policy(&server, ", capacity: 8, overflow: deny")).await;
    let mut client = Client::to(gateway.address).await;
    for _ in 0..6 {
        client.get("/?u=abuser").await.unwrap();
    }
    assert!(granted(&mut client, 0..100).await < 100);
    gateway.replace(&policy(&server, ", capacity: 10000, overflow: deny"));
    gateway.until_told("the policy was read again", 1).await;
    let mut client = Client::to(gateway.address).await;
    assert_eq!(granted(&mut client, 100..200).await, 100);
    let (limited, _) = client.get("/?u=abuser").await.unwrap();
    assert_eq!(limited, StatusCode::TOO_MANY_REQUESTS);
}
