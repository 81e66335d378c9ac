//! Middleware for actix-web.
