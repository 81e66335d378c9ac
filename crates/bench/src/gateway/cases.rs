//! The cases and their bars. A case is one file and one line here.

use crate::{Result, idle_memory, machine::Load, plain};
use std::fmt;

/// One case.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    about: &'static str,
    bar: Bar,
    measure: fn() -> Result<Measured>,
}

/// What a value is held against.
#[derive(Clone, Copy)]
pub(crate) enum Bar {
    AtMost(f64),
    AtLeast(f64),
}

/// A value to hold against the bar, and the figures behind it.
pub(crate) struct Measured {
    pub(crate) value: f64,
    pub(crate) figures: String,
}

use Bar::{AtLeast, AtMost};

#[rustfmt::skip]
pub(crate) const ALL: &[Case] = &[
    Case { name: "plain", about: plain::ABOUT, bar: AtLeast(0.95), measure: plain::measure },
    Case { name: "idle-memory", about: idle_memory::ABOUT, bar: AtMost(2.0), measure: idle_memory::measure },
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
        let Self { name, about, bar, measure } = self;
        println!("{name}: {about}");
        let before = Load::now()?;
        let Measured { value, figures } = measure()?;
        if let Some(disturbance) = Load::now()?.disturbance_since(before) {
            println!("  {disturbance}");
        }
        let judgement = bar.judge(value);
        println!("  {figures}\n  {bar}: {judgement}\nratio {name} {value:.3}\n");
        Ok(format!("| {name} | {about} | {figures} | {value:.3} | {bar} | {judgement} |"))
    }
}

impl Bar {
    fn judge(self, value: f64) -> &'static str {
        match self {
            Self::AtMost(most) if value <= most => "met",
            Self::AtMost(_) => "above target",
            Self::AtLeast(least) if value >= least => "met",
            Self::AtLeast(_) => "below target",
        }
    }
}

impl fmt::Display for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(most) => write!(f, "at most {most}"),
            Self::AtLeast(least) => write!(f, "at least {least}"),
        }
    }
}
