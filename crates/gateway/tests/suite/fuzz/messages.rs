//! HTTP/1.1 messages as the parser of the gateway and that of hyper read them, for tests that compare both.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Incoming, service::service_fn};
use hyper_util::rt::TokioIo;
use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
};
use tidegate_gateway::http1::{
    BodyDecoder, BodyStep, HeadScanner, ParsedResponse, ResponseFraming, leading_empty_lines, parse_request,
    parse_response, write_chunk_end, write_chunk_start, write_last_chunk,
};
use tidegate_policy::head::{
    BodyFraming, HeadError, HeadLimits, HeaderFields, ParsedRequest, check, is_hop_by_hop,
};
use tidegate_policy::model::Connections;
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

/// A request as a server uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestMessage {
    pub(crate) method: String,
    pub(crate) target: String,
    /// Sorted by name; fields of the same name are in their order.
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
}

/// A response as a client uses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ResponseMessage {
    pub(crate) status: u16,
    pub(crate) fields: Fields,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
}

/// Header fields, with names in lower case.
pub(crate) type Fields = Vec<(String, Vec<u8>)>;

/// Why a sequence of messages ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SequenceEnd {
    /// The last message is complete.
    Complete,
    /// The input ends within a message.
    Incomplete,
    /// The next message is invalid.
    Invalid,
}

/// Why a message cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadError {
    Incomplete,
    Head(HeadError),
    Body,
}

/// The maximum size of a head.
const MAX_HEAD_SIZE: usize = 16_384;
/// The buffer between hyper and the test.
const DUPLEX_SIZE: usize = 1 << 16;

/// Bytes that arrive in pieces.
pub(crate) struct PieceReader<'a> {
    pub(crate) buffer: Vec<u8>,
    rest: &'a [u8],
    sizes: std::iter::Cycle<std::slice::Iter<'a, usize>>,
}

impl<'a> PieceReader<'a> {
    pub(crate) fn new(input: &'a [u8], sizes: &'a [usize]) -> Self {
        Self { buffer: Vec::new(), rest: input, sizes: sizes.iter().cycle() }
    }

    /// The number of bytes that are not read.
    pub(crate) fn remaining(&self) -> usize {
        self.buffer.len() + self.rest.len()
    }

    /// Appends the next piece; returns false at the end.
    fn read(&mut self) -> bool {
        let size = self.sizes.next().copied().unwrap_or(usize::MAX).max(1).min(self.rest.len());
        let (piece, rest) = self.rest.split_at(size);
        self.buffer.extend_from_slice(piece);
        self.rest = rest;
        size > 0
    }

    /// Reads a head, with this function.
    pub(crate) fn read_head<T>(
        &mut self,
        parse: impl FnOnce(&[u8]) -> Result<T, HeadError>,
    ) -> Result<T, ReadError> {
        let mut scanner = HeadScanner::default();
        loop {
            match scanner.find_end(&self.buffer, MAX_HEAD_SIZE) {
                Ok(Some(length)) => {
                    let head: Vec<u8> = self.buffer.drain(..length).collect();
                    return parse(&head).map_err(ReadError::Head);
                }
                Ok(None) if self.read() => {}
                Ok(None) => return Err(ReadError::Incomplete),
                Err(error) => return Err(ReadError::Head(error)),
            }
        }
    }

    /// Reads the head of a request; `None` at the end of the input.
    pub(crate) fn read_request_head(&mut self) -> Result<Option<ParsedRequest>, ReadError> {
        loop {
            let empty_lines = leading_empty_lines(&self.buffer);
            self.buffer.drain(..empty_lines);
            if !matches!(&*self.buffer, [] | [b'\r']) {
                break;
            }
            if !self.read() {
                return if self.buffer.is_empty() { Ok(None) } else { Err(ReadError::Incomplete) };
            }
        }
        let head = self.read_head(|bytes| {
            let mut request = ParsedRequest::default();
            parse_request(bytes, &mut request).map(|()| request)
        });
        head.map(Some)
    }

    pub(crate) fn read_body(&mut self, mut decoder: BodyDecoder) -> Result<(Vec<u8>, Fields), ReadError> {
        let mut data = Vec::new();
        loop {
            let (framing, step) = decoder.decode(&self.buffer).map_err(|_| ReadError::Body)?;
            self.buffer.drain(..framing);
            match step {
                BodyStep::Data(length) => data.extend(self.buffer.drain(..length)),
                BodyStep::Complete(trailers) => return Ok((data, sorted_map(&trailers.unwrap_or_default()))),
                BodyStep::NeedInput if self.read() => {}
                BodyStep::NeedInput if decoder.ends_at_close() => return Ok((data, Fields::new())),
                BodyStep::NeedInput => return Err(ReadError::Incomplete),
            }
        }
    }
}

/// A request that the gateway accepts, in the form in which it is forwarded.
#[derive(Clone, Debug)]
pub(crate) struct AcceptedRequest {
    pub(crate) head: ParsedRequest,
    pub(crate) framing: BodyFraming,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Fields,
}

/// Reads the requests at the start of an input that arrives in pieces of these sizes, as the gateway does. The first request
/// that is rejected ends the sequence.
pub(crate) fn read_requests(input: &[u8], sizes: &[usize]) -> (Vec<AcceptedRequest>, SequenceEnd) {
    let mut reader = PieceReader::new(input, sizes);
    let mut requests = Vec::new();
    loop {
        match read_request(&mut reader) {
            Ok(Some(request)) => requests.push(request),
            Ok(None) => return (requests, SequenceEnd::Complete),
            Err(ReadError::Incomplete) => return (requests, SequenceEnd::Incomplete),
            Err(_) => return (requests, SequenceEnd::Invalid),
        }
    }
}

fn read_request(reader: &mut PieceReader<'_>) -> Result<Option<AcceptedRequest>, ReadError> {
    let Some(mut head) = reader.read_request_head()? else { return Ok(None) };
    let framing = head.framing().map_err(ReadError::Head)?;
    let limits = HeadLimits::from(&Connections::default());
    check(&mut head, framing, &limits, || true).map_err(ReadError::Head)?;
    if !head.fields.contains(b"host") {
        // HTTP/1.0 does not require it. The gateway adds that of the server.
        head.fields.push(b"host", b"server");
    }
    let (body, trailers) = reader.read_body(BodyDecoder::for_request(framing))?;
    Ok(Some(AcceptedRequest { head, framing, body, trailers }))
}

impl AcceptedRequest {
    /// The message, without fields that are not forwarded.
    pub(crate) fn message(&self) -> RequestMessage {
        RequestMessage {
            method: self.head.method().to_owned(),
            target: self.head.target().to_owned(),
            fields: sorted_fields(&self.head.fields),
            body: self.body.clone(),
            trailers: self.trailers.clone(),
        }
    }
}

/// The final response at the start of an input that ends with the connection, with its framing.
pub(crate) fn read_response(
    input: &[u8],
    sizes: &[usize],
    method: &str,
) -> Result<(ParsedResponse, ResponseFraming, ResponseMessage), ReadError> {
    let mut reader = PieceReader::new(input, sizes);
    loop {
        let head = reader.read_head(|bytes| {
            let mut response = ParsedResponse::default();
            parse_response(bytes, &mut response).map(|()| response)
        })?;
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(ReadError::Head(HeadError::Malformed("no upgrade was requested")));
        }
        if head.status.is_informational() {
            continue;
        }
        let framing = head.framing(method).map_err(ReadError::Head)?;
        let (body, trailers) = reader.read_body(BodyDecoder::for_response(framing))?;
        let fields = sorted_fields(&head.fields);
        let message = ResponseMessage { status: head.status.as_u16(), fields, body, trailers };
        return Ok((head, framing, message));
    }
}

/// Writes a body in chunks of this size.
pub(crate) fn write_chunks(out: &mut Vec<u8>, body: &[u8], size: usize, trailers: &Fields) {
    for chunk in body.chunks(size.max(1)) {
        write_chunk_start(out, chunk.len());
        out.extend_from_slice(chunk);
        write_chunk_end(out);
    }
    let trailers = header_map(trailers);
    write_last_chunk(out, Some(&trailers).filter(|trailers| !trailers.is_empty()));
}

pub(crate) fn header_map(fields: &Fields) -> HeaderMap {
    let fields = fields.iter().fold(HeaderFields::default(), |mut all, (name, value)| {
        all.push(name.as_bytes(), value);
        all
    });
    fields.to_map()
}

/// Reads the requests of an input with the server of hyper. A request with an incomplete or invalid body is not included.
pub(crate) async fn read_requests_with_hyper(input: &[u8]) -> (Vec<RequestMessage>, SequenceEnd) {
    let requests = Arc::new(Mutex::new(Vec::new()));
    let recorded = requests.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let recorded = recorded.clone();
        async move {
            if let Ok(message) = request_message(request).await {
                recorded.lock().unwrap().push(message);
            }
            Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
        }
    });
    let (server, client) = duplex(DUPLEX_SIZE);
    let (mut responses, mut requests_in) = tokio::io::split(client);
    let send = async {
        // The server may close the connection before it has read everything.
        let _ = requests_in.write_all(input).await;
        let _ = requests_in.shutdown().await;
    };
    let mut received = Vec::new();
    let mut builder = hyper::server::conn::http1::Builder::new();
    let connection = builder.half_close(true).serve_connection(TokioIo::new(server), service);
    let (result, (), _) = tokio::join!(connection, send, responses.read_to_end(&mut received));
    let end = match result {
        Ok(()) => SequenceEnd::Complete,
        Err(error) if error.is_incomplete_message() => SequenceEnd::Incomplete,
        Err(_) => SequenceEnd::Invalid,
    };
    (std::mem::take(&mut *requests.lock().unwrap()), end)
}

/// Reads the body of a request, and converts it.
pub(crate) async fn request_message(request: Request<Incoming>) -> Result<RequestMessage, hyper::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?;
    Ok(RequestMessage {
        method: parts.method.to_string(),
        target: parts.uri.to_string(),
        fields: sorted_map(&parts.headers),
        trailers: body.trailers().map(sorted_map).unwrap_or_default(),
        body: body.to_bytes().to_vec(),
    })
}

/// Reads a response with the client of hyper. `input` ends with the connection.
pub(crate) async fn read_response_with_hyper(input: &[u8], method: &str) -> Option<ResponseMessage> {
    let (client, server) = duplex(DUPLEX_SIZE);
    let (mut requests, mut responses) = tokio::io::split(server);
    let send = async move {
        let mut head = [0; 1_024];
        let _ = requests.read(&mut head).await;
        let _ = responses.write_all(input).await;
        let _ = responses.shutdown().await;
        let mut rest = Vec::new();
        let _ = requests.read_to_end(&mut rest).await;
    };
    let exchange = async {
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake::<_, Empty<Bytes>>(TokioIo::new(client)).await.ok()?;
        let request =
            Request::builder().method(method).uri("/").header("host", "a").body(Empty::new()).unwrap();
        let read = async {
            let (parts, body) = sender.send_request(request).await.ok()?.into_parts();
            drop(sender);
            let body = body.collect().await.ok()?;
            Some(ResponseMessage {
                status: parts.status.as_u16(),
                fields: sorted_map(&parts.headers),
                trailers: body.trailers().map(sorted_map).unwrap_or_default(),
                body: body.to_bytes().to_vec(),
            })
        };
        tokio::join!(read, connection).0
    };
    tokio::join!(exchange, send).0
}

/// The fields that are forwarded, sorted by name.
pub(crate) fn sorted_fields(fields: &HeaderFields) -> Fields {
    let mut sorted: Fields = fields
        .iter()
        .filter(|(name, _)| !is_hop_by_hop(name) && *name != b"expect")
        .map(|(name, value)| (String::from_utf8_lossy(name).into_owned(), value.to_vec()))
        .collect();
    sorted.sort_by(|one, other| one.0.cmp(&other.0));
    sorted
}

pub(crate) fn sorted_map(map: &HeaderMap) -> Fields {
    sorted_fields(&HeaderFields::from(map))
}
