//! A request from its head to the last byte of its answer.

mod answer_body;
mod failure;
mod forward;
mod head;
mod introduction;
mod request_body;
mod unread;

pub(crate) use answer_body::AnswerBody;
pub(crate) use introduction::Introduction;
pub(crate) use request_body::{Note, Progress, RequestBody};

use crate::{
    Judge, Judged, Outcome, Settled,
    client::{Client, Tunnel},
    log::Record,
};
use answer_body::Source;
use bytes::Bytes;
use failure::Failure;
use forward::Via;
use head::Upgrade;
use http::{HeaderValue, Request, Response, StatusCode, Version, header, request, response};
use hyper::body::{Body, Incoming};
use std::{fmt, rc::Rc, sync::Arc};
use unread::Left;

/// The connection is to be closed without a word.
#[derive(Debug)]
pub(crate) struct Dropped;

/// Answers a request.
pub(crate) async fn answer<J: Judge>(
    client: Rc<Client>,
    judge: Arc<J>,
    request: Request<Incoming>,
) -> Result<Response<AnswerBody<J::Case>>, Dropped> {
    // Whenever this is dropped, the request is over.
    let mut answer = AnswerBody::new(client.clone());
    let (mut parts, incoming) = request.into_parts();
    let id = head::id(&parts, &client);
    if parts.version < Version::HTTP_11 {
        client.is_old();
    }
    if client.worker.log.is_some() {
        let now = client.worker.clock.now();
        answer.record = Some(Record::of(&parts, &id, client.origin.peer.ip().to_canonical(), now));
    }
    if let Some(tracer) = &client.worker.tracer {
        answer.trace = tracer.begin(&mut parts, &id, &client);
    }
    if let Err(failure) = head::check(&mut parts, &client, incoming.size_hint().exact()) {
        return Ok(unheard(own(failure.answer(), &id, answer), &parts, incoming, &client).await);
    }

    let outcome = match judge.judge(&mut parts, &client.origin) {
        Judged::Now(outcome) => outcome,
        Judged::Later(outcome) => outcome.await,
    };
    let target = match outcome {
        Outcome::Go(target, case) => {
            answer.case = Some(case);
            target
        }
        Outcome::Answer(given) => {
            return Ok(unheard(own(given, &id, answer), &parts, incoming, &client).await);
        }
        Outcome::Drop(note) => {
            answer.dropped(note);
            return Err(Dropped);
        }
    };

    let upgrade = head::prepare(&mut parts, &client, &id);
    let up = answer.case.as_ref().map_or(&[][..], |case| judge.rates(case).up);
    let body = RequestBody::of(incoming, &client, up);
    let forwarded = match client.worker.upstreams.get(target.0) {
        Some(upstream) => {
            let trace = answer.trace.as_deref_mut();
            forward::forward(&client, upstream, parts, body, trace).await
        }
        None => Err(Failure::NoServer),
    };
    let answered = match forwarded {
        Ok((response, via)) => take(response, via, upgrade, &client).await,
        Err(failure) => Err(failure),
    };
    let (mut parts, source) = match answered {
        Ok(answered) => answered,
        Err(failure) => text(failure.answer()),
    };
    let (source, settled) = match &mut answer.case {
        Some(case) => (source.slowed(judge.rates(case).down), judge.settle(case, &mut parts)),
        None => (source, Settled::Send),
    };
    match settled {
        Settled::Send => {
            parts.headers.insert(head::REQUEST_ID, id);
            answer.note(&mut parts);
            answer.source = source;
            Ok(Response::from_parts(parts, answer))
        }
        Settled::Instead(given) => Ok(own(given, &id, answer)),
    }
}

/// Takes over the answer of a server.
async fn take(
    response: Response<Incoming>,
    via: Via,
    upgrade: Upgrade,
    client: &Client,
) -> Result<(response::Parts, Source), Failure> {
    let (mut parts, incoming) = response.into_parts();
    if parts.status != StatusCode::SWITCHING_PROTOCOLS {
        head::clean(&mut parts);
        return Ok((parts, Source::of(incoming, via)));
    }
    // Nobody may switch who was not asked to.
    let (Upgrade::Asked, Via::Line { line, .. }) = (upgrade, via) else { return Err(Failure::Broken) };
    let (stream, said) = line.into_wire().await.ok_or(Failure::Broken)?;
    *client.tunnel.borrow_mut() = Some(Box::new(Tunnel::new(stream, said)));
    Ok((parts, Source::Empty))
}

/// An answer to a request whose body nobody wants.
async fn unheard<C>(
    mut response: Response<AnswerBody<C>>,
    request: &request::Parts,
    incoming: Incoming,
    client: &Client,
) -> Response<AnswerBody<C>> {
    // HTTP/2 has a word for it.
    if incoming.is_end_stream() || request.version == Version::HTTP_2 {
        return response;
    }
    let is_asked_for = request.headers.contains_key(header::EXPECT);
    let is_closing = response.headers().contains_key(header::CONNECTION);
    if is_asked_for || is_closing || unread::skip(incoming, client).await == Left::Something {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        client.is_unheard();
    }
    response
}

/// An answer that no server gave.
fn own<C>(given: Response<Bytes>, id: &HeaderValue, mut answer: AnswerBody<C>) -> Response<AnswerBody<C>> {
    let (mut parts, source) = text(given);
    parts.headers.insert(head::REQUEST_ID, id.clone());
    answer.note(&mut parts);
    answer.source = source;
    Response::from_parts(parts, answer)
}

fn text(given: Response<Bytes>) -> (response::Parts, Source) {
    let (parts, text) = given.into_parts();
    (parts, if text.is_empty() { Source::Empty } else { Source::Text(text) })
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the connection is dropped")
    }
}

impl std::error::Error for Dropped {}
