//! Shared parts of the middleware that admits or rejects a request and holds a permit while it is served.

mod admission;
mod body;
mod future;

pub(crate) use admission::{PermittedRequest, admit, admit_or_reject, respond, with_response_head};
pub use body::PermitMessageBody;
pub use future::PermitResponseFuture;
pub(crate) use future::{AdmittedServiceRequest, MiddlewareDecision};
