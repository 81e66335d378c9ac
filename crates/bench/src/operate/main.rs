//! What operators run: replays of logs, and the dashboard. Run it with `scripts/bench operate [CASE]`. A case is one function and one line here.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]

mod dashboard;
mod replay;
mod replay_memory;
mod traffic;

use std::{env, process::ExitCode};
use tidegate_bench::{
    proxy,
    suite::{
        Bar::{AtLeast, AtMost},
        Case, Others, Suite, ended,
    },
};

#[rustfmt::skip]
const SUITE: Suite = Suite {
    name: "operate",
    peers: &["memchr"],
    others: Others::TakePart,
    cases: &[
        Case { name: "replay", about: replay::ABOUT, bar: AtLeast(0.5), measure: replay::measure },
        Case { name: "replay-memory", about: replay_memory::ABOUT, bar: AtMost(1.5), measure: replay_memory::measure },
        Case { name: "dashboard", about: dashboard::ABOUT, bar: AtLeast(0.98), measure: dashboard::measure },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // Processes that this program starts for itself.
        ["peak", megabytes] => ended(replay_memory::peak(megabytes)),
        ["serve", policy] => ended(proxy::serve(policy)),
        _ => SUITE.main(),
    }
}
