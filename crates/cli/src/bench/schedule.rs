//! The due times of requests, exact to the microsecond.

use crate::simulate::{load::parse_rate, time};
use std::str::FromStr;
use tidegate_core::{Micros, Rate};

/// A rate for a duration: `10s@100/s`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LoadPhase {
    pub(crate) length: Micros,
    pub(crate) rate: Rate,
}

/// Consecutive phases.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Schedule {
    phases: Vec<LoadPhase>,
}

/// The maximum number of requests per second.
const MAX_RATE: u64 = 1_000_000;

impl LoadPhase {
    /// Creates a phase; an error if the rate is too high or the duration too short.
    pub(crate) fn new(length: Micros, rate: Rate) -> Result<Self, String> {
        let phase = Self { length, rate };
        let max = u128::from(MAX_RATE) * u128::from(rate.period().get());
        match u128::from(rate.amount()) * 1_000_000 > max {
            true => Err(format!("rate above the maximum of {MAX_RATE}/s")),
            false if phase.request_count() == 0 => Err(format!("{length} is too short for one request")),
            false => Ok(phase),
        }
    }

    /// The number of requests.
    fn request_count(&self) -> u64 {
        let all = u128::from(self.rate.amount()) * u128::from(self.length.get());
        u64::try_from(all.div_ceil(u128::from(self.rate.period().get()))).unwrap_or(u64::MAX)
    }

    /// The due time of a request. Only the result is rounded, so due times do not drift.
    fn due_at(&self, number: u64) -> Micros {
        let at =
            u128::from(number) * u128::from(self.rate.period().get()) / u128::from(self.rate.amount().max(1));
        Micros::new(u64::try_from(at).unwrap_or(u64::MAX))
    }
}

impl FromStr for LoadPhase {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (length, rate) =
            text.split_once('@').ok_or("a phase is a duration, `@` and a rate; write 10s@100/s")?;
        let length = time::parse_length(length.trim()).map_err(|error| error.to_string())?;
        let rate = parse_rate(rate.trim()).map_err(|error| error.to_string())?;
        Self::new(length, rate)
    }
}

impl Schedule {
    pub(crate) fn new(phases: Vec<LoadPhase>) -> Self {
        Self { phases }
    }

    /// The total duration.
    pub(crate) fn length(&self) -> Micros {
        self.phases.iter().fold(Micros::ZERO, |sum, phase| sum.saturating_add(phase.length))
    }

    /// The due times, relative to the start.
    pub(crate) fn due_times(&self) -> impl Iterator<Item = Micros> {
        let mut start = Micros::ZERO;
        let starts: Vec<Micros> = self
            .phases
            .iter()
            .map(|phase| {
                let this = start;
                start = start.saturating_add(phase.length);
                this
            })
            .collect();
        let phases = self.phases.iter().zip(starts);
        phases.flat_map(|(phase, start)| {
            (0..phase.request_count()).map(move |number| start.saturating_add(phase.due_at(number)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phase(text: &str) -> LoadPhase {
        text.parse().unwrap()
    }

    #[test]
    fn due_times_do_not_drift() {
        let schedule = Schedule::new(vec![phase("1s@3/s"), phase("500ms@4/s")]);
        let times: Vec<u64> = schedule.due_times().map(Micros::get).collect();
        assert_eq!(times, [0, 333_333, 666_666, 1_000_000, 1_250_000]);
        assert_eq!(schedule.length(), Micros::from_millis(1_500));
        // No drift after 700,000 intervals of a seventh of a second.
        let long = phase("142858s@7/s");
        assert_eq!(long.due_at(700_000), Micros::from_secs(100_000));
        assert_eq!(phase("2min@30/min").request_count(), 60);
    }

    #[test]
    fn invalid_phases_are_rejected() {
        for text in ["10s", "@5/s", "0s@5/s", "10s@many", "10s@2000000/s", "1s@3 at once"] {
            assert!(text.parse::<LoadPhase>().is_err(), "{text}");
        }
    }
}
