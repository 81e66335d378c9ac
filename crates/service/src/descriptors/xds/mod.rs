//! Limits from a server: discovery as Envoy does it (ADS, the state of the world), which is what Envoy Gateway configures by.
//!
//! ```text
//!   us ── node, kind ──────────────────────▶ server
//!      ◀── version, nonce, all that there is ──
//!      ── taken: version, nonce ───────────▶           in force from now on
//!      ── refused: old version, nonce, why ▶           what was in force stays
//! ```
//!
//! A connection that ends is made anew, after a pause that grows. What was in force stays in force meanwhile.

mod connection;
mod said;
mod subscription;

pub(crate) use said::said;

use connection::Target;
use std::{future::Future, path::PathBuf, time::Duration};
use subscription::Subscription;
use tidegate_proto::{
    config::RateLimitConfig,
    discovery::{AggregatedDiscoveryServiceClient, DiscoveryRequest},
};
use tokio::{sync::mpsc, time};
use tonic::{Status, metadata::MetadataMap};

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_http_server::Roots;

/// Where limits come from.
#[derive(Clone, Debug)]
pub struct XdsSettings {
    /// Host and port of the server, as in `envoy-gateway:18001`.
    pub server: String,
    /// Who we are.
    pub node: String,
    /// How it is spoken to; in plain text without.
    pub tls: Option<XdsTls>,
    /// What else it is told with every stream.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// When it is tried again.
    pub backoff: Backoff,
    /// The most bytes that one response may have.
    pub max_message: usize,
}

/// How a server is spoken to that wants TLS. Files are read for each connection, so that new ones are used.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// Whose certificates are believed.
    pub roots: Roots,
    /// Our own certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in its certificate, where it is not the host.
    pub name: Option<String>,
}

/// When a server that is away is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// After the first failure.
    pub first: Duration,
    /// At most; it doubles until then.
    pub most: Duration,
}

/// Asks a server for limits, for as long as it runs.
#[derive(Clone, Debug)]
pub struct XdsClient {
    target: Target,
    settings: XdsSettings,
    headers: MetadataMap,
}

/// What is wrong with settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct XdsError(String);

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(10), most: Duration::from_secs(60) }
    }
}

impl Backoff {
    /// The pause after so many failures in a row, shortened by up to a fifth, so that a fleet does not come back as one.
    fn pause(self, failures: u32) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.most).mul_f64(1.0 - fastrand::f64() * 0.2)
    }
}

impl XdsClient {
    /// Looks at settings; nothing is connected yet.
    pub fn new(mut settings: XdsSettings) -> Result<Self, XdsError> {
        let target = Target::of(&settings.server, settings.tls.clone())?;
        // Read once, so that a mistake is told before anybody waits for limits.
        target.check()?;
        let mut headers = HeaderMap::new();
        for (name, mut value) in settings.headers.drain(..) {
            // They may be secrets.
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(Self { target, headers: MetadataMap::from_headers(headers), settings })
    }

    /// Hands over each set of limits that comes, until `stop`. A set that is refused is told to the server with the reason.
    pub async fn run(
        self,
        mut take: impl FnMut(Vec<RateLimitConfig>) -> Result<(), String> + Send,
        stop: impl Future<Output = ()>,
    ) {
        let forever = async {
            let mut subscription = Subscription::new(&self.settings.node);
            let mut failures = 0_u32;
            loop {
                let heard = subscription.heard();
                let ended = self.stream(&mut subscription, &mut take).await;
                failures = if subscription.heard() == heard { failures.saturating_add(1) } else { 1 };
                let pause = self.settings.backoff.pause(failures);
                let (server, pause_ms) = (&self.settings.server, pause.as_millis());
                match ended {
                    Ok(()) => tracing::warn!(%server, pause_ms, "the server of limits has ended its stream"),
                    Err(error) => tracing::warn!(%server, pause_ms, %error, "the server of limits is away"),
                }
                time::sleep(pause).await;
            }
        };
        tokio::select! {
            () = stop => {}
            () = forever => {}
        }
    }

    /// One connection, and one stream on it, until it ends.
    async fn stream(
        &self,
        subscription: &mut Subscription,
        take: &mut (impl FnMut(Vec<RateLimitConfig>) -> Result<(), String> + Send),
    ) -> Result<(), Status> {
        let connection = self.target.connect().await.map_err(Status::unavailable)?;
        let (sender, receiver) = mpsc::channel(1);
        let gone = |_| Status::unavailable("the stream has ended");
        sender.send(subscription.first()).await.map_err(gone)?;

        let mut request = tonic::Request::new(Requests(receiver));
        *request.metadata_mut() = self.headers.clone();
        let mut client = AggregatedDiscoveryServiceClient::with_origin(connection, self.target.origin())
            .max_decoding_message_size(self.settings.max_message);
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        while let Some(response) = responses.message().await? {
            if let Some(answer) = subscription.answer(response, take) {
                sender.send(answer).await.map_err(gone)?;
            }
        }
        Ok(())
    }
}

/// The most bytes that a set of limits may have by default.
pub const MAX_MESSAGE: usize = 64 * 1024 * 1024;

/// What is still to be said to the server.
struct Requests(mpsc::Receiver<DiscoveryRequest>);

impl tonic::codegen::tokio_stream::Stream for Requests {
    type Item = DiscoveryRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<DiscoveryRequest>> {
        self.0.poll_recv(context)
    }
}
