//! Messages as text: the JSON of proto3.
//!
//! Fields are read by both of their names, `hitsAddend` and `hits_addend`, and written by the first. Enums are told by name,
//! durations as in `"34s"`, what has its default is not told. A field that nobody knows is a mistake.
//!
//! It goes by the description of the messages, not by code for each: it is as fast as it has to be for text.

use crate::rls;
use prost::{Message, Name};
use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};
use std::{error, fmt, sync::LazyLock};

/// Why a text is no message, or a message no text.
#[derive(Debug)]
pub struct JsonError(String);

/// Reads a message of the rate limit service.
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

/// Writes a message of the rate limit service. A number in it that is none, such as `NaN`, is an error.
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
        .ok_or_else(|| JsonError(format!("{name} is no message of the rate limit service")))
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
