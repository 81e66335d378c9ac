//! Exports metrics to a collector. It requires the cargo feature `otel`; without it, a gateway with `metrics` does not start.

#[cfg(feature = "otel")]
mod exporter;
#[cfg(not(feature = "otel"))]
mod noop;
#[cfg(feature = "otel")]
mod otlp;

#[cfg(feature = "otel")]
pub(crate) use exporter::MetricsExporter;
#[cfg(not(feature = "otel"))]
pub(crate) use noop::MetricsExporter;
