//! The tools of operators: replays of logs, and the dashboard. Run it with `scripts/bench operate [CASE]`. A case is one
//! function and one line here.

#![allow(clippy::disallowed_methods, reason = "benchmarks read the clock")]

mod dashboard;
mod replay;
mod replay_memory;
mod traffic;

use std::{env, process::ExitCode};
use tidegate_bench::{
    proxy,
    suite::{
        BenchCase, OtherProcesses, Suite,
        SuiteTarget::{AtLeast, AtMost},
        exit_code,
    },
};

#[rustfmt::skip]
const SUITE: Suite = Suite {
    name: "operate",
    peers: &["memchr"],
    other_processes: OtherProcesses::Participate,
    cases: &[
        BenchCase { name: "replay", about: replay::ABOUT, target: AtLeast(0.5), measure: replay::measure },
        BenchCase { name: "replay-memory", about: replay_memory::ABOUT, target: AtMost(1.5), measure: replay_memory::measure },
        BenchCase { name: "dashboard", about: dashboard::ABOUT, target: AtLeast(0.98), measure: dashboard::measure },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // Child processes of this program.
        ["peak", megabytes] => exit_code(replay_memory::print_peak_memory(megabytes)),
        ["serve", policy] => exit_code(proxy::serve(policy)),
        _ => SUITE.main(),
    }
}
