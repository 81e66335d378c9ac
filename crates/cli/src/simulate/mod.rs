//! `tidegate simulate`: which requests of a load quotas admit, in virtual time.
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

/// The result of a simulation.
#[derive(Debug)]
pub(crate) struct Simulation {
    /// The description of the load.
    pub(crate) title: String,
    /// The offered requests, ordered by time.
    pub(crate) arrivals: Vec<SimulatedRequest>,
    /// The result of each quota.
    pub(crate) runs: Vec<QuotaRun>,
    /// The length of the sliding window over which admitted cost is summed.
    pub(crate) window: Micros,
    /// The start of the chart.
    pub(crate) start: Micros,
    /// The end of the chart, exclusive.
    pub(crate) end: Micros,
}
