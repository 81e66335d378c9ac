//! The integration tests of verified identities, in one program, so that it is linked once.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod api_keys;
mod authenticator;
mod key_set;
mod tokens;
