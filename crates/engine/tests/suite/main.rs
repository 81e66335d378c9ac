//! The stories and laws of the engine, in one program: it is built and linked once. What looks at the whole process lies
//! beside this folder.

#![allow(clippy::unwrap_used, clippy::panic, reason = "this is how a test fails")]

mod access;
mod bad_input;
mod bandwidth;
mod bandwidth_items;
mod bandwidth_life;
mod bans;
mod breaker;
mod clocks;
mod common;
mod conformance;
mod crowded;
mod error_rate;
mod fallback;
mod joint;
mod keys;
mod laws;
mod lines;
mod load;
mod outages;
mod pace;
mod priority;
mod probes;
mod replaced;
mod several;
mod slots;
mod stories;
mod threads;
mod tiers;
mod waiting;
