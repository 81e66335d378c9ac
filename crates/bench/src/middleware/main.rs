//! The attribute compared with a direct call of the limiter, and the layers with their peers. Run it with
//! `scripts/bench middleware [CASE]`. A case is one file and one line here.

#![allow(clippy::disallowed_methods, reason = "benchmarks read the clock")]
#![allow(clippy::panic, reason = "an unexpected result ends a benchmark")]

mod attribute;
#[path = "axum.rs"]
mod axum_server;
mod tower_headers;
mod tower_plain;

use std::process::ExitCode;
use tidegate_bench::suite::{
    BenchCase, OtherProcesses, Suite,
    SuiteTarget::{AtLeast, AtMost},
};

#[rustfmt::skip]
const SUITE: Suite = Suite {
    name: "middleware",
    peers: &["tower_governor", "governor", "axum"],
    other_processes: OtherProcesses::Disturb,
    cases: &[
        BenchCase { name: "attribute", about: attribute::ABOUT, target: AtMost(1.15), measure: attribute::measure },
        BenchCase { name: "tower-plain", about: tower_plain::ABOUT, target: AtMost(0.95), measure: tower_plain::measure },
        BenchCase { name: "tower-headers", about: tower_headers::ABOUT, target: AtMost(1.0), measure: tower_headers::measure },
        BenchCase { name: "axum", about: axum_server::ABOUT, target: AtLeast(0.97), measure: axum_server::measure },
    ],
};

fn main() -> ExitCode {
    SUITE.main()
}
