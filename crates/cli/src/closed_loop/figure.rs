//! The figures of a run and their format.

use tidegate_core::Micros;
use tidegate_simulation::{Scenario, SimulationResult};

/// The figures of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RunFigures {
    /// The seed of the random numbers.
    pub(crate) seed: u64,
    /// Requests answered in time during the change, as a share of the backend's capacity.
    pub(crate) goodput: f64,
    /// Requests answered in time after the change, as a share of the requests in that time.
    pub(crate) recovered: f64,
    /// The mean latency of successful requests during the change, if there are any.
    pub(crate) latency: Option<Micros>,
    /// The time from the start of the change until the run settled, if it did.
    pub(crate) settled: Option<Micros>,
}

/// One of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    Goodput,
    Recovered,
    Latency,
    Settled,
}

impl RunFigures {
    /// Computes the figures of a run.
    pub(crate) fn from_run(run: &SimulationResult) -> Self {
        let Scenario { seed, change_start: begins, change_end: ends, .. } = run.scenario;
        let latency = Some(run.latency(begins, ends)).filter(|latency| *latency > Micros::ZERO);
        let (goodput, recovered) = (run.goodput_during_change(), run.recovery_rate());
        Self { seed, goodput, recovered, latency, settled: run.settling_time() }
    }
}

impl Figure {
    /// All figures, in display order.
    pub(crate) const ALL: [Self; 4] = [Self::Goodput, Self::Recovered, Self::Latency, Self::Settled];

    /// The heading of a column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Goodput => "goodput",
            Self::Recovered => "recovered",
            Self::Latency => "latency",
            Self::Settled => "settled",
        }
    }

    /// The heading of a table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Goodput => "goodput during the change, % of capacity",
            Self::Recovered => "answered after the change, % of requests",
            Self::Latency => "mean latency of answered requests during the change, ms",
            Self::Settled => "settled after the surge began, ms",
        }
    }

    /// An explanation of the figure.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::Goodput => {
                "requests answered in time during the change, as a share of the backend's capacity"
            }
            Self::Recovered => {
                "requests answered in time after the change, as a share of the requests sent then; above 100% if \
                 some were sent before"
            }
            Self::Latency => "mean latency of the requests answered during the change",
            Self::Settled => {
                "time from the start of the surge until goodput stays above 80%, and latency below 150%, of their \
                 values in the second half of the surge, in windows of a 250th of the scenario"
            }
        }
    }

    /// Whether it applies to a scenario: only a surge settles.
    pub(crate) fn applies_to(self, scenario: &Scenario) -> bool {
        self != Self::Settled || scenario.demand != scenario.changed_demand
    }

    /// The figure of a run without its unit.
    pub(crate) fn number(self, run: &RunFigures) -> String {
        match self {
            Self::Goodput => format_short(100.0 * run.goodput),
            Self::Recovered => format_short(100.0 * run.recovered),
            Self::Latency => run.latency.map_or("-".into(), format_millis),
            Self::Settled => run.settled.map_or("never".into(), format_millis),
        }
    }

    /// The figure of a run with its unit.
    pub(crate) fn text(self, run: &RunFigures) -> String {
        let number = self.number(run);
        match self {
            _ if !number.ends_with(|last: char| last.is_ascii_digit()) => number,
            Self::Goodput | Self::Recovered => format!("{number}%"),
            Self::Settled if run.settled == Some(Micros::ZERO) => "at once".into(),
            Self::Latency | Self::Settled => format!("{number}ms"),
        }
    }

    /// The runs from the best to the worst.
    pub(crate) fn rank(self, runs: &[RunFigures]) -> Vec<RunFigures> {
        let cost = |run: &RunFigures| match self {
            Self::Goodput => -run.goodput,
            Self::Recovered => -run.recovered,
            Self::Latency => run.latency.map_or(f64::INFINITY, |latency| latency.get() as f64),
            Self::Settled => run.settled.map_or(f64::INFINITY, |settled| settled.get() as f64),
        };
        let mut runs = runs.to_vec();
        runs.sort_by(|a, b| cost(a).total_cmp(&cost(b)));
        runs
    }
}

fn format_millis(length: Micros) -> String {
    format_short(length.get() as f64 / 1e3)
}

/// Formats a number with one decimal if it is below 10.
fn format_short(number: f64) -> String {
    match number {
        number if number < 0.05 => "0".into(),
        number if number < 9.95 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(goodput: f64, settled: Option<u64>) -> RunFigures {
        RunFigures {
            seed: 7,
            goodput,
            recovered: 1.0,
            latency: None,
            settled: settled.map(Micros::from_millis),
        }
    }

    #[test]
    fn figures_are_formatted_briefly() {
        for (run, during, settled) in [
            (run(0.0, Some(0)), "0%", "at once"),
            (run(0.0234, Some(7)), "2.3%", "7.0ms"),
            (run(0.0996, Some(134)), "10%", "134ms"),
            (run(1.2, None), "120%", "never"),
        ] {
            assert_eq!(Figure::Goodput.text(&run), during);
            assert_eq!(Figure::Settled.text(&run), settled);
            assert_eq!(
                (Figure::Recovered.text(&run).as_str(), Figure::Latency.text(&run).as_str()),
                ("100%", "-")
            );
        }
    }

    #[test]
    fn rank_puts_the_worst_run_last() {
        let runs = [run(0.5, Some(20)), run(0.9, None), run(0.1, Some(10))];
        let goodputs: Vec<_> = Figure::Goodput.rank(&runs).iter().map(|run| run.goodput).collect();
        assert_eq!(goodputs, [0.9, 0.5, 0.1]);
        let goodputs: Vec<_> = Figure::Settled.rank(&runs).iter().map(|run| run.goodput).collect();
        assert_eq!(goodputs, [0.1, 0.5, 0.9]);
    }
}
