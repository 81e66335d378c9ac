//! A stream of snapshots of a gateway, with reconnects.

use crate::{admin::AdminClient, error::CliError};
use bytes::Bytes;
use http::Method;
use http_body_util::{BodyExt as _, Collected};
use hyper::body::Incoming;
use serde_json::Value;
use std::time::Duration;
use tokio::{
    sync::mpsc::{Receiver, Sender, channel},
    time::{sleep, timeout},
};

/// An event of the feed.
#[derive(Debug)]
pub(crate) enum FeedEvent {
    /// A snapshot, and the most denied keys if they were requested with it.
    Snapshot(Box<Value>, Option<Value>),
    /// The gateway is unavailable, with the error. The feed retries.
    Unavailable(String),
}

/// The keys to request with snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySelection {
    /// The most denied keys.
    Denied,
    /// None.
    None,
}

/// A stream of events of a gateway. Ends when it is dropped.
pub(crate) struct Feed {
    events: Receiver<FeedEvent>,
}

/// The read timeout; a gateway sends a snapshot each second.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval between connection attempts.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum size of a line.
const MAX_PENDING_SIZE: usize = 64 << 20;
/// Keys are requested with every third snapshot.
const KEYS_INTERVAL: u64 = 3;
const KEYS_PATH: &str = "/api/v1/top?by=denied&limit=10";

impl Feed {
    /// Connects to a gateway. Fails if it is unavailable now; later the feed reconnects.
    pub(crate) async fn start(client: AdminClient, keys: KeySelection) -> Result<Self, CliError> {
        let first = EventStream::open(&client).await?;
        let (sender, events) = channel(1);
        tokio::spawn(run_feed(client, first, keys, sender));
        Ok(Self { events })
    }

    /// Waits for the next event.
    pub(crate) async fn next(&mut self) -> Option<FeedEvent> {
        self.events.recv().await
    }
}

async fn run_feed(client: AdminClient, first: EventStream, keys: KeySelection, sender: Sender<FeedEvent>) {
    let mut stream = Some(first);
    loop {
        let result = match &mut stream {
            Some(stream) => forward_events(&client, stream, keys, &sender).await,
            None => Ok(()),
        };
        let opened = match result {
            Err(error) => Err(error),
            Ok(()) => EventStream::open(&client).await.map_err(|error| error.to_string()),
        };
        stream = match opened {
            Ok(stream) => Some(stream),
            Err(error) => {
                if sender.send(FeedEvent::Unavailable(error)).await.is_err() {
                    return;
                }
                sleep(RETRY_INTERVAL).await;
                None
            }
        };
    }
}

/// Forwards events until the stream ends. Returns the reason.
async fn forward_events(
    client: &AdminClient,
    stream: &mut EventStream,
    keys: KeySelection,
    sender: &Sender<FeedEvent>,
) -> Result<(), String> {
    for count in 0_u64.. {
        let snapshot = stream.next().await?;
        let wants_keys = keys == KeySelection::Denied
            && !snapshot["observe"].is_null()
            && count.is_multiple_of(KEYS_INTERVAL);
        let denied_keys = if wants_keys { client.get(KEYS_PATH).await.ok() } else { None };
        if sender.send(FeedEvent::Snapshot(Box::new(snapshot), denied_keys)).await.is_err() {
            return Err("feed closed".to_owned());
        }
    }
    Ok(())
}

/// A stream of server-sent events.
struct EventStream {
    body: Incoming,
    buffer: Vec<u8>,
}

impl EventStream {
    async fn open(client: &AdminClient) -> Result<Self, CliError> {
        let opened = timeout(READ_TIMEOUT, client.open(Method::GET, "/api/v1/live", None)).await;
        let response = opened.map_err(|_| client.unavailable(&"timeout"))??;
        match response.status() {
            status if status.is_success() => Ok(Self { body: response.into_body(), buffer: Vec::new() }),
            status => {
                let body = timeout(READ_TIMEOUT, response.into_body().collect()).await;
                let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
                Err(client.status_error(status, serde_json::from_slice(&body).ok().as_ref()))
            }
        }
    }

    /// Reads the next snapshot.
    async fn next(&mut self) -> Result<Value, String> {
        loop {
            if let Some(snapshot) = take_snapshot(&mut self.buffer) {
                return Ok(snapshot);
            }
            let bytes = timeout(READ_TIMEOUT, self.read_chunk()).await;
            self.buffer.extend_from_slice(&bytes.map_err(|_| "no data from the gateway".to_owned())??);
            if self.buffer.len() > MAX_PENDING_SIZE {
                return Err("event too large".to_owned());
            }
        }
    }

    async fn read_chunk(&mut self) -> Result<Bytes, String> {
        loop {
            match self.body.frame().await {
                None => return Err("connection closed".to_owned()),
                Some(Err(error)) => return Err(error.to_string()),
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        return Ok(bytes);
                    }
                }
            }
        }
    }
}

/// Removes lines up to the first snapshot and returns it; keeps an incomplete line.
fn take_snapshot(pending: &mut Vec<u8>) -> Option<Value> {
    while let Some(end) = pending.iter().position(|byte| *byte == b'\n') {
        let line: Vec<u8> = pending.drain(..=end).collect();
        let snapshot = line.strip_prefix(b"data:").and_then(|text| serde_json::from_slice(text).ok());
        if snapshot.is_some() {
            return snapshot;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_parsed_across_chunks() {
        let text = b"retry: 2000\n\nevent: snapshot\nid: 1\ndata: {\"uptime\":1.5}\n\nevent: snapshot\ndata: {\"uptime\":2}\n\n";
        let (mut pending, mut snapshots) = (Vec::new(), Vec::new());
        for byte in text {
            pending.push(*byte);
            snapshots.extend(take_snapshot(&mut pending));
        }
        assert_eq!(snapshots, [serde_json::json!({ "uptime": 1.5 }), serde_json::json!({ "uptime": 2 })]);
        assert!(pending.is_empty());
        pending.extend_from_slice(b": a comment\ndata: no JSON\n");
        assert_eq!(take_snapshot(&mut pending), None);
    }
}
