//! Rules, gates and settings, in one program: it is built and linked once. What is about the rules of a whole program, or
//! about who listens in it, lies beside this folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod answers;
mod common;
mod gate;
mod gate_law;
mod gate_waits;
mod keys;
mod law;
mod proxies;
mod redeclare;
mod waiting;
