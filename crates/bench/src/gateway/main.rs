//! The gateway compared with nginx: the proxy on one core, load and backend on the other. Run it with
//! `scripts/bench gateway [CASE]`. A case is one file and one line here.

#![allow(clippy::disallowed_methods, reason = "benchmarks read the clock")]

mod event_streams;
mod jwt;
mod large_body;
mod memory;
mod overrides;
mod p99;
mod paced;
mod throughput;
mod worst_second;

use std::{env, process::ExitCode};
use tidegate_bench::{
    BenchResult,
    interleaved::median,
    proxy,
    suite::{
        BenchCase, Measurement, OtherProcesses, Suite,
        SuiteTarget::{AtLeast, AtMost},
        exit_code,
    },
};

#[rustfmt::skip]
const SUITE: Suite = Suite {
    name: "gateway",
    peers: &["tokio", "httparse", "hyper"],
    other_processes: OtherProcesses::Participate,
    cases: &[
        BenchCase { name: "plain", about: throughput::PLAIN_ABOUT, target: AtLeast(1.15), measure: throughput::measure_plain },
        BenchCase { name: "cpu-plain", about: throughput::CPU_ABOUT, target: AtMost(0.85), measure: throughput::measure_cpu_plain },
        BenchCase { name: "limit-allowed", about: throughput::ALLOWED_ABOUT, target: AtLeast(1.15), measure: throughput::measure_limit_allowed },
        BenchCase { name: "limit-rejected", about: throughput::REJECTED_ABOUT, target: AtLeast(1.10), measure: throughput::measure_limit_rejected },
        BenchCase { name: "cpu-rejected", about: throughput::CPU_REJECTED_ABOUT, target: AtMost(1.0), measure: throughput::measure_cpu_rejected },
        BenchCase { name: "tls", about: throughput::TLS_ABOUT, target: AtLeast(1.0), measure: throughput::measure_tls },
        BenchCase { name: "h2", about: throughput::HTTP2_ABOUT, target: AtLeast(1.0), measure: throughput::measure_http2 },
        BenchCase { name: "large-body", about: large_body::ABOUT, target: AtMost(1.0), measure: large_body::measure },
        BenchCase { name: "rules-1000", about: throughput::RULES_ABOUT, target: AtLeast(0.95), measure: throughput::measure_rules_1000 },
        BenchCase { name: "all-guards", about: throughput::GUARDS_ABOUT, target: AtLeast(0.95), measure: throughput::measure_all_guards },
        BenchCase { name: "redis-three", about: throughput::REDIS_ABOUT, target: AtLeast(0.5), measure: throughput::measure_redis_three },
        BenchCase { name: "sse-settle", about: event_streams::ABOUT, target: AtMost(1.10), measure: event_streams::measure },
        BenchCase { name: "jwt", about: jwt::ABOUT, target: AtLeast(0.90), measure: jwt::measure },
        BenchCase { name: "overrides-1m", about: overrides::ABOUT, target: AtLeast(0.95), measure: overrides::measure },
        BenchCase { name: "idle-memory", about: memory::IDLE_ABOUT, target: AtMost(1.3), measure: memory::measure_idle },
        BenchCase { name: "slow-readers", about: memory::SLOW_ABOUT, target: AtMost(1.5), measure: memory::measure_slow_readers },
        BenchCase { name: "bandwidth-worst-second", about: worst_second::ABOUT, target: AtMost(1.05), measure: worst_second::measure },
        BenchCase { name: "p99", about: p99::ABOUT, target: AtMost(1.0), measure: p99::measure },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // Child processes of this program.
        ["serve", policy] => exit_code(proxy::serve(policy)),
        ["paced", address, rate] => exit_code(paced::send(address, rate)),
        ["download", address, path, count] => exit_code(worst_second::download(address, path, count)),
        ["events", address] => exit_code(event_streams::serve(address)),
        ["read-events", address] => exit_code(event_streams::read(address)),
        ["discard", address] => exit_code(large_body::download(address)),
        ["client", address, count] => exit_code(memory::hold_connections(address, count)),
        ["slow-readers", address, count] => exit_code(memory::hold_slow_readers(address, count)),
        _ => SUITE.main(),
    }
}
