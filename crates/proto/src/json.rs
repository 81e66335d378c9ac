//! The request and the response of the rate limit service as proto3 JSON.
//!
//! Fields are parsed by either name, `hitsAddend` or `hits_addend`, and written as the first. Enums are written by
//! name, durations as in `"34s"`, and default values are omitted. An unknown field is an error.

use crate::rls;
use base64::{Engine, prelude::BASE64_STANDARD};
use prost_types::{Struct, Value, value::Kind};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::{error, fmt, marker::PhantomData};

/// An invalid JSON message, or a message that has no JSON form.
#[derive(Debug)]
pub struct JsonError(serde_json::Error);

/// Parses a request.
///
/// ```
/// use tidegate_proto::json;
///
/// let request = json::parse_request(br#"{ "domain": "shop", "hits_addend": 3 }"#)?;
/// assert_eq!(request.hits_addend, 3);
/// # Ok::<_, json::JsonError>(())
/// ```
pub fn parse_request(text: &[u8]) -> Result<rls::RateLimitRequest, JsonError> {
    let Object(request) = serde_json::from_slice::<Object<Request>>(text).map_err(JsonError)?;
    Ok(rls::RateLimitRequest {
        domain: request.domain,
        descriptors: request.descriptors.into_iter().map(|Object(descriptor)| descriptor.into()).collect(),
        hits_addend: request.hits_addend,
    })
}

/// Writes a response. A number that is not finite, such as `NaN`, is an error.
pub fn write_response(response: &rls::RateLimitResponse) -> Result<Vec<u8>, JsonError> {
    serde_json::to_vec(&Response::from(response)).map_err(JsonError)
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Request {
    #[serde(deserialize_with = "null_or")]
    domain: String,
    #[serde(deserialize_with = "null_or")]
    descriptors: Vec<Object<Descriptor>>,
    #[serde(alias = "hits_addend", deserialize_with = "integer")]
    hits_addend: u32,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct Descriptor {
    #[serde(deserialize_with = "null_or")]
    entries: Vec<Object<Entry>>,
    limit: Option<Object<LimitOverride>>,
    #[serde(alias = "hits_addend", deserialize_with = "optional_integer")]
    hits_addend: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Entry {
    #[serde(deserialize_with = "null_or")]
    key: String,
    #[serde(deserialize_with = "null_or")]
    value: String,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct LimitOverride {
    #[serde(alias = "requests_per_unit", deserialize_with = "integer")]
    requests_per_unit: u32,
    #[serde(deserialize_with = "unit")]
    unit: i32,
}

impl From<Descriptor> for rls::RateLimitDescriptor {
    fn from(descriptor: Descriptor) -> Self {
        let entry = |Object(Entry { key, value })| rls::Entry { key, value };
        let limit = |Object(LimitOverride { requests_per_unit, unit })| rls::RateLimitOverride {
            requests_per_unit,
            unit,
        };
        Self {
            entries: descriptor.entries.into_iter().map(entry).collect(),
            limit: descriptor.limit.map(limit),
            hits_addend: descriptor.hits_addend,
        }
    }
}

/// A message, which is a JSON object. The derived code would also accept an array of its fields.
struct Object<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectReader<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectReader<T> {
            type Value = Object<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, members: A) -> Result<Object<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(members)).map(Object)
            }
        }

        deserializer.deserialize_map(ObjectReader(PhantomData))
    }
}

/// Parses a value, or the default value from `null`.
fn null_or<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

fn integer<'de, T: TryFrom<u64> + Default, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    optional_integer(deserializer).map(Option::unwrap_or_default)
}

/// Parses a number or a string that contains one; `2.0` and `1e3` are integers.
fn optional_integer<'de, T: TryFrom<u64>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    let number: serde_json::Number = match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Null => return Ok(None),
        serde_json::Value::Number(number) => number,
        serde_json::Value::String(text) => {
            text.parse().map_err(|_| de::Error::custom(format_args!("`{text}` is not a number")))?
        }
        _ => return Err(de::Error::custom("expected a number")),
    };
    let value = number.as_u64().or_else(|| number.as_f64().and_then(whole)).map(T::try_from);
    match value {
        Some(Ok(value)) => Ok(Some(value)),
        _ => Err(de::Error::custom(format_args!("{number} is out of range, or not an integer"))),
    }
}

/// The value of a number without a fraction, of at most 2⁵³.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range is checked")]
fn whole(number: f64) -> Option<u64> {
    const MAX_EXACT: f64 = 9_007_199_254_740_992.0;
    (number.fract() == 0.0 && (0.0..=MAX_EXACT).contains(&number)).then_some(number as u64)
}

/// Parses the name of a unit, or its number.
fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::Null => Ok(0),
        serde_json::Value::String(name) => rls::RateLimitUnit::from_str_name(&name)
            .map(i32::from)
            .ok_or_else(|| de::Error::custom(format_args!("unknown unit `{name}`"))),
        value => i32::deserialize(value).map_err(de::Error::custom),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Response<'a> {
    #[serde(skip_serializing_if = "EnumValue::is_default")]
    overall_code: EnumValue,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    statuses: Vec<DescriptorStatus<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<Header<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    request_headers_to_add: Vec<Header<'a>>,
    #[serde(skip_serializing_if = "str::is_empty")]
    raw_body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<Fields<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<Quota<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct DescriptorStatus<'a> {
    #[serde(skip_serializing_if = "EnumValue::is_default")]
    code: EnumValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<RateLimit<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    quota: Option<Quota<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct RateLimit<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    requests_per_unit: u32,
    #[serde(skip_serializing_if = "EnumValue::is_default")]
    unit: EnumValue,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Quota<'a> {
    #[serde(skip_serializing_if = "is_zero")]
    requests: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    valid_until: Option<String>,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Header<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    key: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    value: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    raw_value: String,
}

impl<'a> From<&'a rls::RateLimitResponse> for Response<'a> {
    fn from(response: &'a rls::RateLimitResponse) -> Self {
        Self {
            overall_code: EnumValue::code(response.overall_code),
            statuses: response.statuses.iter().map(DescriptorStatus::from).collect(),
            response_headers_to_add: response.response_headers_to_add.iter().map(Header::from).collect(),
            request_headers_to_add: response.request_headers_to_add.iter().map(Header::from).collect(),
            raw_body: BASE64_STANDARD.encode(&response.raw_body),
            dynamic_metadata: response.dynamic_metadata.as_ref().map(Fields),
            quota: response.quota.as_ref().map(Quota::from),
        }
    }
}

impl<'a> From<&'a rls::DescriptorStatus> for DescriptorStatus<'a> {
    fn from(status: &'a rls::DescriptorStatus) -> Self {
        let limit = |limit: &'a rls::RateLimit| RateLimit {
            requests_per_unit: limit.requests_per_unit,
            unit: EnumValue::unit(limit.unit),
            name: &limit.name,
        };
        Self {
            code: EnumValue::code(status.code),
            current_limit: status.current_limit.as_ref().map(limit),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status.duration_until_reset.map(|duration| duration.to_string()),
            quota: status.quota.as_ref().map(Quota::from),
        }
    }
}

impl<'a> From<&'a rls::Quota> for Quota<'a> {
    fn from(quota: &'a rls::Quota) -> Self {
        let expiration = quota.expiration_specifier.as_ref();
        Self {
            requests: quota.requests,
            valid_until: expiration.map(|rls::quota::ExpirationSpecifier::ValidUntil(time)| time.to_string()),
            id: &quota.id,
        }
    }
}

impl<'a> From<&'a rls::HeaderValue> for Header<'a> {
    fn from(header: &'a rls::HeaderValue) -> Self {
        let raw_value = BASE64_STANDARD.encode(&header.raw_value);
        Self { key: &header.key, value: &header.value, raw_value }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature of `skip_serializing_if`")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// The value of an enum, written as its name, or as a number if it has none.
struct EnumValue {
    number: i32,
    name: Option<&'static str>,
}

impl EnumValue {
    fn code(number: i32) -> Self {
        Self { number, name: rls::Code::try_from(number).ok().map(|code| code.as_str_name()) }
    }

    fn unit(number: i32) -> Self {
        Self { number, name: rls::Unit::try_from(number).ok().map(|unit| unit.as_str_name()) }
    }

    fn is_default(&self) -> bool {
        self.number == 0
    }
}

impl Serialize for EnumValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.name {
            Some(name) => serializer.serialize_str(name),
            None => serializer.serialize_i32(self.number),
        }
    }
}

/// A `google.protobuf.Struct`, written as an object.
struct Fields<'a>(&'a Struct);

impl Serialize for Fields<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.fields.iter().map(|(name, value)| (name, FieldValue(value))))
    }
}

struct FieldValue<'a>(&'a Value);

impl Serialize for FieldValue<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match &self.0.kind {
            None | Some(Kind::NullValue(_)) => serializer.serialize_unit(),
            Some(Kind::BoolValue(value)) => serializer.serialize_bool(*value),
            Some(Kind::NumberValue(number)) if number.is_finite() => serializer.serialize_f64(*number),
            Some(Kind::NumberValue(_)) => Err(serde::ser::Error::custom("a number is not finite")),
            Some(Kind::StringValue(text)) => serializer.serialize_str(text),
            Some(Kind::StructValue(fields)) => Fields(fields).serialize(serializer),
            Some(Kind::ListValue(list)) => serializer.collect_seq(list.values.iter().map(FieldValue)),
        }
    }
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl error::Error for JsonError {}
