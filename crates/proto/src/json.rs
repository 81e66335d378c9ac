//! Messages as proto3 JSON.
//!
//! Fields are parsed by either name, `hitsAddend` or `hits_addend`, and written as the first. Enums are written by
//! name, durations as in `"34s"`, and default values are omitted. An unknown field is an error.
//!
//! It uses reflection instead of generated code, which is fast enough for JSON.

use crate::rls;
use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use std::{error, fmt, sync::LazyLock};

/// An invalid JSON message, or a message that has no JSON form.
#[derive(Debug)]
pub struct JsonError(String);

/// Parses a message of the rate limit service.
///
/// ```
/// use tidegate_proto::{json, rls::RateLimitRequest};
///
/// let request: RateLimitRequest = json::from_slice(br#"{ "domain": "shop", "hits_addend": 3 }"#)?;
/// assert_eq!(request.hits_addend, 3);
/// # Ok::<_, json::JsonError>(())
/// ```
pub fn from_slice<M: Message + Name + Default>(text: &[u8]) -> Result<M, JsonError> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let message = DynamicMessage::deserialize(descriptor::<M>()?, &mut reader).map_err(JsonError::new)?;
    reader.end().map_err(JsonError::new)?;
    message.transcode_to().map_err(JsonError::new)
}

/// Writes a message of the rate limit service. A number that is not finite, such as `NaN`, is an error.
pub fn to_vec<M: Message + Name>(message: &M) -> Result<Vec<u8>, JsonError> {
    let mut described = DynamicMessage::new(descriptor::<M>()?);
    described.transcode_from(message).map_err(JsonError::new)?;
    serde_json::to_vec(&described).map_err(JsonError::new)
}

fn descriptor<M: Name>() -> Result<MessageDescriptor, JsonError> {
    static POOL: LazyLock<Result<DescriptorPool, String>> =
        LazyLock::new(|| DescriptorPool::decode(rls::FILE_DESCRIPTOR_SET).map_err(|error| error.to_string()));
    let all = POOL.as_ref().map_err(|error| JsonError(error.clone()))?;
    let name = M::full_name();
    all.get_message_by_name(&name)
        .ok_or_else(|| JsonError(format!("{name} is not a message of the rate limit service")))
}

impl JsonError {
    fn new(error: impl fmt::Display) -> Self {
        Self(error.to_string())
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl error::Error for JsonError {}
