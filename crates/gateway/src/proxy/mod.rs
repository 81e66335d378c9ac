//! Handles a request from its head to the last byte of its response.

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
    mem,
    net::IpAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};
use tidegate_observe::ResponseOrigin;

/// The connection is closed without a response.
#[derive(Debug)]
pub(crate) struct ConnectionDropped;

/// The future of a response. It is moved often, so rare states are boxed.
pub(crate) enum ProxyFuture<F: RequestFilter> {
    /// The response is ready.
    Ready(Option<ProxyResult<F>>),
    /// The request is in flight to a server.
    InFlight(Option<(Exchange<F>, ForwardedRequest)>),
    /// The request waits for something other than a response.
    Deferred(Pin<Box<dyn Future<Output = ProxyResult<F>>>>),
}

type ProxyResult<F> = Result<Response<ProxyResponseBody<F>>, ConnectionDropped>;

/// The state of a request in progress.
pub(crate) struct Exchange<F: RequestFilter> {
    id: HeaderValue,
    upgrade: Upgrade,
    /// The address of the client, for load balancing by client.
    address: IpAddr,
    /// The request ends when this is dropped.
    body: ProxyResponseBody<F>,
}

/// Serves a request.
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
    let connection = client.worker.resolve_client(&parts, &client.connection_info);
    let telemetry = RequestTelemetry::begin(&mut parts, &id, &connection, &client.worker);
    let body = ProxyResponseBody::new(client.clone(), filter, telemetry);
    let is_trusted = || client.worker.is_trusted(client.connection_info.peer.ip());
    let (limits, length) = (&client.worker.settings.head_limits, incoming.size_hint().exact());
    if let Err(error) = tidegate_policy::head::check(&mut parts, limits, length, is_trusted) {
        let response = ProxyError::Head(error).to_response();
        return respond_without_body(gateway_response(response, &id, body), &parts, incoming, client);
    }
    let result = body.filter.filter(&mut parts, &connection);
    let exchange = Exchange { id, upgrade: Upgrade::NotRequested, address: connection.client, body };
    match result {
        FilterResult::Ready(decision) => exchange.dispatch(decision, parts, incoming),
        FilterResult::Deferred(decision) => ProxyFuture::Deferred(Box::pin(async move {
            exchange.dispatch(decision.await, parts, incoming).await
        })),
    }
}

impl<F: RequestFilter> Exchange<F> {
    /// Applies the decision of the filter.
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
            Action::Respond(response) => {
                return respond_without_body(
                    gateway_response(response, &self.id, self.body),
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
            Ok(forwarded) => ProxyFuture::InFlight(Some((self, forwarded))),
            Err(pending) => self.forward(upstream.clone(), pending),
        }
    }

    /// Forwards a request that must wait.
    #[cold]
    fn forward(mut self, upstream: Rc<Upstream>, pending: Box<PendingForward>) -> ProxyFuture<F> {
        ProxyFuture::Deferred(Box::pin(async move {
            let client = self.body.client.clone();
            let telemetry = &mut self.body.telemetry;
            match forward::forward(&client, self.address, &upstream, pending, telemetry).await {
                Ok((response, source)) => self.take_response(response, source).await,
                Err(failure) => Ok(self.fail(failure)),
            }
        }))
    }

    /// Handles the result of an attempt.
    fn finish_attempt(
        mut self,
        forwarded: ForwardedRequest,
        result: Result<Response<Incoming>, UpstreamSendError>,
    ) -> ProxyFuture<F> {
        let client = self.body.client.clone();
        let upstream = forwarded.upstream().clone();
        match forwarded.finish(result, &client, &mut self.body.telemetry) {
            Ok(Ok((response, source))) => self.take_response(response, source),
            Ok(Err(failure)) => ProxyFuture::Ready(Some(Ok(self.fail(failure)))),
            Err(pending) => self.forward(upstream, pending),
        }
    }

    /// Handles the response of a server.
    fn take_response(self, response: Response<Incoming>, source: ResponseSource) -> ProxyFuture<F> {
        let (mut parts, incoming) = response.into_parts();
        if parts.status != StatusCode::SWITCHING_PROTOCOLS {
            head::prepare_response(
                &mut parts,
                incoming.size_hint().exact().filter(|_| !incoming.is_end_stream()),
            );
            return ProxyFuture::Ready(Some(Ok(self.send(
                parts,
                BodySource::new(incoming, source),
                ResponseOrigin::Server,
            ))));
        }
        // A server may switch protocols only on request.
        let (Upgrade::Requested, ResponseSource::Http1 { connection, .. }) = (self.upgrade, source) else {
            return ProxyFuture::Ready(Some(Ok(self.fail(ProxyError::BadResponse))));
        };
        ProxyFuture::Deferred(Box::pin(async move {
            let Some((stream, buffered)) = connection.into_stream().await else {
                return Ok(self.fail(ProxyError::BadResponse));
            };
            *self.body.client.tunnel.borrow_mut() = Some(Box::new(Tunnel::new(stream, buffered)));
            Ok(self.send(parts, BodySource::Empty, ResponseOrigin::Server))
        }))
    }

    fn fail(self, failure: ProxyError) -> Response<ProxyResponseBody<F>> {
        let (parts, source) = into_body_source(failure.to_response());
        self.send(parts, source, ResponseOrigin::Gateway)
    }

    /// Settles a response, and sends it.
    fn send(
        self,
        mut parts: response::Parts,
        source: BodySource,
        by: ResponseOrigin,
    ) -> Response<ProxyResponseBody<F>> {
        let Self { id, mut body, .. } = self;
        let Some(context) = &mut body.context else { return body.respond(parts, source, by, &id) };
        let source = match by {
            ResponseOrigin::Server => source.copy_to(body.filter.copy_response(context, &parts)),
            ResponseOrigin::Gateway => source,
        };
        let source = source.throttle(body.filter.rates(context).download);
        match body.filter.on_response(context, &mut parts) {
            None => body.respond(parts, source, by, &id),
            Some(response) => gateway_response(response, &id, body),
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
                Self::Ready(result) => return result.take().map_or(Poll::Pending, Poll::Ready),
                Self::Deferred(future) => return future.as_mut().poll(context),
                Self::InFlight(in_flight) => {
                    let Some((_, forwarded)) = in_flight else { return Poll::Pending };
                    let result = ready!(forwarded.poll(context));
                    let Some((exchange, forwarded)) = in_flight.take() else { return Poll::Pending };
                    exchange.finish_attempt(forwarded, result)
                }
            };
        }
    }
}

/// Responds to a request whose body is not forwarded.
fn respond_without_body<F: RequestFilter>(
    mut response: Response<ProxyResponseBody<F>>,
    request: &request::Parts,
    incoming: Incoming,
    client: Rc<ClientConnection>,
) -> ProxyFuture<F> {
    // HTTP/2 can reset the stream of the request body.
    if incoming.is_end_stream() || request.version == Version::HTTP_2 {
        return ProxyFuture::Ready(Some(Ok(response)));
    }
    let expects_continue = request.headers.contains_key(header::EXPECT);
    let is_closing = response.headers().contains_key(header::CONNECTION);
    ProxyFuture::Deferred(Box::pin(async move {
        if expects_continue || is_closing || drain_body::drain(incoming, &client).await == DrainResult::Unread
        {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            client.mark_unread_body();
        }
        Ok(response)
    }))
}

/// A response of the gateway.
fn gateway_response<F: RequestFilter>(
    response: Response<Bytes>,
    id: &HeaderValue,
    body: ProxyResponseBody<F>,
) -> Response<ProxyResponseBody<F>> {
    let (parts, source) = into_body_source(response);
    body.respond(parts, source, ResponseOrigin::Gateway, id)
}

/// Removes the body of a response to HEAD, and retains its length. hyper does this for HTTP/1.1 only.
pub(crate) fn without_body<F: RequestFilter>(
    mut response: Response<ProxyResponseBody<F>>,
) -> Response<ProxyResponseBody<F>> {
    let source = mem::replace(&mut response.body_mut().source, BodySource::Empty);
    if let Some(length) = source.size_hint().exact().filter(|length| *length > 0) {
        response.headers_mut().entry(header::CONTENT_LENGTH).or_insert_with(|| length.into());
    }
    response
}

fn into_body_source(response: Response<Bytes>) -> (response::Parts, BodySource) {
    let (parts, text) = response.into_parts();
    (parts, if text.is_empty() { BodySource::Empty } else { BodySource::Text(text) })
}

impl fmt::Display for ConnectionDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection dropped")
    }
}

impl std::error::Error for ConnectionDropped {}
