//! Sends metrics to a collector. The cargo feature `otel` brings it; without it, a gateway that is to send metrics does not start.

#[cfg(not(feature = "otel"))]
mod missing;
#[cfg(feature = "otel")]
mod otlp;
#[cfg(feature = "otel")]
mod sending;

#[cfg(not(feature = "otel"))]
pub(crate) use missing::Sending;
#[cfg(feature = "otel")]
pub(crate) use sending::Sending;
