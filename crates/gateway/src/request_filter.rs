//! The filter interface: decides about a request before it is forwarded, and about its response before it is sent.

use crate::{LogNote, ResponseCopy, UpstreamId};
use bytes::Bytes;
use http::{Response, StatusCode, request, response};
use std::{
    fmt,
    future::Future,
    net::{IpAddr, SocketAddr},
    pin::Pin,
    sync::Arc,
};
use tidegate_bandwidth::Bandwidth;
use tidegate_http_server::Scheme;
use tidegate_observe::ResponseOrigin;
use tidegate_policy::head::HttpRequestHead;

/// Decides about requests.
///
/// A closure from the head of a request to an [`Action`] is a filter without a context:
///
/// ```no_run
/// # use tidegate_gateway::{Action, Config};
/// # fn filter(config: Config) -> Option<impl tidegate_gateway::RequestFilter> {
/// let app = config.upstream_id("app")?;
/// let filter = move |head: &http::request::Parts| match head.uri.path() {
///     "/secret" => Action::Drop,
///     _ => Action::Forward(app),
/// };
/// # Some(filter)
/// # }
/// ```
pub trait RequestFilter: Send + Sync + 'static {
    /// The state of a request until its exchange ends: permits, pending settlement, telemetry.
    type Context: 'static;

    /// Decides about a request. Its head was checked and normalized. Changes to the head are forwarded.
    fn filter(&self, head: &mut request::Parts, connection: &ConnectionInfo) -> FilterResult<Self::Context>;

    /// The bandwidth limits of the bodies of a forwarded request.
    fn rates<'c>(&self, context: &'c Self::Context) -> Rates<'c> {
        let _ = context;
        Rates::default()
    }

    /// Starts a copy of the response of a server, if it is to be stored when it is complete.
    fn copy_response(&self, context: &mut Self::Context, response: &response::Parts) -> Option<ResponseCopy> {
        let _ = (context, response);
        None
    }

    /// Settles the response of a server, or that of the gateway. It may add headers, or return another response to send
    /// instead.
    fn on_response(
        &self,
        context: &mut Self::Context,
        response: &mut response::Parts,
    ) -> Option<Response<Bytes>> {
        let _ = (context, response);
        None
    }

    /// Records an exchange that has ended, with its last byte or because a side disconnected. `context` is `None` for a
    /// request that did not reach the filter, `response` if there was no response.
    fn record(&self, context: Option<Self::Context>, response: Option<(StatusCode, ResponseOrigin)>) {
        let _ = (context, response);
    }
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
}

impl ConnectionInfo {
    /// The head of a request of this origin, for rules.
    pub(crate) fn head<'a>(&'a self, parts: &'a request::Parts) -> HttpRequestHead<'a> {
        HttpRequestHead::new(parts, self.peer.ip())
            .with_client(self.client)
            .with_listener(self.listener.as_deref())
    }
}

/// A decision about a request, immediate or deferred.
pub enum FilterResult<C> {
    /// An immediate decision.
    Ready(FilterDecision<C>),
    /// A decision after a wait. Dropped if the client disconnects first.
    Deferred(Pin<Box<dyn Future<Output = FilterDecision<C>>>>),
}

/// The decision about a request.
#[derive(Debug)]
pub struct FilterDecision<C> {
    /// The action.
    pub action: Action,
    /// The state until the exchange ends.
    pub context: C,
    /// The note for the access log and traces.
    pub note: Option<Box<LogNote>>,
}

/// The action for a request.
#[derive(Debug)]
pub enum Action {
    /// Forward it to this upstream.
    Forward(UpstreamId),
    /// Send this response without forwarding.
    Respond(Response<Bytes>),
    /// Close the connection without a response.
    Drop,
}

impl Action {
    /// A decision with this action and a note for the access log and traces.
    pub fn with_note(self, note: LogNote) -> FilterDecision<()> {
        FilterDecision { note: Some(Box::new(note)), ..self.into() }
    }
}

impl From<Action> for FilterDecision<()> {
    fn from(action: Action) -> Self {
        Self { action, context: (), note: None }
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
    F: Fn(&request::Parts) -> D + Send + Sync + 'static,
    D: Into<FilterDecision<()>>,
{
    type Context = ();

    fn filter(&self, head: &mut request::Parts, _: &ConnectionInfo) -> FilterResult<()> {
        FilterResult::Ready(self(head).into())
    }
}

impl<C: fmt::Debug> fmt::Debug for FilterResult<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(decision) => f.debug_tuple("Ready").field(decision).finish(),
            Self::Deferred(_) => f.write_str("Deferred"),
        }
    }
}
