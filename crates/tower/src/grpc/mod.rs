//! gRPC: its statuses, where HTTP has others, and an interceptor where a layer cannot be used.

#[cfg(feature = "tonic")]
mod interceptor;
mod status;

#[cfg(feature = "tonic")]
pub use interceptor::RuleInterceptor;
pub(crate) use status::{GRPC_STATUS, GrpcCode, is_grpc, write_status_headers};
