//! A client that sends OTLP messages to a collector over HTTP.

use crate::events;
use bytes::Bytes;
use http::{HeaderValue, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::{io, time::Duration};
use tidegate_http_server::{ALPN_HTTP1, Roots, Stream};
use tokio::{net::TcpStream, time};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// A client of one path of a collector.
pub(crate) struct OtlpClient {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authority: HeaderValue,
    path: Uri,
    /// Reused for the next message.
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// Whether a collector accepts all messages. Only changes are logged.
pub(crate) struct ExportState {
    signal: &'static str,
    endpoint: String,
    /// The number of losses since the last success.
    lost: u64,
}

impl ExportState {
    pub(crate) fn new(signal: &'static str, endpoint: &str) -> Self {
        Self { signal, endpoint: endpoint.to_owned(), lost: 0 }
    }

    /// Records the number of losses of the last export.
    pub(crate) fn update(&mut self, lost: u64, reason: &str) {
        let Self { signal, endpoint, lost: before } = &*self;
        match (before, lost) {
            (0, 1..) => events::CollectorUnavailable { signal, endpoint, lost, reason }.emit(),
            (1.., 0) => events::CollectorRecovered { signal, endpoint, lost: *before }.emit(),
            _ => {}
        }
        self.lost = if lost == 0 { 0 } else { self.lost + lost };
    }
}

/// The error of a failed export.
pub(crate) enum ExportError {
    /// A retry may succeed.
    Retryable(String),
    Permanent(String),
}

/// The timeout of one attempt.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// The maximum size of a response.
const MAX_RESPONSE_SIZE: usize = 64 * 1024;

const USER_AGENT_VALUE: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

impl OtlpClient {
    /// Parses the endpoint. Does not connect; the first message does.
    pub(crate) fn new(endpoint: &str, path: &str, roots: &Roots) -> Result<Self, String> {
        let uri: Uri = endpoint.parse().map_err(|_| "invalid URL: use `http://host:port`")?;
        let authority = uri.authority().ok_or("missing host: use `http://host:port`")?;
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let (tls, port) = match uri.scheme_str() {
            Some("http") => (None, 80),
            Some("https") => {
                let name = ServerName::try_from(host.clone()).map_err(|_| "invalid host name")?;
                let connector = roots.connector(ALPN_HTTP1).map_err(|fault| fault.to_string())?;
                (Some((connector, name)), 443)
            }
            _ => return Err("scheme must be http or https: use `http://host:port`".to_owned()),
        };
        let path = format!("{}{path}", uri.path().trim_end_matches('/'));
        Ok(Self {
            host,
            port: authority.port_u16().unwrap_or(port),
            tls,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| "invalid host")?,
            path: path.parse().map_err(|_| "invalid path")?,
            connection: None,
        })
    }

    /// Sends a message, and returns the body of the response.
    pub(crate) async fn post(&mut self, message: &Bytes) -> Result<Bytes, ExportError> {
        let result = match time::timeout(ATTEMPT_TIMEOUT, self.try_post(message)).await {
            Ok(result) => result,
            Err(_) => Err(ExportError::Retryable("timed out".to_owned())),
        };
        if result.is_err() {
            self.connection = None;
        }
        result
    }

    async fn try_post(&mut self, message: &Bytes) -> Result<Bytes, ExportError> {
        let retryable = |error: &dyn std::fmt::Display| ExportError::Retryable(error.to_string());
        let mut request =
            Request::post(self.path.clone()).body(Full::new(message.clone())).map_err(|e| retryable(&e))?;
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        let mut sender = match self.connection.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => self.connect().await.map_err(|error| retryable(&error))?,
        };
        sender.ready().await.map_err(|error| retryable(&error))?;
        let response = sender.send_request(request).await.map_err(|error| retryable(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE_SIZE).collect().await;
        match status {
            status if status.is_success() => {
                self.connection = Some(sender);
                Ok(body.map(http_body_util::Collected::to_bytes).unwrap_or_default())
            }
            StatusCode::TOO_MANY_REQUESTS
            | StatusCode::BAD_GATEWAY
            | StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::GATEWAY_TIMEOUT => Err(ExportError::Retryable(format!("status {status}"))),
            status => Err(ExportError::Permanent(format!("status {status}"))),
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
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}
