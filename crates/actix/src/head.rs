//! The heads of actix-web requests and responses as rules see them.

use actix_web::{
    HttpMessage as _,
    body::MessageBody,
    dev::{Extensions, ServiceRequest, ServiceResponse},
    http::{
        StatusCode,
        header::{self, HeaderMap, HeaderValue},
    },
};
use std::{
    any::Any,
    cell::{OnceCell, Ref},
    fmt,
    net::IpAddr,
};
use tidegate_rule::{
    RequestContext,
    request::{ClientCertificate, RequestHead, ResponseHead},
};

/// The head of a request.
///
/// The peer address is that of the connection; it is missing on a Unix socket, and in tests that do not set one. The head
/// borrows the extensions of the request, which must not be mutated while it exists.
///
/// The route is the pattern of the matching resource. Middleware of a whole application runs before the router, so the
/// head resolves the pattern from the path as the router will decode it; `/%6Cogin` is `/login` here, too. Guards of
/// resources are ignored in that case, so the first matching pattern is the route. A request without a matching
/// resource has no route.
pub struct ActixRequestHead<'a> {
    request: &'a ServiceRequest,
    extensions: Ref<'a, Extensions>,
    route: OnceCell<Option<String>>,
}

impl<'a> ActixRequestHead<'a> {
    /// Returns the head of this request.
    pub fn new(request: &'a ServiceRequest) -> Self {
        Self { request, extensions: request.extensions(), route: OnceCell::new() }
    }
}

impl RequestHead for ActixRequestHead<'_> {
    fn method(&self) -> &str {
        self.request.method().as_str()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn query(&self) -> Option<&str> {
        self.request.uri().query()
    }

    fn host(&self) -> Option<&str> {
        let named = || self.request.headers().get(header::HOST)?.to_str().ok();
        self.request.uri().host().or_else(named)
    }

    fn route(&self) -> Option<&str> {
        self.route.get_or_init(|| find_route(self.request)).as_deref()
    }

    fn peer(&self) -> Option<IpAddr> {
        self.request.peer_addr().map(|address| address.ip())
    }

    fn missing_peer_fix(&self) -> Option<&'static str> {
        Some("bind the server to a TCP address, or use another key")
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.request.headers().get(name).map(HeaderValue::as_bytes)
    }

    fn for_each_header<'a>(&'a self, name: &str, each: &mut dyn FnMut(&'a [u8])) {
        self.request.headers().get_all(name).for_each(|value| each(value.as_bytes()));
    }

    fn client_certificate(&self) -> Option<&ClientCertificate> {
        self.extensions.get().or_else(|| self.request.conn_data())
    }

    fn extensions(&self) -> Option<&dyn Any> {
        Some(&*self.extensions)
    }

    fn context(&self) -> Option<&RequestContext> {
        self.extensions.get()
    }
}

/// Returns the pattern that matched or will match. For a request that is not routed yet, `match_pattern` of actix-web
/// uses the raw path, but its router uses the decoded path, so `/%6Cogin` would bypass a rule for `/login`.
fn find_route(request: &ServiceRequest) -> Option<String> {
    let path = request.match_info();
    let ahead = || request.resource_map().match_pattern(path.as_str());
    match path.unprocessed() {
        "" => request.match_pattern().or_else(ahead),
        _ => ahead(),
    }
}

impl fmt::Debug for ActixRequestHead<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ActixRequestHead({} {})", self.method(), self.path())
    }
}

/// The head of a response.
#[derive(Clone, Copy, Debug)]
pub struct ActixResponseHead<'a> {
    status: StatusCode,
    headers: &'a HeaderMap,
}

impl<'a> ActixResponseHead<'a> {
    /// Returns the head of this response.
    pub fn new<B: MessageBody>(response: &'a ServiceResponse<B>) -> Self {
        Self { status: response.status(), headers: response.headers() }
    }

    pub(crate) fn from_parts(status: StatusCode, headers: &'a HeaderMap) -> Self {
        Self { status, headers }
    }
}

impl ResponseHead for ActixResponseHead<'_> {
    fn status(&self) -> u16 {
        self.status.as_u16()
    }

    fn header(&self, name: &str) -> Option<&[u8]> {
        self.headers.get(name).map(HeaderValue::as_bytes)
    }
}
