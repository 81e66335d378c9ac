//! The cases and their bars.

use crate::{Result, bandwidth, breaker, lists, machine::Load, permit, surge};

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    about: &'static str,
    at_most: f64,
    measure: fn() -> Result<Measured>,
}

/// A value to hold against the bar, and the figures behind it.
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) figures: String,
}

pub(crate) const ALL: &[Case] = &[
    Case {
        name: "permit",
        about: "a permit of one key taken and given back, 1 thread, over tokio's Semaphore::try_acquire",
        at_most: 1.2,
        measure: permit::keyed,
    },
    Case {
        name: "breaker-tower-resilience",
        about: "a closed breaker, one call recorded, over tower-resilience's",
        at_most: 0.25,
        measure: breaker::beside_tower_resilience,
    },
    Case {
        name: "breaker-recloser",
        about: "the same over recloser's",
        at_most: 1.0,
        measure: breaker::beside_recloser,
    },
    Case {
        name: "deny-1m",
        about: "lookup in a deny list of one million CIDRs over one in a std HashMap of one million addresses",
        at_most: 2.0,
        measure: lists::deny,
    },
    Case {
        name: "bandwidth-cpu",
        about: "processor time of a copy at 1 GB/s through the limit over that of a bare copy paced by sleeps",
        at_most: 1.03,
        measure: bandwidth::cpu,
    },
    Case {
        name: "surge-goodput",
        about: "goodput without control over goodput with the default controller, 10 × surge in the simulation",
        at_most: 0.5,
        measure: surge::goodput,
    },
];

pub(crate) fn names() -> String {
    ALL.iter().map(|case| case.name).collect::<Vec<_>>().join(", ")
}

/// Runs all cases; the rows of a table.
pub(crate) fn run_all() -> Result<Vec<String>> {
    ALL.iter().map(Case::run).collect()
}

impl Case {
    /// Runs the case; a row of a table.
    pub(crate) fn run(&self) -> Result<String> {
        let Self { name, about, at_most, measure } = self;
        println!("{name}: {about}");
        let before = Load::now()?;
        let Measured { value, figures } = measure()?;
        if let Some(disturbance) = Load::now()?.disturbance_since(before) {
            println!("  {disturbance}");
        }
        let judgement = if value <= *at_most { "met" } else { "above target" };
        println!("  {figures}\n  at most {at_most}: {judgement}\nratio {name} {value:.3}\n");
        Ok(format!("| {name} | {about} | {figures} | {value:.3} | {at_most} | {judgement} |"))
    }
}
