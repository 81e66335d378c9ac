//! gRPC: status headers, and an interceptor for tonic.

#[cfg(feature = "tonic")]
mod interceptor;
mod status;

#[cfg(feature = "tonic")]
pub use interceptor::RuleInterceptor;
pub(crate) use status::{GRPC_STATUS, GrpcCode, is_grpc, write_status_headers};
