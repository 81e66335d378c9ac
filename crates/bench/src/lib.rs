//! What the programs of this crate share: the machine, the document, and a suite of cases as a program.
//!
//! Nothing here takes part in what is measured, but for the loop of [`turns`].

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]

pub mod machine;
pub mod page;
pub mod process;
pub mod proxy;
pub mod suite;
pub mod turns;

/// Everything that goes wrong here ends the run with one line.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;
