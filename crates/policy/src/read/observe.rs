//! Reads `observe`, `metrics` and `traces`.

use super::{
    PolicyReader, ValueError,
    upstream::{SCHEMES, check_authority},
    values::{write_duration, write_number},
};
use crate::{
    map_schema::{MapSchema, OutputValue, TextKind, ValueSchema, duration, field, percentage},
    model::{KeyDisplay, Metrics, Observe, Traces},
    source::{SyntaxNode, SyntaxValue},
};

const ENDPOINT: ValueSchema = ValueSchema::Text(TextKind::Url, &["http://127.0.0.1:4318"]);
const KEY_DISPLAYS: [(&str, KeyDisplay); 2] = [("plain", KeyDisplay::Plain), ("hashed", KeyDisplay::Hashed)];

/// The maximum number of recorded denials or requests. It bounds the memory and the time to search them.
const MAX_RECORDS: u64 = 1_000_000;

pub(super) static OBSERVE: MapSchema<Observe> = MapSchema {
    name: "observe",
    required: &[],
    keys: &[
        field!("denials": ValueSchema::Integer("denials", 10_000), denials = integer(0..=MAX_RECORDS) => write_number, default Observe::default(),
            "The number of recent denials to record, each with an id that the response contains."),
        field!("keys": keys in KEY_DISPLAYS,
            "How keys, addresses and users are shown."),
        field!("history": ValueSchema::Integer("requests", 10_000), history = integer(0..=MAX_RECORDS) => write_number, default Observe::default(),
            "The number of recent requests to record."),
        field!("share": percentage(&["10%"]), share = percent => OutputValue::text, default Observe::default(),
            "The share of clients whose requests are recorded in the history."),
    ],
};

pub(super) static METRICS: MapSchema<Metrics> = MapSchema {
    name: "metrics",
    required: &["endpoint"],
    keys: &[
        field!("endpoint": ENDPOINT, endpoint = endpoint => OutputValue::text, always,
            "The URL of an OTLP collector over HTTP; `/v1/metrics` is added."),
        field!("interval": duration(&["1min"]), interval = positive_duration => write_duration, default Metrics::default(),
            "The export interval."),
        field!("service": ValueSchema::Text(TextKind::Name, &["shop"]), service = name => OutputValue::text, default Metrics::default(),
            "The service name of the gateway."),
    ],
};

/// The value of `metrics`.
pub(super) const METRICS_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[ENDPOINT, ValueSchema::Map(|| METRICS.outline())]);

pub(super) static TRACES: MapSchema<Traces> = MapSchema {
    name: "traces",
    required: &["endpoint"],
    keys: &[
        field!("endpoint": ENDPOINT, endpoint = endpoint => OutputValue::text, always,
            "The URL of an OTLP collector over HTTP; `/v1/traces` is added."),
        field!("sample": percentage(&["10%"]), sample = percent => OutputValue::text, default Traces::default(),
            "The share of requests to trace, for requests without a sampling decision of an earlier hop."),
        field!("service": ValueSchema::Text(TextKind::Name, &["shop"]), service = name => OutputValue::text, default Traces::default(),
            "The service name of the gateway."),
    ],
};

/// The value of `traces`.
pub(super) const TRACES_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[ENDPOINT, ValueSchema::Map(|| TRACES.outline())]);

impl PolicyReader<'_> {
    pub(super) fn metrics(&mut self, node: &SyntaxNode) -> Option<Metrics> {
        let mut metrics = Metrics::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &METRICS, &mut metrics),
            _ => metrics.endpoint = self.endpoint(node)?,
        }
        Some(metrics)
    }

    pub(super) fn traces(&mut self, node: &SyntaxNode) -> Option<Traces> {
        let mut traces = Traces::default();
        match &node.value {
            SyntaxValue::Map(_) => self.read_map(node, &TRACES, &mut traces),
            _ => traces.endpoint = self.endpoint(node)?,
        }
        Some(traces)
    }

    /// Reads the URL of an OTLP collector.
    pub(super) fn endpoint(&mut self, node: &SyntaxNode) -> Option<String> {
        if let SyntaxValue::Text(text) = &node.value
            && text.contains('@')
        {
            let fix = "remove them, as in `http://127.0.0.1:4318`";
            self.report_secret_error(node.span, "user or password in a collector URL", fix);
            return None;
        }
        self.read(node, parse_endpoint)
    }
}

/// Parses `http://127.0.0.1:4318` or `https://collector.internal/otlp`.
fn parse_endpoint(text: &str) -> Result<String, ValueError> {
    let fix = "write a URL, as in `http://127.0.0.1:4318`";
    if let Some(at) = text.find(|c: char| matches!(c, '?' | '#') || !c.is_ascii_graphic()) {
        let problem = "query, fragment or invalid character in an endpoint";
        return Err(ValueError::new(problem, "use only a host, a port and a path").with_span(at..text.len()));
    }
    let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)).map_or(0, str::len);
    let text = &text[..scheme + text[scheme..].trim_end_matches('/').len()];
    for added in ["/v1/traces", "/v1/metrics"] {
        if let Some(base) = text.strip_suffix(added) {
            let problem = format!("`{added}` is added automatically");
            return Err(ValueError::new(problem, "remove it").with_span(base.len()..text.len()));
        }
    }
    let authority = text[scheme..].split('/').next().unwrap_or_default();
    check_authority(text, scheme, authority, fix)?;
    Ok(text.to_owned())
}
