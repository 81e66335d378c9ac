//! Snapshots as a gateway tells them, second after second, and again when it comes back.

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

/// What is heard of a gateway.
#[derive(Debug)]
pub(crate) enum FeedEvent {
    /// What it does now; and the keys that were denied most, where they were asked for anew.
    Snapshot(Box<Value>, Option<Value>),
    /// It does not answer, and why. It is asked again.
    Unavailable(String),
}

/// Which keys go along with snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeySelection {
    /// Those that were denied most.
    Denied,
    /// None.
    None,
}

/// What a gateway tells, for as long as somebody listens.
pub(crate) struct Feed {
    events: Receiver<FeedEvent>,
}

/// How long a gateway may be silent; it tells something each second.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// How long until it is asked again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The longest line that is read.
const MAX_PENDING_SIZE: usize = 64 << 20;
/// Keys are asked for with each of so many snapshots.
const KEYS_INTERVAL: u64 = 3;
const KEYS_PATH: &str = "/api/v1/top?by=denied&limit=10";

impl Feed {
    /// Begins to listen. That nobody answers at all is an error; later it is waited for.
    pub(crate) async fn start(client: AdminClient, keys: KeySelection) -> Result<Self, CliError> {
        let first = EventStream::open(&client).await?;
        let (sender, events) = channel(1);
        tokio::spawn(run_feed(client, first, keys, sender));
        Ok(Self { events })
    }

    /// What is told next.
    pub(crate) async fn next(&mut self) -> Option<FeedEvent> {
        self.events.recv().await
    }
}

async fn run_feed(client: AdminClient, first: EventStream, keys: KeySelection, sender: Sender<FeedEvent>) {
    let mut live = Some(first);
    loop {
        let result = match &mut live {
            Some(live) => forward_events(&client, live, keys, &sender).await,
            None => Ok(()),
        };
        let opened = match result {
            Err(why) => Err(why),
            Ok(()) => EventStream::open(&client).await.map_err(|failure| failure.to_string()),
        };
        live = match opened {
            Ok(live) => Some(live),
            Err(why) => {
                if sender.send(FeedEvent::Unavailable(why)).await.is_err() {
                    return;
                }
                sleep(RETRY_INTERVAL).await;
                None
            }
        };
    }
}

/// Passes on what is told until it ends; why it did.
async fn forward_events(
    client: &AdminClient,
    live: &mut EventStream,
    keys: KeySelection,
    sender: &Sender<FeedEvent>,
) -> Result<(), String> {
    for count in 0_u64.. {
        let snapshot = live.next().await?;
        let wants_keys = keys == KeySelection::Denied
            && !snapshot["observe"].is_null()
            && count.is_multiple_of(KEYS_INTERVAL);
        let denied_keys = if wants_keys { client.get(KEYS_PATH).await.ok() } else { None };
        if sender.send(FeedEvent::Snapshot(Box::new(snapshot), denied_keys)).await.is_err() {
            return Err("nobody listens".to_owned());
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
        let answer = opened.map_err(|_| client.unavailable(&"it takes too long"))??;
        match answer.status() {
            status if status.is_success() => Ok(Self { body: answer.into_body(), buffer: Vec::new() }),
            status => {
                let body = timeout(READ_TIMEOUT, answer.into_body().collect()).await;
                let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
                Err(client.status_error(status, serde_json::from_slice(&body).ok().as_ref()))
            }
        }
    }

    /// The next snapshot, or why there is none.
    async fn next(&mut self) -> Result<Value, String> {
        loop {
            if let Some(snapshot) = take_snapshot(&mut self.buffer) {
                return Ok(snapshot);
            }
            let bytes = timeout(READ_TIMEOUT, self.read_chunk()).await;
            self.buffer.extend_from_slice(&bytes.map_err(|_| "it tells nothing any more".to_owned())??);
            if self.buffer.len() > MAX_PENDING_SIZE {
                return Err("what it tells has no end".to_owned());
            }
        }
    }

    async fn read_chunk(&mut self) -> Result<Bytes, String> {
        loop {
            match self.body.frame().await {
                None => return Err("it has ended".to_owned()),
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

/// Takes lines up to the first that is a snapshot; what is not whole yet stays.
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
        let (mut pending, mut found) = (Vec::new(), Vec::new());
        for byte in text {
            pending.push(*byte);
            found.extend(take_snapshot(&mut pending));
        }
        assert_eq!(found, [serde_json::json!({ "uptime": 1.5 }), serde_json::json!({ "uptime": 2 })]);
        assert!(pending.is_empty());
        pending.extend_from_slice(b": a word in passing\ndata: no JSON\n");
        assert_eq!(take_snapshot(&mut pending), None);
    }
}
