//! From a prepared request to the head of an answer.

use super::{Failure, RequestBody};
use crate::{
    client::Client,
    traces::Trace,
    upstream::{Line, Pace, Server, Unsent, Upstream, Visit},
};
use http::{Request, Response, request};
use hyper::body::Incoming;
use std::{io, rc::Rc};
use tidegate_core::Report;
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

/// Sends a request to a server of an upstream, and to another one where that does no harm.
pub(super) async fn forward(
    client: &Client,
    upstream: &Rc<Upstream>,
    parts: request::Parts,
    body: RequestBody,
    mut trace: Option<&mut Trace>,
) -> Result<(Response<Incoming>, Via), Failure> {
    let note = body.note();
    let mut request = Request::from_parts(parts, body);
    let mut tried = Vec::new();
    let (mut sent, mut failure) = (0, Failure::NoServer);
    upstream.asked();
    loop {
        let Some((place, server)) = upstream.next(&tried, client.origin.peer.ip()) else {
            return Err(failure);
        };
        let Ok(pass) = server.pass() else {
            tried.push(place);
            continue;
        };
        if let Some(trace) = &mut trace {
            trace.sent_to(server, request.headers_mut(), client.worker.clock.now());
        }
        match send(server, request).await {
            Ok((response, via)) => {
                server.answered();
                if let Some(trace) = &mut trace {
                    trace.answered(response.status().as_u16(), client.worker.clock.now());
                }
                if let Some(pass) = pass {
                    let is_failure = response.status().is_server_error();
                    pass.report(if is_failure { Report::Failure } else { Report::Success });
                }
                return Ok((response, via));
            }
            Err(missed) => {
                if let Some(trace) = &mut trace {
                    trace.missed(missed.failure.name(), client.worker.clock.now());
                }
                if let Some(fault) = note.as_ref().and_then(super::request_body::Note::failure) {
                    return Err(fault);
                }
                server.failed();
                if let Some(pass) = pass {
                    pass.fail();
                }
                failure = missed.failure;
                tried.push(place);
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
        let (mut line, is_new) = match server.take() {
            Some(line) => (line, false),
            None => match server.connect().await {
                Ok(line) => (line, true),
                Err(error) => return Err(Missed { failure: failure_of(&error), again: Some(request) }),
            },
        };
        // A connection that was used a moment ago is there; a copy for others is not worth its time.
        let spare = if is_new || server.is_doubtful(&line) { copy(&request) } else { None };
        match (line.ask(request).await, spare) {
            (Ok(response), _) => return Ok((response, Via::Line { line, visit })),
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
