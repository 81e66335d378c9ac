//! Where metrics are sent.

use super::{
    Reader,
    values::{differs, write_time},
};
use crate::{
    model::Metrics,
    source::{Node, Value},
    table::{Shape, Table, Written, key, key_with_default},
};

const ENDPOINT: Shape = Shape::Text(&["http://127.0.0.1:4318"]);

pub(super) static METRICS: Table<Metrics> = Table {
    what: "metrics",
    required: &["endpoint"],
    keys: &[
        key(
            "endpoint",
            "A collector that speaks OTLP over HTTP; `/v1/metrics` is added.",
            ENDPOINT,
            |reader, node, it| it.endpoint = reader.endpoint(node).unwrap_or_default(),
            |it| Some(Written::text(&it.endpoint)),
        ),
        key_with_default(
            "every",
            "How often; every 10s where it is left out.",
            Shape::Text(&["10s"]),
            |reader, node, it| it.every = reader.length(node).unwrap_or(Metrics::default().every),
            |it| differs(it.every, Metrics::default().every).map(write_time),
            || write_time(Metrics::default().every),
        ),
        key_with_default(
            "service",
            "What the gateway is called in them; `tidegate` where it is left out.",
            Shape::Text(&["shop"]),
            |reader, node, it| it.service = reader.name(node).unwrap_or_default(),
            |it| (it.service != Metrics::default().service).then(|| Written::text(&it.service)),
            || Written::text(Metrics::default().service),
        ),
    ],
};

/// `metrics` in a table.
pub(super) const METRICS_SHAPE: Shape = Shape::Either(&[ENDPOINT, Shape::Keys(|| METRICS.outline())]);

impl Reader<'_> {
    pub(super) fn metrics(&mut self, node: &Node) -> Option<Metrics> {
        let mut metrics = Metrics::default();
        match &node.value {
            Value::Map(_) => self.fill(node, &METRICS, &mut metrics),
            _ => metrics.endpoint = self.endpoint(node)?,
        }
        Some(metrics)
    }
}
