//! What the programs of this crate share: the machine, the document, and a suite of cases as a program.
//!
//! Nothing here takes part in what is measured, but for the loop of [`interleaved`].

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]

pub mod docs_page;
pub mod interleaved;
pub mod machine;
pub mod process;
pub mod proxy;
pub mod suite;

/// Everything that goes wrong here ends the run with one line.
pub type BenchResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;
