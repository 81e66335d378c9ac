//! The collector, to which spans are sent by OTLP over HTTP.

use super::{
    Counts, Tracing,
    otlp::{Export, Exported, KeyValue, Resource, ResourceSpans, Scope, ScopeSpans},
    trace::Trace,
};
use crate::{Fault, Roots, stream::Stream, tls::HTTP1};
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use prost::Message as _;
use std::{io, time::Duration};
use tokio::{net::TcpStream, time};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// A collector.
pub(super) struct Collector {
    endpoint: String,
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authority: HeaderValue,
    path: Uri,
    resource: Resource,
    /// Kept from one batch to the next.
    open: Option<SendRequest<Full<Bytes>>>,
    /// Why the last batch was lost, until it is told.
    why: Option<String>,
    mood: Mood,
}

/// What was said last, so that it is not said for each batch.
enum Mood {
    Well,
    Losing { since: u64 },
}

/// Why spans did not arrive.
enum Refusal {
    /// They may the next time.
    Later(String),
    Never(String),
}

/// How long one attempt may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Attempts for a batch, with a pause after the first, which doubles.
const ATTEMPTS: u32 = 4;
const FIRST_PAUSE: Duration = Duration::from_millis(250);

/// Bytes of an answer that are read.
const LONGEST_ANSWER: usize = 64 * 1024;

const SCHEMA: &str = "https://opentelemetry.io/schemas/1.37.0";

impl Collector {
    /// Whether it is there is seen when there is something to send: a gateway does not wait for it.
    pub(super) fn of(tracing: &Tracing, roots: &Roots) -> Result<Self, Fault> {
        let endpoint = tracing.terms.endpoint.clone();
        let fault = |reason: &str| Fault::Traces { endpoint: endpoint.clone(), reason: reason.to_owned() };
        let uri: Uri = endpoint.parse().map_err(|_| fault("write it as `http://host:port`"))?;
        let authority = uri.authority().ok_or_else(|| fault("it names no host: write `http://host:port`"))?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tls, port) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => {
                let name = ServerName::try_from(host.clone()).map_err(|_| fault("its name is none"))?;
                (Some((roots.connector(HTTP1)?, name)), 443)
            }
            _ => return Err(fault("its scheme has to be http or https: write `http://host:port`")),
        };
        let path = format!("{}/v1/traces", uri.path().trim_end_matches('/'));
        Ok(Self {
            host,
            port: authority.port_u16().unwrap_or(port),
            tls,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| fault("its host is none"))?,
            path: path.parse().map_err(|_| fault("its path is none"))?,
            resource: Resource {
                attributes: vec![
                    KeyValue::text("service.name", tracing.terms.service.as_str()),
                    KeyValue::text("telemetry.sdk.name", "tidegate"),
                    KeyValue::text("telemetry.sdk.language", "rust"),
                    KeyValue::text("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
                ],
            },
            open: None,
            why: None,
            mood: Mood::Well,
            endpoint,
        })
    }

    /// Sends these together, a few times if need be, and counts how many arrived.
    pub(super) async fn send(&mut self, traces: &[Box<Trace>], counts: &Counts) {
        let spans = traces.iter().map(|trace| trace.spans()).sum();
        let message = self.message(traces);
        let mut pause = FIRST_PAUSE;
        for attempt in 1..=ATTEMPTS {
            let posted = match time::timeout(PATIENCE, self.post(&message)).await {
                Ok(posted) => posted,
                Err(_) => Err(Refusal::Later("it takes too long".to_owned())),
            };
            let why = match posted {
                Ok(rejected) => {
                    let rejected = rejected.min(spans);
                    counts.given_up(rejected);
                    counts.arrived(spans - rejected);
                    return;
                }
                Err(Refusal::Later(_)) if attempt < ATTEMPTS => {
                    self.open = None;
                    time::sleep(pause).await;
                    pause *= 2;
                    continue;
                }
                Err(Refusal::Later(why) | Refusal::Never(why)) => why,
            };
            self.open = None;
            self.why = Some(why);
            counts.given_up(spans);
            return;
        }
    }

    /// Tells of losses once, and of their end.
    pub(super) fn tell(&mut self, lost: u64) {
        let (endpoint, why) = (&self.endpoint, self.why.take());
        match (&mut self.mood, lost) {
            (Mood::Well, 0) => {}
            (Mood::Well, lost) => {
                let why = why.unwrap_or_else(|| "it takes fewer than there are".to_owned());
                tracing::warn!(
                    endpoint,
                    lost,
                    why,
                    "the collector does not take all spans; no request waits for it"
                );
                self.mood = Mood::Losing { since: lost };
            }
            (Mood::Losing { since }, 0) => {
                tracing::info!(endpoint, lost = *since, "the collector takes all spans again");
                self.mood = Mood::Well;
            }
            (Mood::Losing { since }, lost) => *since += lost,
        }
    }

    fn message(&self, traces: &[Box<Trace>]) -> Bytes {
        let mut spans = Vec::with_capacity(traces.len() * 2);
        traces.iter().for_each(|trace| trace.write(&mut spans));
        let scope = Scope { name: "tidegate".to_owned(), version: env!("CARGO_PKG_VERSION").to_owned() };
        let scopes = vec![ScopeSpans { scope: Some(scope), spans, schema: SCHEMA.to_owned() }];
        let resources = vec![ResourceSpans { resource: Some(self.resource.clone()), scopes }];
        Export { resources }.encode_to_vec().into()
    }

    /// How many spans it did not want.
    async fn post(&mut self, message: &Bytes) -> Result<u64, Refusal> {
        let later = |error: &dyn std::fmt::Display| Refusal::Later(error.to_string());
        let mut request =
            Request::post(self.path.clone()).body(Full::new(message.clone())).map_err(|e| later(&e))?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
        let mut open = match self.open.take() {
            Some(open) if !open.is_closed() => open,
            _ => self.connect().await.map_err(|error| later(&error))?,
        };
        open.ready().await.map_err(|error| later(&error))?;
        let answer = open.send_request(request).await.map_err(|error| later(&error))?;
        let status = answer.status();
        let said = Limited::new(answer.into_body(), LONGEST_ANSWER).collect().await;
        match status {
            status if status.is_success() => {
                let said = said.map(http_body_util::Collected::to_bytes).unwrap_or_default();
                self.open = Some(open);
                // What is not understood complains of nothing.
                let partly = Exported::decode(said).ok().and_then(|exported| exported.partly);
                Ok(partly.map_or(0, |partly| u64::try_from(partly.rejected).unwrap_or(0)))
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(Refusal::Later(format!("it answers {status}"))),
            status => Err(Refusal::Never(format!("it answers {status}"))),
        }
    }

    async fn connect(&self) -> io::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await?;
        stream.set_nodelay(true)?;
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some((connector, name)) => {
                Stream::Tls(Box::new(connector.connect(name.clone(), stream).await?.into()))
            }
        };
        let (open, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(open)
    }
}

const AGENT: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));
