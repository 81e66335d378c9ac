//! What is known of a request, put around whoever serves it.

mod layer;
mod service;

pub use layer::FactsLayer;
pub use service::{FactsFuture, WithFacts};
