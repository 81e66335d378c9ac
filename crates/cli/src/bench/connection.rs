//! A connection to the target: HTTP/1.1 or HTTP/2, with or without TLS.

use super::BenchTarget;
use bytes::Bytes;
use http::{HeaderValue, Request, Response, Uri, header, uri::PathAndQuery};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::{net::IpAddr, path::PathBuf};
use tidegate_http_server::Roots;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// The maximum size of a response.
const MAX_RESPONSE_SIZE: usize = 256 << 20;

/// The HTTP version.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum BenchHttpVersion {
    #[default]
    Http1,
    /// With prior knowledge, or negotiated with ALPN over TLS.
    Http2,
}

impl BenchHttpVersion {
    /// The ALPN protocol name.
    fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::Http2 => b"h2",
        }
    }
}

/// Verifies the certificate of the target.
#[derive(Clone)]
pub(crate) struct BenchTls {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl BenchTls {
    /// Verifies the host name, with the CA certificates in a file or those of the system.
    pub(crate) fn new(
        name: &str,
        authorities: Option<PathBuf>,
        version: BenchHttpVersion,
    ) -> Result<Self, String> {
        let roots = authorities.map_or(Roots::System, Roots::File);
        let connector = roots.connector(version.alpn()).map_err(|error| error.to_string())?;
        let name = ServerName::try_from(name.to_owned());
        Ok(Self { connector, name: name.map_err(|_| "invalid TLS server name".to_owned())? })
    }
}

/// A connection with one request at a time.
pub(super) struct BenchConnection {
    sender: RequestSender,
    /// The local address.
    pub(super) local_ip: IpAddr,
}

enum RequestSender {
    Http1(http1::SendRequest<Full<Bytes>>),
    /// With the URL scheme.
    Http2(http2::SendRequest<Full<Bytes>>, &'static str),
}

impl BenchConnection {
    pub(super) async fn open(target: &BenchTarget) -> Result<Self, String> {
        let stream = TcpStream::connect(target.address).await.map_err(|error| error.to_string())?;
        let local_ip = stream.local_addr().map_err(|error| error.to_string())?.ip();
        stream.set_nodelay(true).map_err(|error| error.to_string())?;
        let sender = match &target.tls {
            None => RequestSender::handshake(stream, target.version, "http").await?,
            Some(tls) => {
                let stream = tls.connector.connect(tls.name.clone(), stream).await;
                let stream = stream.map_err(|error| error.to_string())?;
                let negotiated = stream.get_ref().1.alpn_protocol();
                // A server without ALPN uses HTTP/1.1.
                if target.version == BenchHttpVersion::Http2 && negotiated != Some(target.version.alpn()) {
                    return Err("the server does not support HTTP/2".to_owned());
                }
                RequestSender::handshake(stream, target.version, "https").await?
            }
        };
        Ok(Self { sender, local_ip })
    }

    /// Whether it accepts another request.
    pub(super) async fn is_ready(&mut self) -> bool {
        match &mut self.sender {
            RequestSender::Http1(sender) => sender.ready().await.is_ok(),
            RequestSender::Http2(sender, _) => sender.ready().await.is_ok(),
        }
    }

    /// Sends a request and reads the whole response.
    pub(super) async fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<(Response<()>, Bytes), String> {
        let response = match &mut self.sender {
            RequestSender::Http1(sender) => sender.send_request(request).await,
            RequestSender::Http2(sender, scheme) => {
                sender.send_request(to_absolute_form(request, scheme)).await
            }
        };
        let (head, body): (_, Incoming) = response.map_err(|error| describe_error(&error))?.into_parts();
        let body = Limited::new(body, MAX_RESPONSE_SIZE).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        Ok((Response::from_parts(head, ()), body))
    }

    /// Whether another request may follow this response.
    pub(super) fn is_reusable(&self, head: &Response<()>) -> bool {
        let connection_header = head.headers().get(header::CONNECTION);
        match &self.sender {
            RequestSender::Http1(sender) => {
                !sender.is_closed()
                    && connection_header.is_none_or(|value| !value.as_bytes().eq_ignore_ascii_case(b"close"))
            }
            RequestSender::Http2(sender, _) => !sender.is_closed(),
        }
    }
}

impl RequestSender {
    async fn handshake<I>(stream: I, version: BenchHttpVersion, scheme: &'static str) -> Result<Self, String>
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let io = TokioIo::new(stream);
        match version {
            BenchHttpVersion::Http1 => {
                let (sender, connection) =
                    http1::handshake(io).await.map_err(|error| describe_error(&error))?;
                tokio::spawn(connection);
                Ok(Self::Http1(sender))
            }
            BenchHttpVersion::Http2 => {
                let handshake = http2::handshake(TokioExecutor::new(), io).await;
                let (sender, connection) = handshake.map_err(|error| describe_error(&error))?;
                tokio::spawn(connection);
                Ok(Self::Http2(sender, scheme))
            }
        }
    }
}

/// Moves the host from the header to the URI, as HTTP/2 requires.
fn to_absolute_form(mut request: Request<Full<Bytes>>, scheme: &str) -> Request<Full<Bytes>> {
    let host = request.headers_mut().remove(header::HOST);
    let host = host.as_ref().map(HeaderValue::as_bytes).unwrap_or_default();
    let path = request.uri().path_and_query().map_or("/", PathAndQuery::as_str);
    let full = Uri::builder().scheme(scheme).authority(host).path_and_query(path).build();
    if let Ok(full) = full {
        *request.uri_mut() = full;
    }
    request
}

/// Formats an error with its source, which has the details.
fn describe_error(error: &hyper::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
