//! Clients that send requests in the background.

use super::HttpClient;
use http::StatusCode;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::task::JoinHandle;

/// Clients that repeat the same request. They reconnect after a graceful close; any other failed request counts as lost.
pub(crate) struct BackgroundLoad {
    sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl BackgroundLoad {
    pub(crate) fn start(address: SocketAddr, path: &'static str, clients: usize) -> Self {
        let (sent, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let clients = (0..clients)
            .map(|_| tokio::spawn(run_client(address, path, sent.clone(), stop.clone())))
            .collect();
        Self { sent, stop, clients }
    }

    /// The number of successful requests so far.
    pub(crate) fn sent_count(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Stops the clients. Returns the requests that were lost or had a status other than 200.
    pub(crate) async fn stop(self) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        let mut lost = Vec::new();
        for client in self.clients {
            lost.extend(client.await.unwrap());
        }
        lost
    }
}

async fn run_client(
    address: SocketAddr,
    path: &'static str,
    sent: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Vec<String> {
    let (mut client, mut lost) = (HttpClient::connect(address).await, Vec::new());
    while !stop.load(Ordering::SeqCst) {
        if !client.is_open().await {
            client = HttpClient::connect(address).await;
            continue;
        }
        match client.get(path).await {
            Ok((StatusCode::OK, _)) => {
                sent.fetch_add(1, Ordering::SeqCst);
            }
            Ok((status, text)) => lost.push(format!("{status} {text}")),
            Err(error) => lost.push(error),
        }
    }
    lost
}
