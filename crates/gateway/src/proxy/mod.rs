//! A request from its head to the last byte of its answer.

mod counted_bytes;
mod drain_body;
mod error;
mod forward;
mod forwarded_header_writer;
mod head;
mod request_body;
mod response_body;

pub(crate) use forwarded_header_writer::ForwardedHeaderWriter;
pub(crate) use request_body::{RequestBody, UploadPhase, UploadProgress};
pub(crate) use response_body::ProxyResponseBody;

use crate::{
    Action, FilterDecision, FilterResult, RequestFilter,
    client::{ClientConnection, Tunnel},
    telemetry::RequestTelemetry,
    upstream::{Upstream, UpstreamSendError},
};
use bytes::Bytes;
use drain_body::DrainResult;
use error::ProxyError;
use forward::{ForwardedRequest, PendingForward, ResponseSource};
use head::Upgrade;
use http::{HeaderValue, Request, Response, StatusCode, Version, header, request, response};
use hyper::body::{Body, Incoming};
use response_body::BodySource;
use std::{
    fmt,
    future::Future,
    net::IpAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_observe::ResponseOrigin;

/// The connection is to be closed without a word.
#[derive(Debug)]
pub(crate) struct ConnectionDropped;

/// A request on its way to its answer. It is moved about for each request, so what only few of them need is elsewhere.
pub(crate) enum ProxyFuture<F: RequestFilter> {
    /// The answer is there.
    Ready(Option<ProxyResult<F>>),
    /// It is with a server.
    InFlight(Option<(Exchange<F>, ForwardedRequest)>),
    /// There is something to be waited for besides an answer.
    Deferred(Pin<Box<dyn Future<Output = ProxyResult<F>>>>),
}

type ProxyResult<F> = Result<Response<ProxyResponseBody<F>>, ConnectionDropped>;

/// What is known of a request while it is on its way.
pub(crate) struct Exchange<F: RequestFilter> {
    id: HeaderValue,
    upgrade: Upgrade,
    /// The address of the client, by which servers are chosen.
    address: IpAddr,
    /// Whenever this is dropped, the request is over.
    body: ProxyResponseBody<F>,
}

/// Answers a request.
pub(crate) fn serve_request<F: RequestFilter>(
    client: Rc<ClientConnection>,
    filter: Arc<F>,
    request: Request<Incoming>,
) -> ProxyFuture<F> {
    let (mut parts, incoming) = request.into_parts();
    let id = head::request_id(&parts, &client);
    if parts.version < Version::HTTP_11 {
        client.set_http10();
    }
    let origin = client.worker.resolve_origin(&parts, &client.origin);
    let telemetry = RequestTelemetry::begin(&mut parts, &id, &origin, &client.worker);
    let answer = ProxyResponseBody::new(client.clone(), filter, telemetry);
    let is_trusted = || client.worker.is_trusted(client.origin.peer.ip());
    let (limits, length) = (&client.worker.settings.head_limits, incoming.size_hint().exact());
    if let Err(error) = tidegate_policy::head::check(&mut parts, limits, length, is_trusted) {
        let given = ProxyError::Head(error).to_response();
        return respond_without_body(gateway_response(given, &id, answer), &parts, incoming, client);
    }
    let result = answer.filter.filter(&mut parts, &origin);
    let exchange = Exchange { id, upgrade: Upgrade::NotRequested, address: origin.client, body: answer };
    match result {
        FilterResult::Ready(decision) => exchange.dispatch(decision, parts, incoming),
        FilterResult::Deferred(decision) => ProxyFuture::Deferred(Box::pin(async move {
            exchange.dispatch(decision.await, parts, incoming).await
        })),
    }
}

impl<F: RequestFilter> Exchange<F> {
    /// The filter has decided.
    fn dispatch(
        mut self,
        decision: FilterDecision<F::Context>,
        mut parts: request::Parts,
        incoming: Incoming,
    ) -> ProxyFuture<F> {
        let client = self.body.client.clone();
        self.body.telemetry.on_decision(decision.note);
        let context = self.body.context.insert(decision.context);
        let target = match decision.action {
            Action::Forward(target) => target,
            Action::Respond(given) => {
                return respond_without_body(
                    gateway_response(given, &self.id, self.body),
                    &parts,
                    incoming,
                    client,
                );
            }
            Action::Drop => return ProxyFuture::Ready(Some(Err(ConnectionDropped))),
        };
        self.upgrade = head::prepare_request(&mut parts, &client, &self.id);
        let body = RequestBody::new(incoming, &client, self.body.filter.rates(context).upload);
        let Some(upstream) = client.worker.upstreams.get(target.0) else {
            return ProxyFuture::Ready(Some(Ok(self.fail(ProxyError::NoServer))));
        };
        let request = Request::from_parts(parts, body);
        match forward::try_forward(&client, self.address, upstream, request, &mut self.body.telemetry) {
            Ok(at_hand) => ProxyFuture::InFlight(Some((self, at_hand))),
            Err(rest) => self.forward(upstream.clone(), rest),
        }
    }

    /// It takes longer.
    #[cold]
    fn forward(mut self, upstream: Rc<Upstream>, rest: Box<PendingForward>) -> ProxyFuture<F> {
        ProxyFuture::Deferred(Box::pin(async move {
            let client = self.body.client.clone();
            let telemetry = &mut self.body.telemetry;
            match forward::forward(&client, self.address, &upstream, rest, telemetry).await {
                Ok((response, via)) => self.take_response(response, via).await,
                Err(failure) => Ok(self.fail(failure)),
            }
        }))
    }

    /// It has reached a server, or not.
    fn finish_attempt(
        mut self,
        at_hand: ForwardedRequest,
        answered: Result<Response<Incoming>, UpstreamSendError>,
    ) -> ProxyFuture<F> {
        let client = self.body.client.clone();
        let upstream = at_hand.upstream().clone();
        match at_hand.finish(answered, &client, &mut self.body.telemetry) {
            Ok(Ok((response, via))) => self.take_response(response, via),
            Ok(Err(failure)) => ProxyFuture::Ready(Some(Ok(self.fail(failure)))),
            Err(rest) => self.forward(upstream, rest),
        }
    }

    /// Takes over the answer of a server.
    fn take_response(self, response: Response<Incoming>, via: ResponseSource) -> ProxyFuture<F> {
        let (mut parts, incoming) = response.into_parts();
        if parts.status != StatusCode::SWITCHING_PROTOCOLS {
            head::prepare_response(
                &mut parts,
                incoming.size_hint().exact().filter(|_| !incoming.is_end_stream()),
            );
            return ProxyFuture::Ready(Some(Ok(self.send(
                parts,
                BodySource::new(incoming, via),
                ResponseOrigin::Server,
            ))));
        }
        // Nobody may switch who was not asked to.
        let (Upgrade::Requested, ResponseSource::Http1 { connection: line, .. }) = (self.upgrade, via) else {
            return ProxyFuture::Ready(Some(Ok(self.fail(ProxyError::BadResponse))));
        };
        ProxyFuture::Deferred(Box::pin(async move {
            let Some((stream, said)) = line.into_stream().await else {
                return Ok(self.fail(ProxyError::BadResponse));
            };
            *self.body.client.tunnel.borrow_mut() = Some(Box::new(Tunnel::new(stream, said)));
            Ok(self.send(parts, BodySource::Empty, ResponseOrigin::Server))
        }))
    }

    fn fail(self, failure: ProxyError) -> Response<ProxyResponseBody<F>> {
        let (parts, source) = into_body_source(failure.to_response());
        self.send(parts, source, ResponseOrigin::Gateway)
    }

    /// Settles an answer, and sends it.
    fn send(
        self,
        mut parts: response::Parts,
        source: BodySource,
        by: ResponseOrigin,
    ) -> Response<ProxyResponseBody<F>> {
        let Self { id, body: mut answer, .. } = self;
        let Some(context) = &mut answer.context else { return answer.respond(parts, source, by, &id) };
        let source = source.throttle(answer.filter.rates(context).download);
        match answer.filter.on_response(context, &mut parts) {
            None => answer.respond(parts, source, by, &id),
            Some(given) => gateway_response(given, &id, answer),
        }
    }
}

// Nothing in it is pinned.
impl<F: RequestFilter> Unpin for ProxyFuture<F> {}

impl<F: RequestFilter> Future for ProxyFuture<F> {
    type Output = ProxyResult<F>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ProxyResult<F>> {
        loop {
            *self = match &mut *self {
                Self::Ready(answered) => return answered.take().map_or(Poll::Pending, Poll::Ready),
                Self::Deferred(later) => return later.as_mut().poll(context),
                Self::InFlight(with) => {
                    let Some((_, at_hand)) = with else { return Poll::Pending };
                    let answered = ready!(at_hand.poll(context));
                    let Some((exchange, at_hand)) = with.take() else { return Poll::Pending };
                    exchange.finish_attempt(at_hand, answered)
                }
            };
        }
    }
}

/// An answer to a request whose body nobody wants.
fn respond_without_body<F: RequestFilter>(
    mut response: Response<ProxyResponseBody<F>>,
    request: &request::Parts,
    incoming: Incoming,
    client: Rc<ClientConnection>,
) -> ProxyFuture<F> {
    // HTTP/2 has a word for it.
    if incoming.is_end_stream() || request.version == Version::HTTP_2 {
        return ProxyFuture::Ready(Some(Ok(response)));
    }
    let is_asked_for = request.headers.contains_key(header::EXPECT);
    let is_closing = response.headers().contains_key(header::CONNECTION);
    ProxyFuture::Deferred(Box::pin(async move {
        if is_asked_for || is_closing || drain_body::drain(incoming, &client).await == DrainResult::Unread {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            client.mark_unread_body();
        }
        Ok(response)
    }))
}

/// An answer that no server gave.
fn gateway_response<F: RequestFilter>(
    response: Response<Bytes>,
    id: &HeaderValue,
    answer: ProxyResponseBody<F>,
) -> Response<ProxyResponseBody<F>> {
    let (parts, source) = into_body_source(response);
    answer.respond(parts, source, ResponseOrigin::Gateway, id)
}

fn into_body_source(response: Response<Bytes>) -> (response::Parts, BodySource) {
    let (parts, text) = response.into_parts();
    (parts, if text.is_empty() { BodySource::Empty } else { BodySource::Text(text) })
}

impl fmt::Display for ConnectionDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is dropped")
    }
}

impl std::error::Error for ConnectionDropped {}
