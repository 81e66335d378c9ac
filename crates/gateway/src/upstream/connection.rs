//! One HTTP/1.1 connection to a server, driven by the task that uses it.
//!
//! The task of the client connection polls it: a response is read, processed and written in one poll. An idle connection has no
//! task and no buffers.
//!
//! ```text
//!   send ──▶ PendingResponse ──poll: head──▶ UpstreamConnection ──poll_frame: body──▶ idle
//!                 └────────────── the body of the request is sent meanwhile ──────┘
//! ```

use super::ResponseDeadline;
use crate::{
    body_writer::{BodyWriter, WrittenBody},
    http1::{
        BodyDecoder, BodyStep, CHUNKED_FIELD, HeadScanner, ParsedResponse, ResponseFraming, parse_response,
        write_request,
    },
    proxy::{IncompleteBody, RequestBody},
    receive_buffer::ReceiveBuffer,
    send_buffer::{MAX_COPIED_FRAME, SendBuffer},
};
use bytes::Bytes;
use http::StatusCode;
use hyper::body::{Body, Frame};
use std::{
    io,
    pin::Pin,
    task::{Context, Poll, Waker},
};
use tidegate_http_server::Stream;
use tidegate_policy::head::{BodyFraming, ParsedRequest};

/// An HTTP/1.1 connection to a server.
pub(crate) struct UpstreamConnection {
    stream: Stream,
    input: ReceiveBuffer,
    output: SendBuffer,
    scanner: HeadScanner,
    upload: UploadState,
    /// The body of the response.
    decoder: BodyDecoder,
    reuse: Reuse,
    interim_responses: usize,
    deadline: ResponseDeadline,
    /// The time of the last response.
    last_used: u64,
}

/// A request to a server.
pub(crate) struct UpstreamRequest {
    pub(crate) head: ParsedRequest,
    pub(crate) body: RequestBody,
}

/// A request in flight on a connection.
pub(crate) struct PendingResponse {
    connection: Box<UpstreamConnection>,
    request: ParsedRequest,
}

/// Whether another head follows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HeadKind {
    Interim,
    Final,
}

/// The state of the body of the request.
enum UploadState {
    Complete,
    Sending(RequestBody, BodyWriter),
    /// It ended with an error.
    Failed,
}

/// Whether the connection can be used for another request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reuse {
    Yes,
    No,
}

/// The body of the request is invalid, or the client disconnected. The server must not take it for a complete one.
struct IncompleteUpload;

/// The error of a request to a server.
#[derive(Debug)]
pub(crate) enum UpstreamSendError {
    /// No connection to the server.
    Unreachable(io::Error),
    /// The connection was closed before a byte of the response.
    Closed,
    /// The response is incomplete or not HTTP.
    BadResponse,
    /// The server timed out.
    Timeout,
}

/// The maximum size of the head of a response.
const MAX_HEAD_SIZE: usize = 64 * 1_024;
/// The largest frame of a response.
const MAX_FRAME_SIZE: usize = 32 * 1_024;
/// The maximum number of interim responses, such as 103.
const MAX_INTERIM_RESPONSES: usize = 16;

/// The maximum idle time of a connection, in milliseconds. Many servers close theirs after 60 seconds.
pub(super) const MAX_IDLE_TIME: u64 = 30_000;
const STALE_IDLE_TIME: u64 = 1_000;

impl UpstreamConnection {
    pub(super) fn new(stream: Stream, deadline: ResponseDeadline) -> Box<Self> {
        Box::new(Self {
            stream,
            input: ReceiveBuffer::default(),
            output: SendBuffer::default(),
            scanner: HeadScanner::default(),
            upload: UploadState::Complete,
            decoder: BodyDecoder::for_response(ResponseFraming::None),
            reuse: Reuse::Yes,
            interim_responses: 0,
            deadline,
            last_used: 0,
        })
    }

    /// Sends a request.
    #[inline]
    pub(crate) fn send(mut self: Box<Self>, request: UpstreamRequest) -> PendingResponse {
        let UpstreamRequest { head, body } = request;
        self.deadline.start(body.progress());
        // Ambiguous lengths were rejected before. With a length of 0, a body is an error.
        let writer = match head.framing() {
            Ok(BodyFraming::Length(length)) => BodyWriter::Length(length),
            Ok(BodyFraming::Chunked | BodyFraming::None) => BodyWriter::Chunked,
            Err(_) => BodyWriter::Length(0),
        };
        let coding: &[u8] = match writer {
            BodyWriter::Chunked if !body.is_end_stream() => CHUNKED_FIELD,
            _ => b"",
        };
        write_request(self.output.bytes_mut(), &head, coding);
        self.upload = match writer {
            _ if !body.is_end_stream() => UploadState::Sending(body, writer),
            BodyWriter::Length(1..) => UploadState::Failed,
            _ => UploadState::Complete,
        };
        PendingResponse { connection: self, request: head }
    }

    /// Sends what is ready of the request. An error of the connection is not reported, because the server may have responded
    /// before it closed the connection.
    #[inline]
    fn poll_send(&mut self, context: &mut Context<'_>) -> Result<(), IncompleteUpload> {
        if self.is_request_sent() {
            return Ok(());
        }
        loop {
            while let UploadState::Sending(body, writer) = &mut self.upload
                && self.output.has_room()
            {
                let Poll::Ready(frame) = Pin::new(&mut *body).poll_frame(context) else { break };
                let written =
                    frame.transpose().and_then(|frame| writer.write_frame(&mut self.output, frame, &*body));
                match written {
                    Ok(WrittenBody::Incomplete) => {}
                    Ok(WrittenBody::Complete) => self.upload = UploadState::Complete,
                    Err(IncompleteBody) => self.upload = UploadState::Failed,
                }
            }
            if matches!(self.upload, UploadState::Failed) {
                self.reuse = Reuse::No;
                return Err(IncompleteUpload);
            }
            if self.output.is_sent() {
                return Ok(());
            }
            match self.output.poll_flush(&mut self.stream, context) {
                Poll::Pending => {
                    self.deadline.on_write_blocked();
                    return Ok(());
                }
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => {
                    (self.reuse, self.upload) = (Reuse::No, UploadState::Complete);
                    self.output = SendBuffer::default();
                    return Ok(());
                }
            }
        }
    }

    /// Polls for the next frame of a response.
    #[inline]
    pub(crate) fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamSendError>>> {
        if self.poll_send(context).is_err() {
            return Poll::Ready(Some(Err(UpstreamSendError::BadResponse)));
        }
        loop {
            let Ok((framing, step)) = self.decoder.decode(limit(self.input.bytes())) else {
                self.reuse = Reuse::No;
                return Poll::Ready(Some(Err(UpstreamSendError::BadResponse)));
            };
            self.input.advance(framing);
            match step {
                BodyStep::Data(length) => {
                    return Poll::Ready(Some(Ok(Frame::data(self.input.split_to(length)))));
                }
                BodyStep::Complete(trailers) => {
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                BodyStep::NeedInput => {}
            }
            match self.input.poll_read(&mut self.stream, context) {
                Poll::Ready(Ok(1..)) => self.deadline.on_data(),
                Poll::Ready(Ok(_)) if self.decoder.ends_at_close() => {
                    self.reuse = Reuse::No;
                    self.decoder = BodyDecoder::for_response(ResponseFraming::None);
                    return Poll::Ready(None);
                }
                Poll::Ready(_) => {
                    self.reuse = Reuse::No;
                    return Poll::Ready(Some(Err(UpstreamSendError::BadResponse)));
                }
                Poll::Pending if self.deadline.poll_expired(context) => {
                    self.reuse = Reuse::No;
                    return Poll::Ready(Some(Err(UpstreamSendError::Timeout)));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Appends the rest of the body to `out`, if it is small and was received; returns its length. Nothing is allocated.
    #[inline]
    pub(crate) fn take_received_body(&mut self, out: &mut Vec<u8>) -> Option<usize> {
        let length = self.decoder.remaining().and_then(|length| usize::try_from(length).ok())?;
        let body = self.input.bytes().get(..length).filter(|body| body.len() <= MAX_COPIED_FRAME)?;
        if !self.is_request_sent() {
            return None;
        }
        out.extend_from_slice(body);
        self.input.advance(length);
        self.decoder = BodyDecoder::for_response(ResponseFraming::None);
        Some(length)
    }

    /// Parses the head at the start of the input.
    #[inline]
    fn read_head(
        &mut self,
        length: usize,
        method: &str,
        response: &mut ParsedResponse,
    ) -> Result<HeadKind, UpstreamSendError> {
        let head = self.input.bytes().get(..length).unwrap_or_default();
        parse_response(head, response).map_err(|_| UpstreamSendError::BadResponse)?;
        self.input.advance(length);
        if response.status.is_informational() && response.status != StatusCode::SWITCHING_PROTOCOLS {
            self.interim_responses += 1;
            let is_flood = self.interim_responses > MAX_INTERIM_RESPONSES;
            return if is_flood { Err(UpstreamSendError::BadResponse) } else { Ok(HeadKind::Interim) };
        }
        self.interim_responses = 0;
        let framing = response.framing(method).map_err(|_| UpstreamSendError::BadResponse)?;
        self.decoder = BodyDecoder::for_response(framing);
        if !response.keeps_alive() {
            self.reuse = Reuse::No;
        }
        Ok(HeadKind::Final)
    }

    /// Whether the body of the response is complete.
    #[inline]
    pub(crate) fn is_response_complete(&self) -> bool {
        self.decoder.is_complete()
    }

    /// The remaining length of the body of the response, if it is known.
    pub(crate) fn remaining(&self) -> Option<u64> {
        self.decoder.remaining()
    }

    /// Called when the response is complete; returns whether the connection can be reused.
    #[inline]
    pub(super) fn finish_response(&mut self, now: u64) -> bool {
        self.last_used = now;
        self.deadline.clear();
        // Bytes after the response belong to no request.
        self.reuse == Reuse::Yes
            && self.decoder.is_complete()
            && self.input.bytes().is_empty()
            && self.is_request_sent()
    }

    /// Whether the whole request is sent.
    #[inline]
    pub(crate) fn is_request_sent(&self) -> bool {
        matches!(self.upload, UploadState::Complete) && self.output.is_sent()
    }

    /// Sends what is ready of the request, while the client does not read the response.
    pub(crate) fn poll_upload(&mut self, context: &mut Context<'_>) {
        // The next poll of the body reports an incomplete upload again.
        let _ = self.poll_send(context);
    }

    /// Whether the connection has been idle for so long that the server may be closing it.
    #[inline]
    pub(super) fn is_stale(&self, now: u64) -> bool {
        now.saturating_sub(self.last_used) > STALE_IDLE_TIME
    }

    /// Whether an idle connection is open. A server that sends something without a request is not trusted.
    #[inline]
    pub(super) fn is_open(&mut self) -> bool {
        // No system call, unless the runtime has reported an event.
        if let Stream::Plain(stream) = &self.stream {
            let read = stream.try_read(&mut [0]);
            return read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock);
        }
        // Over TLS it may be a session ticket. Without an event no buffer is needed.
        let mut context = Context::from_waker(Waker::noop());
        self.stream.poll_read_ready(&mut context).is_pending()
            || self.input.poll_read(&mut self.stream, &mut context).is_pending()
    }

    /// Whether the connection is open and not idle for too long.
    pub(super) fn is_reusable(&mut self, now: u64) -> bool {
        let is_open = self.is_open();
        if self.is_stale(now) {
            self.input.release();
        }
        is_open && now.saturating_sub(self.last_used) < MAX_IDLE_TIME
    }

    /// Returns the stream after a 101 response, with the bytes that were already read.
    pub(crate) fn into_stream(mut self: Box<Self>) -> (Stream, Bytes) {
        let received = self.input.take();
        (self.stream, received)
    }
}

/// A frame is a part of the buffer, so its size bounds the memory of a slow client.
fn limit(input: &[u8]) -> &[u8] {
    &input[..input.len().min(MAX_FRAME_SIZE)]
}

impl PendingResponse {
    /// Polls for the head of the response, within the timeout after the last frame of the request. `response` receives it.
    #[inline]
    pub(crate) fn poll(
        &mut self,
        response: &mut ParsedResponse,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), UpstreamSendError>> {
        let connection = &mut *self.connection;
        if connection.poll_send(context).is_err() {
            return Poll::Ready(Err(UpstreamSendError::BadResponse));
        }
        loop {
            match connection.scanner.find_end(connection.input.bytes(), MAX_HEAD_SIZE) {
                Ok(Some(length)) => {
                    if connection.read_head(length, self.request.method(), response)? == HeadKind::Final {
                        connection.deadline.on_data();
                        return Poll::Ready(Ok(()));
                    }
                    continue;
                }
                Ok(None) => {}
                Err(_) => return Poll::Ready(Err(UpstreamSendError::BadResponse)),
            }
            match connection.input.poll_read(&mut connection.stream, context) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(_) if connection.input.bytes().is_empty() => {
                    return Poll::Ready(Err(UpstreamSendError::Closed));
                }
                Poll::Ready(_) => return Poll::Ready(Err(UpstreamSendError::BadResponse)),
                Poll::Pending if connection.deadline.poll_expired(context) => {
                    return Poll::Ready(Err(UpstreamSendError::Timeout));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    /// Returns the connection after the response head, and the head of the request.
    pub(crate) fn into_parts(self) -> (Box<UpstreamConnection>, ParsedRequest) {
        (self.connection, self.request)
    }

    /// The head of the request.
    pub(crate) fn request(&self) -> &ParsedRequest {
        &self.request
    }
}
