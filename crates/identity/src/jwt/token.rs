//! The parts of a token (RFC 7515).

use super::{JwtError, algorithm::JwtAlgorithm};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use serde_json::{Map, Value};

/// A token whose signature is not verified.
pub(super) struct ParsedToken<'a> {
    pub(super) algorithm: JwtAlgorithm,
    /// The name of its key.
    pub(super) key_id: Option<String>,
    /// What is signed: the encoded header and payload.
    pub(super) message: &'a [u8],
    pub(super) signature: Vec<u8>,
    payload: &'a str,
}

impl<'a> ParsedToken<'a> {
    pub(super) fn parse(token: &'a str) -> Result<Self, JwtError> {
        let mut parts = token.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(JwtError::Malformed);
        };
        let message = token.as_bytes().get(..header.len() + 1 + payload.len()).ok_or(JwtError::Malformed)?;
        let header = decode_map(header)?;
        // It lists extensions that a recipient must understand. None is supported.
        if header.contains_key("crit") {
            return Err(JwtError::Malformed);
        }
        let algorithm = header.get("alg").and_then(Value::as_str).ok_or(JwtError::Malformed)?;
        let key_id = match header.get("kid") {
            None => None,
            Some(Value::String(id)) => Some(id.clone()),
            Some(_) => return Err(JwtError::Malformed),
        };
        Ok(Self {
            algorithm: JwtAlgorithm::from_name(algorithm).ok_or(JwtError::WrongAlgorithm)?,
            key_id,
            message,
            signature: decode(signature)?,
            payload,
        })
    }

    /// Decodes the payload. Its signature must have been verified.
    pub(super) fn claims(&self) -> Result<Map<String, Value>, JwtError> {
        decode_map(self.payload)
    }
}

fn decode(part: &str) -> Result<Vec<u8>, JwtError> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| JwtError::Malformed)
}

fn decode_map(part: &str) -> Result<Map<String, Value>, JwtError> {
    serde_json::from_slice(&decode(part)?).map_err(|_| JwtError::Malformed)
}
