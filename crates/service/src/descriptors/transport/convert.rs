//! Converts between Envoy's messages and the types of the service.

use crate::descriptors::{
    DecisionError, DomainRequest, DomainVerdict, LimitCode, LimitOverride, LimitStatus, RequestDescriptor,
};
use prost_types::{ListValue, NullValue, Struct, Value, value::Kind};
use tidegate_policy::descriptors::{CalendarUnit, DescriptorEntry};
use tidegate_proto::rls;

/// The maximum size of a request in bytes.
pub const MAX_MESSAGE_SIZE: usize = 4 * 1024 * 1024;

/// Decodes a request. The service checks the number of descriptors and entries.
pub(super) fn decode_request(request: rls::RateLimitRequest) -> Result<DomainRequest, DecisionError> {
    let descriptors = request
        .descriptors
        .into_iter()
        .enumerate()
        .map(|(index, descriptor)| decode_descriptor(index, descriptor));
    Ok(DomainRequest {
        domain: request.domain,
        descriptors: descriptors.collect::<Result<_, _>>()?,
        hits: request.hits_addend,
        deadline: None,
    })
}

fn decode_descriptor(
    index: usize,
    descriptor: rls::RateLimitDescriptor,
) -> Result<RequestDescriptor, DecisionError> {
    let limit = descriptor.limit.map(|limit| decode_override(index, limit)).transpose()?;
    let entries =
        descriptor.entries.into_iter().map(|entry| DescriptorEntry { key: entry.key, value: entry.value });
    Ok(RequestDescriptor { entries: entries.collect(), limit, hits: descriptor.hits_addend })
}

fn decode_override(index: usize, limit: rls::RateLimitOverride) -> Result<LimitOverride, DecisionError> {
    let unit = match limit.unit() {
        rls::RateLimitUnit::Unknown => None,
        rls::RateLimitUnit::Second => Some(CalendarUnit::Second),
        rls::RateLimitUnit::Minute => Some(CalendarUnit::Minute),
        rls::RateLimitUnit::Hour => Some(CalendarUnit::Hour),
        rls::RateLimitUnit::Day => Some(CalendarUnit::Day),
        rls::RateLimitUnit::Week => Some(CalendarUnit::Week),
        rls::RateLimitUnit::Month => Some(CalendarUnit::Month),
        rls::RateLimitUnit::Year => Some(CalendarUnit::Year),
    };
    // prost decodes an unknown number as `UNKNOWN` too.
    let unit = unit.ok_or_else(|| {
        DecisionError::Invalid(format!(
            "descriptors[{index}].limit: invalid unit {}; use SECOND, MINUTE, HOUR, DAY, WEEK, MONTH or YEAR",
            match limit.unit {
                0 => "UNKNOWN".to_owned(),
                number => number.to_string(),
            }
        ))
    })?;
    Ok(LimitOverride { requests: limit.requests_per_unit, unit })
}

/// Encodes a verdict.
pub(super) fn encode_response(verdict: DomainVerdict) -> rls::RateLimitResponse {
    let header = |(key, value)| rls::HeaderValue { key, value, raw_value: Vec::new() };
    rls::RateLimitResponse {
        overall_code: encode_code(verdict.overall_code).into(),
        statuses: verdict.statuses.into_iter().map(encode_status).collect(),
        response_headers_to_add: verdict.headers.into_iter().map(header).collect(),
        request_headers_to_add: Vec::new(),
        raw_body: verdict.body.map_or_else(Vec::new, String::into_bytes),
        dynamic_metadata: verdict.metadata.and_then(json_to_struct),
        quota: None,
    }
}

fn encode_status(status: LimitStatus) -> rls::DescriptorStatus {
    let limit = |(requests_per_unit, unit, name): (_, _, Option<std::sync::Arc<str>>)| rls::RateLimit {
        name: name.map_or_else(String::new, |name| name.to_string()),
        requests_per_unit,
        unit: encode_unit(unit).into(),
    };
    rls::DescriptorStatus {
        code: encode_code(status.code).into(),
        current_limit: status.limit.map(limit),
        limit_remaining: status.remaining,
        // A duration that overflows the protocol is omitted.
        duration_until_reset: status.reset.and_then(|reset| reset.try_into().ok()),
        quota: None,
    }
}

fn encode_code(over: LimitCode) -> rls::Code {
    match over {
        LimitCode::Ok => rls::Code::Ok,
        LimitCode::OverLimit => rls::Code::OverLimit,
    }
}

fn encode_unit(unit: CalendarUnit) -> rls::Unit {
    match unit {
        CalendarUnit::Second => rls::Unit::Second,
        CalendarUnit::Minute => rls::Unit::Minute,
        CalendarUnit::Hour => rls::Unit::Hour,
        CalendarUnit::Day => rls::Unit::Day,
        CalendarUnit::Week => rls::Unit::Week,
        CalendarUnit::Month => rls::Unit::Month,
        CalendarUnit::Year => rls::Unit::Year,
    }
}

/// Converts a JSON object; `None` for any other JSON value, which the protocol does not support.
fn json_to_struct(json: serde_json::Value) -> Option<Struct> {
    match json_to_value(json).kind {
        Some(Kind::StructValue(structure)) => Some(structure),
        _ => None,
    }
}

fn json_to_value(json: serde_json::Value) -> Value {
    let kind = match json {
        serde_json::Value::Null => Kind::NullValue(NullValue::NullValue.into()),
        serde_json::Value::Bool(value) => Kind::BoolValue(value),
        // Always `Some`, since serde_json is built without arbitrary precision.
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(text) => Kind::StringValue(text),
        serde_json::Value::Array(all) => {
            Kind::ListValue(ListValue { values: all.into_iter().map(json_to_value).collect() })
        }
        serde_json::Value::Object(fields) => Kind::StructValue(Struct {
            fields: fields.into_iter().map(|(name, json)| (name, json_to_value(json))).collect(),
        }),
    };
    Value { kind: Some(kind) }
}
