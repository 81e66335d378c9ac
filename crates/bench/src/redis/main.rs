//! The Redis store compared with a naive client that sends one GCRA script per decision over the same driver. Run it with
//! `scripts/bench redis [CASE]`.

#![allow(clippy::disallowed_methods, reason = "benchmarks read the clock")]
#![allow(clippy::panic, reason = "an unexpected result ends a benchmark")]

mod cases;
mod fleet;
mod naive;
mod rounds;

use cases::with_server;
use std::{env, process::ExitCode};
use tidegate_bench::suite::{BenchCase, OtherProcesses, Suite, SuiteTarget, exit_code};

const SUITE: Suite = Suite {
    name: "redis",
    peers: &["redis", "tokio"],
    other_processes: OtherProcesses::Participate,
    cases: &[
        BenchCase {
            name: "strict-256",
            about: "256 tasks, one quota, 10 k keys: decisions/s over naive",
            target: SuiteTarget::AtLeast(2.5),
            measure: || with_server(cases::measure_strict),
        },
        BenchCase {
            name: "lone-latency",
            about: "1 task, one quota: median latency over naive",
            target: SuiteTarget::AtMost(1.05),
            measure: || with_server(cases::measure_lone_latency),
        },
        BenchCase {
            name: "three-quotas",
            about: "1 task, three quotas in one request: median latency over one quota",
            target: SuiteTarget::AtMost(1.6),
            measure: || with_server(cases::measure_three_quotas),
        },
        BenchCase {
            name: "leased-256",
            about: "256 tasks, one hot key, prefetched tokens: decisions/s over strict",
            target: SuiteTarget::AtLeast(50.0),
            measure: || with_server(cases::measure_leased),
        },
        BenchCase {
            name: "leased-over",
            about: "4 processes at 10 times the quota, prefetched tokens: admissions over the exact quota, highest round",
            target: SuiteTarget::AtMost(1.0),
            measure: || with_server(fleet::measure_admitted_over_quota),
        },
        BenchCase {
            name: "leased-used",
            about: "the same: used share of the quota, lowest round",
            target: SuiteTarget::AtLeast(0.97),
            measure: || with_server(fleet::measure_used_quota),
        },
        BenchCase {
            name: "bytes-per-key",
            about: "token bucket: bytes per key over a plain SET of a number with expiry",
            target: SuiteTarget::AtMost(1.15),
            measure: || with_server(cases::measure_bytes_per_key),
        },
        BenchCase {
            name: "outage-p99",
            about: "server killed under load, counted locally: p99 of all decisions over the deadline",
            target: SuiteTarget::AtMost(2.0),
            measure: cases::measure_outage,
        },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        // A child process of this program: one process of the fleet.
        [role, url, key] if role == "fleet-member" => exit_code(fleet::run_member(url, key)),
        _ => SUITE.main(),
    }
}
