//! The figures of a story, and how they read.

use tidegate_core::Micros;
use tidegate_simulation::{Scenario, SimulationResult};

/// What one story comes to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Run {
    /// Where its random numbers started.
    pub(crate) seed: u64,
    /// Requests answered in time during the change, as a share of the backend's capacity.
    pub(crate) goodput: f64,
    /// Requests answered in time after the change, as a share of those that came then.
    pub(crate) recovered: f64,
    /// The mean latency of those that were answered during the change, if any were.
    pub(crate) latency: Option<Micros>,
    /// How long after the change began things were settled, if ever.
    pub(crate) settled: Option<Micros>,
}

/// One of the figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    During,
    After,
    Took,
    Settled,
}

impl Run {
    /// The figures of a story.
    pub(crate) fn of(story: &SimulationResult) -> Self {
        let Scenario { seed, change_start: begins, change_end: ends, .. } = story.scenario;
        let latency = Some(story.latency(begins, ends)).filter(|latency| *latency > Micros::ZERO);
        let (goodput, recovered) = (story.goodput_during_change(), story.recovery_rate());
        Self { seed, goodput, recovered, latency, settled: story.settling_time() }
    }
}

impl Figure {
    /// All of them, in the order in which they are shown.
    pub(crate) const ALL: [Self; 4] = [Self::During, Self::After, Self::Took, Self::Settled];

    /// A word for the head of a column.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::During => "during",
            Self::After => "after",
            Self::Took => "took",
            Self::Settled => "settled",
        }
    }

    /// A few words for the head of a table.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::During => "goodput during the change, % of capacity",
            Self::After => "answered after the change, % of requests",
            Self::Took => "mean latency of the answered during the change, ms",
            Self::Settled => "settled after the surge began, ms",
        }
    }

    /// What it means.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Self::During => {
                "requests that were answered in time while the change lasted, of what the backend can serve at best"
            }
            Self::After => {
                "requests that were answered in time after the change, of those that came then; above 100% where \
                 some had come before"
            }
            Self::Took => "mean latency of the requests that were answered during the change",
            Self::Settled => {
                "from how long after the surge began goodput stays above four fifths, and latency below one and a \
                 half times, of what they are in the surge's second half, seen in stretches of a 250th of the scene"
            }
        }
    }

    /// Whether a scene has it: only a surge settles.
    pub(crate) fn belongs_to(self, scene: &Scenario) -> bool {
        self != Self::Settled || scene.demand != scene.changed_demand
    }

    /// The figure of a run without its unit.
    pub(crate) fn number(self, run: &Run) -> String {
        match self {
            Self::During => short(100.0 * run.goodput),
            Self::After => short(100.0 * run.recovered),
            Self::Took => run.latency.map_or("-".into(), millis),
            Self::Settled => run.settled.map_or("never".into(), millis),
        }
    }

    /// The figure of a run with its unit.
    pub(crate) fn text(self, run: &Run) -> String {
        let number = self.number(run);
        match self {
            _ if !number.ends_with(|last: char| last.is_ascii_digit()) => number,
            Self::During | Self::After => format!("{number}%"),
            Self::Settled if run.settled == Some(Micros::ZERO) => "at once".into(),
            Self::Took | Self::Settled => format!("{number}ms"),
        }
    }

    /// The runs from the best to the worst.
    pub(crate) fn ranked(self, runs: &[Run]) -> Vec<Run> {
        let badness = |run: &Run| match self {
            Self::During => -run.goodput,
            Self::After => -run.recovered,
            Self::Took => run.latency.map_or(f64::INFINITY, |latency| latency.get() as f64),
            Self::Settled => run.settled.map_or(f64::INFINITY, |settled| settled.get() as f64),
        };
        let mut runs = runs.to_vec();
        runs.sort_by(|a, b| badness(a).total_cmp(&badness(b)));
        runs
    }
}

fn millis(length: Micros) -> String {
    short(length.get() as f64 / 1e3)
}

/// One digit after the point where there is only one before it.
fn short(number: f64) -> String {
    match number {
        number if number < 0.05 => "0".into(),
        number if number < 9.95 => format!("{number:.1}"),
        number => format!("{number:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(goodput: f64, settled: Option<u64>) -> Run {
        Run { seed: 7, goodput, recovered: 1.0, latency: None, settled: settled.map(Micros::from_millis) }
    }

    #[test]
    fn figures_read_in_a_few_letters() {
        for (run, during, settled) in [
            (run(0.0, Some(0)), "0%", "at once"),
            (run(0.0234, Some(7)), "2.3%", "7.0ms"),
            (run(0.0996, Some(134)), "10%", "134ms"),
            (run(1.2, None), "120%", "never"),
        ] {
            assert_eq!(Figure::During.text(&run), during);
            assert_eq!(Figure::Settled.text(&run), settled);
            assert_eq!((Figure::After.text(&run).as_str(), Figure::Took.text(&run).as_str()), ("100%", "-"));
        }
    }

    #[test]
    fn the_worst_is_last_whether_much_or_little_is_bad() {
        let runs = [run(0.5, Some(20)), run(0.9, None), run(0.1, Some(10))];
        let goodputs: Vec<_> = Figure::During.ranked(&runs).iter().map(|run| run.goodput).collect();
        assert_eq!(goodputs, [0.9, 0.5, 0.1]);
        let goodputs: Vec<_> = Figure::Settled.ranked(&runs).iter().map(|run| run.goodput).collect();
        assert_eq!(goodputs, [0.1, 0.5, 0.9]);
    }
}
