//! What is kept of single requests, and where metrics and spans are sent.

use super::{
    Mistake, Reader,
    upstream::{SCHEMES, check_place},
    values::{write_number, write_time},
};
use crate::{
    model::{KeysShown, Metrics, Observe, Traces},
    source::{Node, Value},
    table::{Shape, Table, Written, field},
};

const ENDPOINT: Shape = Shape::Text(&["http://127.0.0.1:4318"]);
const KEYS: [(&str, KeysShown); 2] = [("plain", KeysShown::Plain), ("hashed", KeysShown::Hashed)];

/// The most that is kept of either kind: memory is bounded, and so is the time to look through it.
const MOST: u64 = 1_000_000;

pub(super) static OBSERVE: Table<Observe> = Table {
    what: "observe",
    required: &[],
    keys: &[
        field!("denials": Shape::Whole, denials = whole(0..=MOST) => write_number, default Observe::default(),
            "How many of the last denials are kept, each with an id that its client is told; none where it is left out."),
        field!("keys": keys in KEYS,
            "What is shown of keys, addresses and users; `plain` where it is left out."),
        field!("history": Shape::Whole, history = whole(0..=MOST) => write_number, default Observe::default(),
            "How many of the last requests are kept; none where it is left out."),
        field!("share": Shape::Text(&["10%"]), share = share => Written::text, default Observe::default(),
            "Of the clients of which all requests are kept in the history; all where it is left out."),
    ],
};

pub(super) static METRICS: Table<Metrics> = Table {
    what: "metrics",
    required: &["endpoint"],
    keys: &[
        field!("endpoint": ENDPOINT, endpoint = endpoint => Written::text, always,
            "A collector that speaks OTLP over HTTP; `/v1/metrics` is added."),
        field!("every": Shape::Text(&["10s"]), every = length => write_time, default Metrics::default(),
            "How often; every 10s where it is left out."),
        field!("service": Shape::Text(&["shop"]), service = name => Written::text, default Metrics::default(),
            "What the gateway is called in them; `tidegate` where it is left out."),
    ],
};

/// `metrics` in a table.
pub(super) const METRICS_SHAPE: Shape = Shape::Either(&[ENDPOINT, Shape::Keys(|| METRICS.outline())]);

pub(super) static TRACES: Table<Traces> = Table {
    what: "traces",
    required: &["endpoint"],
    keys: &[
        field!("endpoint": ENDPOINT, endpoint = endpoint => Written::text, always,
            "A collector that speaks OTLP over HTTP; `/v1/traces` is added."),
        field!("sample": Shape::Text(&["10%"]), sample = share => Written::text, default Traces::default(),
            "Of the requests of which nobody before has said whether they are traced; all where it is left out."),
        field!("service": Shape::Text(&["shop"]), service = name => Written::text, default Traces::default(),
            "What the gateway is called in them; `tidegate` where it is left out."),
    ],
};

/// `traces` in a table.
pub(super) const TRACES_SHAPE: Shape = Shape::Either(&[ENDPOINT, Shape::Keys(|| TRACES.outline())]);

impl Reader<'_> {
    pub(super) fn metrics(&mut self, node: &Node) -> Option<Metrics> {
        let mut metrics = Metrics::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &METRICS, &mut metrics),
            _ => metrics.endpoint = self.endpoint(node)?,
        }
        Some(metrics)
    }

    pub(super) fn traces(&mut self, node: &Node) -> Option<Traces> {
        let mut traces = Traces::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &TRACES, &mut traces),
            _ => traces.endpoint = self.endpoint(node)?,
        }
        Some(traces)
    }

    /// A collector that speaks OTLP over HTTP.
    pub(super) fn endpoint(&mut self, node: &Node) -> Option<String> {
        if let Value::Text(text) = &node.value
            && text.contains('@')
        {
            let fix = "leave them out, as in `http://127.0.0.1:4318`";
            self.blame_hidden(node.at, "a collector has no user and no password", fix);
            return None;
        }
        self.read(node, endpoint)
    }
}

/// `http://127.0.0.1:4318`, `https://collector.internal/otlp`
fn endpoint(text: &str) -> Result<String, Mistake> {
    let fix = "write it as in `http://127.0.0.1:4318`";
    if let Some(at) = text.find(|c: char| matches!(c, '?' | '#') || !c.is_ascii_graphic()) {
        let problem = "an endpoint is a host, a port and a path";
        return Err(Mistake::new(problem, "leave this out").at(at..text.len()));
    }
    let scheme = SCHEMES.into_iter().find(|scheme| text.starts_with(scheme)).map_or(0, str::len);
    let text = &text[..scheme + text[scheme..].trim_end_matches('/').len()];
    for added in ["/v1/traces", "/v1/metrics"] {
        if let Some(base) = text.strip_suffix(added) {
            let problem = format!("`{added}` is added by itself");
            return Err(Mistake::new(problem, "leave it out").at(base.len()..text.len()));
        }
    }
    let place = text[scheme..].split('/').next().unwrap_or_default();
    check_place(text, scheme, place, fix)?;
    Ok(text.to_owned())
}
