//! gRPC: its statuses, where HTTP has others.

#[allow(dead_code, reason = "the guards need the rest")]
mod status;

pub(crate) use status::{Code, is_grpc, status_headers};
