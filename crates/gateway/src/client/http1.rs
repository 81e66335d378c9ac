//! HTTP/1.1 requests on a client connection, until it is idle or ends.
//!
//! ```text
//!           head complete            head of the response         body sent
//!   Head ──────────────────▶ Exchange ──────────────────▶ Response ─────────▶ Head, or the end
//! ```

use super::{
    ClientBody, ClientConnection, ClientInput, ClientIo, ConnectionPhase, HttpVersion, Tunnel,
    transport::{Expectation, Http1Transport, RequestBodyState},
};
use crate::{
    body_writer::{BodyWriter, WrittenBody},
    http1::{
        CHUNKED_FIELD, ResponseFraming, frame_response, parse_request, parse_request_line,
        request_keeps_alive, write_response,
    },
    proxy::{
        self, IncomingBody, IncompleteBody, ProxyFuture, ProxyResponse, ProxyResponseBody, SharedResponse,
    },
};
use http::Version;
use hyper::body::Body;
use std::{
    cell::RefCell,
    future::{Future, poll_fn},
    pin::Pin,
    rc::Rc,
    task::{Context, Poll, ready},
};
use tidegate_http_server::Stream;
use tidegate_policy::head::{FieldKinds, HeadError, ParsedRequest};

/// Why the connection serves no more requests for now.
pub(super) enum Http1End {
    Closed,
    /// The last response is sent. The client may still be sending.
    Finished(ClientIo, ClientInput),
    /// The connection is idle, and its buffers can be released.
    Idle(Stream),
    /// The connection was upgraded to another protocol.
    Tunnel(ClientIo, Box<Tunnel>),
}

pub(super) async fn serve(io: ClientIo, client: Rc<ClientConnection>) -> Http1End {
    let _active = ActiveConnection::new(&client);
    let mut connection =
        Http1Connection { transport: Http1Transport::new(io), client, state: ConnectionState::Head };
    let reason = poll_fn(|context| connection.poll(context)).await;
    connection.end(reason)
}

/// A connection with buffers.
struct Http1Connection {
    transport: Rc<RefCell<Http1Transport>>,
    client: Rc<ClientConnection>,
    state: ConnectionState,
}

#[allow(
    clippy::large_enum_variant,
    reason = "most connections are in the largest state, and a box would cost an allocation"
)]
enum ConnectionState {
    /// Receives the head of a request.
    Head,
    /// Waits for the head of the response.
    Exchange(ProxyFuture, RequestInfo),
    /// Sends the response.
    Response(ResponseInProgress),
}

/// What the response depends on.
#[derive(Clone, Copy)]
struct RequestInfo {
    version: Version,
    method: MethodKind,
    keep_alive: KeepAlive,
}

impl RequestInfo {
    /// Whether the client speaks HTTP/1.1, and gets the body of the response.
    fn allows_shared_text(self) -> bool {
        self.version == Version::HTTP_11 && self.method == MethodKind::Other
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MethodKind {
    Head,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeepAlive {
    Yes,
    No,
}

struct ResponseInProgress {
    /// `None` after the last frame. The exchange is recorded when it is dropped, before the client can see the end of the response.
    body: Option<ProxyResponseBody>,
    writer: BodyWriter,
    keep_alive: KeepAlive,
}

impl Http1Connection {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<CloseReason> {
        self.client.deadline.register(context);
        match self.poll_requests(context) {
            Poll::Pending => self.poll_deadline(),
            ended => ended,
        }
    }

    fn poll_deadline(&self) -> Poll<CloseReason> {
        let client = &self.client;
        match (&self.state, client.phase.get()) {
            // The last response is sent.
            (ConnectionState::Head, ConnectionPhase::Idle)
                if client.deadline.is_expired()
                    || client.worker.active_connections.get() > MAX_ACTIVE_CONNECTIONS =>
            {
                Poll::Ready(CloseReason::Idle)
            }
            _ if client.deadline.is_expired() => Poll::Ready(CloseReason::Timeout),
            _ => Poll::Pending,
        }
    }

    fn poll_requests(&mut self, context: &mut Context<'_>) -> Poll<CloseReason> {
        loop {
            match &mut self.state {
                ConnectionState::Head => {
                    if let Some(reason) = ready!(self.poll_head(context)) {
                        return Poll::Ready(reason);
                    }
                }
                ConnectionState::Exchange(future, request) => match Pin::new(future).poll(context) {
                    Poll::Ready(Ok(response)) => {
                        let request = *request;
                        self.start_response(response, request);
                    }
                    Poll::Ready(Err(_)) => return Poll::Ready(CloseReason::ResponseAborted),
                    Poll::Pending => {
                        let mut transport = self.transport.borrow_mut();
                        if !transport.output.is_sent() {
                            // An interim response. An error is reported when the response is written.
                            let _ = transport.poll_flush(context);
                        }
                        ready!(transport.poll_disconnect(context));
                        return Poll::Ready(CloseReason::ResponseAborted);
                    }
                },
                ConnectionState::Response(response) => {
                    let Ok(()) = ready!(response.poll(&self.transport, context)) else {
                        return Poll::Ready(CloseReason::ResponseAborted);
                    };
                    if let Some(reason) = self.finish_response() {
                        return Poll::Ready(reason);
                    }
                }
            }
        }
    }

    /// Receives the head of a request, and starts its exchange.
    fn poll_head(&mut self, context: &mut Context<'_>) -> Poll<Option<CloseReason>> {
        let mut transport = self.transport.borrow_mut();
        let head = loop {
            transport.skip_empty_lines();
            match transport.find_head(self.client.worker.settings.max_header_size) {
                Ok(Some(length)) => break Ok(length),
                Err(error) => break Err(error),
                Ok(None) => {}
            }
            if self.client.worker.is_stopping() && transport.input().is_empty() {
                return Poll::Ready(Some(CloseReason::Ended));
            }
            if !matches!(ready!(transport.poll_read(context)), Ok(1..)) {
                return Poll::Ready(Some(CloseReason::Ended));
            }
        };
        let mut request = self.client.worker.heads.take_request();
        let parsed = head.and_then(|length| {
            parse_request(&transport.input()[..length], &mut request)?;
            transport.advance(length);
            Ok(())
        });
        if parsed.is_err() {
            parse_request_line(transport.input(), &mut request);
        }
        drop(transport);
        match parsed {
            Ok(()) => self.start_exchange(request),
            Err(error) => self.reject_head(request, error),
        }
        Poll::Ready(None)
    }

    fn start_exchange(&mut self, request: ParsedRequest) {
        let expects_continue = request.version == Version::HTTP_11
            && request.fields.may_contain(FieldKinds::HOP_BY_HOP)
            && request.fields.get(b"expect").is_some_and(is_continue);
        self.transport.borrow_mut().expectation =
            if expects_continue { Expectation::Continue } else { Expectation::None };
        let info = RequestInfo {
            version: request.version,
            method: if request.method() == "HEAD" { MethodKind::Head } else { MethodKind::Other },
            keep_alive: if request_keeps_alive(&request) { KeepAlive::Yes } else { KeepAlive::No },
        };
        if info.version < Version::HTTP_11 {
            self.client.set_http10();
        }
        let body = IncomingBody::Http1(ClientBody::new(&self.transport));
        let mut future = proxy::serve_request(self.client.clone(), request, body);
        if let ProxyFuture::Shared(response) = &mut future
            && info.allows_shared_text()
        {
            *response = response.take().and_then(|response| self.write_shared(response, info.keep_alive));
            if response.is_none() {
                return;
            }
        }
        self.state = ConnectionState::Exchange(future, info);
    }

    /// Writes a response that shares its text with others. Returns it if it must be built.
    fn write_shared(&mut self, response: SharedResponse, keep_alive: KeepAlive) -> Option<SharedResponse> {
        let mut transport = self.transport.borrow_mut();
        let date = self.client.worker.date.borrow();
        let connection: &[u8] = match keep_alive {
            KeepAlive::Yes => b"",
            KeepAlive::No => CONNECTION_CLOSE,
        };
        let response = response.write(transport.output.bytes_mut(), connection, date.as_bytes());
        if response.is_none() {
            transport.expectation = Expectation::None;
            self.state = ConnectionState::Response(ResponseInProgress {
                body: None,
                writer: BodyWriter::Length(0),
                keep_alive,
            });
        }
        response
    }

    #[cold]
    fn reject_head(&mut self, request: ParsedRequest, error: HeadError) {
        let response = proxy::reject_head(&self.client, request, error);
        let info =
            RequestInfo { version: Version::HTTP_11, method: MethodKind::Other, keep_alive: KeepAlive::No };
        self.start_response(response, info);
    }

    /// Writes the head of a response into the output.
    fn start_response(&mut self, response: ProxyResponse, request: RequestInfo) {
        let ProxyResponse { mut head, body } = response;
        let method = match request.method {
            MethodKind::Head => "HEAD",
            MethodKind::Other => "GET",
        };
        let framing = frame_response(&mut head, request.version, method, body.size_hint().exact());
        let connection = match head.fields.may_contain(FieldKinds::CONNECTION) {
            true => head.fields.get(b"connection"),
            false => None,
        };
        let mut transport = self.transport.borrow_mut();
        transport.expectation = Expectation::None;
        // The rest of the body of the request is not read.
        let is_body_abandoned =
            transport.request_body == RequestBodyState::Incomplete && self.client.has_unread_body();
        let is_closing = request.keep_alive == KeepAlive::No
            || framing == ResponseFraming::UntilClose
            || is_body_abandoned
            || connection.is_some_and(|option| option == b"close");
        let mut extra: [&[u8]; 3] = [b"", b"", b""];
        if framing == ResponseFraming::Chunked {
            extra[0] = CHUNKED_FIELD;
        }
        extra[1] = match (request.version, is_closing, connection.is_some()) {
            (_, _, true) => b"",
            (_, true, _) => CONNECTION_CLOSE,
            (Version::HTTP_10, false, _) => b"connection: keep-alive\r\n",
            (_, false, _) => b"",
        };
        let date = self.client.worker.date.borrow();
        let has_date = head.fields.may_contain(FieldKinds::DATE) && head.fields.contains(b"date");
        if !has_date && !head.status.is_informational() {
            extra[2] = date.as_bytes();
        }
        write_response(transport.output.bytes_mut(), request.version, &head, &extra);
        drop(date);
        drop(transport);
        self.client.worker.heads.give_response(head);
        self.state = ConnectionState::Response(ResponseInProgress {
            body: (framing != ResponseFraming::None).then_some(body),
            writer: framing.into(),
            keep_alive: if is_closing { KeepAlive::No } else { KeepAlive::Yes },
        });
    }

    /// Called when the response is sent. Returns the reason why the connection ends.
    fn finish_response(&mut self) -> Option<CloseReason> {
        let state = std::mem::replace(&mut self.state, ConnectionState::Head);
        let ConnectionState::Response(response) = state else { return None };
        let keep_alive = response.keep_alive;
        let transport = self.transport.borrow();
        if transport.request_body == RequestBodyState::Incomplete {
            self.client.mark_unread_body();
        }
        let is_reusable =
            keep_alive == KeepAlive::Yes && transport.request_body == RequestBodyState::Complete;
        if !is_reusable || self.client.tunnel.borrow().is_some() {
            return Some(CloseReason::Ended);
        }
        if !transport.input().is_empty() {
            self.client.on_read();
        }
        None
    }

    fn end(self, reason: CloseReason) -> Http1End {
        let Self { transport, client, state, .. } = self;
        let is_responding = matches!(state, ConnectionState::Response(_));
        drop(state);
        let Some(io) = transport.borrow_mut().take_io() else { return Http1End::Closed };
        let tunnel = client.tunnel.take();
        match (reason, tunnel) {
            (CloseReason::Idle, _) => Http1End::Idle(io.into_stream()),
            (CloseReason::Ended, Some(tunnel)) => Http1End::Tunnel(io, tunnel),
            (CloseReason::Ended, None) => Http1End::Finished(io, client.input.get()),
            (CloseReason::ResponseAborted | CloseReason::Timeout, _) => {
                // An HTTP/1.0 client would take the close for the end of the body, so the connection is reset.
                if client.version.get() == HttpVersion::Http10
                    && (reason == CloseReason::ResponseAborted || is_responding)
                {
                    io.reset();
                }
                Http1End::Closed
            }
        }
    }
}

impl ResponseInProgress {
    /// Sends the response. An error means that the client does not get all of it.
    fn poll(
        &mut self,
        transport: &Rc<RefCell<Http1Transport>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<(), ResponseAborted>> {
        // Most bodies are small, and arrive with their head.
        if let BodyWriter::Length(expected) = self.writer
            && let Some(body) = &mut self.body
            && let Some(length) = body.take_received(transport.borrow_mut().output.bytes_mut())
        {
            if length as u64 != expected {
                return Poll::Ready(Err(ResponseAborted));
            }
            self.body = None;
        }
        loop {
            let mut is_waiting = false;
            while let Some(body) = &mut self.body
                && transport.borrow().output.has_room()
            {
                let frame = match body.poll_data(context) {
                    Poll::Ready(frame) => frame.transpose(),
                    Poll::Pending => {
                        is_waiting = true;
                        break;
                    }
                };
                let mut transport = transport.borrow_mut();
                let written =
                    frame.and_then(|frame| self.writer.write_frame(&mut transport.output, frame, &*body));
                match written {
                    Ok(WrittenBody::Incomplete) => {}
                    Ok(WrittenBody::Complete) => self.body = None,
                    Err(IncompleteBody) => {
                        // The client gets the data before the error.
                        let _ = transport.poll_flush(context);
                        return Poll::Ready(Err(ResponseAborted));
                    }
                }
            }
            let flushed = transport.borrow_mut().poll_flush(context);
            match flushed {
                Poll::Ready(Ok(())) => {}
                Poll::Ready(Err(_)) => return Poll::Ready(Err(ResponseAborted)),
                Poll::Pending => {
                    // A client may read the response only after it has sent its request.
                    if let Some(body) = &mut self.body {
                        body.poll_upload(context);
                    }
                    return Poll::Pending;
                }
            }
            if self.body.is_none() {
                return Poll::Ready(Ok(()));
            }
            if is_waiting {
                if let Some(body) = &mut self.body {
                    // A bandwidth limit delays the response, and not the request.
                    body.poll_upload(context);
                }
                return match transport.borrow_mut().poll_disconnect(context) {
                    Poll::Ready(()) => Poll::Ready(Err(ResponseAborted)),
                    Poll::Pending => Poll::Pending,
                };
            }
        }
    }
}

/// The client does not get the complete response.
struct ResponseAborted;

const CONNECTION_CLOSE: &[u8] = b"connection: close\r\n";

fn is_continue(expect: &[u8]) -> bool {
    expect.eq_ignore_ascii_case(b"100-continue")
}

/// The number of connections of a worker beyond which idle ones release their buffers at once. Under load few are idle for
/// long, and new buffers cost about a microsecond; a burst of connections must not keep its buffers.
const MAX_ACTIVE_CONNECTIONS: usize = 256;

/// Counts a connection with buffers, until it is dropped.
struct ActiveConnection(Rc<ClientConnection>);

impl ActiveConnection {
    fn new(client: &Rc<ClientConnection>) -> Self {
        client.worker.active_connections.update(|whole| whole + 1);
        Self(client.clone())
    }
}

impl Drop for ActiveConnection {
    fn drop(&mut self) {
        self.0.worker.active_connections.update(|whole| whole - 1);
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum CloseReason {
    /// The client has disconnected, or the last response is sent.
    Ended,
    /// A response was aborted, or dropped.
    ResponseAborted,
    Idle,
    /// The client is too slow to send a head or to read a response.
    Timeout,
}
