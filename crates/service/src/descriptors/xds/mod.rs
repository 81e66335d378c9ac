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
mod convert;
mod subscription;

pub(crate) use convert::to_raw_domains;

use connection::XdsEndpoint;
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
    pub node_id: String,
    /// How it is spoken to; in plain text without.
    pub tls: Option<XdsTls>,
    /// What else it is told with every stream.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// When it is tried again.
    pub backoff: XdsBackoff,
    /// The most bytes that one response may have.
    pub max_message_size: usize,
}

/// How a server is spoken to that wants TLS. Files are read for each connection, so that new ones are used.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// Whose certificates are believed.
    pub roots: Roots,
    /// Our own certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in its certificate, where it is not the host.
    pub server_name: Option<String>,
}

/// When a server that is away is tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdsBackoff {
    /// After the first failure.
    pub initial: Duration,
    /// At most; it doubles until then.
    pub max: Duration,
}

/// Asks a server for limits, for as long as it runs.
#[derive(Clone, Debug)]
pub struct XdsClient {
    endpoint: XdsEndpoint,
    settings: XdsSettings,
    headers: MetadataMap,
}

/// What is wrong with settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct XdsError(String);

impl Default for XdsBackoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(10), max: Duration::from_secs(60) }
    }
}

impl XdsBackoff {
    /// The pause after so many failures in a row, shortened by up to a fifth, so that a fleet does not come back as one.
    fn delay(self, failures: u32) -> Duration {
        let doubled = self.initial.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.max).mul_f64(1.0 - fastrand::f64() * 0.2)
    }
}

impl XdsClient {
    /// Looks at settings; nothing is connected yet.
    pub fn new(mut settings: XdsSettings) -> Result<Self, XdsError> {
        let target = XdsEndpoint::parse(&settings.server, settings.tls.clone())?;
        // Read once, so that a mistake is told before anybody waits for limits.
        target.check_tls_files()?;
        let mut headers = HeaderMap::new();
        for (name, mut value) in settings.headers.drain(..) {
            // They may be secrets.
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(Self { endpoint: target, headers: MetadataMap::from_headers(headers), settings })
    }

    /// Hands over each set of limits that comes, until `stop`. A set that is refused is told to the server with the reason.
    pub async fn run(
        self,
        mut apply: impl FnMut(Vec<RateLimitConfig>) -> Result<(), String> + Send,
        shutdown: impl Future<Output = ()>,
    ) {
        let reconnect_loop = async {
            let mut subscription = Subscription::new(&self.settings.node_id);
            let mut failures = 0_u32;
            loop {
                let received = subscription.response_count();
                let result = self.run_stream(&mut subscription, &mut apply).await;
                failures =
                    if subscription.response_count() == received { failures.saturating_add(1) } else { 1 };
                let pause = self.settings.backoff.delay(failures);
                let (server, pause_ms) = (&self.settings.server, pause.as_millis());
                match result {
                    Ok(()) => tracing::warn!(%server, pause_ms, "the server of limits has ended its stream"),
                    Err(error) => tracing::warn!(%server, pause_ms, %error, "the server of limits is away"),
                }
                time::sleep(pause).await;
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = reconnect_loop => {}
        }
    }

    /// One connection, and one stream on it, until it ends.
    async fn run_stream(
        &self,
        subscription: &mut Subscription,
        apply: &mut (impl FnMut(Vec<RateLimitConfig>) -> Result<(), String> + Send),
    ) -> Result<(), Status> {
        let connection = self.endpoint.connect().await.map_err(Status::unavailable)?;
        let (sender, receiver) = mpsc::channel(1);
        let stream_closed = |_| Status::unavailable("the stream has ended");
        sender.send(subscription.initial_request()).await.map_err(stream_closed)?;

        let mut request = tonic::Request::new(DiscoveryRequests(receiver));
        *request.metadata_mut() = self.headers.clone();
        let mut client = AggregatedDiscoveryServiceClient::with_origin(connection, self.endpoint.origin())
            .max_decoding_message_size(self.settings.max_message_size);
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        while let Some(response) = responses.message().await? {
            if let Some(answer) = subscription.handle_response(response, apply) {
                sender.send(answer).await.map_err(stream_closed)?;
            }
        }
        Ok(())
    }
}

/// The most bytes that a set of limits may have by default.
pub const DEFAULT_MAX_MESSAGE_SIZE: usize = 64 * 1024 * 1024;

/// What is still to be said to the server.
struct DiscoveryRequests(mpsc::Receiver<DiscoveryRequest>);

impl tonic::codegen::tokio_stream::Stream for DiscoveryRequests {
    type Item = DiscoveryRequest;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        context: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<DiscoveryRequest>> {
        self.0.poll_recv(context)
    }
}
