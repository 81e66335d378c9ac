//! Where spans of requests are sent.

use super::{
    Mistake, Reader,
    upstream::{SCHEMES, check_place},
    values::differs,
};
use crate::{
    model::Traces,
    source::{Node, Value},
    table::{Shape, Table, Written, key, key_with_default},
};

const ENDPOINT: Shape = Shape::Text(&["http://127.0.0.1:4318"]);

pub(super) static TRACES: Table<Traces> = Table {
    what: "traces",
    required: &["endpoint"],
    keys: &[
        key(
            "endpoint",
            "A collector that speaks OTLP over HTTP; `/v1/traces` is added.",
            ENDPOINT,
            |reader, node, it| it.endpoint = reader.endpoint(node).unwrap_or_default(),
            |it| Some(Written::text(&it.endpoint)),
        ),
        key_with_default(
            "sample",
            "Of the requests of which nobody before has said whether they are traced; all where it is left out.",
            Shape::Text(&["10%"]),
            |reader, node, it| it.sample = reader.share(node).unwrap_or_default(),
            |it| differs(it.sample, Traces::default().sample).map(Written::text),
            || Written::text(Traces::default().sample),
        ),
        key_with_default(
            "service",
            "What the gateway is called in them; `tidegate` where it is left out.",
            Shape::Text(&["shop"]),
            |reader, node, it| it.service = reader.name(node).unwrap_or_default(),
            |it| (it.service != Traces::default().service).then(|| Written::text(&it.service)),
            || Written::text(Traces::default().service),
        ),
    ],
};

/// `traces` in a table.
pub(super) const TRACES_SHAPE: Shape = Shape::Either(&[ENDPOINT, Shape::Keys(|| TRACES.outline())]);

impl Reader<'_> {
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
