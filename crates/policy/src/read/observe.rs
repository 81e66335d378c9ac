//! What is kept of single requests, and where metrics and spans are sent.

use super::{
    PolicyReader, ValueError,
    upstream::{SCHEMES, check_authority},
    values::{write_duration, write_number},
};
use crate::{
    map_schema::{MapSchema, OutputValue, ValueSchema, field},
    model::{KeyDisplay, Metrics, Observe, Traces},
    source::{SyntaxNode, SyntaxValue},
};

const ENDPOINT: ValueSchema = ValueSchema::Text(&["http://127.0.0.1:4318"]);
const KEY_DISPLAYS: [(&str, KeyDisplay); 2] = [("plain", KeyDisplay::Plain), ("hashed", KeyDisplay::Hashed)];

/// The most that is kept of either kind: memory is bounded, and so is the time to look through it.
const MAX_RECORDS: u64 = 1_000_000;

pub(super) static OBSERVE: MapSchema<Observe> = MapSchema {
    name: "observe",
    required: &[],
    keys: &[
        field!("denials": ValueSchema::Integer, denials = integer(0..=MAX_RECORDS) => write_number, default Observe::default(),
            "How many of the last denials are kept, each with an id that its client is told; none where it is left out."),
        field!("keys": keys in KEY_DISPLAYS,
            "What is shown of keys, addresses and users; `plain` where it is left out."),
        field!("history": ValueSchema::Integer, history = integer(0..=MAX_RECORDS) => write_number, default Observe::default(),
            "How many of the last requests are kept; none where it is left out."),
        field!("share": ValueSchema::Text(&["10%"]), share = percent => OutputValue::text, default Observe::default(),
            "Of the clients of which all requests are kept in the history; all where it is left out."),
    ],
};

pub(super) static METRICS: MapSchema<Metrics> = MapSchema {
    name: "metrics",
    required: &["endpoint"],
    keys: &[
        field!("endpoint": ENDPOINT, endpoint = endpoint => OutputValue::text, always,
            "A collector that speaks OTLP over HTTP; `/v1/metrics` is added."),
        field!("every": ValueSchema::Text(&["10s"]), interval = positive_duration => write_duration, default Metrics::default(),
            "How often; every 10s where it is left out."),
        field!("service": ValueSchema::Text(&["shop"]), service = name => OutputValue::text, default Metrics::default(),
            "What the gateway is called in them; `tidegate` where it is left out."),
    ],
};

/// `metrics` in a table.
pub(super) const METRICS_SHAPE: ValueSchema =
    ValueSchema::AnyOf(&[ENDPOINT, ValueSchema::Map(|| METRICS.outline())]);

pub(super) static TRACES: MapSchema<Traces> = MapSchema {
    name: "traces",
    required: &["endpoint"],
    keys: &[
        field!("endpoint": ENDPOINT, endpoint = endpoint => OutputValue::text, always,
            "A collector that speaks OTLP over HTTP; `/v1/traces` is added."),
        field!("sample": ValueSchema::Text(&["10%"]), sample = percent => OutputValue::text, default Traces::default(),
            "Of the requests of which nobody before has said whether they are traced; all where it is left out."),
        field!("service": ValueSchema::Text(&["shop"]), service = name => OutputValue::text, default Traces::default(),
            "What the gateway is called in them; `tidegate` where it is left out."),
    ],
};

/// `traces` in a table.
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

    /// A collector that speaks OTLP over HTTP.
    pub(super) fn endpoint(&mut self, node: &SyntaxNode) -> Option<String> {
        if let SyntaxValue::Text(text) = &node.value
            && text.contains('@')
        {
            let fix = "leave them out, as in `http://127.0.0.1:4318`";
            self.report_secret_error(node.span, "a collector has no user and no password", fix);
            return None;
        }
        self.read(node, parse_endpoint)
    }
}

/// `http://127.0.0.1:4318`, `https://collector.internal/otlp`
fn parse_endpoint(text: &str) -> Result<String, ValueError> {
    let fix = "write it as in `http://127.0.0.1:4318`";
    if let Some(at) = text.find(|c: char| matches!(c, '?' | '#') || !c.is_ascii_graphic()) {
        let problem = "an endpoint is a host, a port and a path";
        return Err(ValueError::new(problem, "leave this out").with_span(at..text.len()));
    }
    let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)).map_or(0, str::len);
    let text = &text[..scheme + text[scheme..].trim_end_matches('/').len()];
    for added in ["/v1/traces", "/v1/metrics"] {
        if let Some(base) = text.strip_suffix(added) {
            let problem = format!("`{added}` is added by itself");
            return Err(ValueError::new(problem, "leave it out").with_span(base.len()..text.len()));
        }
    }
    let place = text[scheme..].split('/').next().unwrap_or_default();
    check_authority(text, scheme, place, fix)?;
    Ok(text.to_owned())
}
