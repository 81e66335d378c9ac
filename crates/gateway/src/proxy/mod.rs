//! Handles a request from its head to the last byte of its response.

mod buffered_body;
mod counted_bytes;
mod drain_body;
mod error;
mod forward;
mod forwarded_header_writer;
mod head;
mod request_body;
mod response_body;
mod shared_response;

pub(crate) use forwarded_header_writer::ForwardedHeaderWriter;
pub(crate) use head::{RequestId, X_REQUEST_ID};
pub(crate) use request_body::{IncomingBody, IncompleteBody, RequestBody, UploadPhase, UploadProgress};
pub(crate) use response_body::{ProxyResponseBody, SharedUpload};
pub(crate) use shared_response::SharedResponse;

use crate::{
    Action, ConnectionInfo, FilterDecision, FilterResult, LocalReply, ParsedBody,
    client::{ClientConnection, Tunnel},
    http1::{ParsedResponse, Upgrade, prepare_response, prepare_switch, request_keeps_alive},
    telemetry::RequestTelemetry,
    upstream::{Upstream, UpstreamRequest, UpstreamSendError},
};
use drain_body::DrainResult;
use error::ProxyError;
use forward::{ForwardedRequest, PendingForward, ResponseSource, ServerResponse};
use http::{Response, StatusCode, Version};
use hyper::body::Body;
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
use tidegate_policy::head::{HeadError, ParsedRequest};
use tidegate_rule::body::JsonPointer;

/// The connection is closed without a response.
#[derive(Debug)]
pub(crate) struct ConnectionDropped;

/// The future of a response. It is moved often, so states that last are boxed.
#[allow(clippy::large_enum_variant, reason = "a finished exchange is moved once")]
pub(crate) enum ProxyFuture {
    /// The response is ready.
    Ready(Option<ProxyResult>),
    /// The response is ready, and shares its text with others.
    Shared(Option<SharedResponse>),
    /// The request is in flight to a server.
    InFlight(Option<Box<InFlightExchange>>),
    /// The request waits for something other than a response.
    Deferred(Pin<Box<dyn Future<Output = ProxyResult>>>),
}

type ProxyResult = Result<ProxyResponse, ConnectionDropped>;

/// An exchange whose request is in flight.
pub(crate) struct InFlightExchange {
    exchange: Exchange,
    forwarded: ForwardedRequest,
}

/// A response to a client.
pub(crate) struct ProxyResponse {
    pub(crate) head: ParsedResponse,
    pub(crate) body: ProxyResponseBody,
}

/// The state of a request in progress.
pub(crate) struct Exchange {
    id: RequestId,
    upgrade: Upgrade,
    /// The address of the client, for load balancing by client.
    address: IpAddr,
    /// The request ends when this is dropped.
    body: ProxyResponseBody,
}

/// Serves a request.
pub(crate) fn serve_request(
    client: Rc<ClientConnection>,
    mut request: ParsedRequest,
    mut incoming: IncomingBody,
) -> ProxyFuture {
    let (id, body, connection) = begin_exchange(client.clone(), &mut request);
    let is_trusted = || client.worker.is_trusted(client.connection_info.peer.ip());
    let limits = &client.worker.settings.head_limits;
    let checked = request.framing().and_then(|framing| {
        incoming.set_framing(framing);
        tidegate_policy::head::check(&mut request, framing, limits, is_trusted)
    });
    if let Err(error) = checked {
        let reply = ProxyError::Head(error).to_reply();
        return respond_without_body(local_response(reply, &id, body), request, incoming, client);
    }
    let pointers = match incoming.is_end_stream() {
        true => None,
        false => client.filter.body_pointers(&request, &connection),
    };
    let exchange = Exchange { id, upgrade: Upgrade::NotRequested, address: connection.client, body };
    match pointers {
        None => exchange.decide(request, incoming, &connection, None),
        Some(pointers) => exchange.decide_by_body(request, incoming, connection, pointers),
    }
}

/// Responds to a request whose head is invalid. `request` has its request line, as far as that is valid. The connection is closed.
pub(crate) fn reject_head(
    client: &Rc<ClientConnection>,
    mut request: ParsedRequest,
    error: HeadError,
) -> ProxyResponse {
    let (id, body, _) = begin_exchange(client.clone(), &mut request);
    client.worker.heads.give_request(request);
    client.mark_unread_body();
    local_response(ProxyError::Head(error).to_reply(), &id, body)
}

/// Identifies a request and its client, and starts its record.
fn begin_exchange(
    client: Rc<ClientConnection>,
    request: &mut ParsedRequest,
) -> (RequestId, ProxyResponseBody, ConnectionInfo) {
    let id = head::request_id(request, &client);
    let connection = client.worker.resolve_client(request, &client.connection_info);
    let telemetry = RequestTelemetry::begin(request, &id, &connection, &client.worker);
    (id, ProxyResponseBody::new(client, telemetry), connection)
}

impl Exchange {
    /// Calls the filter, and applies its decision.
    fn decide(
        self,
        mut request: ParsedRequest,
        incoming: IncomingBody,
        connection: &ConnectionInfo,
        parsed: Option<&ParsedBody>,
    ) -> ProxyFuture {
        match self.body.client.filter.filter(&mut request, connection, parsed) {
            FilterResult::Ready(decision) => self.dispatch(decision, request, incoming),
            FilterResult::Deferred(decision) => ProxyFuture::Deferred(Box::pin(async move {
                self.dispatch(decision.await, request, incoming).await
            })),
        }
    }

    /// Receives the body, and then decides.
    #[cold]
    fn decide_by_body(
        self,
        request: ParsedRequest,
        incoming: IncomingBody,
        connection: ConnectionInfo,
        pointers: Arc<[JsonPointer]>,
    ) -> ProxyFuture {
        ProxyFuture::Deferred(Box::pin(async move {
            let client = self.body.client.clone();
            match buffered_body::parse_body(incoming, &request, pointers, &client).await {
                Ok((incoming, parsed)) => self.decide(request, incoming, &connection, Some(&parsed)).await,
                Err(error) => {
                    client.mark_unread_body();
                    Ok(self.fail(error))
                }
            }
        }))
    }

    /// Applies the decision of the filter.
    fn dispatch(
        mut self,
        decision: FilterDecision,
        mut request: ParsedRequest,
        mut incoming: IncomingBody,
    ) -> ProxyFuture {
        let client = self.body.client.clone();
        self.body.telemetry.on_decision(decision.note);
        self.body.context = decision.context;
        let target = match decision.action {
            Action::Forward(target) => target,
            Action::Respond(reply) => {
                let response = local_response(reply, &self.id, self.body);
                return respond_without_body(response, request, incoming, client);
            }
            Action::RespondShared(reply) => {
                let response = SharedResponse { reply, id: self.id, body: self.body };
                if !request.fields.contains(b"expect") {
                    incoming.discard_received();
                }
                if incoming.is_end_stream() {
                    client.worker.heads.give_request(request);
                    return ProxyFuture::Shared(Some(response));
                }
                return respond_without_body(response.into_response(), request, incoming, client);
            }
            Action::Drop => return ProxyFuture::Ready(Some(Err(ConnectionDropped))),
        };
        self.upgrade = head::prepare_request(&mut request, &client, &self.id);
        let body = RequestBody::new(incoming, &client, self.body.rates().upload);
        let Some(upstream) = client.worker.upstreams.get(target.0) else {
            return ProxyFuture::Ready(Some(Ok(self.fail(ProxyError::NoServer))));
        };
        // It is forwarded as HTTP/1.1, which requires a host.
        if request.version < Version::HTTP_11
            && !request.fields.contains(b"host")
            && let Some(host) = upstream.host()
        {
            request.fields.push(b"host", host.as_bytes());
        }
        let request = UpstreamRequest { head: request, body };
        match forward::try_forward(&client, self.address, upstream, request, &mut self.body.telemetry) {
            Ok(forwarded) => {
                ProxyFuture::InFlight(Some(Box::new(InFlightExchange { exchange: self, forwarded })))
            }
            Err(pending) => self.forward(upstream.clone(), pending),
        }
    }

    /// Forwards a request that must wait.
    #[cold]
    fn forward(mut self, upstream: Rc<Upstream>, pending: Box<PendingForward>) -> ProxyFuture {
        ProxyFuture::Deferred(Box::pin(async move {
            let client = self.body.client.clone();
            let telemetry = &mut self.body.telemetry;
            match forward::forward(&client, self.address, &upstream, pending, telemetry).await {
                Ok(response) => self.take_response(response),
                Err(failure) => Ok(self.fail(failure)),
            }
        }))
    }

    /// Handles the result of an attempt.
    fn finish_attempt(
        mut self,
        forwarded: ForwardedRequest,
        result: Result<(), UpstreamSendError>,
    ) -> ProxyFuture {
        let client = self.body.client.clone();
        let upstream = forwarded.upstream().clone();
        match forwarded.finish(result, &client, &mut self.body.telemetry) {
            Ok(Ok(response)) => ProxyFuture::Ready(Some(self.take_response(response))),
            Ok(Err(failure)) => ProxyFuture::Ready(Some(Ok(self.fail(failure)))),
            Err(pending) => self.forward(upstream, pending),
        }
    }

    /// Handles the response of a server.
    fn take_response(self, response: ServerResponse) -> ProxyResult {
        let ServerResponse { mut head, source } = response;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            // A server may switch protocols only on request.
            let (Upgrade::Requested, ResponseSource::Http1 { connection, .. }) = (self.upgrade, source)
            else {
                return Ok(self.fail(ProxyError::BadResponse));
            };
            // The rest of the request would be data of the new protocol.
            if !connection.is_request_sent() {
                return Ok(self.fail(ProxyError::BadResponse));
            }
            prepare_switch(&mut head);
            let (stream, received) = connection.into_stream();
            *self.body.client.tunnel.borrow_mut() = Some(Box::new(Tunnel::new(stream, received)));
            return Ok(self.send(head, BodySource::Empty, ResponseOrigin::Server));
        }
        let source = BodySource::new(source);
        prepare_response(&mut head, source.size_hint().exact().filter(|_| !source.is_end_stream()));
        Ok(self.send(head, source, ResponseOrigin::Server))
    }

    fn fail(self, failure: ProxyError) -> ProxyResponse {
        let LocalReply { head, body } = failure.to_reply();
        let source = BodySource::from(body);
        self.send(head, source, ResponseOrigin::Gateway)
    }

    /// Settles a response, and sends it.
    fn send(self, mut head: ParsedResponse, source: BodySource, by: ResponseOrigin) -> ProxyResponse {
        let Self { id, mut body, .. } = self;
        let Some(context) = &mut body.context else { return body.respond(head, source, by, &id) };
        let source = match by {
            ResponseOrigin::Server => source.copy_to(context.copy_response(&head)),
            ResponseOrigin::Gateway => source,
        };
        let source = source.throttle(context.rates().download);
        match context.on_response(&mut head) {
            None => {
                body.reader = context.read_response(&head).map(Box::new);
                body.respond(head, source, by, &id)
            }
            Some(reply) => {
                // It may replace a 101.
                body.client.tunnel.take();
                local_response(reply, &id, body)
            }
        }
    }
}

// Nothing in it is pinned.
impl Unpin for ProxyFuture {}

impl Future for ProxyFuture {
    type Output = ProxyResult;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ProxyResult> {
        loop {
            *self = match &mut *self {
                Self::Ready(result) => return result.take().map_or(Poll::Pending, Poll::Ready),
                Self::Shared(response) => {
                    let response = response.take().map(SharedResponse::into_response);
                    return response.map_or(Poll::Pending, |response| Poll::Ready(Ok(response)));
                }
                Self::Deferred(future) => return future.as_mut().poll(context),
                Self::InFlight(in_flight) => {
                    let Some(pending) = in_flight else { return Poll::Pending };
                    let result = ready!(pending.forwarded.poll(context));
                    let Some(finished) = in_flight.take() else { return Poll::Pending };
                    let InFlightExchange { exchange, forwarded } = *finished;
                    exchange.finish_attempt(forwarded, result)
                }
            };
        }
    }
}

/// Responds to a request whose body is not forwarded.
fn respond_without_body(
    mut response: ProxyResponse,
    request: ParsedRequest,
    incoming: IncomingBody,
    client: Rc<ClientConnection>,
) -> ProxyFuture {
    // HTTP/2 can reset the stream of the request body.
    if incoming.is_end_stream() || request.version == Version::HTTP_2 {
        client.worker.heads.give_request(request);
        return ProxyFuture::Ready(Some(Ok(response)));
    }
    let expects_continue = request.fields.contains(b"expect");
    let is_closing = response.head.fields.contains(b"connection") || !request_keeps_alive(&request);
    ProxyFuture::Deferred(Box::pin(async move {
        if expects_continue || is_closing || drain_body::drain(incoming, &client).await == DrainResult::Unread
        {
            response.head.fields.set(b"connection", b"close");
            client.mark_unread_body();
        }
        Ok(response)
    }))
}

/// A response of the gateway.
fn local_response(reply: LocalReply, id: &RequestId, body: ProxyResponseBody) -> ProxyResponse {
    body.respond(reply.head, reply.body.into(), ResponseOrigin::Gateway, id)
}

impl ProxyResponse {
    /// Removes the body of a response to HEAD, and retains its length.
    pub(crate) fn without_body(mut self) -> Self {
        let source = mem::replace(&mut self.body.source, BodySource::Empty);
        if let Some(length) = source.size_hint().exact().filter(|length| *length > 0)
            && !self.head.fields.contains(b"content-length")
        {
            self.head.fields.push(b"content-length", length.to_string().as_bytes());
        }
        self
    }

    /// The response for HTTP/2.
    pub(crate) fn into_http2(mut self) -> Response<ProxyResponseBody> {
        self.body.share_upload();
        let mut parts = self.head.to_parts();
        parts.headers.remove(http::header::CONNECTION);
        Response::from_parts(parts, self.body)
    }
}

impl fmt::Display for ConnectionDropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connection dropped")
    }
}

impl std::error::Error for ConnectionDropped {}
