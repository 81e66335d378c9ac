//! Prepares heads for forwarding: adds the request id and forwarding headers.

use super::ForwardedHeaderWriter;
use crate::{
    client::ClientConnection,
    http1::{Upgrade, strip_request_fields},
};
use tidegate_policy::{
    head::{HeaderFields, ParsedRequest},
    model::ForwardedHeaders,
};

/// The id of a request.
#[derive(Clone, Debug)]
pub(crate) enum RequestId {
    /// Neither sent nor logged.
    None,
    Generated([u8; 32]),
    /// That of a trusted proxy.
    Received(Box<[u8]>),
}

impl RequestId {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::None => b"",
            Self::Generated(id) => id,
            Self::Received(id) => id,
        }
    }
}

/// The maximum length of a request id that is accepted from a trusted proxy.
const MAX_ID_LENGTH: usize = 128;

/// The header of a request id.
pub(crate) const X_REQUEST_ID: &[u8] = b"x-request-id";

/// The id of a request: a new one, or that of a trusted proxy.
pub(super) fn request_id(request: &ParsedRequest, client: &ClientConnection) -> RequestId {
    let is_sent = client.worker.forwarded_headers != ForwardedHeaders::None;
    if !is_sent && client.worker.log.is_none() && client.worker.tracer.is_none() {
        return RequestId::None;
    }
    if client.worker.is_trusted(client.connection_info.peer.ip())
        && let Some(id) = request.fields.get(X_REQUEST_ID)
        && !id.is_empty()
        && id.len() <= MAX_ID_LENGTH
        && id.iter().all(u8::is_ascii_graphic)
    {
        return RequestId::Received(id.into());
    }
    RequestId::Generated(random_id())
}

/// A random id. It is not secret.
fn random_id() -> [u8; 32] {
    let mut text = [0; 32];
    for part in text.chunks_exact_mut(8) {
        part.copy_from_slice(&hex_digits(fastrand::u32(..)));
    }
    text
}

/// Formats a number as hexadecimal digits, all at once: each half byte becomes one byte of the result.
fn hex_digits(number: u32) -> [u8; 8] {
    const BYTE_ONES: u64 = 0x0101_0101_0101_0101;
    let spread = |bits: u64, by: u32, mask: u64| (bits | bits << by) & mask;
    let halfwords = spread(u64::from(number), 16, 0x0000_ffff_0000_ffff);
    let bytes = spread(halfwords, 8, 0x00ff_00ff_00ff_00ff);
    let nibbles = spread(bytes, 4, 0x0f0f_0f0f_0f0f_0f0f);
    // 1 for each digit that is a letter: 10 + 6 = 16.
    let letters = (nibbles + BYTE_ONES * 6) >> 4 & BYTE_ONES;
    let letter_offset = u64::from(b'a' - b'0' - 10);
    (nibbles + BYTE_ONES * u64::from(b'0') + letters * letter_offset).to_be_bytes()
}

/// Adds the request id header, if enabled.
pub(super) fn set_request_id(fields: &mut HeaderFields, id: &RequestId, client: &ClientConnection) {
    if let Some(id) = sent_request_id(id, client) {
        fields.set(X_REQUEST_ID, id);
    }
}

/// The request id that servers and clients get, if enabled.
pub(super) fn sent_request_id<'i>(id: &'i RequestId, client: &ClientConnection) -> Option<&'i [u8]> {
    let is_sent = client.worker.forwarded_headers != ForwardedHeaders::None;
    Some(id.as_bytes()).filter(|id| is_sent && !id.is_empty())
}

/// Prepares the head of a request for a server: removes fields of the connection, and adds forwarding headers.
pub(super) fn prepare_request(
    request: &mut ParsedRequest,
    client: &ClientConnection,
    id: &RequestId,
) -> Upgrade {
    let fields = &mut request.fields;
    let upgrade = strip_request_fields(fields, request.version);
    if client.worker.forwarded_headers != ForwardedHeaders::None {
        let mut writer = client.forwarded_header_writer.borrow_mut();
        writer.get_or_insert_with(|| Box::new(ForwardedHeaderWriter::new(client))).write(fields);
    }
    set_request_id(fields, id, client);
    upgrade
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_digits_match_the_number() {
        for number in [0, 1, 9, 0xa, 0xf, 0x10, 0x0123_4567, 0x89ab_cdef, 0x9f9f_a0a0, u32::MAX] {
            assert_eq!(hex_digits(number).as_slice(), format!("{number:08x}").as_bytes());
        }
    }
}
