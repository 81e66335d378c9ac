//! `tidegate simulate`: what quotas let through of a load, in virtual time.
//!
//! ```text
//!   load or trace ──▶ arrivals ──run──▶ one run per quota ──▶ chart, svg, json
//! ```

pub(crate) mod axis;
pub(crate) mod canvas;
pub(crate) mod chart;
pub(crate) mod json;
pub(crate) mod load;
pub(crate) mod rate;
pub(crate) mod run;
pub(crate) mod svg;
pub(crate) mod time;
pub(crate) mod trace;
pub(crate) mod window;

use run::QuotaRun;
use tidegate_core::Micros;
use tidegate_simulation::SimulatedRequest;

/// Everything that there is to show.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// What was offered, in words.
    pub(crate) title: String,
    /// What was offered, in order of time.
    pub(crate) arrivals: Vec<SimulatedRequest>,
    /// What became of it, for each quota.
    pub(crate) runs: Vec<QuotaRun>,
    /// The length of time over which admissions are added up.
    pub(crate) window: Micros,
    /// The first moment to show.
    pub(crate) start: Micros,
    /// The moment after the last one to show.
    pub(crate) end: Micros,
}
