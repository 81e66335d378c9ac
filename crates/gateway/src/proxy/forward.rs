//! From a prepared request to the head of an answer.

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

/// How the answer comes.
pub(super) enum ResponseSource {
    /// Over a connection of its own.
    Http1 { connection: Box<UpstreamConnection>, in_flight: InFlightGuard },
    /// Over one that it shares with others.
    Http2 { deadline: ResponseDeadline, in_flight: InFlightGuard },
}

/// Why a server gave no answer, and the request again where it may be sent to another.
struct AttemptError {
    error: ProxyError,
    retry: Option<Request<RequestBody>>,
}

/// A request that is with a server, over a connection that was at hand.
pub(crate) struct ForwardedRequest {
    attempt: ServerAttempt,
    pending: PendingResponse,
    in_flight: InFlightGuard,
    progress: Option<UploadProgress>,
    upstream: Rc<Upstream>,
}

/// An answer or why there is none; or what is left to be done.
type AttemptOutcome = Result<Result<(Response<Incoming>, ResponseSource), ProxyError>, Box<PendingForward>>;

/// A server whose turn it is.
pub(super) struct ServerAttempt {
    index: usize,
    server: Rc<UpstreamEndpoint>,
    permit: Option<CallPermit<Arc<Breaker>>>,
    traced: TraceState,
    /// When the request was sent to it.
    sent_at: Micros,
}

/// Whether a trace knows of it.
#[derive(PartialEq, Eq)]
enum TraceState {
    Recorded,
    NotRecorded,
}

/// What is left to be done, where something is to be waited for before a request can be sent, or a first try came to nothing.
pub(super) struct PendingForward {
    request: Request<RequestBody>,
    attempt: Option<ServerAttempt>,
}

/// Sends a request to a server of an upstream if there is a connection to be had without a wait. That is so for nearly
/// all, so what waits for it is kept small.
pub(super) fn try_forward(
    client: &ClientConnection,
    address: IpAddr,
    upstream: &Rc<Upstream>,
    mut request: Request<RequestBody>,
    telemetry: &mut RequestTelemetry,
) -> Result<ForwardedRequest, Box<PendingForward>> {
    upstream.add_retry_budget();
    let Some((place, server)) = upstream.next_server(&[], address) else {
        return Err(PendingForward::new(request, None));
    };
    let Ok(pass) = server.try_acquire() else { return Err(PendingForward::new(request, None)) };
    let mut turn = ServerAttempt {
        index: place,
        server: server.clone(),
        permit: pass,
        traced: TraceState::NotRecorded,
        sent_at: client.worker.clock.now(),
    };
    let line = match server.protocol {
        Protocol::Http1 => server.take_recent(),
        Protocol::Http2 => None,
    };
    let Some(line) = line else { return Err(PendingForward::new(request, Some(turn))) };
    turn.trace(&mut request, client, telemetry);
    let (visit, note) = (server.begin_request(), request.body().progress());
    Ok(ForwardedRequest {
        attempt: turn,
        pending: line.send(request),
        in_flight: visit,
        progress: note,
        upstream: upstream.clone(),
    })
}

impl PendingForward {
    #[cold]
    fn new(request: Request<RequestBody>, turn: Option<ServerAttempt>) -> Box<Self> {
        Box::new(Self { request, attempt: turn })
    }
}

impl ForwardedRequest {
    /// Where it goes.
    pub(super) fn upstream(&self) -> &Rc<Upstream> {
        &self.upstream
    }

    /// Whether the head of the answer has come.
    #[inline]
    pub(super) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Response<Incoming>, UpstreamSendError>> {
        self.pending.poll(context)
    }

    /// It has, or there is none: what becomes of it then.
    pub(super) fn finish(
        self,
        answered: Result<Response<Incoming>, UpstreamSendError>,
        client: &ClientConnection,
        telemetry: &mut RequestTelemetry,
    ) -> AttemptOutcome {
        let Self { attempt: turn, pending: ask, in_flight: visit, progress: note, .. } = self;
        match answered {
            Ok(response) => {
                turn.on_response(&response, client, telemetry);
                Ok(Ok((
                    response,
                    ResponseSource::Http1 { connection: ask.into_connection(), in_flight: visit },
                )))
            }
            // The server closed it while nobody used it.
            Err(UpstreamSendError::Closed(request)) => Err(PendingForward::new(*request, Some(turn))),
            Err(unsent) => {
                let missed = AttemptError::new(unsent, None);
                if let Some(trace) = telemetry.trace() {
                    trace.on_failure(missed.error.name(), client.worker.clock.now());
                }
                if let Some(fault) = note.as_ref().and_then(UploadProgress::error) {
                    return Ok(Err(fault));
                }
                turn.on_failure();
                Ok(Err(missed.error))
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
        self.server.on_response(now.since(self.sent_at));
        if let Some(trace) = telemetry.trace() {
            trace.on_response(response.status().as_u16(), now);
        }
        if let Some(pass) = self.permit {
            let is_failure = response.status().is_server_error();
            pass.record(if is_failure { CallOutcome::Failure } else { CallOutcome::Success });
        }
    }

    fn on_failure(self) {
        self.server.on_failure();
        if let Some(pass) = self.permit {
            pass.fail();
        }
    }
}

/// Sends a request to a server of an upstream, and to another one where that does no harm.
pub(super) async fn forward(
    client: &ClientConnection,
    address: IpAddr,
    upstream: &Rc<Upstream>,
    rest: Box<PendingForward>,
    telemetry: &mut RequestTelemetry,
) -> Result<(Response<Incoming>, ResponseSource), ProxyError> {
    let PendingForward { mut request, attempt: mut first } = *rest;
    let note = request.body().progress();
    let mut tried = Vec::new();
    let (mut sent, mut failure) = (0, ProxyError::NoServer);
    loop {
        let mut turn = match first.take() {
            Some(first) => first,
            None => {
                let Some((place, server)) = upstream.next_server(&tried, address) else {
                    return Err(failure);
                };
                let Ok(pass) = server.try_acquire() else {
                    tried.push(place);
                    continue;
                };
                ServerAttempt {
                    index: place,
                    server: server.clone(),
                    permit: pass,
                    traced: TraceState::NotRecorded,
                    sent_at: client.worker.clock.now(),
                }
            }
        };
        turn.trace(&mut request, client, telemetry);
        match send(&turn.server, request).await {
            Ok((response, via)) => {
                turn.on_response(&response, client, telemetry);
                return Ok((response, via));
            }
            Err(missed) => {
                if let Some(trace) = telemetry.trace() {
                    trace.on_failure(missed.error.name(), client.worker.clock.now());
                }
                if let Some(fault) = note.as_ref().and_then(UploadProgress::error) {
                    return Err(fault);
                }
                tried.push(turn.index);
                turn.on_failure();
                failure = missed.error;
                request = match missed.retry {
                    Some(again) if upstream.take_retry(sent) => again,
                    _ => return Err(failure),
                };
                sent += 1;
            }
        }
    }
}

/// Sends a request to this server, over a connection that is still open or a new one.
async fn send(
    server: &Rc<UpstreamEndpoint>,
    mut request: Request<RequestBody>,
) -> Result<(Response<Incoming>, ResponseSource), AttemptError> {
    let visit = server.begin_request();
    if server.protocol == Protocol::Http2 {
        let spare = clone_idempotent(&request);
        return match server.send_http2(request).await {
            Ok((response, pace)) => {
                Ok((response, ResponseSource::Http2 { deadline: pace, in_flight: visit }))
            }
            Err(unsent) => Err(AttemptError::new(unsent, spare)),
        };
    }
    loop {
        let (line, is_new) = match server.take_idle() {
            Some(line) => (line, false),
            None => match server.connect().await {
                Ok(line) => (line, true),
                Err(error) => {
                    return Err(AttemptError { error: connect_error(&error), retry: Some(request) });
                }
            },
        };
        // A connection that was used a moment ago is there; a copy for others is not worth its time.
        let spare = if is_new || server.is_stale(&line) { clone_idempotent(&request) } else { None };
        let mut ask = line.send(request);
        match (poll_fn(|context| ask.poll(context)).await, spare) {
            (Ok(response), _) => {
                return Ok((
                    response,
                    ResponseSource::Http1 { connection: ask.into_connection(), in_flight: visit },
                ));
            }
            // The server closed it while nobody used it. There are only so many of those.
            (Err(UpstreamSendError::Closed(back)), _) if !is_new => request = *back,
            (Err(UpstreamSendError::BadResponse), Some(spare)) if !is_new => request = spare,
            (Err(unsent), spare) => return Err(AttemptError::new(unsent, spare)),
        }
    }
}

/// The same request again, if to send it twice is to send it once, and nothing of a body is gone.
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
    fn new(unsent: UpstreamSendError, spare: Option<Request<RequestBody>>) -> Self {
        match unsent {
            UpstreamSendError::Closed(back) => Self { error: ProxyError::Unreachable, retry: Some(*back) },
            UpstreamSendError::Unreachable(error, back) => {
                Self { error: connect_error(&error), retry: Some(*back) }
            }
            UpstreamSendError::BadResponse => Self { error: ProxyError::BadResponse, retry: spare },
            // It may still be at work.
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
