//! The time axis that all charts share: columns and ticks of round lengths.

use super::{
    run::{AdmissionKind, AdmittedRequest},
    time::{DAY, HOUR, MINUTE, SECOND, axis_label},
};
use tidegate_core::Micros;
use tidegate_simulation::SimulatedRequest;

/// A stretch of time, cut into columns of one round length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Axis {
    start: Micros,
    bins: u64,
    bin: Micros,
}

/// A mark on the axis.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Tick {
    /// Where.
    pub(crate) at: Micros,
    /// What it says.
    pub(crate) label: String,
}

/// What falls into each column.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    /// What went at once.
    pub(crate) allowed: Vec<u64>,
    /// What went after a wait.
    pub(crate) delayed: Vec<u64>,
}

/// What a length is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StepKind {
    /// Columns: any length without a remainder.
    Column,
    /// Ticks: those that people count in.
    Tick,
}

impl Axis {
    /// From `start` to `end`, in at most `most` columns and one.
    pub(crate) fn new(start: Micros, end: Micros, max: usize) -> Self {
        let bin = round_up(end.since(start).get().div_ceil(max.max(1) as u64), StepKind::Column);
        let first = start.get() / bin;
        let bins = end.get().div_ceil(bin).saturating_sub(first).max(1);
        Self { start: Micros::new(first * bin), bins, bin: Micros::new(bin) }
    }

    /// From zero, in so many columns of one length.
    pub(crate) fn with_bins(bins: usize, bin: Micros) -> Self {
        Self { start: Micros::ZERO, bins: bins as u64, bin }
    }

    /// How many columns.
    pub(crate) fn bins(&self) -> usize {
        self.bins as usize
    }

    /// How long a column is.
    pub(crate) fn bin(&self) -> Micros {
        self.bin
    }

    /// Where it starts.
    pub(crate) fn start(&self) -> Micros {
        self.start
    }

    /// Where it ends.
    pub(crate) fn end(&self) -> Micros {
        self.edge(self.bins())
    }

    /// The left edge of a column.
    pub(crate) fn edge(&self, index: usize) -> Micros {
        self.start.plus(Micros::new(self.bin.get().saturating_mul(index as u64)))
    }

    /// The column of a moment; `None` when it is not on the axis.
    pub(crate) fn column(&self, at: Micros) -> Option<usize> {
        let index = at.since(self.start).get() / self.bin.get();
        (at >= self.start && index < self.bins).then_some(index as usize)
    }

    /// How far along the axis a moment is: 0 at its start, 1 at its end and after.
    pub(crate) fn fraction(&self, at: Micros) -> f64 {
        let length = self.end().since(self.start).get() as f64;
        (at.since(self.start).get() as f64 / length).min(1.0)
    }

    /// Marks at round moments, about `most` of them. They count from the start when that is far from zero.
    pub(crate) fn ticks(&self, max: usize) -> Vec<Tick> {
        let length = self.end().since(self.start);
        let step = round_up(length.get().div_ceil(max.max(1) as u64), StepKind::Tick);
        let origin = self.origin();
        let first = self.start.since(origin).get().div_ceil(step) * step;
        let last = self.end().since(origin).get();
        let moments = (first..=last).step_by(usize::try_from(step).unwrap_or(usize::MAX));
        let longest = Micros::new(last);
        let tick =
            |at| Tick { at: origin.plus(Micros::new(at)), label: axis_label(Micros::new(at), longest) };
        moments.map(tick).collect()
    }

    /// The moment that labels count from: zero, unless the axis is a far away stretch such as a log of last week.
    pub(crate) fn origin(&self) -> Micros {
        if self.start > self.end().since(self.start) { self.start } else { Micros::ZERO }
    }

    /// What is offered in each column.
    pub(crate) fn offered_columns(&self, arrivals: &[SimulatedRequest]) -> Vec<u64> {
        let mut bins = vec![0; self.bins()];
        for arrival in arrivals {
            if let Some(column) = self.column(arrival.at) {
                bins[column] = u64::saturating_add(bins[column], arrival.cost);
            }
        }
        bins
    }

    /// What goes in each column.
    pub(crate) fn admitted_columns(&self, admitted: &[AdmittedRequest]) -> Columns {
        let mut columns = Columns { allowed: vec![0; self.bins()], delayed: vec![0; self.bins()] };
        for passage in admitted {
            if let Some(column) = self.column(passage.at) {
                let bins = match passage.kind {
                    AdmissionKind::Immediate => &mut columns.allowed,
                    AdmissionKind::Delayed => &mut columns.delayed,
                };
                bins[column] = bins[column].saturating_add(passage.cost);
            }
        }
        columns
    }
}

impl Columns {
    /// Everything that went in a column.
    pub(crate) fn total(&self, column: usize) -> u64 {
        self.allowed[column].saturating_add(self.delayed[column])
    }

    /// The most that went in any column.
    pub(crate) fn max(&self) -> u64 {
        (0..self.allowed.len()).map(|column| self.total(column)).max().unwrap_or(0)
    }
}

/// The next round length.
fn round_up(micros: u64, kind: StepKind) -> u64 {
    let (tens, sixties, hours): (&[u64], &[u64], &[u64]) = match kind {
        StepKind::Column => {
            (&[1, 2, 3, 4, 5, 6, 8], &[1, 2, 3, 4, 5, 6, 10, 12, 15, 20, 30], &[1, 2, 3, 4, 6, 8, 12])
        }
        StepKind::Tick => (&[1, 2, 5], &[1, 2, 5, 10, 15, 20, 30], &[1, 2, 3, 6, 12]),
    };
    let times = |unit: u64, steps: &[u64]| steps.iter().map(|step| unit * step).collect::<Vec<_>>();
    let powers = |unit: u64| (0..6).flat_map(move |power| times(unit * 10_u64.pow(power), tens));
    // Fractions of a second and days in tens, what lies between in the parts of a clock.
    let lengths =
        powers(1).chain(times(SECOND, sixties)).chain(times(MINUTE, sixties)).chain(times(HOUR, hours));
    lengths.chain(powers(DAY)).find(|length| *length >= micros).unwrap_or(micros)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axis_columns_are_round_and_cover_the_range() {
        let axis = Axis::new(Micros::ZERO, Micros::from_secs(120), 76);
        assert_eq!((axis.bin(), axis.bins()), (Micros::from_secs(2), 60));
        assert_eq!(axis.column(Micros::from_secs(119)), Some(59));
        assert_eq!(axis.column(Micros::from_secs(120)), None);
        for end in [1, 7, 999, 1_000_001, 123_456_789, u64::MAX] {
            let end = Micros::new(end);
            let axis = Axis::new(Micros::ZERO, end, 60);
            assert!(axis.bins() <= 61 && axis.end() >= end, "{axis:?}");
        }
    }

    #[test]
    fn ticks_are_relative_to_a_distant_start() {
        let labels =
            |axis: Axis| axis.ticks(6).into_iter().map(|tick| tick.label).collect::<Vec<_>>().join(" ");
        let far = Micros::from_secs(1_700_000_000);
        let minute = Micros::from_secs(60);
        assert_eq!(labels(Axis::new(Micros::ZERO, minute, 60)), "0:00 0:10 0:20 0:30 0:40 0:50 1:00");
        assert_eq!(labels(Axis::new(far, far.plus(Micros::from_secs(6)), 60)), "0s 1s 2s 3s 4s 5s 6s");
    }
}
