//! Slots that the important lose last: load shedding by priority.

mod service;
mod transform;

pub use service::PriorityService;
pub use transform::PriorityMiddleware;
