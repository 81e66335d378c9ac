//! The stories and laws of the engine, in one program: it is built and linked once. What looks at the whole process lies
//! beside this folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod bad_input;
mod clocks;
mod common;
mod conformance;
mod crowded;
mod joint;
mod keys;
mod laws;
mod lines;
mod outages;
mod pace;
mod replaced;
mod several;
mod slots;
mod stories;
mod threads;
mod tiers;
mod waiting;
