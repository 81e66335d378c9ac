//! Shared code of the benchmark programs; run them with `scripts/bench`.
//!
//! ```
//! use tidegate_bench::interleaved::{compare, median};
//!
//! let rounds = [1.5, 0.9, 1.1];
//! assert_eq!(median(&rounds), 1.1);
//! # if false {
//! let measurement = compare(("ours", || { /* a call */ }), ("theirs", || { /* another */ }));
//! println!("{} ({})", measurement.value, measurement.figures);
//! # }
//! ```
//!
//! | module | content |
//! |---|---|
//! | [`suite`] | a suite of cases as a program, with its arguments, targets and tables |
//! | [`interleaved`] | alternating rounds of two competitors, and the median of their ratios |
//! | [`machine`] | the machine, its load and the memory of this process |
//! | [`process`], [`proxy`] | servers in separate processes, pinned to a core, and load on them |
//! | [`docs_page`] | writes tables to `docs/benchmarks.md` |
//!
//! It does not:
//!
//! - contain measured code, except for the loop of [`interleaved`];
//! - fail when a target is missed: the machine may be the cause.

#![allow(clippy::disallowed_methods, reason = "benchmarks read the clock")]

pub mod docs_page;
pub mod interleaved;
pub mod machine;
pub mod process;
pub mod proxy;
pub mod suite;

/// The result of a benchmark step; an error ends the run with one line.
pub type BenchResult<T> = std::result::Result<T, Box<dyn std::error::Error>>;
