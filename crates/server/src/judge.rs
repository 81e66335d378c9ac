//! The one seam: what happens to a request before it is forwarded, and to its answer before it is sent.

use crate::{LogNote, Target};
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
use tidegate_policy::head::RequestHead;

/// Says what happens to requests.
///
/// A closure from the head of a request to an [`Outcome`] is one, with nothing to settle:
///
/// ```no_run
/// # use tidegate_server::{Config, LogNote, Outcome};
/// # fn judge(config: Config) -> Option<impl tidegate_server::Judge> {
/// let app = config.target("app")?;
/// let judge = move |head: &http::request::Parts| match head.uri.path() {
///     "/secret" => Outcome::Drop(LogNote::default()),
///     _ => Outcome::Go(app, ()),
/// };
/// # Some(judge)
/// # }
/// ```
pub trait Judge: Send + Sync + 'static {
    /// What is kept of a request until the last byte of its answer is gone: permits, what is left to be settled.
    /// It is dropped when that is so, or when either side gives up.
    type Case: 'static;

    /// Says what happens to a request. Its head was checked, and is as the client sent it; what is changed here is
    /// forwarded.
    fn judge(&self, head: &mut request::Parts, origin: &Origin) -> Judged<Self::Case>;

    /// How fast the bodies of a request that is forwarded may move.
    fn rates<'c>(&self, case: &'c Self::Case) -> Rates<'c> {
        let _ = case;
        Rates::default()
    }

    /// Settles the answer of a server, or the gateway's own where there was none: it may add headers, or answer
    /// something else.
    fn settle(&self, case: &mut Self::Case, answer: &mut response::Parts) -> Settled {
        let _ = (case, answer);
        Settled::Send
    }

    /// A request is answered with this status, after whatever [settles](Self::settle) it. For whoever counts answers.
    fn answered(&self, status: StatusCode, by: AnsweredBy) {
        let _ = (status, by);
    }
}

/// Who made an answer. The place of each is that of its counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnsweredBy {
    /// A server of an upstream.
    Server,
    /// The gateway itself: a denial, a server that cannot be reached, a request that makes no sense.
    Gateway,
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
    pub(crate) fn head<'a>(&'a self, parts: &'a request::Parts) -> RequestHead<'a> {
        RequestHead::new(parts, self.peer.ip())
            .with_client(self.client)
            .with_listener(self.listener.as_deref())
    }
}

/// How a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// In plain text.
    Http,
    /// Through TLS.
    Https,
}

/// What is said of a request, now or later.
pub enum Judged<C> {
    /// Here it is.
    Now(Outcome<C>),
    /// There is something to be waited for. Dropped where the client does not wait.
    Later(Pin<Box<dyn Future<Output = Outcome<C>>>>),
}

/// What happens to a request.
#[derive(Debug)]
pub enum Outcome<C> {
    /// It is forwarded to this upstream.
    Go(Target, C),
    /// It gets this answer, and is not forwarded.
    Answer(Response<Bytes>),
    /// The connection is closed without a word; only the log is told why.
    Drop(LogNote),
}

/// How fast bodies may move: where there are several rates, all of them hold.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rates<'c> {
    /// From the client.
    pub up: &'c [Bandwidth],
    /// To the client.
    pub down: &'c [Bandwidth],
}

/// What happens to an answer.
#[derive(Debug)]
pub enum Settled {
    /// It is sent.
    Send,
    /// This is sent instead.
    Instead(Response<Bytes>),
}

impl<F> Judge for F
where
    F: Fn(&request::Parts) -> Outcome<()> + Send + Sync + 'static,
{
    type Case = ();

    fn judge(&self, head: &mut request::Parts, _: &Origin) -> Judged<()> {
        Judged::Now(self(head))
    }
}

impl<C: fmt::Debug> fmt::Debug for Judged<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Now(outcome) => f.debug_tuple("Now").field(outcome).finish(),
            Self::Later(_) => f.write_str("Later"),
        }
    }
}
