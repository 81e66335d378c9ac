//! A connection to an xDS management server.

use super::{XdsError, XdsTls};
use crate::events;
use http::{Request, Response, Uri};
use hyper::{body::Incoming, client::conn::http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};
use tidegate_http_server::{ALPN_HTTP2, Stream};
use tokio::{net::TcpStream, time};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
    },
};
use tonic::{body::Body, codegen::Service};

/// The timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The interval and timeout of HTTP/2 pings.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// The address of a server.
#[derive(Clone, Debug)]
pub(super) struct XdsEndpoint {
    host: String,
    port: u16,
    origin: Uri,
    tls: Option<(XdsTls, ServerName<'static>)>,
}

impl XdsEndpoint {
    pub(super) fn parse(server: &str, tls: Option<XdsTls>) -> Result<Self, XdsError> {
        let invalid = |problem: &str| {
            XdsError(format!("`{server}`: {problem}; write host and port, as in `gateway:18001`"))
        };
        let (scheme, authority) = match server.split_once("://") {
            None => (if tls.is_some() { "https" } else { "http" }, server),
            Some((scheme @ ("http" | "https"), authority)) => (scheme, authority.trim_end_matches('/')),
            Some(_) => return Err(invalid("unsupported scheme")),
        };
        let tls = if scheme == "https" { Some(tls.unwrap_or_default()) } else { tls };
        let origin: Uri =
            format!("{scheme}://{authority}").parse().map_err(|_| invalid("invalid address"))?;
        let host = origin.host().ok_or_else(|| invalid("missing host"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = origin.port_u16().ok_or_else(|| invalid("missing port"))?;
        let tls = tls.map(|tls| {
            let name = tls.server_name.clone().unwrap_or_else(|| host.clone());
            let name = ServerName::try_from(name).map_err(|_| invalid("invalid TLS server name"))?;
            Ok((tls, name))
        });
        Ok(Self { host, port, origin, tls: tls.transpose()? })
    }

    pub(super) fn origin(&self) -> Uri {
        self.origin.clone()
    }

    /// Checks that the TLS files are readable and valid.
    pub(super) fn check_tls_files(&self) -> Result<(), XdsError> {
        self.tls.as_ref().map_or(Ok(()), |(tls, _)| tls_connector(tls).map(|_| ()).map_err(XdsError))
    }

    pub(super) async fn connect(&self) -> Result<XdsConnection, String> {
        time::timeout(CONNECT_TIMEOUT, self.open_connection())
            .await
            .map_err(|_| format!("connect timeout after {} s", CONNECT_TIMEOUT.as_secs()))?
    }

    async fn open_connection(&self) -> Result<XdsConnection, String> {
        let message = |error: std::io::Error| error.to_string();
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(message)?;
        let stream = match &self.tls {
            None => Stream::Plain(stream),
            Some((tls, name)) => {
                let stream = tls_connector(tls)?.connect(name.clone(), stream).await.map_err(message)?;
                Stream::Tls(Box::new(stream.into()))
            }
        };
        http2_handshake(stream).await
    }
}

fn tls_connector(tls: &XdsTls) -> Result<TlsConnector, String> {
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| error.to_string())?
        .with_root_certificates(tls.roots.store().map_err(|error| error.to_string())?);
    let mut config = match &tls.identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let invalid = |file: &std::path::Path, error: &dyn std::fmt::Display| {
                format!("{}: {error}", file.display())
            };
            let chain = CertificateDer::pem_file_iter(certificate)
                .and_then(Iterator::collect::<Result<Vec<_>, _>>)
                .map_err(|error| invalid(certificate, &error))?;
            let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| invalid(key, &error))?;
            builder.with_client_auth_cert(chain, secret).map_err(|error| invalid(certificate, &error))?
        }
    };
    config.alpn_protocols = vec![ALPN_HTTP2.to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

async fn http2_handshake(stream: Stream) -> Result<XdsConnection, String> {
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .keep_alive_interval(KEEP_ALIVE_INTERVAL)
        .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| error.to_string())?;
    // The task ends when the last sender is dropped.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            events::XdsConnectionClosed { error: &error }.emit();
        }
    });
    Ok(XdsConnection { sender })
}

/// The sending half of a connection.
pub(super) struct XdsConnection {
    sender: http2::SendRequest<Body>,
}

impl Service<Request<Body>> for XdsConnection {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Incoming>, hyper::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), hyper::Error>> {
        self.sender.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.sender.send_request(request))
    }
}
