//! Permits, breakers, lists and bandwidth compared with their peers, and the default controller compared with none. Run
//! it with `scripts/bench overload [CASE]`.

#![allow(clippy::disallowed_methods, reason = "benchmarks read the clock")]
#![allow(clippy::panic, reason = "an unexpected result ends a benchmark")]

mod bandwidth;
mod breaker;
mod lists;
mod permit;
mod surge;

use std::process::ExitCode;
use tidegate_bench::suite::{BenchCase, OtherProcesses, Suite, SuiteTarget};

const SUITE: Suite = Suite {
    name: "overload",
    peers: &["tokio", "tower-resilience-circuitbreaker", "recloser"],
    other_processes: OtherProcesses::Disturb,
    cases: &[
        BenchCase {
            name: "permit",
            about: "a permit of one key acquired and released, 1 thread, over tokio's Semaphore::try_acquire_owned",
            target: SuiteTarget::AtMost(1.2),
            measure: permit::measure_keyed,
        },
        BenchCase {
            name: "breaker-tower-resilience",
            about: "a closed breaker, one call recorded, over tower-resilience's",
            target: SuiteTarget::AtMost(0.25),
            measure: breaker::compare_with_tower_resilience,
        },
        BenchCase {
            name: "breaker-recloser",
            about: "the same over recloser's",
            target: SuiteTarget::AtMost(1.0),
            measure: breaker::compare_with_recloser,
        },
        BenchCase {
            name: "deny-1m",
            about: "lookup in a deny list of one million CIDRs over one in a std HashMap of one million addresses",
            target: SuiteTarget::AtMost(2.0),
            measure: lists::measure_deny,
        },
        BenchCase {
            name: "bandwidth-cpu",
            about: "processor time of a copy at 1 GB/s through the limit over that of a bare copy paced by sleeps",
            target: SuiteTarget::AtMost(1.03),
            measure: bandwidth::measure_cpu,
        },
        BenchCase {
            name: "surge-goodput",
            about: "goodput without control over goodput with the default controller, 10 × surge in the simulation",
            target: SuiteTarget::AtMost(0.5),
            measure: surge::measure_goodput,
        },
    ],
};

fn main() -> ExitCode {
    SUITE.main()
}
