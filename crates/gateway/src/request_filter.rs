//! The filter interface: decides about a request before it is forwarded, and about its response before it is sent.

use crate::{
    LocalReply, LogNote, ResponseCopy, ResponseReader, SharedReply, UpstreamId, http1::ParsedResponse,
};
use http::StatusCode;
use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
};
use tidegate_bandwidth::Bandwidth;
use tidegate_http_server::Scheme;
use tidegate_observe::{RecordedCost, RequestBodyOutcome, ResponseEnd, ResponseOrigin};
use tidegate_policy::head::{HttpRequestHead, ParsedRequest};
use tidegate_rule::{
    ResponseValues,
    body::{BodyValues, JsonPointer},
    request::ClientCertificate,
};

/// Decides about requests.
///
/// A closure from a request to an [`Action`] is a filter without a context:
///
/// ```no_run
/// # use tidegate_gateway::{Action, Config};
/// # fn filter(config: Config) -> Option<impl tidegate_gateway::RequestFilter> {
/// let app = config.upstream_id("app")?;
/// let filter = move |request: &tidegate_policy::head::ParsedRequest| match request.path() {
///     "/secret" => Action::Drop,
///     _ => Action::Forward(app),
/// };
/// # Some(filter)
/// # }
/// ```
pub trait RequestFilter: Send + Sync + 'static {
    /// The values of the body that the decision about this request needs; `None` if the head is enough. The body is received
    /// before the decision, up to a limit.
    fn body_pointers(
        &self,
        request: &ParsedRequest,
        connection: &ConnectionInfo,
    ) -> Option<Arc<[JsonPointer]>> {
        let _ = (request, connection);
        None
    }

    /// Decides about a request. Its head was checked and normalized. Changes to the head are forwarded. `body` is the result of
    /// [`body_pointers`](Self::body_pointers).
    fn filter(
        &self,
        request: &mut ParsedRequest,
        connection: &ConnectionInfo,
        body: Option<&ParsedBody>,
    ) -> FilterResult;

    /// Records an exchange that has ended, also of a request that did not reach the filter. `response` is `None` if there was
    /// no response.
    fn record(&self, response: Option<(StatusCode, ResponseOrigin)>) {
        let _ = response;
    }
}

/// The state of a request until its exchange ends: permits, pending settlement, telemetry.
///
/// The proxy calls it through a pointer, so that it is compiled once for all filters; a request needs it at most seven times.
pub trait FilterContext: 'static {
    /// The bandwidth limits of the bodies of a forwarded request.
    fn rates(&self) -> Rates<'_> {
        Rates::default()
    }

    /// Starts a copy of the response of a server, if it is to be stored when it is complete.
    fn copy_response(&mut self, response: &ParsedResponse) -> Option<ResponseCopy> {
        let _ = response;
        None
    }

    /// Settles the response of a server, or that of the gateway. It may add headers, or return another response to send
    /// instead.
    fn on_response(&mut self, response: &mut ParsedResponse) -> Option<LocalReply> {
        let _ = response;
        None
    }

    /// Starts to read the response that is sent, if its body or its trailers state the cost of the request.
    fn read_response(&mut self, response: &ParsedResponse) -> Option<ResponseReader> {
        let _ = response;
        None
    }

    /// Settles the cost of the request with the values of its response.
    fn settle_response(&mut self, values: &ResponseValues, end: ResponseEnd) {
        let _ = (values, end);
    }

    /// The costs of the request so far, for the access log.
    fn costs(&self) -> &[RecordedCost] {
        &[]
    }

    /// Records the exchange, which has ended with its last byte or because a side disconnected. `response` is `None` if there
    /// was no response.
    fn record(self: Box<Self>, response: Option<(StatusCode, ResponseOrigin)>) {
        let _ = response;
    }
}

/// The body of a request that was received before the decision.
#[derive(Clone, Debug)]
pub struct ParsedBody {
    /// Its values; `None` unless it was parsed.
    pub values: Option<BodyValues>,
    /// How it was read.
    pub outcome: RequestBodyOutcome,
}

/// The origin of a request.
#[derive(Clone, Debug)]
pub struct ConnectionInfo {
    /// The peer of the connection, which may be a proxy.
    pub peer: SocketAddr,
    /// The address of the client, resolved once for each request from the peer and trusted proxies. Rules, logs, traces and
    /// the load balancer use this one.
    pub client: IpAddr,
    /// The scheme of the listener.
    pub scheme: Scheme,
    /// The name of the listener, if it has one.
    pub listener: Option<Arc<str>>,
    /// The verified certificate of the client, read once for each connection.
    pub client_certificate: Option<ClientCertificate>,
}

impl ConnectionInfo {
    /// The head of a request of this origin, for rules.
    pub(crate) fn head<'a>(&'a self, request: &'a ParsedRequest) -> HttpRequestHead<'a> {
        HttpRequestHead::new(request, self.peer.ip())
            .with_client(self.client)
            .with_listener(self.listener.as_deref())
            .with_client_certificate(self.client_certificate.as_ref())
    }
}

/// A decision about a request, immediate or deferred.
pub enum FilterResult {
    /// An immediate decision.
    Ready(FilterDecision),
    /// A decision after a wait. Dropped if the client disconnects first.
    Deferred(Pin<Box<dyn Future<Output = FilterDecision>>>),
}

/// The decision about a request.
pub struct FilterDecision {
    /// The action.
    pub action: Action,
    /// The state until the exchange ends, if there is any.
    pub context: Option<Box<dyn FilterContext>>,
    /// The note for the access log and traces.
    pub note: Option<Box<LogNote>>,
}

/// The action for a request.
#[derive(Debug)]
pub enum Action {
    /// Forward it to this upstream.
    Forward(UpstreamId),
    /// Send this response without forwarding.
    Respond(LocalReply),
    /// Send this response without forwarding. It shares its text with others.
    RespondShared(SharedReply),
    /// Close the connection without a response.
    Drop,
}

impl Action {
    /// A decision with this action and a note for the access log and traces.
    pub fn with_note(self, note: LogNote) -> FilterDecision {
        FilterDecision { note: Some(Box::new(note)), ..self.into() }
    }
}

impl From<Action> for FilterDecision {
    fn from(action: Action) -> Self {
        Self { action, context: None, note: None }
    }
}

/// The bandwidth limits of bodies. All limits of a list apply.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates<'c> {
    /// From the client.
    pub upload: &'c [Bandwidth],
    /// To the client.
    pub download: &'c [Bandwidth],
}

impl<F, D> RequestFilter for F
where
    F: Fn(&ParsedRequest) -> D + Send + Sync + 'static,
    D: Into<FilterDecision>,
{
    fn filter(
        &self,
        request: &mut ParsedRequest,
        _: &ConnectionInfo,
        _: Option<&ParsedBody>,
    ) -> FilterResult {
        FilterResult::Ready(self(request).into())
    }
}

impl fmt::Debug for FilterDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { action, context: _, note } = self;
        f.debug_struct("FilterDecision").field("action", action).field("note", note).finish_non_exhaustive()
    }
}

impl fmt::Debug for FilterResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(decision) => f.debug_tuple("Ready").field(decision).finish(),
            Self::Deferred(_) => f.write_str("Deferred"),
        }
    }
}
