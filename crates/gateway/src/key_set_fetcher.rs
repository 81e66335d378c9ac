//! Fetches the key set of a policy from a URL.

use crate::events;
use bytes::Bytes;
use std::{sync::Arc, time::Duration};
use tidegate_http_server::{HttpClient, Roots, StartupError};
use tidegate_identity::jwt::{JwtKeySet, JwtVerifier, MAX_KEY_SET_SIZE};
use tidegate_policy::{Policy, compile::RemoteKeySet, model::KeySetLocation};
use tokio::{sync::oneshot, task::JoinHandle, time};

/// Fetches a key set, until it is dropped.
pub(crate) struct KeySetFetcher {
    task: JoinHandle<()>,
    verifier: Arc<JwtVerifier>,
}

/// One key set, and the state of its server.
struct KeySetSource {
    client: HttpClient,
    remote: RemoteKeySet,
    is_unavailable: bool,
    /// The last valid response.
    last: Bytes,
}

/// The minimum time between two fetches.
const MIN_REFRESH: Duration = Duration::from_secs(5);

/// How long a policy waits for its first keys.
const START_TIMEOUT: Duration = Duration::from_secs(2);

/// How often the verifier is asked for tokens with unknown keys.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl KeySetFetcher {
    /// Fetches the key set now, and then again at its interval. A failure is logged, and keeps the keys. Waits a moment for the
    /// first result.
    pub(crate) async fn start(remote: RemoteKeySet) -> Result<Self, StartupError> {
        let verifier = remote.verifier.clone();
        let source = KeySetSource::new(remote)?;
        let (first, is_first_done) = oneshot::channel();
        let task = tokio::spawn(source.run(first));
        drop(time::timeout(START_TIMEOUT, is_first_done).await);
        Ok(Self { task, verifier })
    }

    /// Checks the URL of the key set of a policy.
    pub(crate) fn check(policy: &Policy) -> Result<(), StartupError> {
        match policy.identity.jwt.as_ref().map(|jwt| &jwt.keys) {
            Some(KeySetLocation::Url(url)) => connect_client(url).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether it fetches the keys of this verifier.
    pub(crate) fn is_for(&self, verifier: &Arc<JwtVerifier>) -> bool {
        Arc::ptr_eq(&self.verifier, verifier)
    }
}

impl Drop for KeySetFetcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn connect_client(url: &str) -> Result<HttpClient, StartupError> {
    let client = HttpClient::new(url, &Roots::default(), MAX_KEY_SET_SIZE);
    client.map_err(|reason| StartupError::KeySet { url: url.to_owned(), reason })
}

impl KeySetSource {
    fn new(remote: RemoteKeySet) -> Result<Self, StartupError> {
        let client = connect_client(&remote.url)?;
        Ok(Self { client, remote, is_unavailable: false, last: Bytes::new() })
    }

    async fn run(mut self, first: oneshot::Sender<()>) {
        self.fetch().await;
        // The gateway may not wait for it.
        let _ = first.send(());
        loop {
            let unknown = self.remote.verifier.unknown_keys();
            let mut waited = Duration::ZERO;
            loop {
                time::sleep(CHECK_INTERVAL).await;
                waited += CHECK_INTERVAL;
                let is_urgent = self.is_unavailable || self.remote.verifier.unknown_keys() != unknown;
                let due = if is_urgent { MIN_REFRESH.min(self.remote.refresh) } else { self.remote.refresh };
                if waited >= due {
                    break;
                }
            }
            self.fetch().await;
        }
    }

    /// Fetches the keys. On failure the previous ones stay.
    async fn fetch(&mut self) {
        let url = &self.remote.url;
        let keys = match self.client.get().await {
            Ok((status, body)) if status.is_success() => {
                JwtKeySet::parse(&body).map(|keys| (keys, body)).map_err(|error| error.to_string())
            }
            Ok((status, _)) => Err(format!("status {status}")),
            Err(reason) => Err(reason),
        };
        match keys {
            Ok((keys, body)) => {
                if self.is_unavailable {
                    events::KeySetRecovered { url, keys: keys.len() }.emit();
                }
                self.is_unavailable = false;
                // Verified tokens stay while the keys are the same.
                if body != self.last {
                    self.remote.verifier.set_keys(keys);
                    self.last = body;
                }
            }
            Err(reason) => {
                if !self.is_unavailable {
                    events::KeySetUnavailable { url, reason: &reason }.emit();
                }
                self.is_unavailable = true;
            }
        }
    }
}
