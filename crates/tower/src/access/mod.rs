//! Who may come in at all: lists and bans, in front of a service.

mod layer;
mod service;

pub use layer::AccessLayer;
pub use service::Controlled;
