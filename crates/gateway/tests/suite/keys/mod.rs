//! The effect of each policy key, with gateways that start from the text of a policy.
//!
//! `docs/policy-keys.md` names a test for each key, here or in another module. `scripts/keys` runs them without the key.

mod limits;
mod matching;
mod overload;
mod queues;
mod responses;
mod stores;
mod telemetry;
mod upstreams;

use crate::{admin_api::AdminGateway, harness::RawClient};

impl AdminGateway {
    /// The statuses of requests that are sent one after another on one connection.
    async fn statuses(&self, path: &str, header: &str, count: usize) -> Vec<u16> {
        let mut client = self.connect().await;
        let mut statuses = Vec::new();
        for _ in 0..count {
            let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\n{header}\r\n");
            statuses.push(client.request(&request).await.status());
        }
        statuses
    }

    /// Sends a request without waiting for its response.
    async fn send(&self, path: &str, header: &str) -> RawClient {
        let mut client = self.connect().await;
        client.send(format!("GET {path} HTTP/1.1\r\nhost: a\r\n{header}\r\n")).await;
        client
    }
}
