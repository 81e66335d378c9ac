//! The body of a request to a server.

use super::{ProxyError, buffered_body::BufferedBody};
use crate::{
    client::{ClientBody, ClientConnection},
    deadline::Deadline,
    http1::strip_request_trailers,
    transfer_pace::TransferPace,
};
use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use std::{
    cell::Cell,
    fmt,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};
use tidegate_bandwidth::{Bandwidth, ShapedStream};
use tidegate_policy::head::{BodyFraming, HeadError};

/// The body of a request to a server.
pub(crate) enum RequestBody {
    Empty,
    Upload(Box<Upload>),
    /// A body with a bandwidth limit. Its frames are cut to the allowed size, and the next one is read from the client
    /// when the last byte of the previous one was forwarded.
    Throttled(Box<ShapedStream<Self>>),
}

/// A body that is read from the client as fast as the server reads it.
pub(crate) struct Upload {
    /// `None` after it was taken.
    incoming: Option<IncomingBody>,
    /// The remaining bytes of the size limit.
    remaining: u64,
    client: Rc<ClientConnection>,
    /// Set while the client sends nothing.
    deadline: Option<Deadline>,
    pace: TransferPace,
    progress: UploadProgress,
}

/// The body of a request as it arrives.
pub(crate) enum IncomingBody {
    Http1(ClientBody),
    Http2(Incoming),
    /// Its start was received for the rules.
    Buffered(Box<BufferedBody>),
}

/// The progress of an upload, for the deadline of the response.
#[derive(Clone, Debug)]
pub(crate) struct UploadProgress(Rc<UploadProgressState>);

#[derive(Debug)]
struct UploadProgressState {
    error: Cell<Option<ProxyError>>,
    phase: Cell<UploadPhase>,
}

/// The phase of an upload. Times are in milliseconds of the worker's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UploadPhase {
    /// Since this time the server can read: the last frame was sent, or a part of it could not be sent.
    Writable(u64),
    /// The client has not sent the next frame, or a bandwidth limit delays it.
    AwaitingClient,
    /// The last frame was sent to the server at this time.
    Complete(u64),
}

/// A body that ends too early, or with another length than its head has.
#[derive(Debug)]
pub(crate) struct IncompleteBody;

impl RequestBody {
    /// A body that is limited by all of these rates.
    pub(super) fn new(incoming: IncomingBody, client: &Rc<ClientConnection>, rates: &[Bandwidth]) -> Self {
        if incoming.is_end_stream() {
            return Self::Empty;
        }
        let upload = Upload {
            incoming: Some(incoming),
            remaining: client.worker.settings.head_limits.body_size,
            client: client.clone(),
            deadline: None,
            pace: TransferPace::default(),
            progress: UploadProgress::new(client.worker.deadlines.now()),
        };
        // The body timeout does not run while a limit delays reads.
        rates.iter().fold(Self::Upload(Box::new(upload)), |body, rate| {
            Self::Throttled(Box::new(rate.limit_reads(body)))
        })
    }

    fn upload(&self) -> Option<&Upload> {
        match self {
            Self::Empty => None,
            Self::Upload(upload) => Some(upload),
            Self::Throttled(throttled) => throttled.get_ref().upload(),
        }
    }

    /// Returns the rest of the body of the client; `None` for an empty body, and for one with bandwidth limits.
    pub(super) fn into_incoming(self) -> Option<IncomingBody> {
        match self {
            Self::Upload(mut upload) => upload.incoming.take(),
            Self::Empty | Self::Throttled(_) => None,
        }
    }

    /// The progress of the upload; `None` for an empty body.
    pub(crate) fn progress(&self) -> Option<UploadProgress> {
        self.upload().map(|upload| upload.progress.clone())
    }
}

impl IncomingBody {
    /// Sets how the body ends. In HTTP/2 the stream ends.
    pub(super) fn set_framing(&mut self, framing: BodyFraming) {
        if let Self::Http1(body) = self {
            body.set_framing(framing);
        }
    }

    /// Drops a body that was received with its head.
    pub(super) fn discard_received(&mut self) {
        if let Self::Http1(body) = self {
            body.discard_received();
        }
    }

    pub(super) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        match self {
            Self::Http1(body) => body
                .poll_frame(context)
                .map(|frame| frame.map(|frame| frame.map_err(|_| ProxyError::InvalidBody))),
            Self::Http2(body) => poll_http2_frame(body, context)
                .map(|frame| frame.map(|frame| frame.map_err(|_| ProxyError::InvalidBody))),
            Self::Buffered(body) => body.poll_frame(context),
        }
    }

    pub(super) fn is_end_stream(&self) -> bool {
        match self {
            Self::Http1(body) => body.is_complete(),
            Self::Http2(body) => body.is_end_stream(),
            Self::Buffered(body) => body.is_end_stream(),
        }
    }

    pub(super) fn size_hint(&self) -> SizeHint {
        match self {
            Self::Http1(body) => body.remaining().map(SizeHint::with_exact).unwrap_or_default(),
            Self::Http2(body) => body.size_hint(),
            Self::Buffered(body) => body.size_hint(),
        }
    }
}

/// Polls for the next frame of a body that is received over HTTP/2. hyper reports a stream that was reset without an error as the end
/// of its body. It is the end only if the peer has marked it.
pub(super) fn poll_http2_frame(
    body: &mut Incoming,
    context: &mut Context<'_>,
) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
    match Pin::new(&mut *body).poll_frame(context) {
        Poll::Ready(None) if !body.is_end_stream() => Poll::Ready(Some(Err(IncompleteBody))),
        polled => polled.map(|frame| frame.map(|frame| frame.map_err(|_| IncompleteBody))),
    }
}

impl RequestBody {
    /// Records the progress. With limits, the outermost one records last.
    fn record_progress<E>(&self, polled: &Poll<Option<Result<Frame<Bytes>, E>>>) {
        let Some(upload) = self.upload() else { return };
        let now = upload.client.worker.deadlines.now();
        upload.progress.0.phase.set(match polled {
            Poll::Pending => UploadPhase::AwaitingClient,
            Poll::Ready(Some(_)) if !self.is_end_stream() => UploadPhase::Writable(now),
            Poll::Ready(_) => UploadPhase::Complete(now),
        });
    }
}

impl UploadProgress {
    fn new(now: u64) -> Self {
        let progress = Cell::new(UploadPhase::Writable(now));
        Self(Rc::new(UploadProgressState { error: Cell::new(None), phase: progress }))
    }

    /// The error of the body.
    pub(super) fn error(&self) -> Option<ProxyError> {
        self.0.error.get()
    }

    pub(crate) fn phase(&self) -> UploadPhase {
        self.0.phase.get()
    }

    /// Called when the server has not read what was sent. The client may have nothing more to send.
    pub(crate) fn on_write_blocked(&self, now: u64) {
        if self.phase() == UploadPhase::AwaitingClient {
            self.0.phase.set(UploadPhase::Writable(now));
        }
    }
}

impl Upload {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let frame = match incoming.poll_frame(context) {
            Poll::Ready(frame) => frame,
            Poll::Pending => return self.poll_timeout(context),
        };
        if self.deadline.take().is_some() {
            self.pace.end_wait(self.client.worker.deadlines.now());
        }
        Poll::Ready(frame.map(|frame| {
            let mut frame = frame?;
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            self.pace.add_bytes(length);
            self.remaining =
                self.remaining.checked_sub(length).ok_or(ProxyError::Head(HeadError::TooLarge))?;
            if let Some(trailers) = frame.trailers_mut() {
                strip_request_trailers(trailers, self.client.worker.settings.head_limits.underscores);
            }
            Ok(frame)
        }))
    }

    fn poll_timeout(&mut self, context: &Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ProxyError>>> {
        let worker = &self.client.worker;
        let deadline = self.deadline.get_or_insert_with(|| {
            let deadline = worker.deadlines.new_deadline();
            deadline.set(self.pace.start_wait(worker.deadlines.now(), worker.settings.pace_limits()));
            deadline
        });
        if deadline.is_expired() {
            return Poll::Ready(Some(Err(ProxyError::BodyTimeout)));
        }
        deadline.register(context);
        Poll::Pending
    }
}

impl Body for Upload {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let upload = self.get_mut();
        upload.poll_next(context).map(|frame| {
            frame.map(|frame| {
                frame.map_err(|failure| {
                    upload.progress.0.error.set(Some(failure));
                    IncompleteBody
                })
            })
        })
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(IncomingBody::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(|| SizeHint::with_exact(0), IncomingBody::size_hint)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.incoming.is_some() && !matches!(self.progress.phase(), UploadPhase::Complete(_)) {
            self.client.mark_unread_body();
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = IncompleteBody;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, IncompleteBody>>> {
        let body = self.get_mut();
        let polled = match body {
            Self::Empty => return Poll::Ready(None),
            Self::Upload(upload) => Pin::new(&mut **upload).poll_frame(context),
            Self::Throttled(throttled) => Pin::new(&mut **throttled).poll_frame(context),
        };
        body.record_progress(&polled);
        polled
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Upload(upload) => upload.is_end_stream(),
            Self::Throttled(throttled) => throttled.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Empty => SizeHint::with_exact(0),
            Self::Upload(upload) => upload.size_hint(),
            Self::Throttled(throttled) => throttled.size_hint(),
        }
    }
}

impl fmt::Debug for RequestBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RequestBody")
    }
}

impl fmt::Display for IncompleteBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("incomplete body")
    }
}

impl std::error::Error for IncompleteBody {}
