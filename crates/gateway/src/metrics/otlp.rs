//! OTLP messages for metrics, with the field numbers of the protocol.

use crate::traces::{KeyValue, Resource, Scope};
use prost::{Message, Oneof};
use tidegate_core::Micros;
use tidegate_http_server::{MetricFamily, MetricKind, MetricLabels, MetricValue};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportMetricsRequest {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "MetricData", tags = "5, 7, 9")]
    data: Option<MetricData>,
}

#[derive(Clone, PartialEq, Oneof)]
enum MetricData {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    points: Vec<NumberPoint>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    points: Vec<NumberPoint>,
    #[prost(int32, tag = "2")]
    temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    points: Vec<HistogramPoint>,
    #[prost(int32, tag = "2")]
    temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct NumberPoint {
    #[prost(fixed64, tag = "2")]
    start: u64,
    #[prost(fixed64, tag = "3")]
    time: u64,
    #[prost(oneof = "PointValue", tags = "4, 6")]
    value: Option<PointValue>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Oneof)]
enum PointValue {
    #[prost(double, tag = "4")]
    Float(f64),
    #[prost(sfixed64, tag = "6")]
    Integer(i64),
}

#[derive(Clone, PartialEq, Message)]
struct HistogramPoint {
    #[prost(fixed64, tag = "2")]
    start: u64,
    #[prost(fixed64, tag = "3")]
    time: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    #[prost(fixed64, repeated, tag = "6")]
    counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
}

/// All counters count from the start of the process.
const CUMULATIVE_TEMPORALITY: i32 = 2;

impl ExportMetricsRequest {
    /// A request with these families at the time `now`, for the service of this name.
    pub(super) fn new(service: &str, families: &[MetricFamily], started: Micros, now: Micros) -> Self {
        let (start, time) = (started.get() * 1_000, now.get() * 1_000);
        let metrics = families.iter().filter(|family| !family.samples.is_empty());
        let metrics = metrics.map(|family| Metric {
            name: family.name.to_owned(),
            description: family.help.to_owned(),
            unit: if family.name.contains("_seconds") { "s" } else { "1" }.to_owned(),
            data: Some(metric_data(family, start, time)),
        });
        let scopes = vec![ScopeMetrics { scope: Some(Scope::tidegate()), metrics: metrics.collect() }];
        Self { resources: vec![ResourceMetrics { resource: Some(Resource::new(service)), scopes }] }
    }
}

fn metric_data(family: &MetricFamily, start: u64, time: u64) -> MetricData {
    let points = || family.samples.iter().filter_map(|sample| number_point(sample, start, time)).collect();
    match family.kind {
        MetricKind::Gauge => MetricData::Gauge(Gauge { points: points() }),
        MetricKind::Counter => {
            MetricData::Sum(Sum { points: points(), temporality: CUMULATIVE_TEMPORALITY, is_monotonic: true })
        }
        MetricKind::Histogram => {
            let points = family.samples.iter().filter_map(|sample| histogram_point(sample, start, time));
            MetricData::Histogram(Histogram { points: points.collect(), temporality: CUMULATIVE_TEMPORALITY })
        }
    }
}

type Sample = (MetricLabels, MetricValue);

fn number_point((labels, number): &Sample, start: u64, time: u64) -> Option<NumberPoint> {
    let value = match number {
        MetricValue::Integer(number) => PointValue::Integer(i64::try_from(*number).unwrap_or(i64::MAX)),
        MetricValue::Float(number) => PointValue::Float(*number),
        MetricValue::Histogram { .. } => return None,
    };
    Some(NumberPoint { start, time, value: Some(value), attributes: attributes(labels) })
}

fn histogram_point((labels, number): &Sample, start: u64, time: u64) -> Option<HistogramPoint> {
    let MetricValue::Histogram { bounds, counts, sum } = number else { return None };
    Some(HistogramPoint {
        start,
        time,
        count: counts.iter().sum(),
        sum: Some(*sum as f64 / 1e6),
        counts: counts.clone(),
        bounds: bounds.iter().map(|end| *end as f64 / 1e6).collect(),
        attributes: attributes(labels),
    })
}

fn attributes(labels: &[(&'static str, String)]) -> Vec<KeyValue> {
    labels.iter().map(|(name, text)| KeyValue::text(name, text.as_str())).collect()
}
