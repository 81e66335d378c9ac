//! Sends a prepared request to a server, until the head of the response.

use super::{ProxyError, RequestBody, UploadProgress};
use crate::{
    client::ClientConnection,
    telemetry::RequestTelemetry,
    upstream::{
        InFlightGuard, PendingResponse, ResponseDeadline, Upstream, UpstreamConnection, UpstreamEndpoint,
        UpstreamSendError,
    },
};
use http::{Request, Response};
use hyper::body::Incoming;
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
use tidegate_policy::model::Protocol;

/// The connection of a response.
pub(super) enum ResponseSource {
    /// A connection of its own.
    Http1 { connection: Box<UpstreamConnection>, in_flight: InFlightGuard },
    /// A stream of a shared connection.
    Http2 { deadline: ResponseDeadline, in_flight: InFlightGuard },
}

/// The error of an attempt, and the request if it may be sent to another server.
struct AttemptError {
    error: ProxyError,
    retry: Option<Request<RequestBody>>,
}

/// A request in flight on a connection that was idle.
pub(crate) struct ForwardedRequest {
    attempt: ServerAttempt,
    pending: PendingResponse,
    in_flight: InFlightGuard,
    progress: Option<UploadProgress>,
    upstream: Rc<Upstream>,
}

/// A response or an error; or a request that must be sent with a wait.
type AttemptOutcome = Result<Result<(Response<Incoming>, ResponseSource), ProxyError>, Box<PendingForward>>;

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
    request: Request<RequestBody>,
    attempt: Option<ServerAttempt>,
}

/// Sends a request to a server of an upstream if an idle connection is available. Nearly all requests take this path, so
/// its future is small.
pub(super) fn try_forward(
    client: &ClientConnection,
    address: IpAddr,
    upstream: &Rc<Upstream>,
    mut request: Request<RequestBody>,
    telemetry: &mut RequestTelemetry,
) -> Result<ForwardedRequest, Box<PendingForward>> {
    upstream.add_retry_budget();
    let Some((index, server)) = upstream.next_server(&[], address) else {
        return Err(PendingForward::new(request, None));
    };
    let Ok(permit) = server.try_acquire() else { return Err(PendingForward::new(request, None)) };
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
    let Some(connection) = connection else { return Err(PendingForward::new(request, Some(attempt))) };
    attempt.trace(&mut request, client, telemetry);
    let (in_flight, progress) = (server.begin_request(), request.body().progress());
    Ok(ForwardedRequest {
        attempt,
        pending: connection.send(request),
        in_flight,
        progress,
        upstream: upstream.clone(),
    })
}

impl PendingForward {
    #[cold]
    fn new(request: Request<RequestBody>, attempt: Option<ServerAttempt>) -> Box<Self> {
        Box::new(Self { request, attempt })
    }
}

impl ForwardedRequest {
    /// The upstream of the request.
    pub(super) fn upstream(&self) -> &Rc<Upstream> {
        &self.upstream
    }

    /// Polls for the head of the response.
    #[inline]
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Incoming>, UpstreamSendError>> {
        self.pending.poll(context)
    }

    /// Handles the result: the response, an error, or a request to send again.
    pub(super) fn finish(
        self,
        result: Result<Response<Incoming>, UpstreamSendError>,
        client: &ClientConnection,
        telemetry: &mut RequestTelemetry,
    ) -> AttemptOutcome {
        let Self { attempt, pending, in_flight, progress, .. } = self;
        match result {
            Ok(response) => {
                attempt.on_response(&response, client, telemetry);
                Ok(Ok((response, ResponseSource::Http1 { connection: pending.into_connection(), in_flight })))
            }
            // The server closed the connection while it was idle.
            Err(UpstreamSendError::Closed(request)) => Err(PendingForward::new(*request, Some(attempt))),
            Err(error) => {
                let failed = AttemptError::new(error, None);
                if let Some(trace) = telemetry.trace() {
                    trace.on_failure(failed.error.name(), client.worker.clock.now());
                }
                if let Some(body_error) = progress.as_ref().and_then(UploadProgress::error) {
                    return Ok(Err(body_error));
                }
                attempt.on_failure();
                Ok(Err(failed.error))
            }
        }
    }
}

impl ServerAttempt {
    fn trace(
        &mut self,
        request: &mut Request<RequestBody>,
        client: &ClientConnection,
        telemetry: &mut RequestTelemetry,
    ) {
        if let (Some(trace), TraceState::NotRecorded) = (telemetry.trace(), &self.traced) {
            trace.begin_attempt(&self.server, request.headers_mut(), client.worker.clock.now());
            self.traced = TraceState::Recorded;
        }
    }

    fn on_response(
        self,
        response: &Response<Incoming>,
        client: &ClientConnection,
        telemetry: &mut RequestTelemetry,
    ) {
        let now = client.worker.clock.now();
        let took = now.saturating_sub(self.sent_at);
        self.server.on_response(response.status(), took);
        telemetry.on_upstream_response(self.server.authority(), took);
        if let Some(trace) = telemetry.trace() {
            trace.on_response(response.status().as_u16(), now);
        }
        if let Some(permit) = self.permit {
            let is_failure = response.status().is_server_error();
            permit.record(if is_failure { CallOutcome::Failure } else { CallOutcome::Success });
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
) -> Result<(Response<Incoming>, ResponseSource), ProxyError> {
    let PendingForward { mut request, attempt: mut first } = *pending;
    let progress = request.body().progress();
    let mut tried = Vec::new();
    let (mut sent, mut failure) = (0, ProxyError::NoServer);
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
        attempt.trace(&mut request, client, telemetry);
        match send(&attempt.server, request).await {
            Ok((response, source)) => {
                attempt.on_response(&response, client, telemetry);
                return Ok((response, source));
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
    mut request: Request<RequestBody>,
) -> Result<(Response<Incoming>, ResponseSource), AttemptError> {
    let in_flight = server.begin_request();
    if server.protocol == Protocol::Http2 {
        let spare = clone_idempotent(&request);
        return match server.send_http2(request).await {
            Ok((response, deadline)) => Ok((response, ResponseSource::Http2 { deadline, in_flight })),
            Err(error) => Err(AttemptError::new(error, spare)),
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
        // A recently used connection is most likely open, so the copy would be wasted.
        let spare = if is_new || server.is_stale(&connection) { clone_idempotent(&request) } else { None };
        let mut pending = connection.send(request);
        match (poll_fn(|context| pending.poll(context)).await, spare) {
            (Ok(response), _) => {
                return Ok((
                    response,
                    ResponseSource::Http1 { connection: pending.into_connection(), in_flight },
                ));
            }
            // The server closed the connection while it was idle. The number of idle connections bounds the loop.
            (Err(UpstreamSendError::Closed(returned)), _) if !is_new => request = *returned,
            (Err(UpstreamSendError::BadResponse), Some(spare)) if !is_new => request = spare,
            (Err(error), spare) => return Err(AttemptError::new(error, spare)),
        }
    }
}

/// A copy of the request, if it is idempotent and has no body.
fn clone_idempotent(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.method().is_idempotent() || !matches!(request.body(), RequestBody::Empty) {
        return None;
    }
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

impl AttemptError {
    fn new(error: UpstreamSendError, spare: Option<Request<RequestBody>>) -> Self {
        match error {
            UpstreamSendError::Closed(returned) => {
                Self { error: ProxyError::Unreachable, retry: Some(*returned) }
            }
            UpstreamSendError::Unreachable(error, returned) => {
                Self { error: connect_error(&error), retry: Some(*returned) }
            }
            UpstreamSendError::BadResponse => Self { error: ProxyError::BadResponse, retry: spare },
            // The server may still process the request, so it is not sent again.
            UpstreamSendError::Timeout => Self { error: ProxyError::Timeout, retry: None },
        }
    }
}

fn connect_error(error: &io::Error) -> ProxyError {
    match error.kind() {
        io::ErrorKind::TimedOut => ProxyError::Timeout,
        _ => ProxyError::Unreachable,
    }
}
