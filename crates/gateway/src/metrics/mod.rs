//! Sends metrics to a collector. The cargo feature `otel` brings it; without it, a gateway that is to send metrics does not start.

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
