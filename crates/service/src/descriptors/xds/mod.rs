//! Configuration from an xDS management server (ADS, state of the world), as Envoy Gateway provides it.
//!
//! ```text
//!   client ── node, type URL ────────────────▶ server
//!          ◀── version, nonce, all resources ──
//!          ── ACK: version, nonce ───────────▶           the new configuration is active
//!          ── NACK: old version, nonce, error ▶          the previous configuration stays active
//! ```
//!
//! The client reconnects with exponential backoff. Meanwhile the last configuration stays active.

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

use crate::events;
use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_http_server::Roots;

/// Settings of the xDS client.
#[derive(Clone, Debug)]
pub struct XdsSettings {
    /// Host and port of the server, as in `envoy-gateway:18001`.
    pub server: String,
    /// The node id of this client.
    pub node_id: String,
    /// TLS; plain text without it.
    pub tls: Option<XdsTls>,
    /// Additional headers of each stream.
    pub headers: Vec<(HeaderName, HeaderValue)>,
    /// The backoff between attempts.
    pub backoff: XdsBackoff,
    /// The maximum size of a response in bytes.
    pub max_message_size: usize,
}

/// TLS to the management server. The files are read for each connection, so renewed certificates are used.
#[derive(Clone, Debug, Default)]
pub struct XdsTls {
    /// The CA certificates used to verify the server.
    pub roots: Roots,
    /// The client certificate and its key, in PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name in the certificate of the server, if it is not the host.
    pub server_name: Option<String>,
}

/// The backoff between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdsBackoff {
    /// The delay after the first failure.
    pub initial: Duration,
    /// The maximum delay; the delay doubles until then.
    pub max: Duration,
}

/// Subscribes to the configuration of a management server.
#[derive(Clone, Debug)]
pub struct XdsClient {
    endpoint: XdsEndpoint,
    settings: XdsSettings,
    headers: MetadataMap,
}

/// Invalid settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct XdsError(String);

impl Default for XdsBackoff {
    fn default() -> Self {
        Self { initial: Duration::from_secs(10), max: Duration::from_secs(60) }
    }
}

impl XdsBackoff {
    /// The delay after this number of consecutive failures, with a jitter of up to -20%, so that instances do not reconnect
    /// at once.
    fn delay(self, failures: u32) -> Duration {
        let doubled = self.initial.saturating_mul(1 << failures.saturating_sub(1).min(16));
        doubled.min(self.max).mul_f64(1.0 - fastrand::f64() * 0.2)
    }
}

impl XdsClient {
    /// Validates the settings; does not connect yet.
    pub fn new(mut settings: XdsSettings) -> Result<Self, XdsError> {
        let endpoint = XdsEndpoint::parse(&settings.server, settings.tls.clone())?;
        // Report invalid files at startup instead of at the first connection.
        endpoint.check_tls_files()?;
        let mut headers = HeaderMap::new();
        for (name, mut value) in settings.headers.drain(..) {
            // Values may be secrets.
            value.set_sensitive(true);
            headers.append(name, value);
        }
        Ok(Self { endpoint, headers: MetadataMap::from_headers(headers), settings })
    }

    /// Calls `apply` for each configuration until `shutdown`. An error of `apply` is sent to the server as a NACK.
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
                    Ok(()) => events::XdsStreamEnded { server, pause_ms }.emit(),
                    Err(error) => events::XdsUnavailable { server, error: &error, pause_ms }.emit(),
                }
                time::sleep(pause).await;
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = reconnect_loop => {}
        }
    }

    /// Runs one connection with one stream until it ends.
    async fn run_stream(
        &self,
        subscription: &mut Subscription,
        apply: &mut (impl FnMut(Vec<RateLimitConfig>) -> Result<(), String> + Send),
    ) -> Result<(), Status> {
        let connection = self.endpoint.connect().await.map_err(Status::unavailable)?;
        let (sender, receiver) = mpsc::channel(1);
        let stream_closed = |_| Status::unavailable("stream closed");
        sender.send(subscription.initial_request()).await.map_err(stream_closed)?;

        let mut request = tonic::Request::new(DiscoveryRequests(receiver));
        *request.metadata_mut() = self.headers.clone();
        let mut client = AggregatedDiscoveryServiceClient::with_origin(connection, self.endpoint.origin())
            .max_decoding_message_size(self.settings.max_message_size);
        let mut responses = client.stream_aggregated_resources(request).await?.into_inner();
        while let Some(response) = responses.message().await? {
            if let Some(reply) = subscription.handle_response(response, apply) {
                sender.send(reply).await.map_err(stream_closed)?;
            }
        }
        Ok(())
    }
}

/// The default maximum size of a response in bytes.
pub const DEFAULT_MAX_MESSAGE_SIZE: usize = 64 * 1024 * 1024;

/// The stream of requests to the server.
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
