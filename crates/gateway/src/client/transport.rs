//! The bytes of an HTTP/1.1 client connection, and the body of its request.

use super::ClientIo;
use crate::{
    http1::{BodyDecoder, BodyStep, HeadScanner, leading_empty_lines},
    receive_buffer::ReceiveBuffer,
    send_buffer::SendBuffer,
};
use bytes::Bytes;
use hyper::body::Frame;
use std::{
    cell::RefCell,
    io,
    rc::Rc,
    task::{Context, Poll, Waker, ready},
};
use tidegate_policy::head::{BodyFraming, HeadError};

/// The IO and the buffers of an HTTP/1.1 connection. The connection and the body of the current request share it.
pub(super) struct Http1Transport {
    /// `None` after the connection has ended.
    io: Option<ClientIo>,
    input: ReceiveBuffer,
    pub(super) output: SendBuffer,
    scanner: HeadScanner,
    pub(super) request_body: RequestBodyState,
    pub(super) expectation: Expectation,
    /// The task that waits for the body of the request, if it is not that of the connection.
    body_waker: Option<Waker>,
}

/// Whether the body of the current request was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestBodyState {
    Incomplete,
    Complete,
}

/// The body of the current request.
pub(crate) struct ClientBody {
    transport: Rc<RefCell<Http1Transport>>,
    /// `None` if the head is invalid.
    decoder: Option<BodyDecoder>,
}

/// Whether the client waits for a 100 response before it sends the body. It ends with the first byte of the body or of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Expectation {
    Continue,
    None,
}

/// The body is invalid, or the client disconnected.
#[derive(Debug)]
pub(crate) struct InvalidClientBody;

const CONTINUE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";
/// The largest frame of a request.
const MAX_FRAME_SIZE: usize = 32 * 1_024;
/// The number of bytes of further requests that are read while a request is served.
const MAX_PIPELINED: usize = 8_192;

impl Http1Transport {
    pub(super) fn new(io: ClientIo) -> Rc<RefCell<Self>> {
        Rc::new(RefCell::new(Self {
            io: Some(io),
            input: ReceiveBuffer::default(),
            output: SendBuffer::default(),
            scanner: HeadScanner::default(),
            request_body: RequestBodyState::Complete,
            expectation: Expectation::None,
            body_waker: None,
        }))
    }

    /// The received bytes.
    #[inline]
    pub(super) fn input(&self) -> &[u8] {
        self.input.bytes()
    }

    /// Drops received bytes.
    #[inline]
    pub(super) fn advance(&mut self, count: usize) {
        self.input.advance(count);
    }

    /// Drops empty lines before a head. A part of them was scanned.
    #[inline]
    pub(super) fn skip_empty_lines(&mut self) {
        let length = leading_empty_lines(self.input.bytes());
        if length > 0 {
            self.input.advance(length);
            self.scanner = HeadScanner::default();
        }
    }

    /// The length of the next head; `None` if it is incomplete.
    #[inline]
    pub(super) fn find_head(&mut self, max_len: usize) -> Result<Option<usize>, HeadError> {
        self.scanner.find_end(self.input.bytes(), max_len)
    }

    /// Reads more; returns the number of bytes, and 0 at the end of the connection.
    #[inline]
    pub(super) fn poll_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        match &mut self.io {
            Some(io) => self.input.poll_read(io, context),
            None => Poll::Ready(Ok(0)),
        }
    }

    /// Waits until the client disconnects, while a request is served.
    #[inline]
    pub(super) fn poll_disconnect(&mut self, context: &mut Context<'_>) -> Poll<()> {
        if self.request_body == RequestBodyState::Incomplete {
            return Poll::Pending;
        }
        while self.input.bytes().len() < MAX_PIPELINED {
            if !matches!(ready!(self.poll_read(context)), Ok(1..)) {
                return Poll::Ready(());
            }
        }
        Poll::Pending
    }

    /// Sends what is buffered.
    #[inline]
    pub(super) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.io {
            Some(io) => self.output.poll_flush(io, context),
            None => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Ends the use of the connection. Received bytes are returned to it.
    pub(super) fn take_io(&mut self) -> Option<ClientIo> {
        let mut io = self.io.take()?;
        if let Some(waker) = self.body_waker.take() {
            waker.wake();
        }
        io.unread(self.input.bytes());
        Some(io)
    }
}

type PolledFrame = Poll<Option<Result<Frame<Bytes>, InvalidClientBody>>>;

impl Http1Transport {
    /// Polls for the next frame of the body of the current request.
    fn poll_body(&mut self, decoder: &mut BodyDecoder, context: &mut Context<'_>) -> PolledFrame {
        loop {
            let input = self.input.bytes();
            if !input.is_empty() {
                self.expectation = Expectation::None;
            }
            let Ok((framing, step)) = decoder.decode(&input[..input.len().min(MAX_FRAME_SIZE)]) else {
                return Poll::Ready(Some(Err(InvalidClientBody)));
            };
            self.advance(framing);
            if decoder.is_complete() {
                self.request_body = RequestBodyState::Complete;
            }
            match step {
                BodyStep::Data(length) => {
                    return Poll::Ready(Some(Ok(Frame::data(self.input.split_to(length)))));
                }
                BodyStep::Complete(trailers) => {
                    return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
                }
                BodyStep::NeedInput => {}
            }
            if self.expectation == Expectation::Continue {
                self.expectation = Expectation::None;
                self.output.bytes_mut().extend_from_slice(CONTINUE);
                // The connection sends it, because a socket wakes only one task for writes.
                self.wake_connection(context);
            }
            match self.poll_read(context) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(_) => return Poll::Ready(Some(Err(InvalidClientBody))),
                Poll::Pending => {
                    self.body_waker = self.is_other_task(context).then(|| context.waker().clone());
                    return Poll::Pending;
                }
            }
        }
    }

    /// Whether this is not the task of the connection.
    fn is_other_task(&self, context: &Context<'_>) -> bool {
        self.io.as_ref().is_some_and(|io| !io.client().is_task(context))
    }

    /// Wakes the task of the connection, if this is another one.
    fn wake_connection(&self, context: &Context<'_>) {
        if let Some(io) = &self.io {
            io.client().wake_from(context);
        }
    }
}

impl ClientBody {
    pub(super) fn new(transport: &Rc<RefCell<Http1Transport>>) -> Self {
        Self { transport: transport.clone(), decoder: None }
    }

    /// Sets how the body ends.
    pub(crate) fn set_framing(&mut self, framing: BodyFraming) {
        let decoder = BodyDecoder::for_request(framing);
        self.set_state(&decoder);
        self.decoder = Some(decoder);
    }

    fn set_state(&self, decoder: &BodyDecoder) {
        self.transport.borrow_mut().request_body =
            if decoder.is_complete() { RequestBodyState::Complete } else { RequestBodyState::Incomplete };
    }

    /// Whether the body is complete.
    pub(crate) fn is_complete(&self) -> bool {
        self.decoder.as_ref().is_some_and(BodyDecoder::is_complete)
    }

    /// The remaining length, if it is known.
    pub(crate) fn remaining(&self) -> Option<u64> {
        self.decoder.as_ref()?.remaining()
    }

    /// Drops the rest of the body, if its length is known and all of it was received.
    pub(crate) fn discard_received(&mut self) {
        let mut transport = self.transport.borrow_mut();
        let remaining = self.decoder.as_ref().and_then(BodyDecoder::remaining);
        let Some(length) = remaining.and_then(|length| usize::try_from(length).ok()) else { return };
        if length <= transport.input().len() {
            transport.advance(length);
            transport.request_body = RequestBodyState::Complete;
            self.decoder = Some(BodyDecoder::for_request(BodyFraming::None));
        }
    }

    /// Polls for the next frame.
    pub(crate) fn poll_frame(&mut self, context: &mut Context<'_>) -> PolledFrame {
        let Some(decoder) = &mut self.decoder else { return Poll::Ready(Some(Err(InvalidClientBody))) };
        let mut transport = self.transport.borrow_mut();
        let polled = transport.poll_body(decoder, context);
        if polled.is_ready() && (decoder.is_complete() || !matches!(polled, Poll::Ready(Some(Ok(_))))) {
            // From now on the connection waits for the client to disconnect, or it ends.
            transport.wake_connection(context);
        }
        polled
    }
}
