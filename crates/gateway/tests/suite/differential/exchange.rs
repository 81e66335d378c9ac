//! Sends raw bytes to a server, and records what reaches the backend.

use crate::{
    fuzz::messages::{PieceReader, ReadError, RequestMessage, request_message, sorted_fields},
    harness::{TEST_TIMEOUT, TestBackend},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use std::{
    convert::Infallible,
    mem,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tidegate_gateway::http1::{BodyDecoder, leading_empty_lines, request_keeps_alive};
use tidegate_policy::{
    head::{HeadError, HeadLimits, check},
    model::Connections,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

/// What a server does with a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RequestOutcome {
    /// The backend receives the request.
    Accepted(RequestMessage),
    /// The server responds with this status.
    Rejected(u16),
}

/// What the gateway does with the bytes of a connection, according to its parser alone.
#[derive(Debug)]
pub(super) struct ExpectedExchange {
    pub(super) outcomes: Vec<RequestOutcome>,
    /// The position of each request.
    starts: Vec<usize>,
    /// The number of responses before the client must close its side.
    pub(super) responses_before_close: usize,
}

/// A shared list of what a backend or a filter received.
pub(super) type Record<T> = Arc<Mutex<Vec<T>>>;

/// A request at a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum BackendRequest {
    Complete(RequestMessage),
    /// The body is incomplete or invalid.
    Incomplete,
    /// The bytes after the previous request are not HTTP.
    Garbage,
}

/// A response as the client received it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResponseOutcome {
    /// From the backend.
    Backend,
    /// From the gateway or nginx, with this status.
    Own(u16),
}

/// How long a client waits for a response that it expects.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// Marks the responses of the backend.
const BACKEND_FIELD: &str = "x-backend";

pub(super) fn take<T>(record: &Record<T>) -> Vec<T> {
    mem::take(&mut *record.lock().unwrap_or_else(PoisonError::into_inner))
}

fn push<T>(record: &Record<T>, item: T) {
    record.lock().unwrap_or_else(PoisonError::into_inner).push(item);
}

/// Starts a backend that records requests.
pub(super) async fn start_recording_backend() -> (TestBackend, Record<BackendRequest>) {
    let record = Record::default();
    let recorded = record.clone();
    let backend = TestBackend::start_raw(move |stream| {
        let record: Record<BackendRequest> = recorded.clone();
        async move {
            let _ = stream.set_nodelay(true);
            let requests = record.clone();
            let service = service_fn(move |request: Request<Incoming>| {
                let record = requests.clone();
                async move {
                    push(
                        &record,
                        request_message(request)
                            .await
                            .map_or(BackendRequest::Incomplete, BackendRequest::Complete),
                    );
                    Ok::<_, Infallible>(
                        Response::builder().header(BACKEND_FIELD, "1").body(Empty::<Bytes>::new()).unwrap(),
                    )
                }
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            if connection.await.is_err_and(|error| error.is_parse()) {
                push(&record, BackendRequest::Garbage);
            }
        }
    })
    .await;
    (backend, record)
}

/// Sends bytes on one connection, and returns the responses. The client closes its side after this number of responses, or
/// immediately for `None`.
pub(super) async fn send_exchange(
    address: SocketAddr,
    bytes: &[u8],
    responses_before_close: Option<usize>,
) -> Result<Vec<ResponseOutcome>, String> {
    let mut stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    // The server closes first, and 100,000 connections must not stay in TIME_WAIT.
    let _ = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    let _ = stream.set_nodelay(true);
    // The exchange is smaller than the buffers of the system. The server may close the connection before it reads everything.
    let _ = stream.write_all(bytes).await;
    let mut received = Vec::new();
    let mut is_closed = false;
    loop {
        let responses = parse_responses(&received);
        if !is_closed && responses_before_close.is_none_or(|count| responses.len() >= count) {
            let _ = stream.shutdown().await;
            is_closed = true;
        }
        match timeout(RESPONSE_TIMEOUT, stream.read_buf(&mut received)).await {
            Ok(Ok(1..)) => {}
            Ok(_) => return Ok(parse_responses(&received)),
            Err(_) => return Err(format!("no response after {responses:?}")),
        }
    }
}

/// Parses complete responses. Bodies of rejections never start like a response.
fn parse_responses(mut bytes: &[u8]) -> Vec<ResponseOutcome> {
    let mut responses = Vec::new();
    while let Some(end) = memchr::memmem::find(bytes, b"\r\n\r\n") {
        let (head, rest) = bytes.split_at(end + 4);
        let head = String::from_utf8_lossy(head).to_lowercase();
        let status = head.get(9..12).and_then(|status| status.parse().ok()).unwrap_or(0);
        bytes = rest;
        if (100..200).contains(&status) {
            continue;
        }
        let length =
            head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse::<usize>().ok());
        // The response to HEAD has no body.
        if !rest.starts_with(b"HTTP/1.1 ")
            && let Some(length) = length
        {
            bytes = rest.get(length.min(rest.len())..).unwrap_or_default();
        }
        let is_of_backend = head.contains(&format!("\n{BACKEND_FIELD}: "));
        responses.push(if is_of_backend { ResponseOutcome::Backend } else { ResponseOutcome::Own(status) });
    }
    responses
}

/// The outcomes of a proxy: its responses, with the requests that its backend received.
pub(super) fn join_outcomes(
    responses: &[ResponseOutcome],
    requests: Vec<BackendRequest>,
) -> Result<Vec<RequestOutcome>, String> {
    let mut complete = requests.into_iter().filter_map(|request| match request {
        BackendRequest::Complete(message) => Some(message),
        BackendRequest::Incomplete | BackendRequest::Garbage => None,
    });
    let outcomes: Option<Vec<_>> = responses
        .iter()
        .map(|response| match response {
            ResponseOutcome::Own(status) => Some(RequestOutcome::Rejected(*status)),
            ResponseOutcome::Backend => complete.next().map(RequestOutcome::Accepted),
        })
        .collect();
    let extra: Vec<_> = complete.collect();
    match outcomes {
        Some(outcomes) if extra.is_empty() => Ok(outcomes),
        Some(outcomes) => Err(format!("requests without a response: {extra:?} after {outcomes:?}")),
        None => Err(format!("{responses:?} for fewer requests")),
    }
}

/// What the gateway does with these bytes.
pub(super) fn expected_exchange(bytes: &[u8]) -> ExpectedExchange {
    let mut reader = PieceReader::new(bytes, &[usize::MAX]);
    let (mut outcomes, mut starts) = (Vec::new(), Vec::new());
    loop {
        starts.push(bytes.len() - reader.remaining());
        match expected_outcome(&mut reader) {
            Ok(Some((outcome, next))) => {
                outcomes.push(outcome);
                if next == NextRequest::Closed {
                    break;
                }
            }
            // Without a complete head the connection ends without a response.
            Ok(None) => break,
            Err(status) => {
                outcomes.push(RequestOutcome::Rejected(status));
                let responses_before_close = outcomes.len() - 1;
                return ExpectedExchange { outcomes, starts, responses_before_close };
            }
        }
    }
    ExpectedExchange { responses_before_close: outcomes.len(), outcomes, starts }
}

impl ExpectedExchange {
    /// The head of the request at this index.
    pub(super) fn head<'a>(&self, bytes: &'a [u8], index: usize) -> &'a [u8] {
        let rest = self.starts.get(index).and_then(|start| bytes.get(*start..)).unwrap_or_default();
        let rest = &rest[leading_empty_lines(rest)..];
        let end = memchr::memmem::find(rest, b"\r\n\r\n").map_or(rest.len(), |end| end + 4);
        &rest[..end]
    }
}

#[derive(PartialEq, Eq)]
enum NextRequest {
    Open,
    Closed,
}

/// The outcome of the next request. An error is the status of a response to a request with an incomplete body.
fn expected_outcome(reader: &mut PieceReader<'_>) -> Result<Option<(RequestOutcome, NextRequest)>, u16> {
    let reject = |error: HeadError| Ok(Some((RequestOutcome::Rejected(error.status()), NextRequest::Closed)));
    let mut head = match reader.read_request_head() {
        Ok(Some(head)) => head,
        Ok(None) | Err(ReadError::Incomplete | ReadError::Body) => return Ok(None),
        Err(ReadError::Head(error)) => return reject(error),
    };
    let framing = match head.framing() {
        Ok(framing) => framing,
        Err(error) => return reject(error),
    };
    let keeps_alive = request_keeps_alive(&head);
    let checked = check(&mut head, framing, &HeadLimits::from(&Connections::default()), || false);
    let decoder = BodyDecoder::for_request(framing);
    if let Err(error) = checked {
        let has_body = !decoder.is_complete();
        // The gateway reads a small body of known length, to read the next request.
        let is_closed = error.should_close()
            || !keeps_alive
            || has_body && (decoder.remaining().is_none() || head.fields.contains(b"expect"))
            || reader.read_body(decoder).is_err();
        let next = if is_closed { NextRequest::Closed } else { NextRequest::Open };
        return Ok(Some((RequestOutcome::Rejected(error.status()), next)));
    }
    match reader.read_body(decoder) {
        Ok((body, trailers)) => {
            let message = RequestMessage {
                method: head.method().to_owned(),
                target: head.target().to_owned(),
                fields: sorted_fields(&head.fields),
                body,
                trailers,
            };
            let next = if keeps_alive { NextRequest::Open } else { NextRequest::Closed };
            Ok(Some((RequestOutcome::Accepted(message), next)))
        }
        Err(ReadError::Incomplete) => Err(400),
        Err(ReadError::Body | ReadError::Head(_)) => {
            Ok(Some((RequestOutcome::Rejected(400), NextRequest::Closed)))
        }
    }
}

/// Waits for a future of this module, so that a deadlock fails the test.
pub(super) async fn within_timeout<T>(future: impl Future<Output = T>) -> T {
    timeout(TEST_TIMEOUT, future).await.expect("an exchange does not end")
}
