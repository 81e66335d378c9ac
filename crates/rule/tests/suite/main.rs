//! Tests of rules, gates and settings, in one binary so that it is linked once. Tests of global rules and of
//! log subscribers are separate binaries.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed unwrap fails the test")]

mod body;
mod common;
mod gate;
mod gate_properties;
mod gate_waits;
mod keys;
mod proxies;
mod quota_change_properties;
mod redeclaration;
mod rejection;
mod scaling;
mod waiting;
