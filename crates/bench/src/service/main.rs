//! The decision service beside servers that answer without looking: one core for the server, the load on the other. Run it
//! with `scripts/bench service [CASE]`. A case is one function and one line here.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]

mod cases;
mod load;
mod servers;

use std::{env, process::ExitCode};
use tidegate_bench::{
    Result,
    suite::{
        Bar::{AtLeast, AtMost},
        Case, Measured, Others, Suite, ended,
    },
    turns::median,
};

#[rustfmt::skip]
const SUITE: Suite = Suite {
    name: "service",
    peers: &["tonic", "axum"],
    others: Others::TakePart,
    cases: &[
        Case { name: "grpc", about: cases::GRPC, bar: AtLeast(0.85), measure: cases::grpc },
        Case { name: "grpc-1000", about: cases::GRPC_1000, bar: AtLeast(0.95), measure: cases::grpc_1000 },
        Case { name: "grpc-redis", about: cases::GRPC_REDIS, bar: AtLeast(0.8), measure: cases::grpc_redis },
        Case { name: "http", about: cases::HTTP, bar: AtLeast(0.85), measure: cases::http },
        Case { name: "http-batch", about: cases::HTTP_BATCH, bar: AtLeast(10.0), measure: cases::http_batch },
        Case { name: "start", about: cases::START, bar: AtMost(10.0), measure: cases::start },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // Processes that this program starts for itself.
        ["service", folder, address, store] => ended(servers::service(folder, address, store)),
        ["policy", file] => ended(servers::policy(file)),
        ["blind-grpc", address] => ended(servers::blind_grpc(address)),
        ["blind-http", address] => ended(servers::blind_http(address)),
        ["store", url] => ended(load::ask_store(url)),
        ["load", address, depth] => ended(load::ask_grpc(address, depth)),
        _ => SUITE.main(),
    }
}
