//! A client of one URL, for messages to other services: collectors and key sets.

use crate::{ALPN_HTTP1, Roots, Stream};
use bytes::Bytes;
use http::{HeaderValue, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::{fmt, io, time::Duration};
use tokio::{net::TcpStream, time};
use tokio_rustls::{TlsConnector, rustls::pki_types::ServerName};

/// A client of one URL. It uses one connection, and follows no redirects.
pub struct HttpClient {
    host: String,
    port: u16,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    authority: HeaderValue,
    target: Uri,
    max_response_size: usize,
    /// Reused for the next request.
    connection: Option<SendRequest<Full<Bytes>>>,
}

/// The timeout of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const USER_AGENT_VALUE: &str = concat!("tidegate/", env!("CARGO_PKG_VERSION"));

impl HttpClient {
    /// Parses the URL. Does not connect; the first request does.
    pub fn new(url: &str, roots: &Roots, max_response_size: usize) -> Result<Self, String> {
        let uri: Uri = url.parse().map_err(|_| "invalid URL: use `http://host:port`")?;
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
        let target = uri.path_and_query().map_or("/", |target| target.as_str());
        Ok(Self {
            host,
            port: authority.port_u16().unwrap_or(port),
            tls,
            authority: HeaderValue::from_str(authority.as_str()).map_err(|_| "invalid host")?,
            target: target.parse().map_err(|_| "invalid path")?,
            max_response_size,
            connection: None,
        })
    }

    /// Sends a GET request, and returns the response.
    pub async fn get(&mut self) -> Result<(StatusCode, Bytes), String> {
        self.send(Method::GET, None).await
    }

    /// Sends a POST request with a body of this type, and returns the response.
    pub async fn post(
        &mut self,
        content_type: &'static str,
        body: Bytes,
    ) -> Result<(StatusCode, Bytes), String> {
        self.send(Method::POST, Some((content_type, body))).await
    }

    async fn send(
        &mut self,
        method: Method,
        content: Option<(&'static str, Bytes)>,
    ) -> Result<(StatusCode, Bytes), String> {
        let result = match time::timeout(REQUEST_TIMEOUT, self.try_send(method, content)).await {
            Ok(result) => result,
            Err(_) => Err("timed out".to_owned()),
        };
        if result.is_err() {
            self.connection = None;
        }
        result
    }

    async fn try_send(
        &mut self,
        method: Method,
        content: Option<(&'static str, Bytes)>,
    ) -> Result<(StatusCode, Bytes), String> {
        let (content_type, body) = content.unzip();
        let mut request = Request::new(Full::new(body.unwrap_or_default()));
        *request.method_mut() = method;
        *request.uri_mut() = self.target.clone();
        let headers = request.headers_mut();
        headers.insert(header::HOST, self.authority.clone());
        headers.insert(header::USER_AGENT, HeaderValue::from_static(USER_AGENT_VALUE));
        if let Some(content_type) = content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        let mut sender = match self.connection.take() {
            Some(sender) if !sender.is_closed() => sender,
            _ => self.connect().await.map_err(|error| error.to_string())?,
        };
        sender.ready().await.map_err(|error| error.to_string())?;
        let response = sender.send_request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body = Limited::new(response.into_body(), self.max_response_size).collect().await;
        let body = body.map_err(|error| error.to_string())?.to_bytes();
        self.connection = Some(sender);
        Ok((status, body))
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

impl fmt::Debug for HttpClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpClient")
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}
