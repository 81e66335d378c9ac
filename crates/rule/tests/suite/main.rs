//! Rules, gates and settings, in one program: it is built and linked once. What is about the rules of a whole program, or
//! about who listens in it, lies beside this folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod common;
mod gate;
mod gate_properties;
mod gate_waits;
mod keys;
mod proxies;
mod quota_change_properties;
mod redeclaration;
mod rejection;
mod waiting;
