//! The one seam: what happens to a request before it is forwarded, and to its response before it is sent.

use crate::{LogNote, UpstreamId};
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

/// Decides what happens to requests.
///
/// A closure from the head of a request to an [`Action`] is one, with nothing to settle or to record:
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
    /// What belongs to a request until its exchange ends: permits, what is left to be settled, what is to be recorded.
    type Context: 'static;

    /// Decides what happens to a request. Its head was checked, and is as the client sent it; changes made here are
    /// forwarded.
    fn filter(&self, head: &mut request::Parts, origin: &Origin) -> FilterResult<Self::Context>;

    /// How fast the bodies of a request that is forwarded may move.
    fn rates<'c>(&self, context: &'c Self::Context) -> Rates<'c> {
        let _ = context;
        Rates::default()
    }

    /// Settles the response of a server, or the gateway's own where there was none: it may add headers, or return
    /// another response to send instead.
    fn on_response(
        &self,
        context: &mut Self::Context,
        response: &mut response::Parts,
    ) -> Option<Response<Bytes>> {
        let _ = (context, response);
        None
    }

    /// Counts and keeps what is known of an exchange that has ended, with its last byte or because a side left. `context` is
    /// `None` for a request that never reached the filter, `response` where no head of a response was made.
    fn record(&self, context: Option<Self::Context>, response: Option<(StatusCode, ResponseOrigin)>) {
        let _ = (context, response);
    }
}

/// Where a request comes from.
#[derive(Clone, Debug)]
pub struct Origin {
    /// The other end of the connection, which may be a proxy.
    pub peer: SocketAddr,
    /// The address of the client, resolved once for each request from the peer and trusted proxies. Rules, logs, traces and
    /// upstreams use this one.
    pub client: IpAddr,
    /// How it came in.
    pub scheme: Scheme,
    /// The name of the listener, if it has one.
    pub listener: Option<Arc<str>>,
}

impl Origin {
    /// A request that comes from here, as rules see it.
    pub(crate) fn head<'a>(&'a self, parts: &'a request::Parts) -> HttpRequestHead<'a> {
        HttpRequestHead::new(parts, self.peer.ip())
            .with_client(self.client)
            .with_listener(self.listener.as_deref())
    }
}

/// What was decided about a request, now or later.
pub enum FilterResult<C> {
    /// At once.
    Ready(FilterDecision<C>),
    /// After a wait. Dropped if the client leaves first.
    Deferred(Pin<Box<dyn Future<Output = FilterDecision<C>>>>),
}

/// What was decided about a request.
#[derive(Debug)]
pub struct FilterDecision<C> {
    /// What happens to it.
    pub action: Action,
    /// Kept until the exchange ends.
    pub context: C,
    /// For the access log and traces.
    pub note: Option<Box<LogNote>>,
}

/// What happens to a request.
#[derive(Debug)]
pub enum Action {
    /// It is forwarded to this upstream.
    Forward(UpstreamId),
    /// It gets this response, and is not forwarded.
    Respond(Response<Bytes>),
    /// The connection is closed without a response.
    Drop,
}

impl Action {
    /// The same, with what the access log and traces report.
    pub fn with_note(self, note: LogNote) -> FilterDecision<()> {
        FilterDecision { note: Some(Box::new(note)), ..self.into() }
    }
}

impl From<Action> for FilterDecision<()> {
    fn from(action: Action) -> Self {
        Self { action, context: (), note: None }
    }
}

/// How fast bodies may move: where there are several rates, all of them hold.
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

    fn filter(&self, head: &mut request::Parts, _: &Origin) -> FilterResult<()> {
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
