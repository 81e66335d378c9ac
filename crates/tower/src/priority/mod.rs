//! Slots that the important lose last: load shedding by priority.

mod layer;
mod service;

pub use layer::PriorityLayer;
pub use service::Prioritised;
