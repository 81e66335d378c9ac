//! The decision service compared with servers that respond without a decision: the server on one core, the load on the
//! other. Run it with `scripts/bench service [CASE]`. A case is one function and one line here.

#![allow(clippy::disallowed_methods, reason = "benchmarks read the clock")]

mod cases;
mod load;
mod servers;

use std::{env, process::ExitCode};
use tidegate_bench::{
    BenchResult,
    interleaved::median,
    suite::{
        BenchCase, Measurement, OtherProcesses, Suite,
        SuiteTarget::{AtLeast, AtMost},
        exit_code,
    },
};

#[rustfmt::skip]
const SUITE: Suite = Suite {
    name: "service",
    peers: &["tonic", "axum"],
    other_processes: OtherProcesses::Participate,
    cases: &[
        BenchCase { name: "grpc", about: cases::GRPC_ABOUT, target: AtLeast(0.85), measure: cases::measure_grpc },
        BenchCase { name: "grpc-1000", about: cases::GRPC_1000_ABOUT, target: AtLeast(0.95), measure: cases::measure_grpc_1000 },
        BenchCase { name: "grpc-redis", about: cases::GRPC_REDIS_ABOUT, target: AtLeast(0.8), measure: cases::measure_grpc_redis },
        BenchCase { name: "http", about: cases::HTTP_ABOUT, target: AtLeast(0.85), measure: cases::measure_http },
        BenchCase { name: "http-batch", about: cases::HTTP_BATCH_ABOUT, target: AtLeast(10.0), measure: cases::measure_http_batch },
        BenchCase { name: "start", about: cases::START_ABOUT, target: AtMost(10.0), measure: cases::measure_start },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // Child processes of this program.
        ["service", folder, address, store] => exit_code(servers::serve_limits(folder, address, store)),
        ["policy", file] => exit_code(servers::serve_policy(file)),
        ["stub-grpc", address] => exit_code(servers::serve_stub_grpc(address)),
        ["stub-http", address] => exit_code(servers::serve_stub_http(address)),
        ["store", url] => exit_code(load::load_store(url)),
        ["load", address, depth] => exit_code(load::load_grpc(address, depth)),
        _ => SUITE.main(),
    }
}
