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
    Action, FilterDecision, FilterResult, RequestFilter,
    client::{Client, Tunnel},
    telemetry::RequestTelemetry,
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
use tidegate_observe::AnsweredBy;
use unread::Left;

/// The connection is to be closed without a word.
#[derive(Debug)]
pub(crate) struct Dropped;

/// A request on its way to its answer. It is moved about for each request, so what only few of them need is elsewhere.
pub(crate) enum Answering<F: RequestFilter> {
    /// The answer is there.
    Now(Option<Answered<F>>),
    /// It is with a server.
    AtHand(Option<(Exchange<F>, AtHand)>),
    /// There is something to be waited for besides an answer.
    Later(Pin<Box<dyn Future<Output = Answered<F>>>>),
}

type Answered<F> = Result<Response<AnswerBody<F>>, Dropped>;

/// What is known of a request while it is on its way.
pub(crate) struct Exchange<F: RequestFilter> {
    id: HeaderValue,
    upgrade: Upgrade,
    /// The address of the client, by which servers are chosen.
    address: IpAddr,
    /// Whenever this is dropped, the request is over.
    answer: AnswerBody<F>,
}

/// Answers a request.
pub(crate) fn answer<F: RequestFilter>(
    client: Rc<Client>,
    filter: Arc<F>,
    request: Request<Incoming>,
) -> Answering<F> {
    let (mut parts, incoming) = request.into_parts();
    let id = head::id(&parts, &client);
    if parts.version < Version::HTTP_11 {
        client.is_old();
    }
    let origin = client.worker.origin_of(&parts, &client.origin);
    let telemetry = RequestTelemetry::begin(&mut parts, &id, &origin, &client.worker);
    let answer = AnswerBody::new(client.clone(), filter, telemetry);
    let is_trusted = || client.worker.trusts(client.origin.peer.ip());
    let (limits, length) = (&client.worker.terms.head, incoming.size_hint().exact());
    if let Err(error) = tidegate_policy::head::check(&mut parts, limits, length, is_trusted) {
        let given = Failure::Head(error).answer();
        return unheard(own(given, &id, answer), &parts, incoming, client);
    }
    let result = answer.filter.filter(&mut parts, &origin);
    let exchange = Exchange { id, upgrade: Upgrade::NotAsked, address: origin.client, answer };
    match result {
        FilterResult::Now(decision) => exchange.dispatch(decision, parts, incoming),
        FilterResult::Later(decision) => {
            Answering::Later(Box::pin(
                async move { exchange.dispatch(decision.await, parts, incoming).await },
            ))
        }
    }
}

impl<F: RequestFilter> Exchange<F> {
    /// The filter has decided.
    fn dispatch(
        mut self,
        decision: FilterDecision<F::Context>,
        mut parts: request::Parts,
        incoming: Incoming,
    ) -> Answering<F> {
        let client = self.answer.client.clone();
        self.answer.telemetry.on_decision(decision.note);
        let context = self.answer.context.insert(decision.context);
        let target = match decision.action {
            Action::Forward(target) => target,
            Action::Respond(given) => {
                return unheard(own(given, &self.id, self.answer), &parts, incoming, client);
            }
            Action::Drop => return Answering::Now(Some(Err(Dropped))),
        };
        self.upgrade = head::prepare(&mut parts, &client, &self.id);
        let body = RequestBody::of(incoming, &client, self.answer.filter.rates(context).up);
        let Some(upstream) = client.worker.upstreams.get(target.0) else {
            return Answering::Now(Some(Ok(self.fail(Failure::NoServer))));
        };
        let request = Request::from_parts(parts, body);
        match forward::begin(&client, self.address, upstream, request, &mut self.answer.telemetry) {
            Ok(at_hand) => Answering::AtHand(Some((self, at_hand))),
            Err(rest) => self.forward(upstream.clone(), rest),
        }
    }

    /// It takes longer.
    #[cold]
    fn forward(mut self, upstream: Rc<Upstream>, rest: Box<Rest>) -> Answering<F> {
        Answering::Later(Box::pin(async move {
            let client = self.answer.client.clone();
            let telemetry = &mut self.answer.telemetry;
            match forward::forward(&client, self.address, &upstream, rest, telemetry).await {
                Ok((response, via)) => self.take(response, via).await,
                Err(failure) => Ok(self.fail(failure)),
            }
        }))
    }

    /// It has reached a server, or not.
    fn conclude(mut self, at_hand: AtHand, answered: Result<Response<Incoming>, Unsent>) -> Answering<F> {
        let client = self.answer.client.clone();
        let upstream = at_hand.upstream().clone();
        match at_hand.conclude(answered, &client, &mut self.answer.telemetry) {
            Ok(Ok((response, via))) => self.take(response, via),
            Ok(Err(failure)) => Answering::Now(Some(Ok(self.fail(failure)))),
            Err(rest) => self.forward(upstream, rest),
        }
    }

    /// Takes over the answer of a server.
    fn take(self, response: Response<Incoming>, via: Via) -> Answering<F> {
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

    fn fail(self, failure: Failure) -> Response<AnswerBody<F>> {
        let (parts, source) = text(failure.answer());
        self.send(parts, source, AnsweredBy::Gateway)
    }

    /// Settles an answer, and sends it.
    fn send(self, mut parts: response::Parts, source: Source, by: AnsweredBy) -> Response<AnswerBody<F>> {
        let Self { id, mut answer, .. } = self;
        let Some(context) = &mut answer.context else { return answer.respond(parts, source, by, &id) };
        let source = source.slowed(answer.filter.rates(context).down);
        match answer.filter.on_response(context, &mut parts) {
            None => answer.respond(parts, source, by, &id),
            Some(given) => own(given, &id, answer),
        }
    }
}

// Nothing in it is pinned.
impl<F: RequestFilter> Unpin for Answering<F> {}

impl<F: RequestFilter> Future for Answering<F> {
    type Output = Answered<F>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered<F>> {
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
fn unheard<F: RequestFilter>(
    mut response: Response<AnswerBody<F>>,
    request: &request::Parts,
    incoming: Incoming,
    client: Rc<Client>,
) -> Answering<F> {
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
fn own<F: RequestFilter>(
    given: Response<Bytes>,
    id: &HeaderValue,
    answer: AnswerBody<F>,
) -> Response<AnswerBody<F>> {
    let (parts, source) = text(given);
    answer.respond(parts, source, AnsweredBy::Gateway, id)
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
