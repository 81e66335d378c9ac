//! A connection to a collector, over which messages of OTLP are sent by HTTP.

use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::{io, time::Duration};
use tidegate_http_server::{ALPN_HTTP1, Roots, Stream};
use tokio::{net::TcpStream, time};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// A collector, at one of its paths.
pub(crate) struct OtlpClient {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authority: HeaderValue,
    path: Uri,
    /// Kept from one message to the next.
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// Whether a collector takes all that is sent. Only changes are logged.
pub(crate) struct ExportState {
    signal: &'static str,
    endpoint: String,
    /// Since it was well last.
    lost: u64,
}

impl ExportState {
    pub(crate) fn new(signal: &'static str, endpoint: &str) -> Self {
        Self { signal, endpoint: endpoint.to_owned(), lost: 0 }
    }

    /// This many were lost of what was sent last.
    pub(crate) fn update(&mut self, lost: u64, reason: &str) {
        let Self { signal, endpoint, lost: before } = &*self;
        match (before, lost) {
            (0, 1..) => {
                tracing::warn!(
                    signal,
                    endpoint,
                    lost,
                    reason,
                    "collector unavailable; no request waits for it"
                );
            }
            (1.., 0) => tracing::info!(signal, endpoint, lost = before, "collector available again"),
            _ => {}
        }
        self.lost = if lost == 0 { 0 } else { self.lost + lost };
    }
}

/// Why a message did not arrive.
pub(crate) enum ExportError {
    /// It may the next time.
    Retryable(String),
    Permanent(String),
}

/// How long one attempt may take.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of an answer that are read.
const MAX_RESPONSE_SIZE: usize = 64 * 1024;

const USER_AGENT_VALUE: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

impl OtlpClient {
    /// Whether it is there is seen when there is something to send: a gateway does not wait for it. `Err` says why there can be
    /// none at this endpoint.
    pub(crate) fn new(endpoint: &str, path: &str, roots: &Roots) -> Result<Self, String> {
        let uri: Uri = endpoint.parse().map_err(|_| "write it as `http://host:port`")?;
        let authority = uri.authority().ok_or("it names no host: write `http://host:port`")?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tls, port) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => {
                let name = ServerName::try_from(host.clone()).map_err(|_| "its name is none")?;
                let connector = roots.connector(ALPN_HTTP1).map_err(|fault| fault.to_string())?;
                (Some((connector, name)), 443)
            }
            _ => return Err("its scheme has to be http or https: write `http://host:port`".to_owned()),
        };
        let path = format!("{}{path}", uri.path().trim_end_matches('/'));
        Ok(Self {
            host,
            port: authority.port_u16().unwrap_or(port),
            tls,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| "its host is none")?,
            path: path.parse().map_err(|_| "its path is none")?,
            connection: None,
        })
    }

    /// Sends a message; what was answered.
    pub(crate) async fn post(&mut self, message: &Bytes) -> Result<Bytes, ExportError> {
        let posted = match time::timeout(ATTEMPT_TIMEOUT, self.try_post(message)).await {
            Ok(posted) => posted,
            Err(_) => Err(ExportError::Retryable("it takes too long".to_owned())),
        };
        if posted.is_err() {
            self.connection = None;
        }
        posted
    }

    async fn try_post(&mut self, message: &Bytes) -> Result<Bytes, ExportError> {
        let later = |error: &dyn std::fmt::Display| ExportError::Retryable(error.to_string());
        let mut request =
            Request::post(self.path.clone()).body(Full::new(message.clone())).map_err(|e| later(&e))?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        let mut open = match self.connection.take() {
            Some(open) if !open.is_closed() => open,
            _ => self.connect().await.map_err(|error| later(&error))?,
        };
        open.ready().await.map_err(|error| later(&error))?;
        let answer = open.send_request(request).await.map_err(|error| later(&error))?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), MAX_RESPONSE_SIZE).collect().await;
        match status {
            status if status.is_success() => {
                self.connection = Some(open);
                Ok(body.map(http_body_util::Collected::to_bytes).unwrap_or_default())
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(ExportError::Retryable(format!("it answers {status}"))),
            status => Err(ExportError::Permanent(format!("it answers {status}"))),
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
