//! A whole policy file in front of a service.

mod body;
mod future;
mod layer;
mod refusal;
mod service;

pub use body::Paced;
pub use future::PolicyFuture;
pub use layer::PolicyLayer;
pub use service::Governed;
