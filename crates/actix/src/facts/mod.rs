//! What is known of a request, put around whoever serves it.

mod service;
mod transform;

pub use service::{FactsFuture, FactsService};
pub use transform::FactsMiddleware;
