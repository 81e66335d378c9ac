//! The gateway beside nginx: one core for the proxy, load and backend on the other. Run it with
//! `scripts/bench gateway [CASE]`. A case is one file and one line here.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]

mod idle_memory;
mod p99;
mod paced;
mod throughput;

use std::{env, process::ExitCode};
use tidegate_bench::{
    Result, proxy,
    suite::{
        Bar::{AtLeast, AtMost},
        Case, Measured, Others, Suite, ended,
    },
    turns::median,
};

#[rustfmt::skip]
const SUITE: Suite = Suite {
    name: "gateway",
    peers: &["hyper", "tokio"],
    others: Others::TakePart,
    cases: &[
        Case { name: "plain", about: throughput::PLAIN, bar: AtLeast(0.95), measure: throughput::plain },
        Case { name: "limit-allowed", about: throughput::ALLOWED, bar: AtLeast(1.0), measure: throughput::limit_allowed },
        Case { name: "limit-rejected", about: throughput::REJECTED, bar: AtLeast(0.95), measure: throughput::limit_rejected },
        Case { name: "rules-1000", about: throughput::RULES, bar: AtLeast(0.95), measure: throughput::rules_1000 },
        Case { name: "redis-three", about: throughput::REDIS, bar: AtLeast(0.5), measure: throughput::redis_three },
        Case { name: "idle-memory", about: idle_memory::ABOUT, bar: AtMost(2.0), measure: idle_memory::measure },
        Case { name: "p99", about: p99::ABOUT, bar: AtMost(1.3), measure: p99::measure },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // Processes that this program starts for itself.
        ["serve", policy] => ended(proxy::serve(policy)),
        ["paced", address, rate] => ended(paced::send(address, rate)),
        ["crowd", address, count] => ended(idle_memory::crowd(address, count)),
        _ => SUITE.main(),
    }
}
