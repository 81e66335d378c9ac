//! Snapshots as a gateway tells them, second after second, and again when it comes back.

use crate::{admin::Operator, failure::Failure};
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
pub(crate) enum Told {
    /// What it does now; and the keys that were denied most, where they were asked for anew.
    Snapshot(Box<Value>, Option<Value>),
    /// It does not answer, and why. It is asked again.
    Away(String),
}

/// Which keys go along with snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keys {
    /// Those that were denied most.
    Denied,
    /// None.
    Without,
}

/// What a gateway tells, for as long as somebody listens.
pub(crate) struct Feed {
    told: Receiver<Told>,
}

/// How long a gateway may be silent; it tells something each second.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long until it is asked again.
const AGAIN: Duration = Duration::from_secs(1);
/// The longest line that is read.
const LONGEST: usize = 64 << 20;
/// Keys are asked for with each of so many snapshots.
const KEYS_EVERY: u64 = 3;
const KEYS: &str = "/api/v1/top?by=denied&limit=10";

impl Feed {
    /// Begins to listen. That nobody answers at all is an error; later it is waited for.
    pub(crate) async fn start(operator: Operator, keys: Keys) -> Result<Self, Failure> {
        let first = Live::open(&operator).await?;
        let (tell, told) = channel(1);
        tokio::spawn(follow(operator, first, keys, tell));
        Ok(Self { told })
    }

    /// What is told next.
    pub(crate) async fn next(&mut self) -> Option<Told> {
        self.told.recv().await
    }
}

async fn follow(operator: Operator, first: Live, keys: Keys, tell: Sender<Told>) {
    let mut live = Some(first);
    loop {
        let why = match &mut live {
            Some(live) => listen(&operator, live, keys, &tell).await,
            None => Ok(()),
        };
        let opened = match why {
            Err(why) => Err(why),
            Ok(()) => Live::open(&operator).await.map_err(|failure| failure.to_string()),
        };
        live = match opened {
            Ok(live) => Some(live),
            Err(why) => {
                if tell.send(Told::Away(why)).await.is_err() {
                    return;
                }
                sleep(AGAIN).await;
                None
            }
        };
    }
}

/// Passes on what is told until it ends; why it did.
async fn listen(operator: &Operator, live: &mut Live, keys: Keys, tell: &Sender<Told>) -> Result<(), String> {
    for count in 0_u64.. {
        let snapshot = live.next().await?;
        let wants =
            keys == Keys::Denied && !snapshot["observe"].is_null() && count.is_multiple_of(KEYS_EVERY);
        let most = if wants { operator.get(KEYS).await.ok() } else { None };
        if tell.send(Told::Snapshot(Box::new(snapshot), most)).await.is_err() {
            return Err("nobody listens".to_owned());
        }
    }
    Ok(())
}

/// A stream of server-sent events.
struct Live {
    body: Incoming,
    pending: Vec<u8>,
}

impl Live {
    async fn open(operator: &Operator) -> Result<Self, Failure> {
        let opened = timeout(PATIENCE, operator.open(Method::GET, "/api/v1/live", None)).await;
        let answer = opened.map_err(|_| operator.silent(&"it takes too long"))??;
        match answer.status() {
            status if status.is_success() => Ok(Self { body: answer.into_body(), pending: Vec::new() }),
            status => {
                let body = timeout(PATIENCE, answer.into_body().collect()).await;
                let body = body.ok().and_then(Result::ok).map(Collected::to_bytes).unwrap_or_default();
                Err(operator.refused(status, serde_json::from_slice(&body).ok().as_ref()))
            }
        }
    }

    /// The next snapshot, or why there is none.
    async fn next(&mut self) -> Result<Value, String> {
        loop {
            if let Some(snapshot) = snapshot_in(&mut self.pending) {
                return Ok(snapshot);
            }
            let bytes = timeout(PATIENCE, self.more()).await;
            self.pending.extend_from_slice(&bytes.map_err(|_| "it tells nothing any more".to_owned())??);
            if self.pending.len() > LONGEST {
                return Err("what it tells has no end".to_owned());
            }
        }
    }

    async fn more(&mut self) -> Result<Bytes, String> {
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
fn snapshot_in(pending: &mut Vec<u8>) -> Option<Value> {
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
    fn events_are_read_however_they_are_cut() {
        let text = b"retry: 2000\n\nevent: snapshot\nid: 1\ndata: {\"uptime\":1.5}\n\nevent: snapshot\ndata: {\"uptime\":2}\n\n";
        let (mut pending, mut found) = (Vec::new(), Vec::new());
        for byte in text {
            pending.push(*byte);
            found.extend(snapshot_in(&mut pending));
        }
        assert_eq!(found, [serde_json::json!({ "uptime": 1.5 }), serde_json::json!({ "uptime": 2 })]);
        assert!(pending.is_empty());
        pending.extend_from_slice(b": a word in passing\ndata: no JSON\n");
        assert_eq!(snapshot_in(&mut pending), None);
    }
}
