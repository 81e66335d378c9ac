//! The heads of `http` requests and responses as rules see them.

use http::{Extensions, HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use std::{
    any::Any,
    net::{IpAddr, SocketAddr},
};
use tidegate_rule::{
    RequestContext,
    request::{ClientCertificate, RequestHead, ResponseHead},
};

/// The head of an `http` request.
///
/// The peer address is read from axum's `ConnectInfo<SocketAddr>`, tonic's `TcpConnectInfo` or a `SocketAddr` in the
/// extensions of the request.
#[derive(Clone, Copy, Debug)]
pub struct TowerRequestHead<'a> {
    method: &'a Method,
    uri: &'a Uri,
    headers: &'a HeaderMap,
    extensions: &'a Extensions,
}

impl<'a> TowerRequestHead<'a> {
    /// Returns the head of this request.
    #[inline]
    pub fn new<B>(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

impl RequestHead for TowerRequestHead<'_> {
    fn method(&self) -> &str {
        self.method.as_str()
    }

    fn path(&self) -> &str {
        self.uri.path()
    }

    fn query(&self) -> Option<&str> {
        self.uri.query()
    }

    fn host(&self) -> Option<&str> {
        self.uri.host().or_else(|| self.headers.get(header::HOST)?.to_str().ok())
    }

    fn route(&self) -> Option<&str> {
        #[cfg(feature = "axum")]
        if let Some(path) = self.extensions.get::<axum::extract::MatchedPath>() {
            return Some(path.as_str());
        }
        None
    }

    #[inline(always)]
    fn peer(&self) -> Option<IpAddr> {
        peer_address(self.extensions)
    }

    fn missing_peer_fix(&self) -> Option<&'static str> {
        Some(MISSING_PEER_FIX)
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.get(name).map(http::HeaderValue::as_bytes)
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.headers.get_all(name).iter().for_each(|value| each(value.as_bytes()));
    }

    fn client_certificate(&self) -> Option<&ClientCertificate> {
        self.extensions.get()
    }

    fn extensions(&self) -> Option<&dyn Any> {
        Some(self.extensions)
    }

    fn context(&self) -> Option<&RequestContext> {
        self.extensions.get()
    }
}

/// How to make a server record the peer address.
pub(crate) const MISSING_PEER_FIX: &str = "with axum, serve `app.into_make_service_with_connect_info::<SocketAddr>()`; with hyper, \
    insert the peer's `SocketAddr` into the extensions of each request";

/// Returns the peer address that the server put into the extensions.
#[inline(always)]
pub(crate) fn peer_address(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) =
        extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()
    {
        return Some(address.ip());
    }
    #[cfg(feature = "tonic")]
    if let Some(address) = extensions
        .get::<tonic::transport::server::TcpConnectInfo>()
        .and_then(tonic::transport::server::TcpConnectInfo::remote_addr)
    {
        return Some(address.ip());
    }
    extensions.get::<SocketAddr>().map(SocketAddr::ip)
}

/// The head of an `http` response.
#[derive(Clone, Copy, Debug)]
pub struct TowerResponseHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
}

impl<'a> TowerResponseHead<'a> {
    /// Returns the head of this response.
    pub fn new<R>(response: &'a Response<R>) -> Self {
        Self { status: response.status(), headers: response.headers() }
    }
}

impl ResponseHead for TowerResponseHead<'_> {
    fn status(&self) -> u16 {
        self.status.as_u16()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.get(name).map(http::HeaderValue::as_bytes)
    }
}
