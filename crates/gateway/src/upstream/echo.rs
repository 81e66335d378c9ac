//! The server of the upstream `echo`.

use bytes::Bytes;
use http::{HeaderValue, Request, Response, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, service::service_fn};
use std::{
    convert::Infallible,
    fmt::Write as _,
    net::{Ipv4Addr, SocketAddr},
};
use tidegate_http_server::{BoundListener, HttpServer, StartupError};
use tidegate_policy::model::{Connections, ListenerSpec};
use tokio::sync::oneshot;

/// A server on loopback that responds with the head of each request. It stops when it is dropped.
pub(crate) struct EchoServer {
    address: SocketAddr,
    _stop: oneshot::Sender<()>,
}

impl EchoServer {
    /// Serves on a free port, on the current runtime.
    pub(crate) fn start() -> Result<Self, StartupError> {
        let loopback = ListenerSpec { name: None, address: (Ipv4Addr::LOCALHOST, 0).into(), tls: None };
        let listener = BoundListener::bind(&loopback)?;
        let address = listener.address();
        let listener = listener.into_listener()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let service =
            service_fn(|request: Request<Incoming>| async { Ok::<_, Infallible>(respond(request).await) });
        // The gateway limits its connections to each server.
        let connections = Connections { max: u64::MAX, ..Connections::default() };
        let server = HttpServer::new(service, &connections);
        tokio::spawn(server.serve_until(listener, async {
            let _ = stopped.await;
        }));
        Ok(Self { address, _stop: stop })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// Responds with the request line and the headers, as text. It discards the body.
async fn respond(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, mut body) = request.into_parts();
    while let Some(Ok(_)) = body.frame().await {}
    let mut text = format!("{} {}\n", head.method, head.uri);
    for (name, value) in &head.headers {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
    }
    let mut response = Response::new(Full::from(text));
    let plain = HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
