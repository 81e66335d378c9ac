//! A layer with all rules of a policy file.

mod body;
mod future;
mod layer;
mod rejection;
mod service;

pub use body::BandwidthBody;
pub use future::PolicyFuture;
pub use layer::PolicyLayer;
pub use service::PolicyService;
