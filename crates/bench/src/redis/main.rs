//! The Redis store beside a naive client that sends one GCRA script per decision over the same driver. Run it with
//! `scripts/bench redis [CASE]`.

#![allow(clippy::disallowed_methods, reason = "a benchmark is about time")]
#![allow(clippy::panic, reason = "a wrong answer ends a benchmark")]

mod cases;
mod fleet;
mod naive;
mod rounds;

use cases::on_a_server;
use std::{env, process::ExitCode};
use tidegate_bench::suite::{Bar, Case, Others, Suite, ended};

const SUITE: Suite = Suite {
    name: "redis",
    peers: &["redis", "tokio"],
    others: Others::TakePart,
    cases: &[
        Case {
            name: "strict-256",
            about: "256 tasks, one quota, 10 k keys: decisions/s over naive",
            bar: Bar::AtLeast(2.5),
            measure: || on_a_server(cases::strict),
        },
        Case {
            name: "lone-latency",
            about: "1 task, one quota: median latency over naive",
            bar: Bar::AtMost(1.05),
            measure: || on_a_server(cases::lone),
        },
        Case {
            name: "three-quotas",
            about: "1 task, three quotas in one request: median latency over one quota",
            bar: Bar::AtMost(1.6),
            measure: || on_a_server(cases::three_quotas),
        },
        Case {
            name: "leased-256",
            about: "256 tasks, one hot key, tokens taken ahead: decisions/s over strict",
            bar: Bar::AtLeast(50.0),
            measure: || on_a_server(cases::leased),
        },
        Case {
            name: "leased-over",
            about: "4 processes at 10 times the quota, tokens taken ahead: admissions over the exact quota",
            bar: Bar::AtMost(1.0),
            measure: || on_a_server(fleet::admitted_over_quota),
        },
        Case {
            name: "leased-used",
            about: "the same: how much of the quota is used",
            bar: Bar::AtLeast(0.97),
            measure: || on_a_server(fleet::admitted_over_quota),
        },
        Case {
            name: "bytes-per-key",
            about: "token bucket: bytes per key over a plain SET of a number with expiry",
            bar: Bar::AtMost(1.15),
            measure: || on_a_server(cases::bytes_per_key),
        },
        Case {
            name: "outage-p99",
            about: "server killed under load, counted locally: p99 of all decisions over the deadline",
            bar: Bar::AtMost(2.0),
            measure: || on_a_server(cases::outage),
        },
    ],
};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    match &args[..] {
        // A process of a fleet that this program starts for itself.
        [role, url, key] if role == "fleet-member" => ended(fleet::member(url, key)),
        _ => SUITE.main(),
    }
}
