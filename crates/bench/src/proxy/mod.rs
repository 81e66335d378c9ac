//! Proxies under load: who takes part, and as many requests as they can take.

mod stage;
mod wrk;

pub use stage::{OK, REQUEST, Server, serve, speak};
pub use wrk::{Answers, compare, load};
