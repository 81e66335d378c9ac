//! The body of a request that rules read before the decision.

use super::{
    ProxyError,
    request_body::{IncomingBody, RequestBody},
};
use crate::{ParsedBody, client::ClientConnection};
use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use std::{
    future::poll_fn,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};
use tidegate_observe::RequestBodyOutcome;
use tidegate_policy::head::ParsedRequest;
use tidegate_rule::body::{BodyFormat, BodyScanner, JsonPointer, ScanState};

/// A body whose start was received.
pub(crate) struct BufferedBody {
    /// Received data that are not forwarded.
    data: Bytes,
    trailers: Option<HeaderMap>,
    /// `None` if everything was received.
    rest: Option<IncomingBody>,
}

/// Receives a body, up to the limit of the policy, and finds the values of these pointers. The result has the body to forward.
pub(super) async fn parse_body(
    incoming: IncomingBody,
    request: &ParsedRequest,
    pointers: Arc<[JsonPointer]>,
    client: &Rc<ClientConnection>,
) -> Result<(IncomingBody, ParsedBody), ProxyError> {
    let max = client.worker.settings.max_parsed_body_size;
    let unparsed = |outcome| ParsedBody { values: None, outcome };
    if request.fields.contains(b"content-encoding") {
        return Ok((incoming, unparsed(RequestBodyOutcome::Invalid)));
    }
    if incoming.size_hint().exact().is_some_and(|length| length > max) {
        return Ok((incoming, unparsed(RequestBodyOutcome::TooLarge)));
    }
    let mut scanner = BodyScanner::new(pointers, BodyFormat::Json);
    let mut body = RequestBody::new(incoming, client, &[]);
    let (mut data, mut trailers) = (BytesMut::new(), None);
    let mut is_complete = body.is_end_stream();
    while !is_complete && data.len() as u64 <= max {
        match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
            None => is_complete = true,
            Some(Err(_)) => {
                let error = body.progress().and_then(|progress| progress.error());
                return Err(error.unwrap_or(ProxyError::InvalidBody));
            }
            Some(Ok(frame)) => {
                match frame.into_data() {
                    Ok(part) => {
                        scanner.push(&part);
                        // A copy, so that many small chunks take no more memory than one large body.
                        data.extend_from_slice(&part);
                    }
                    Err(frame) => trailers = frame.into_trailers().ok(),
                }
                is_complete = body.is_end_stream();
            }
        }
    }
    let parsed = match is_complete {
        false => unparsed(RequestBodyOutcome::TooLarge),
        true => {
            let values = scanner.finish();
            match values.state() {
                ScanState::Complete => {
                    ParsedBody { values: Some(values), outcome: RequestBodyOutcome::Parsed }
                }
                ScanState::Incomplete | ScanState::Invalid => unparsed(RequestBodyOutcome::Invalid),
            }
        }
    };
    let rest = body.into_incoming().filter(|_| !is_complete);
    Ok((IncomingBody::Buffered(Box::new(BufferedBody { data: data.freeze(), trailers, rest })), parsed))
}

impl BufferedBody {
    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        if !self.data.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(std::mem::take(&mut self.data)))));
        }
        match (self.trailers.take(), &mut self.rest) {
            (Some(trailers), _) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            (None, Some(rest)) => rest.poll_frame(context),
            (None, None) => Poll::Ready(None),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        self.data.is_empty()
            && self.trailers.is_none()
            && self.rest.as_ref().is_none_or(IncomingBody::is_end_stream)
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        let received = self.data.len() as u64;
        let rest = self.rest.as_ref().map(IncomingBody::size_hint).unwrap_or_else(|| SizeHint::with_exact(0));
        match rest.exact() {
            Some(rest) => SizeHint::with_exact(received + rest),
            None => SizeHint::default(),
        }
    }
}
