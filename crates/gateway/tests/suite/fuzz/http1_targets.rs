//! Fuzz targets of the HTTP/1.1 parser: no panic, no hang, the same result for all pieces, and no desynchronization.
//!
//! What the gateway writes for an accepted message is read again by its own parser and by hyper. Both must read the same
//! messages, and the same number of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic reports a finding")]

use super::messages::{
    AcceptedRequest, Fields, RequestMessage, ResponseMessage, SequenceEnd, header_map, read_requests,
    read_requests_with_hyper, read_response, read_response_with_hyper, sorted_map, write_chunks,
};
use http::Version;
use std::future::Future;
use tidegate_gateway::http1::{
    CHUNKED_FIELD, ParsedResponse, ResponseFraming, frame_response, prepare_response, strip_request_fields,
    strip_request_trailers, strip_response_trailers, write_request, write_response,
};
use tidegate_policy::{head::BodyFraming, model::Underscores};
use tokio::runtime::Builder;

/// A name, and a function that accepts any bytes.
type Http1FuzzTarget = (&'static str, fn(&[u8]));

/// All targets.
pub(crate) const TARGETS: [Http1FuzzTarget; 2] = [("requests", requests), ("responses", responses)];

/// The maximum input size. Longer inputs find nothing new.
const MAX_INPUT_SIZE: usize = 1 << 16;

/// Requests on one connection.
pub(crate) fn requests(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_INPUT_SIZE)];
    let sizes = piece_sizes(bytes);
    let (accepted, end) = read_requests(bytes, &[usize::MAX]);
    let (in_pieces, end_in_pieces) = read_requests(bytes, &sizes);
    let messages: Vec<_> = accepted.iter().map(AcceptedRequest::message).collect();
    let messages_in_pieces: Vec<_> = in_pieces.iter().map(AcceptedRequest::message).collect();
    assert_eq!((&messages_in_pieces, end_in_pieces), (&messages, end), "pieces of {sizes:?}");

    let forwarded = accepted.iter().fold(Vec::new(), |mut out, request| {
        write_forwarded(&mut out, request, sizes[0]);
        out
    });
    let (again, end) = read_requests(&forwarded, &sizes);
    let again: Vec<_> = again.iter().map(AcceptedRequest::message).collect();
    let messages: Vec<_> = accepted.iter().map(forwarded_message).collect();
    let text = forwarded.escape_ascii();
    assert_eq!((&again, end), (&messages, SequenceEnd::Complete), "gateway after {text}");
    let (by_hyper, end) = run(read_requests_with_hyper(&forwarded));
    assert_eq!((&by_hyper, end), (&messages, SequenceEnd::Complete), "hyper after {text}");
}

/// Writes a request as the gateway forwards it.
fn write_forwarded(out: &mut Vec<u8>, request: &AcceptedRequest, chunk_size: usize) {
    let mut head = request.head.clone();
    strip_request_fields(&mut head.fields, head.version);
    match request.framing {
        BodyFraming::Chunked => {
            write_request(out, &head, CHUNKED_FIELD);
            write_chunks(out, &request.body, chunk_size, &forwarded_trailers(&request.trailers));
        }
        BodyFraming::None | BodyFraming::Length(_) => {
            write_request(out, &head, b"");
            out.extend_from_slice(&request.body);
        }
    }
}

/// The message that a server receives.
fn forwarded_message(request: &AcceptedRequest) -> RequestMessage {
    let message = request.message();
    RequestMessage { trailers: forwarded_trailers(&message.trailers), ..message }
}

/// The trailers of a request that are forwarded.
fn forwarded_trailers(trailers: &Fields) -> Fields {
    let mut map = header_map(trailers);
    strip_request_trailers(&mut map, Underscores::Drop);
    sorted_map(&map)
}

/// The response to a request. In the first line of the input `HEAD` selects the method.
pub(crate) fn responses(bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(MAX_INPUT_SIZE)];
    let (method, bytes) = match bytes.strip_prefix(b"HEAD\n") {
        Some(rest) => ("HEAD", rest),
        None => ("GET", bytes),
    };
    let sizes = piece_sizes(bytes);
    let response = read_response(bytes, &[usize::MAX], method);
    let in_pieces = read_response(bytes, &sizes, method);
    // A head that is too large and invalid may have either error.
    assert_eq!(in_pieces.as_ref().ok(), response.as_ref().ok(), "pieces of {sizes:?}");
    let Ok((head, framing, message)) = response else { return };

    let mut trailers = header_map(&message.trailers);
    strip_response_trailers(&mut trailers);
    let message = ResponseMessage { trailers: sorted_map(&trailers), ..message };
    let forwarded = forward_response(head, (framing, method), &message, sizes[0]);
    let text = forwarded.escape_ascii();
    let expected = (message.status, &message.body, &message.trailers);
    let (_, _, again) = read_response(&forwarded, &sizes, method).unwrap();
    assert_eq!((again.status, &again.body, &again.trailers), expected, "gateway after {text}");
    let by_hyper =
        run(read_response_with_hyper(&forwarded, method)).unwrap_or_else(|| panic!("hyper after {text}"));
    assert_eq!((by_hyper.status, &by_hyper.body, &by_hyper.trailers), expected, "hyper after {text}");
    assert_eq!(by_hyper.fields, again.fields, "hyper after {text}");
}

/// Writes a response as the gateway forwards it.
fn forward_response(
    mut head: ParsedResponse,
    (framing, method): (ResponseFraming, &str),
    message: &ResponseMessage,
    chunk_size: usize,
) -> Vec<u8> {
    let length = match framing {
        ResponseFraming::None => Some(0),
        ResponseFraming::Length(length) => Some(length),
        ResponseFraming::Chunked | ResponseFraming::UntilClose => None,
    };
    prepare_response(&mut head, length.filter(|length| *length > 0));
    let mut out = Vec::new();
    match frame_response(&mut head, Version::HTTP_11, method, length) {
        ResponseFraming::Chunked => {
            write_response(&mut out, Version::HTTP_11, &head, &[CHUNKED_FIELD]);
            write_chunks(&mut out, &message.body, chunk_size, &message.trailers);
        }
        ResponseFraming::None | ResponseFraming::Length(_) | ResponseFraming::UntilClose => {
            write_response(&mut out, Version::HTTP_11, &head, &[]);
            out.extend_from_slice(&message.body);
        }
    }
    out
}

/// Sizes of pieces that depend on the input.
fn piece_sizes(bytes: &[u8]) -> [usize; 3] {
    let sum = bytes.iter().fold(7_usize, |sum, byte| sum.wrapping_mul(31).wrapping_add(usize::from(*byte)));
    [sum % 7 + 1, sum / 7 % 19 + 1, sum / 133 % 3 + 1]
}

fn run<T>(future: impl Future<Output = T>) -> T {
    Builder::new_current_thread().build().unwrap().block_on(future)
}
