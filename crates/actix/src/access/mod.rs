//! Who may come in at all: lists and bans, in front of a service.

mod service;
mod transform;

pub use service::AccessService;
pub use transform::AccessMiddleware;
