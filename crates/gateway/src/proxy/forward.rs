//! Sends a prepared request to a server, until the head of the response.

use super::{ProxyError, RequestBody, UploadProgress};
use crate::{
    client::ClientConnection,
    http1::ParsedResponse,
    telemetry::RequestTelemetry,
    upstream::{
        Http2Permit, Http2Response, InFlightGuard, PendingResponse, ResponseDeadline, Upstream,
        UpstreamConnection, UpstreamEndpoint, UpstreamRequest, UpstreamSendError, is_idempotent,
    },
};
use hyper::body::{Body, Incoming};
use std::{
    future::poll_fn,
    io,
    net::IpAddr,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_core::Micros;
use tidegate_overload::{Breaker, CallOutcome, CallPermit};
use tidegate_policy::{head::HeaderFields, model::Protocol};

/// The head of a response, and where its body comes from.
pub(super) struct ServerResponse {
    pub(super) head: ParsedResponse,
    pub(super) source: ResponseSource,
}

/// The connection of a response.
pub(super) enum ResponseSource {
    /// A connection of its own.
    Http1 { connection: Box<UpstreamConnection>, in_flight: InFlightGuard },
    /// A stream of a shared connection.
    Http2 {
        incoming: Incoming,
        deadline: ResponseDeadline,
        in_flight: InFlightGuard,
        permit: Rc<Http2Permit>,
    },
}

/// The error of an attempt, and the request if it may be sent to another server.
struct AttemptError {
    error: ProxyError,
    retry: Option<UpstreamRequest>,
}

/// A request in flight on a connection that was idle.
pub(crate) struct ForwardedRequest {
    attempt: ServerAttempt,
    pending: PendingResponse,
    response: ParsedResponse,
    in_flight: InFlightGuard,
    progress: Option<UploadProgress>,
    upstream: Rc<Upstream>,
}

/// A response or an error; or a request that must be sent with a wait.
type AttemptOutcome = Result<Result<ServerResponse, ProxyError>, Box<PendingForward>>;

/// An attempt to send a request to one server.
pub(super) struct ServerAttempt {
    index: usize,
    server: Rc<UpstreamEndpoint>,
    permit: Option<CallPermit<Arc<Breaker>>>,
    traced: TraceState,
    /// The time at which the request was sent.
    sent_at: Micros,
}

/// Whether the attempt has a span.
#[derive(PartialEq, Eq)]
enum TraceState {
    Recorded,
    NotRecorded,
}

/// A request that must wait for a connection, or whose first attempt failed.
pub(super) struct PendingForward {
    request: UpstreamRequest,
    start: ForwardStart,
}

/// The state of a request that must wait.
enum ForwardStart {
    /// No server was selected.
    New,
    /// This attempt has no connection yet.
    Attempt(ServerAttempt),
    /// The attempt with the server at this index failed.
    Failed(usize, ProxyError),
}

/// Sends a request to a server of an upstream if an idle connection is available. Nearly all requests take this path, so
/// its future is small.
pub(super) fn try_forward(
    client: &ClientConnection,
    address: IpAddr,
    upstream: &Rc<Upstream>,
    mut request: UpstreamRequest,
    telemetry: &mut RequestTelemetry,
) -> Result<ForwardedRequest, Box<PendingForward>> {
    upstream.add_retry_budget();
    let Some((index, server)) = upstream.next_server(&[], address) else {
        return Err(PendingForward::new(request, ForwardStart::New));
    };
    let Ok(permit) = server.try_acquire() else {
        return Err(PendingForward::new(request, ForwardStart::New));
    };
    let mut attempt = ServerAttempt {
        index,
        server: server.clone(),
        permit,
        traced: TraceState::NotRecorded,
        sent_at: client.worker.clock.now(),
    };
    let connection = match server.protocol {
        Protocol::Http1 => server.take_recent(),
        Protocol::Http2 => None,
    };
    let Some(connection) = connection else {
        return Err(PendingForward::new(request, ForwardStart::Attempt(attempt)));
    };
    attempt.trace(&mut request.head.fields, client, telemetry);
    let (in_flight, progress) = (server.begin_request(), request.body.progress());
    Ok(ForwardedRequest {
        attempt,
        pending: connection.send(request),
        response: client.worker.heads.take_response(),
        in_flight,
        progress,
        upstream: upstream.clone(),
    })
}

impl PendingForward {
    #[cold]
    fn new(request: UpstreamRequest, start: ForwardStart) -> Box<Self> {
        Box::new(Self { request, start })
    }
}

impl ForwardedRequest {
    /// The upstream of the request.
    pub(super) fn upstream(&self) -> &Rc<Upstream> {
        &self.upstream
    }

    /// Polls for the head of the response.
    #[inline]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), UpstreamSendError>> {
        self.pending.poll(&mut self.response, context)
    }

    /// Handles the result: the response, an error, or a request to send again.
    pub(super) fn finish(
        self,
        result: Result<(), UpstreamSendError>,
        client: &ClientConnection,
        telemetry: &mut RequestTelemetry,
    ) -> AttemptOutcome {
        let Self { attempt, pending, response: head, in_flight, progress, .. } = self;
        let error = match result {
            Ok(()) => {
                attempt.on_response(head.status.as_u16(), client, telemetry);
                let (connection, request) = pending.into_parts();
                client.worker.heads.give_request(request);
                return Ok(Ok(ServerResponse {
                    head,
                    source: ResponseSource::Http1 { connection, in_flight },
                }));
            }
            Err(error) => error,
        };
        let is_repeatable = progress.is_none() && is_idempotent(pending.request());
        let repeated = |pending: PendingResponse| UpstreamRequest {
            head: pending.into_parts().1,
            body: RequestBody::Empty,
        };
        // The server closed the connection while it was idle.
        if is_repeatable && matches!(error, UpstreamSendError::Closed) {
            return Err(PendingForward::new(repeated(pending), ForwardStart::Attempt(attempt)));
        }
        let is_repeated = is_repeatable && matches!(error, UpstreamSendError::BadResponse);
        let error = ProxyError::from(error);
        if let Some(trace) = telemetry.trace() {
            trace.on_failure(error.name(), client.worker.clock.now());
        }
        if let Some(body_error) = progress.as_ref().and_then(UploadProgress::error) {
            return Ok(Err(body_error));
        }
        let server = attempt.index;
        attempt.on_failure();
        match is_repeated {
            true => Err(PendingForward::new(repeated(pending), ForwardStart::Failed(server, error))),
            false => Ok(Err(error)),
        }
    }
}

impl ServerAttempt {
    fn trace(
        &mut self,
        fields: &mut HeaderFields,
        client: &ClientConnection,
        telemetry: &mut RequestTelemetry,
    ) {
        if let (Some(trace), TraceState::NotRecorded) = (telemetry.trace(), &self.traced) {
            trace.begin_attempt(&self.server, fields, client.worker.clock.now());
            self.traced = TraceState::Recorded;
        }
    }

    fn on_response(self, status: u16, client: &ClientConnection, telemetry: &mut RequestTelemetry) {
        let now = client.worker.clock.now();
        let took = now.saturating_sub(self.sent_at);
        self.server.on_response(status, took);
        telemetry.on_upstream_response(self.server.authority(), took);
        if let Some(trace) = telemetry.trace() {
            trace.on_response(status, now);
        }
        if let Some(permit) = self.permit {
            permit.record(if (500..600).contains(&status) {
                CallOutcome::Failure
            } else {
                CallOutcome::Success
            });
        }
    }

    fn on_failure(self) {
        self.server.on_failure();
        if let Some(permit) = self.permit {
            permit.fail();
        }
    }
}

/// Sends a request to a server of an upstream, and retries with another one if that is safe.
pub(super) async fn forward(
    client: &ClientConnection,
    address: IpAddr,
    upstream: &Rc<Upstream>,
    pending: Box<PendingForward>,
    telemetry: &mut RequestTelemetry,
) -> Result<ServerResponse, ProxyError> {
    let PendingForward { mut request, start } = *pending;
    let progress = request.body.progress();
    let mut tried = Vec::new();
    let (mut sent, mut failure, mut first) = (0, ProxyError::NoServer, None);
    match start {
        ForwardStart::New => {}
        ForwardStart::Attempt(attempt) => first = Some(attempt),
        ForwardStart::Failed(server, error) if upstream.take_retry(sent) => {
            tried.push(server);
            (sent, failure) = (1, error);
        }
        ForwardStart::Failed(_, error) => return Err(error),
    }
    loop {
        let mut attempt = match first.take() {
            Some(first) => first,
            None => {
                let Some((index, server)) = upstream.next_server(&tried, address) else {
                    return Err(failure);
                };
                let Ok(permit) = server.try_acquire() else {
                    tried.push(index);
                    continue;
                };
                ServerAttempt {
                    index,
                    server: server.clone(),
                    permit,
                    traced: TraceState::NotRecorded,
                    sent_at: client.worker.clock.now(),
                }
            }
        };
        attempt.trace(&mut request.head.fields, client, telemetry);
        match send(&attempt.server, request).await {
            Ok(response) => {
                attempt.on_response(response.head.status.as_u16(), client, telemetry);
                return Ok(response);
            }
            Err(failed) => {
                if let Some(trace) = telemetry.trace() {
                    trace.on_failure(failed.error.name(), client.worker.clock.now());
                }
                if let Some(body_error) = progress.as_ref().and_then(UploadProgress::error) {
                    return Err(body_error);
                }
                tried.push(attempt.index);
                attempt.on_failure();
                failure = failed.error;
                request = match failed.retry {
                    Some(retry) if upstream.take_retry(sent) => retry,
                    _ => return Err(failure),
                };
                sent += 1;
            }
        }
    }
}

/// Sends a request to this server, over an idle connection or a new one.
async fn send(
    server: &Rc<UpstreamEndpoint>,
    mut request: UpstreamRequest,
) -> Result<ServerResponse, AttemptError> {
    let in_flight = server.begin_request();
    if server.protocol == Protocol::Http2 {
        return match server.send_http2(request).await {
            Ok(Http2Response { response, deadline, permit }) => {
                let (parts, incoming) = response.into_parts();
                let source = ResponseSource::Http2 { incoming, deadline, in_flight, permit };
                Ok(ServerResponse { head: ParsedResponse::from(&parts), source })
            }
            Err((error, retry)) => Err(AttemptError { error: error.into(), retry }),
        };
    }
    loop {
        let (connection, is_new) = match server.take_idle() {
            Some(connection) => (connection, false),
            None => match server.connect().await {
                Ok(connection) => (connection, true),
                Err(error) => {
                    return Err(AttemptError { error: connect_error(&error), retry: Some(request) });
                }
            },
        };
        let is_repeatable = request.body.is_end_stream() && is_idempotent(&request.head);
        let mut pending = connection.send(request);
        let mut head = ParsedResponse::default();
        let error = match poll_fn(|context| pending.poll(&mut head, context)).await {
            Ok(()) => {
                let (connection, _) = pending.into_parts();
                return Ok(ServerResponse { head, source: ResponseSource::Http1 { connection, in_flight } });
            }
            Err(error) => error,
        };
        let again = match error {
            UpstreamSendError::Closed | UpstreamSendError::BadResponse if is_repeatable => {
                Some(UpstreamRequest { head: pending.into_parts().1, body: RequestBody::Empty })
            }
            // After a timeout the server may still process the request, so it is not sent again.
            _ => None,
        };
        match (error, again) {
            // The server closed the connection while it was idle. The number of idle connections bounds the loop.
            (UpstreamSendError::Closed, Some(again)) if !is_new => request = again,
            (error, retry) => return Err(AttemptError { error: error.into(), retry }),
        }
    }
}

impl From<UpstreamSendError> for ProxyError {
    fn from(error: UpstreamSendError) -> Self {
        match error {
            UpstreamSendError::Unreachable(error) => connect_error(&error),
            UpstreamSendError::Closed | UpstreamSendError::BadResponse => Self::BadResponse,
            UpstreamSendError::Timeout => Self::Timeout,
        }
    }
}

fn connect_error(error: &io::Error) -> ProxyError {
    match error.kind() {
        io::ErrorKind::TimedOut => ProxyError::Timeout,
        _ => ProxyError::Unreachable,
    }
}
