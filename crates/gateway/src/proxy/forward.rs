//! From a prepared request to the head of an answer.

use super::{Failure, Note, RequestBody};
use crate::{
    client::Client,
    telemetry::RequestTelemetry,
    upstream::{Ask, Line, Pace, Server, Unsent, Upstream, Visit},
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
pub(super) enum Via {
    /// Over a connection of its own.
    Line { line: Box<Line>, visit: Visit },
    /// Over one that it shares with others.
    Shared { pace: Pace, visit: Visit },
}

/// Why a server gave no answer, and the request again where it may be sent to another.
struct Missed {
    failure: Failure,
    again: Option<Request<RequestBody>>,
}

/// A request that is with a server, over a connection that was at hand.
pub(crate) struct AtHand {
    turn: Turn,
    ask: Ask,
    visit: Visit,
    note: Option<Note>,
    upstream: Rc<Upstream>,
}

/// An answer or why there is none; or what is left to be done.
type Concluded = Result<Result<(Response<Incoming>, Via), Failure>, Box<Rest>>;

/// A server whose turn it is.
pub(super) struct Turn {
    place: usize,
    server: Rc<Server>,
    pass: Option<CallPermit<Arc<Breaker>>>,
    traced: Traced,
    /// When the request was sent to it.
    sent: Micros,
}

/// Whether a trace knows of it.
#[derive(PartialEq, Eq)]
enum Traced {
    Yes,
    No,
}

/// What is left to be done, where something is to be waited for before a request can be sent, or a first try came to nothing.
pub(super) struct Rest {
    request: Request<RequestBody>,
    turn: Option<Turn>,
}

/// Sends a request to a server of an upstream if there is a connection to be had without a wait. That is so for nearly
/// all, so what waits for it is kept small.
pub(super) fn begin(
    client: &Client,
    address: IpAddr,
    upstream: &Rc<Upstream>,
    mut request: Request<RequestBody>,
    telemetry: &mut RequestTelemetry,
) -> Result<AtHand, Box<Rest>> {
    upstream.asked();
    let Some((place, server)) = upstream.next(&[], address) else {
        return Err(Rest::of(request, None));
    };
    let Ok(pass) = server.pass() else { return Err(Rest::of(request, None)) };
    let mut turn =
        Turn { place, server: server.clone(), pass, traced: Traced::No, sent: client.worker.clock.now() };
    let line = match server.protocol {
        Protocol::Http1 => server.take_fresh(),
        Protocol::Http2 => None,
    };
    let Some(line) = line else { return Err(Rest::of(request, Some(turn))) };
    turn.trace(&mut request, client, telemetry);
    let (visit, note) = (server.visit(), request.body().note());
    Ok(AtHand { turn, ask: line.ask(request), visit, note, upstream: upstream.clone() })
}

impl Rest {
    #[cold]
    fn of(request: Request<RequestBody>, turn: Option<Turn>) -> Box<Self> {
        Box::new(Self { request, turn })
    }
}

impl AtHand {
    /// Where it goes.
    pub(super) fn upstream(&self) -> &Rc<Upstream> {
        &self.upstream
    }

    /// Whether the head of the answer has come.
    #[inline]
    pub(super) fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Response<Incoming>, Unsent>> {
        self.ask.poll(context)
    }

    /// It has, or there is none: what becomes of it then.
    pub(super) fn conclude(
        self,
        answered: Result<Response<Incoming>, Unsent>,
        client: &Client,
        telemetry: &mut RequestTelemetry,
    ) -> Concluded {
        let Self { turn, ask, visit, note, .. } = self;
        match answered {
            Ok(response) => {
                turn.answered(&response, client, telemetry);
                Ok(Ok((response, Via::Line { line: ask.into_line(), visit })))
            }
            // The server closed it while nobody used it.
            Err(Unsent::Closed(request)) => Err(Rest::of(*request, Some(turn))),
            Err(unsent) => {
                let missed = Missed::of(unsent, None);
                if let Some(trace) = telemetry.trace() {
                    trace.missed(missed.failure.name(), client.worker.clock.now());
                }
                if let Some(fault) = note.as_ref().and_then(Note::failure) {
                    return Ok(Err(fault));
                }
                turn.failed();
                Ok(Err(missed.failure))
            }
        }
    }
}

impl Turn {
    fn trace(
        &mut self,
        request: &mut Request<RequestBody>,
        client: &Client,
        telemetry: &mut RequestTelemetry,
    ) {
        if let (Some(trace), Traced::No) = (telemetry.trace(), &self.traced) {
            trace.sent_to(&self.server, request.headers_mut(), client.worker.clock.now());
            self.traced = Traced::Yes;
        }
    }

    fn answered(self, response: &Response<Incoming>, client: &Client, telemetry: &mut RequestTelemetry) {
        let now = client.worker.clock.now();
        self.server.answered(now.since(self.sent));
        if let Some(trace) = telemetry.trace() {
            trace.answered(response.status().as_u16(), now);
        }
        if let Some(pass) = self.pass {
            let is_failure = response.status().is_server_error();
            pass.record(if is_failure { CallOutcome::Failure } else { CallOutcome::Success });
        }
    }

    fn failed(self) {
        self.server.failed();
        if let Some(pass) = self.pass {
            pass.fail();
        }
    }
}

/// Sends a request to a server of an upstream, and to another one where that does no harm.
pub(super) async fn forward(
    client: &Client,
    address: IpAddr,
    upstream: &Rc<Upstream>,
    rest: Box<Rest>,
    telemetry: &mut RequestTelemetry,
) -> Result<(Response<Incoming>, Via), Failure> {
    let Rest { mut request, turn: mut first } = *rest;
    let note = request.body().note();
    let mut tried = Vec::new();
    let (mut sent, mut failure) = (0, Failure::NoServer);
    loop {
        let mut turn = match first.take() {
            Some(first) => first,
            None => {
                let Some((place, server)) = upstream.next(&tried, address) else {
                    return Err(failure);
                };
                let Ok(pass) = server.pass() else {
                    tried.push(place);
                    continue;
                };
                Turn {
                    place,
                    server: server.clone(),
                    pass,
                    traced: Traced::No,
                    sent: client.worker.clock.now(),
                }
            }
        };
        turn.trace(&mut request, client, telemetry);
        match send(&turn.server, request).await {
            Ok((response, via)) => {
                turn.answered(&response, client, telemetry);
                return Ok((response, via));
            }
            Err(missed) => {
                if let Some(trace) = telemetry.trace() {
                    trace.missed(missed.failure.name(), client.worker.clock.now());
                }
                if let Some(fault) = note.as_ref().and_then(Note::failure) {
                    return Err(fault);
                }
                tried.push(turn.place);
                turn.failed();
                failure = missed.failure;
                request = match missed.again {
                    Some(again) if upstream.may_retry(sent) => again,
                    _ => return Err(failure),
                };
                sent += 1;
            }
        }
    }
}

/// Sends a request to this server, over a connection that is still open or a new one.
async fn send(
    server: &Rc<Server>,
    mut request: Request<RequestBody>,
) -> Result<(Response<Incoming>, Via), Missed> {
    let visit = server.visit();
    if server.protocol == Protocol::Http2 {
        let spare = copy(&request);
        return match server.ask_shared(request).await {
            Ok((response, pace)) => Ok((response, Via::Shared { pace, visit })),
            Err(unsent) => Err(Missed::of(unsent, spare)),
        };
    }
    loop {
        let (line, is_new) = match server.take() {
            Some(line) => (line, false),
            None => match server.connect().await {
                Ok(line) => (line, true),
                Err(error) => return Err(Missed { failure: failure_of(&error), again: Some(request) }),
            },
        };
        // A connection that was used a moment ago is there; a copy for others is not worth its time.
        let spare = if is_new || server.is_doubtful(&line) { copy(&request) } else { None };
        let mut ask = line.ask(request);
        match (poll_fn(|context| ask.poll(context)).await, spare) {
            (Ok(response), _) => return Ok((response, Via::Line { line: ask.into_line(), visit })),
            // The server closed it while nobody used it. There are only so many of those.
            (Err(Unsent::Closed(back)), _) if !is_new => request = *back,
            (Err(Unsent::Broken), Some(spare)) if !is_new => request = spare,
            (Err(unsent), spare) => return Err(Missed::of(unsent, spare)),
        }
    }
}

/// The same request again, if to send it twice is to send it once, and nothing of a body is gone.
fn copy(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.method().is_idempotent() || !matches!(request.body(), RequestBody::Empty) {
        return None;
    }
    let mut copy = Request::new(RequestBody::Empty);
    *copy.method_mut() = request.method().clone();
    *copy.uri_mut() = request.uri().clone();
    *copy.headers_mut() = request.headers().clone();
    Some(copy)
}

impl Missed {
    fn of(unsent: Unsent, spare: Option<Request<RequestBody>>) -> Self {
        match unsent {
            Unsent::Closed(back) => Self { failure: Failure::Unreachable, again: Some(*back) },
            Unsent::Unreachable(error, back) => Self { failure: failure_of(&error), again: Some(*back) },
            Unsent::Broken => Self { failure: Failure::Broken, again: spare },
            // It may still be at work.
            Unsent::Late => Self { failure: Failure::Late, again: None },
        }
    }
}

fn failure_of(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::TimedOut => Failure::Late,
        _ => Failure::Unreachable,
    }
}
