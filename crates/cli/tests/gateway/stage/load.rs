//! Clients that go on asking while something else happens.

use super::Client;
use http::StatusCode;
use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};
use tokio::task::JoinHandle;

/// Some clients that ask for the same thing again and again. A connection that the other side has closed in order is
/// followed by another; everything else that is not answered counts as lost.
pub(crate) struct Load {
    asked: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Vec<String>>>,
}

impl Load {
    pub(crate) fn start(address: SocketAddr, path: &'static str, clients: usize) -> Self {
        let (asked, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let clients =
            (0..clients).map(|_| tokio::spawn(ask(address, path, asked.clone(), stop.clone()))).collect();
        Self { asked, stop, clients }
    }

    /// How many were answered so far.
    pub(crate) fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    /// Ends it; what was lost, or answered with anything but 200.
    pub(crate) async fn lost(self) -> Vec<String> {
        self.stop.store(true, Ordering::SeqCst);
        let mut lost = Vec::new();
        for client in self.clients {
            lost.extend(client.await.unwrap());
        }
        lost
    }
}

async fn ask(
    address: SocketAddr,
    path: &'static str,
    asked: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
) -> Vec<String> {
    let (mut client, mut lost) = (Client::to(address).await, Vec::new());
    while !stop.load(Ordering::SeqCst) {
        if !client.is_open().await {
            client = Client::to(address).await;
            continue;
        }
        match client.get(path).await {
            Ok((StatusCode::OK, _)) => {
                asked.fetch_add(1, Ordering::SeqCst);
            }
            Ok((status, text)) => lost.push(format!("{status} {text}")),
            Err(error) => lost.push(error),
        }
    }
    lost
}
