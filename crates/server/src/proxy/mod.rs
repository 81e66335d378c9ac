//! A request from its head to the last byte of its answer.

mod answer_body;
mod failure;
mod forward;
mod head;
mod introduction;
mod piece;
mod request_body;
mod unread;

pub(crate) use answer_body::AnswerBody;
pub(crate) use introduction::Introduction;
pub(crate) use request_body::{Note, Progress, RequestBody};

use crate::{
    AnsweredBy, Judge, Judged, Outcome, Settled,
    client::{Client, Tunnel},
    log::Record,
    upstream::{Unsent, Upstream},
};
use answer_body::Source;
use bytes::Bytes;
use failure::Failure;
use forward::{AtHand, Rest, Via};
use head::Upgrade;
use http::{HeaderValue, Request, Response, StatusCode, Version, header, request, response};
use hyper::body::{Body, Incoming};
use std::{
    fmt,
    future::Future,
    net::IpAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};
use unread::Left;

/// The connection is to be closed without a word.
#[derive(Debug)]
pub(crate) struct Dropped;

/// A request on its way to its answer. It is moved about for each request, so what only few of them need is elsewhere.
pub(crate) enum Answering<J: Judge> {
    /// The answer is there.
    Now(Option<Answered<J>>),
    /// It is with a server.
    AtHand(Option<(Exchange<J>, AtHand)>),
    /// There is something to be waited for besides an answer.
    Later(Pin<Box<dyn Future<Output = Answered<J>>>>),
}

type Answered<J> = Result<Response<AnswerBody<<J as Judge>::Case>>, Dropped>;

/// What is known of a request while it is on its way.
pub(crate) struct Exchange<J: Judge> {
    judge: Arc<J>,
    id: HeaderValue,
    upgrade: Upgrade,
    /// The address of the client, by which servers are chosen.
    address: IpAddr,
    /// Whenever this is dropped, the request is over.
    answer: AnswerBody<J::Case>,
}

/// Answers a request.
pub(crate) fn answer<J: Judge>(
    client: Rc<Client>,
    judge: Arc<J>,
    request: Request<Incoming>,
) -> Answering<J> {
    let mut answer = AnswerBody::new(client.clone());
    let (mut parts, incoming) = request.into_parts();
    let id = head::id(&parts, &client);
    if parts.version < Version::HTTP_11 {
        client.is_old();
    }
    let origin = client.worker.origin_of(&parts, &client.origin);
    if client.worker.log.is_some() {
        let now = client.worker.clock.now();
        answer.record = Some(Record::of(&parts, &id, &origin, now));
    }
    if let Some(tracer) = &client.worker.tracer {
        answer.trace = tracer.begin(&mut parts, &id, &client, &origin);
    }
    let is_trusted = || client.worker.trusts(client.origin.peer.ip());
    let (limits, length) = (&client.worker.terms.head, incoming.size_hint().exact());
    if let Err(error) = tidegate_policy::head::check(&mut parts, limits, length, is_trusted) {
        let given = Failure::Head(error).answer();
        return unheard(own(&*judge, given, &id, answer), &parts, incoming, client);
    }
    let judged = judge.judge(&mut parts, &origin);
    let exchange = Exchange { judge, id, upgrade: Upgrade::NotAsked, address: origin.client, answer };
    match judged {
        Judged::Now(outcome) => exchange.go_on(outcome, parts, incoming),
        Judged::Later(outcome) => {
            Answering::Later(Box::pin(async move { exchange.go_on(outcome.await, parts, incoming).await }))
        }
    }
}

impl<J: Judge> Exchange<J> {
    /// It was judged.
    fn go_on(
        mut self,
        outcome: Outcome<J::Case>,
        mut parts: request::Parts,
        incoming: Incoming,
    ) -> Answering<J> {
        let client = self.answer.client.clone();
        let target = match outcome {
            Outcome::Go(target, case) => {
                self.answer.case = Some(case);
                target
            }
            Outcome::Answer(given) => {
                return unheard(own(&*self.judge, given, &self.id, self.answer), &parts, incoming, client);
            }
            Outcome::Drop(note) => {
                self.answer.dropped(note);
                return Answering::Now(Some(Err(Dropped)));
            }
        };
        self.upgrade = head::prepare(&mut parts, &client, &self.id);
        let up = self.answer.case.as_ref().map_or(&[][..], |case| self.judge.rates(case).up);
        let body = RequestBody::of(incoming, &client, up);
        let Some(upstream) = client.worker.upstreams.get(target.0) else {
            return Answering::Now(Some(Ok(self.fail(Failure::NoServer))));
        };
        let request = Request::from_parts(parts, body);
        match forward::begin(&client, self.address, upstream, request, self.answer.trace.as_deref_mut()) {
            Ok(at_hand) => Answering::AtHand(Some((self, at_hand))),
            Err(rest) => self.forward(upstream.clone(), rest),
        }
    }

    /// It takes longer.
    #[cold]
    fn forward(mut self, upstream: Rc<Upstream>, rest: Box<Rest>) -> Answering<J> {
        Answering::Later(Box::pin(async move {
            let client = self.answer.client.clone();
            let trace = self.answer.trace.as_deref_mut();
            match forward::forward(&client, self.address, &upstream, rest, trace).await {
                Ok((response, via)) => self.take(response, via).await,
                Err(failure) => Ok(self.fail(failure)),
            }
        }))
    }

    /// It has reached a server, or not.
    fn conclude(mut self, at_hand: AtHand, answered: Result<Response<Incoming>, Unsent>) -> Answering<J> {
        let client = self.answer.client.clone();
        let upstream = at_hand.upstream().clone();
        match at_hand.conclude(answered, &client, self.answer.trace.as_deref_mut()) {
            Ok(Ok((response, via))) => self.take(response, via),
            Ok(Err(failure)) => Answering::Now(Some(Ok(self.fail(failure)))),
            Err(rest) => self.forward(upstream, rest),
        }
    }

    /// Takes over the answer of a server.
    fn take(self, response: Response<Incoming>, via: Via) -> Answering<J> {
        let (mut parts, incoming) = response.into_parts();
        if parts.status != StatusCode::SWITCHING_PROTOCOLS {
            head::clean(&mut parts, incoming.size_hint().exact().filter(|_| !incoming.is_end_stream()));
            return Answering::Now(Some(Ok(self.send(parts, Source::of(incoming, via), AnsweredBy::Server))));
        }
        // Nobody may switch who was not asked to.
        let (Upgrade::Asked, Via::Line { line, .. }) = (self.upgrade, via) else {
            return Answering::Now(Some(Ok(self.fail(Failure::Broken))));
        };
        Answering::Later(Box::pin(async move {
            let Some((stream, said)) = line.into_wire().await else {
                return Ok(self.fail(Failure::Broken));
            };
            *self.answer.client.tunnel.borrow_mut() = Some(Box::new(Tunnel::new(stream, said)));
            Ok(self.send(parts, Source::Empty, AnsweredBy::Server))
        }))
    }

    fn fail(self, failure: Failure) -> Response<AnswerBody<J::Case>> {
        let (parts, source) = text(failure.answer());
        self.send(parts, source, AnsweredBy::Gateway)
    }

    /// Settles an answer, and sends it.
    fn send(
        self,
        mut parts: response::Parts,
        source: Source,
        by: AnsweredBy,
    ) -> Response<AnswerBody<J::Case>> {
        let Self { judge, id, mut answer, .. } = self;
        let (source, settled) = match &mut answer.case {
            Some(case) => (source.slowed(judge.rates(case).down), judge.settle(case, &mut parts)),
            None => (source, Settled::Send),
        };
        match settled {
            Settled::Send => {
                judge.answered(parts.status, by);
                head::name(&mut parts.headers, &id, &answer.client);
                answer.note(&mut parts);
                answer.source = source;
                Response::from_parts(parts, answer)
            }
            Settled::Instead(given) => own(&*judge, given, &id, answer),
        }
    }
}

// Nothing in it is pinned.
impl<J: Judge> Unpin for Answering<J> {}

impl<J: Judge> Future for Answering<J> {
    type Output = Answered<J>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered<J>> {
        loop {
            *self = match &mut *self {
                Self::Now(answered) => return answered.take().map_or(Poll::Pending, Poll::Ready),
                Self::Later(later) => return later.as_mut().poll(context),
                Self::AtHand(with) => {
                    let Some((_, at_hand)) = with else { return Poll::Pending };
                    let answered = ready!(at_hand.poll(context));
                    let Some((exchange, at_hand)) = with.take() else { return Poll::Pending };
                    exchange.conclude(at_hand, answered)
                }
            };
        }
    }
}

/// An answer to a request whose body nobody wants.
fn unheard<J: Judge>(
    mut response: Response<AnswerBody<J::Case>>,
    request: &request::Parts,
    incoming: Incoming,
    client: Rc<Client>,
) -> Answering<J> {
    // HTTP/2 has a word for it.
    if incoming.is_end_stream() || request.version == Version::HTTP_2 {
        return Answering::Now(Some(Ok(response)));
    }
    let is_asked_for = request.headers.contains_key(header::EXPECT);
    let is_closing = response.headers().contains_key(header::CONNECTION);
    Answering::Later(Box::pin(async move {
        if is_asked_for || is_closing || unread::skip(incoming, &client).await == Left::Something {
            response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
            client.is_unheard();
        }
        Ok(response)
    }))
}

/// An answer that no server gave.
fn own<J: Judge>(
    judge: &J,
    given: Response<Bytes>,
    id: &HeaderValue,
    mut answer: AnswerBody<J::Case>,
) -> Response<AnswerBody<J::Case>> {
    let (mut parts, source) = text(given);
    judge.answered(parts.status, AnsweredBy::Gateway);
    head::name(&mut parts.headers, id, &answer.client);
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
