//! The middleware, in one program: it is built and linked once.

mod guards;
mod limit;
mod server;
mod stage;
